//! What has to hold of everything that is read from a vault, and inputs to begin with.
//!
//! The same checks run on the stable compiler, on these inputs changed at random: `cargo test -p stepvault-local --test
//! hostile`.

pub mod files;
pub mod seals;

/// Inputs to begin with, by target.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 2] {
    [("files", files::seeds()), ("seals", seals::seeds())]
}
