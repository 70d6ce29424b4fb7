//! Tells files that can carry the state of a training from those that never do.

/// Extensions of files that are no checkpoint: logs, text, configuration, pictures.
const NO_STATE: [&str; 34] = [
    "md", "txt", "rst", "log", "out", "err", "csv", "tsv", "json", "jsonl", "yaml", "yml", "toml", "ini",
    "cfg", "html", "htm", "xml", "css", "js", "py", "sh", "ipynb", "png", "jpg", "jpeg", "gif", "svg", "pdf",
    "mp4", "wav", "lock", "model", "jinja",
];

/// Returns whether a file with this path can carry state, by its name.
pub fn may_carry_state(path: &str) -> bool {
    let is_hidden =
        |name: &str| name.starts_with("._") || name == ".ipynb_checkpoints" || name == ".DS_Store";
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_noise = path.split('/').any(is_hidden) || name.starts_with(".nfs") || name.contains("tfevents");
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    let has_no_state =
        extension.is_some_and(|extension| NO_STATE.iter().any(|other| other.eq_ignore_ascii_case(extension)));
    !is_noise
        && !has_no_state
        && !name.eq_ignore_ascii_case("license")
        && !name.eq_ignore_ascii_case("readme")
}
