//! The commit: the record, written last and once, that makes a step visible on a remote.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NodeName, RunName, StepId};
use crate::keys::check_step_name;
use crate::manifest::{PartManifest, Shape};
use crate::nodes::MAX_NODES;
use crate::timestamp::Timestamp;

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

/// A part manifest as it stands on a remote.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPart {
    /// What it says.
    pub manifest: PartManifest,
    /// SHA-256 of its bytes.
    pub sha256: Sha256Digest,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Commit {
    /// The commit of a step whose parts these are. It follows from them alone, so that all who write it write the
    /// same bytes, whoever is first.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when they are not parts of one step, naming the node that differs.
    pub fn of(mut parts: Vec<FoundPart>) -> Result<Self> {
        parts.sort_by(|left, right| left.manifest.node.cmp(&right.manifest.node));
        let Some(first) = parts.first().map(|part| part.manifest.clone()) else {
            return Err(Error::new(
                ErrorKind::Failed,
                "cannot commit a step without parts",
            ));
        };
        let mut written_at = first.written_at;
        let mut metrics = BTreeMap::new();
        let mut committed = Vec::with_capacity(parts.len());
        for FoundPart {
            manifest,
            sha256,
            bytes,
        } in parts
        {
            if let Some(what) = difference(&first, &manifest) {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the parts of {} do not fit", first.id),
                )
                .on(format!("{} and {}", first.node, manifest.node))
                .because(format!("they differ in {what}"))
                .hint("the nodes saved different things under one step: save it again as a new attempt"));
            }
            written_at = written_at.max(manifest.written_at);
            committed.push(CommittedPart {
                node: manifest.node.clone(),
                manifest_sha256: sha256,
                manifest_bytes: bytes,
                data_bytes: manifest.data_bytes(),
                file_count: manifest.files.len() as u64,
            });
            // The first node's word counts where several have one.
            for (name, value) in manifest.metrics {
                metrics.entry(name).or_insert(value);
            }
        }
        Ok(Self {
            format: FORMAT,
            run: first.run,
            id: first.id,
            name: first.name,
            shape: first.shape,
            parts: committed,
            written_at,
            metrics,
        })
    }

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

/// In what two parts contradict each other, as parts of one step.
fn difference(one: &PartManifest, other: &PartManifest) -> Option<&'static str> {
    if (&one.run, one.id) != (&other.run, other.id) {
        Some("the step that they are of")
    } else if one.name != other.name {
        Some("the name of the step's directory")
    } else if one.shape != other.shape {
        Some("whether the step is a directory or a file")
    } else if one.shared_tree_sha256 != other.shared_tree_sha256 {
        Some("what they saw in the directory that they share")
    } else {
        None
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
