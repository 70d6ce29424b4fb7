//! Names that say that they hold the newest state.

use crate::profile::last_component;

/// Words in the names of files that hold the newest state, or the best one, the most likely to be resumed from first.
const WORDS: [&str; 11] = [
    "last",
    "latest",
    "current",
    "resume",
    "checkpoint",
    "ckpt",
    "recent",
    "final",
    "snapshot",
    "backup",
    "best",
];
/// Whether a name says that a path holds the newest state, or the best one.
pub fn says_newest(path: &str) -> bool {
    precedence(path) < WORDS.len()
}

/// Returns the position of a name's first word in [`WORDS`].
pub(super) fn precedence(path: &str) -> usize {
    let lower = last_component(path).to_ascii_lowercase();
    let mut words = WORDS.iter();
    let position = words.position(|word| lower.contains(word));
    position.unwrap_or(WORDS.len())
}
