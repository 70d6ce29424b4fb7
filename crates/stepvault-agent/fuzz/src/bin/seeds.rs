//! Writes the inputs to begin with: `seeds DIRECTORY` makes `DIRECTORY/TARGET/NUMBER`.

fn main() -> std::io::Result<()> {
    let directory = std::path::PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    for (target, seeds) in stepvault_agent_fuzz::seeds() {
        let place = directory.join(target);
        std::fs::create_dir_all(&place)?;
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(place.join(number.to_string()), seed)?;
        }
    }
    Ok(())
}
