//! What has to hold of everything that a store answers, and answers to begin with.
//!
//! The same checks run on the stable compiler, on these answers changed at random: `cargo test -p stepvault-remote
//! --test hostile`.

pub mod answers;
pub mod server;

/// Inputs to begin with, by target.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 1] {
    [("answers", answers::seeds())]
}
