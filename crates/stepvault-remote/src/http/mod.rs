//! What requests over HTTP share, whichever client sends them.

pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod endpoint;
pub(crate) mod refusal;
pub(crate) mod tls;
pub(crate) mod verdicts;

use std::time::Duration;

/// Maximum time to connect: a connection that takes longer is unlikely to open at all.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns at most `limit` characters of a text from outside, in one line and without control characters.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|c| !c.is_control())
        .take(limit)
        .collect()
}
