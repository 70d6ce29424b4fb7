//! What the servers are made of.

use std::path::Path;

use stepvault_testkit::tree::files_below;

/// A server that shares code with the client that it checks would share the client's mistakes.
#[test]
fn the_servers_use_no_other_crate_of_stepvault() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let knows_them = ["conformance", "recorder.rs", "stores.rs"].map(|name| source.join(name));
    let files = files_below(&source);
    let (others, own): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(|file| {
            std::fs::read_to_string(file).unwrap().replace("stepvault_testkit", "").contains("stepvault_")
        })
        .partition(|file| !knows_them.iter().any(|known| file.starts_with(known)));
    assert_eq!(others, Vec::<&std::path::PathBuf>::new());
    assert!(own.len() > 3, "{own:?}");
}
