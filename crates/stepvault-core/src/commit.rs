//! The commit: the record, written last and once, that makes a step visible on a remote.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NodeName, RunName, StepId};
use crate::keys::check_step_name;
use crate::manifest::Shape;
use crate::timestamp::Timestamp;

/// Most nodes in one step.
pub const MAX_NODES: usize = 65_536;

/// What a commit says of one node's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommittedPart {
    /// The node.
    pub node: NodeName,
    /// SHA-256 of the part manifest's bytes.
    pub manifest_sha256: Sha256Digest,
    /// Length of the part manifest in bytes.
    pub manifest_bytes: u64,
    /// Bytes of all files of the part.
    pub data_bytes: u64,
    /// Number of files of the part.
    pub file_count: u64,
}

/// A step that is whole on this remote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    pub id: StepId,
    /// The name the trainer gave to the step's directory or file.
    pub name: String,
    /// Directory or single file.
    pub shape: Shape,
    /// The parts, sorted by node.
    pub parts: Vec<CommittedPart>,
    /// The newest modification time of any file, by the trainer's clock: evidence of when the step was written.
    pub written_at: Timestamp,
    /// Metrics by name, for keeping the best; finite numbers.
    pub metrics: BTreeMap<String, f64>,
}

impl Commit {
    /// Bytes of all parts.
    pub fn data_bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.data_bytes))
    }

    /// Files of all parts.
    pub fn file_count(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.file_count))
    }
}

impl Record for Commit {
    const WHAT: &'static str = "commit";

    fn check(&self) -> Result<()> {
        let fault = |why: &str| Error::new(ErrorKind::Damaged, "the commit contradicts itself").because(why);
        if self.format != FORMAT {
            return Err(fault("its format is not known"));
        }
        check_step_name(&self.name)?;
        if self.parts.is_empty() || self.parts.len() > MAX_NODES {
            return Err(fault("it has no part, or more than 65,536"));
        }
        if !self.parts.windows(2).all(|pair| pair[0].node < pair[1].node) {
            return Err(fault(
                "its parts are not sorted by node, or one stands there twice",
            ));
        }
        if !self.written_at.is_canonical() {
            return Err(fault("its time has a second's worth of nanoseconds or more"));
        }
        if !self.metrics.values().all(|value| value.is_finite()) {
            return Err(fault("a metric is not a finite number"));
        }
        Ok(())
    }
}
