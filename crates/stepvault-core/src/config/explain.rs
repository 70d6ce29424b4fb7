//! What is in force and where it came from.

use serde::Serialize;

use super::finding::Source;

/// One value in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The key, dotted.
    pub key: String,
    /// The value as TOML, with secrets masked.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}
