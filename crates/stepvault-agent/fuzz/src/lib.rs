//! What has to hold of everything that is asked and answered on the control socket, and messages to begin with.
//!
//! The same checks run on the stable compiler, on these messages changed at random: `cargo test -p stepvault-agent
//! --test hostile`.

pub mod answers;
pub mod messages;

/// Inputs to begin with, by target.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 2] {
    [("answers", answers::seeds()), ("messages", messages::seeds())]
}
