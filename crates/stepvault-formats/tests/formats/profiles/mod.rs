//! Profiles: which framework wrote a directory, which steps there are, and which are complete.

mod configured;
mod detection;
mod fixtures;
mod handoff;
mod hostile;
mod layouts;
mod parts;
mod ranks;
mod restore;

/// Tests are built with the features of every package of the workspace, and the program alone is not: a pattern that
/// needs one of them would be lost there with its profile.
#[test]
fn the_program_built_alone_has_the_features_that_patterns_need() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package", "stepvault", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p} {f}"])
        .output()
        .expect("cargo");
    let tree = String::from_utf8_lossy(&tree.stdout);
    let regex =
        tree.lines().find(|line| line.starts_with("regex-syntax v")).expect("the regular expressions");
    // `(?i)`, and `\d`.
    for feature in ["unicode-case", "unicode-perl"] {
        assert!(regex.contains(feature), "{regex}");
    }
}
