//! The files of a step, by kind.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::amount::{plus, times};
use super::super::ranks::Ranks;
use stepvault_core::error::Result;

/// Files of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Part {
    /// The kind of the files.
    #[serde(rename = "part")]
    pub what: &'static str,
    /// Their number on all nodes.
    pub files: u64,
    /// Their bytes on all nodes.
    pub bytes: u64,
    /// Whether each node writes a share; otherwise the first node writes all of them.
    pub on_all_nodes: bool,
}

/// Returns the files of the first node, written by every node.
pub(super) fn replicated(part: Part, ranks: Ranks) -> Result<Part> {
    if part.on_all_nodes {
        return Ok(part);
    }
    Ok(Part {
        files: times(part.files, ranks.nodes())?,
        bytes: times(part.bytes, ranks.nodes())?,
        on_all_nodes: true,
        ..part
    })
}

/// Returns files that exist on the first node only.
pub(super) fn on_first(what: &'static str, files: u64, bytes: u64) -> Part {
    Part { what, files, bytes, on_all_nodes: false }
}

/// Returns a file that every rank writes.
pub(super) fn of_every_rank(what: &'static str, ranks: Ranks, bytes_each: u64) -> Result<Part> {
    Ok(Part { what, files: ranks.count(), bytes: times(ranks.count(), bytes_each)?, on_all_nodes: true })
}

/// Returns the share of one of `ranks`.
pub(super) fn share(bytes: u64, ranks: Ranks) -> u64 {
    bytes.div_ceil(ranks.count())
}

/// Returns the mean of this many tensors, rounded up.
pub(super) fn mean(bytes: u64, count: u64) -> u64 {
    if count == 0 { 0 } else { bytes.div_ceil(count) }
}

/// Returns the sum of a fixed amount and an amount for each of `count` items.
pub(super) fn line(fixed_bytes: u64, count: u64, bytes_each: u64) -> Result<u64> {
    plus(fixed_bytes, times(count, bytes_each)?)
}
