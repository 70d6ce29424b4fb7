//! The commit: the record that makes a step visible on a remote. It is written once, after everything else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, FORMAT_OF_IMPORTED, FORMAT_OF_TRUSTED, Record};
use crate::imported::Imported;
use crate::keys::check_step_name;
use crate::manifest::{PartManifest, Shape, is_zero};
use crate::nodes::MAX_NODES;
use crate::placement::Evidence;
use crate::step_origin::{BestName, MAX_BEST, best_fault};
use crate::{DigestAlgorithm, Error, ErrorKind, NodeName, Result, RunName, Sha256Digest, StepId, Timestamp};

/// What a commit records about one node's part.
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
    /// The algorithm of the digests of its files. Omitted for SHA-256.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub digest: DigestAlgorithm,
    /// Number of files of the part.
    pub file_count: u64,
    /// As in the manifest. Omitted for objects in stepvault's layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
    /// How many of its files have no digests, but the checksum of their store. Omitted if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trusted_files: u64,
}

/// A complete step on this remote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Whether it is a revision that has all files of the one before it. Omitted when it is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amends: bool,
    /// The evidence with which its attempt begins. Omitted unless it is the first step of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Evidence>,
    /// The steps that its trainer calls the best so far, over all parts; sorted by name. Omitted when there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<BestName>,
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
    /// Metrics by name, used to keep the best steps; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Whether nothing told its number: see [`StepOrigin::unnumbered`]. Omitted when something did.
    ///
    /// [`StepOrigin::unnumbered`]: crate::step_origin::StepOrigin::unnumbered
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unnumbered: bool,
}

/// What a commit needs from a part manifest on a remote. The list of files is not needed, and may be long.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPart {
    /// The node that wrote the part.
    node: NodeName,
    /// The commit of this part alone.
    commit: Commit,
    /// Identifies the tree, where the nodes share the directory.
    shared_tree_sha256: Option<Sha256Digest>,
}

impl FoundPart {
    /// Summarizes a manifest of `bytes` bytes that has this digest.
    pub fn of(manifest: &PartManifest, sha256: Sha256Digest, bytes: u64) -> Self {
        let part = CommittedPart {
            node: manifest.node.clone(),
            manifest_sha256: sha256,
            manifest_bytes: bytes,
            data_bytes: manifest.data_bytes(),
            digest: manifest.digest,
            file_count: manifest.files.len() as u64,
            imported: manifest.imported.clone(),
            trusted_files: manifest.trusted_files(),
        };
        let commit = Commit {
            amends: manifest.origin.amends,
            began: manifest.origin.began,
            best: manifest.origin.best.clone(),
            format: manifest.format,
            run: manifest.run.clone(),
            id: manifest.id,
            name: manifest.name.clone(),
            shape: manifest.shape,
            parts: vec![part],
            written_at: manifest.written_at,
            metrics: manifest.metrics.clone(),
            unnumbered: manifest.origin.unnumbered,
        };
        Self { node: manifest.node.clone(), commit, shared_tree_sha256: manifest.shared_tree_sha256 }
    }

    /// Returns in what two parts differ that must be the same in all parts of a step.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        let (one, two) = (&self.commit, &other.commit);
        if (&one.run, one.id) != (&two.run, two.id) {
            Some("the step they belong to")
        } else if one.name != two.name {
            Some("the name of the step's directory")
        } else if one.shape != two.shape {
            Some("whether the step is a directory or a file")
        } else if self.shared_tree_sha256 != other.shared_tree_sha256 {
            Some("the content of the shared directory")
        } else {
            None
        }
    }
}

impl Commit {
    /// Returns the commit of the step that consists of these parts. The commit depends only on the parts, so that
    /// every writer writes the same bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when they are not parts of one step; the error names the node that differs.
    pub fn of(mut parts: Vec<FoundPart>) -> Result<Self> {
        parts.sort_by(|left, right| left.node.cmp(&right.node));
        let mut parts = parts.into_iter();
        let Some(mut first) = parts.next() else {
            return Err(Error::new(ErrorKind::Failed, "cannot commit a step without parts"));
        };
        for part in parts {
            if let Some(what) = first.difference(&part) {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the parts of {} do not match", first.commit.id),
                )
                .on(format!("{} and {}", first.node, part.node))
                .because(format!("they differ in {what}"))
                .hint("the nodes saved different data under one step: save it again under a new attempt"));
            }
            first.commit.add(part.commit);
        }
        let mut commit = first.commit;
        // The first node that names one counts.
        commit.best.sort_by(|one, other| one.name.cmp(&other.name));
        commit.best.dedup_by(|later, earlier| later.name == earlier.name);
        commit.best.truncate(MAX_BEST);
        Ok(commit)
    }

    /// Adds what a part says of the same step.
    fn add(&mut self, part: Self) {
        self.written_at = self.written_at.max(part.written_at);
        self.format = self.format.max(part.format);
        self.amends &= part.amends;
        self.began = self.began.or(part.began);
        self.unnumbered |= part.unnumbered;
        self.parts.extend(part.parts);
        self.best.extend(part.best);
        // If several nodes give a metric, the first node's value counts.
        for (name, value) in part.metrics {
            self.metrics.entry(name).or_insert(value);
        }
    }

    /// Returns whether another program has written its objects, or some of them.
    pub fn is_imported(&self) -> bool {
        self.parts.iter().any(|part| part.imported.is_some())
    }

    /// Returns how many of its files have no digests, but the checksum of their store.
    pub fn trusted_files(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.trusted_files))
    }

    /// Returns the number of bytes of all parts.
    pub fn data_bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.data_bytes))
    }

    /// Returns the number of files of all parts.
    pub fn file_count(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.file_count))
    }
}

impl Record for Commit {
    const WHAT: &'static str = "commit";
    const NEWEST_FORMAT: u32 = FORMAT_OF_TRUSTED;

    fn check(&self) -> Result<()> {
        let fault = |why: &str| Error::new(ErrorKind::Damaged, "the commit is inconsistent").because(why);
        let due = match (self.is_imported(), self.trusted_files() > 0) {
            (false, false) => FORMAT,
            (true, false) => FORMAT_OF_IMPORTED,
            (true, true) => FORMAT_OF_TRUSTED,
            (false, true) => return Err(fault("a file that was not imported has no digests")),
        };
        if self.format != due {
            return Err(fault("its format is not known"));
        }
        check_step_name(&self.name)?;
        if self.parts.is_empty() || self.parts.len() > MAX_NODES {
            return Err(fault("it has no part, or more than 65,536"));
        }
        if !self.parts.windows(2).all(|pair| pair[0].node < pair[1].node) {
            return Err(fault("its parts are not sorted by node, or one is listed twice"));
        }
        if !self.written_at.is_canonical() {
            return Err(fault("the nanoseconds of its time are not below one second"));
        }
        if !self.metrics.values().all(|value| value.is_finite()) {
            return Err(fault("a metric is not a finite number"));
        }
        best_fault(&self.best).map_or(Ok(()), |why| Err(fault(&why)))
    }
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
