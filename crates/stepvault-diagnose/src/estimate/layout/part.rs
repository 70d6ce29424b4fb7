//! The files of a step, by kind.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::super::amount::{plus, times};
use super::super::ranks::Ranks;
use stepvault_core::error::Result;

/// The nodes on which files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spread {
    /// On the first node.
    FirstNode,
    /// On all nodes, about the same amount on each.
    AllNodes,
}

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
    #[serde(rename = "on_all_nodes")]
    #[schemars(with = "bool")]
    pub spread: Spread,
}

impl Serialize for Spread {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bool(*self == Self::AllNodes)
    }
}

/// Returns the files of the first node, written by every node.
pub(super) fn replicated(part: Part, ranks: Ranks) -> Result<Part> {
    if part.spread == Spread::AllNodes {
        return Ok(part);
    }
    Ok(Part {
        files: times(part.files, ranks.nodes())?,
        bytes: times(part.bytes, ranks.nodes())?,
        spread: Spread::AllNodes,
        ..part
    })
}

/// Returns files that exist on the first node only.
pub(super) fn on_first(what: &'static str, files: u64, bytes: u64) -> Part {
    Part { what, files, bytes, spread: Spread::FirstNode }
}

/// Returns a file that every rank writes.
pub(super) fn of_every_rank(what: &'static str, ranks: Ranks, bytes_each: u64) -> Result<Part> {
    Ok(Part {
        what,
        files: ranks.count(),
        bytes: times(ranks.count(), bytes_each)?,
        spread: Spread::AllNodes,
    })
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
