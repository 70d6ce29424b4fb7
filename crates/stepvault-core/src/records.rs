//! The small records in addition to manifests and commits: marker, claim, pin, tombstone, lease, gc record, and
//! records that nodes exchange.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::digest::is_hex;
use crate::keys::check_step_name;
use crate::launch::LaunchName;
use crate::{Attempt, Error, ErrorKind, NodeName, NodeSet, Result, RunName, StepId};

/// Marks a run on a remote, or a local vault, as stepvault's, with a unique identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VaultMarker {
    /// Format version of everything under it.
    pub format: u32,
    /// A random identity, 32 hexadecimal digits.
    pub vault: String,
}

/// A step that retention must keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// Why it was pinned; may be empty.
    pub note: String,
}

/// Records that an upload of this step was started: from then on the name of its data is known, whatever happens to
/// the upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// The step's directory or file name, which is the parent of its data.
    pub name: String,
    /// The nodes whose parts make the step complete; the first writer fixes them.
    pub nodes: NodeSet,
    /// The launch that wrote it, so that two launches never mix in one step; `None` without a launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchName>,
}

/// Says that a node starts in an attempt, and which parts its vault holds of steps that may not be durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedParts {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The launch's attempt.
    pub attempt: Attempt,
    /// The node.
    pub node: NodeName,
    /// The nodes whose parts make each of these steps complete.
    pub nodes: NodeSet,
    /// The parts, sorted by step. A node that was renumbered holds parts of its former name.
    pub parts: Vec<StagedPart>,
    /// The bytes of the agreed step that the node still has to upload; 0 unless it uploads now.
    pub missing_bytes: u64,
}

/// A part of a step in a node's vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedPart {
    /// The step.
    pub id: StepId,
    /// The node that wrote the part.
    pub node: NodeName,
}

/// Says that a node has read the decision on the step from which the nodes of an attempt resume, and is about to follow
/// it: once all nodes have, no restart of one of them has left the others behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follower {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The launch's attempt.
    pub attempt: Attempt,
    /// The node.
    pub node: NodeName,
}

/// A step that nodes had agreed on and that one of them found damaged: the next agreement skips it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DamagedStep {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// The node that found it.
    pub node: NodeName,
    /// What is wrong with it.
    pub reasons: Vec<String>,
}

/// A decision on the step from which all nodes of an attempt resume, by the first node; a later round replaces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The launch's attempt.
    pub attempt: Attempt,
    /// The launch.
    pub launch: LaunchName,
    /// The step; `None` when there was none.
    pub step: Option<StepId>,
    /// Where the nodes read it.
    pub availability: Availability,
    /// The node that decided.
    pub node: NodeName,
}

/// Where the nodes of a launch find the step from which they resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// It is committed.
    Durable,
    /// Its parts are in the nodes' vaults, and the nodes upload them now; the decision of the next round says what came
    /// of it.
    WhenUploaded,
    /// Each node reads its own part from its own vault, which was requested.
    OwnParts,
}

/// A step that has been removed, or is being removed: its name is never used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// The step's directory or file name, so that its data can be found without its commit.
    pub name: String,
    /// Whether gc wrote it because it saw no commit: if a commit exists after all, the step is kept. Retention does
    /// not set it, because its deletions are intended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_gc: bool,
}

/// Marks a reader of a step, or a pruner of a run. Its age is measured by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Format version.
    pub format: u32,
    /// Random identity of the holder, one plain segment.
    pub holder: String,
    /// `restore` or `prune`.
    pub purpose: String,
    /// Seconds without renewal, by the store's clock, after which the lease expires.
    pub time_to_live_seconds: u64,
}

/// Marks a training job that writes the run exclusively. Its age is measured by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriterLease {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The job's launch; `None` without a launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchName>,
    /// The job's nodes.
    pub nodes: NodeSet,
    /// Whether the job trains: then it excludes others that train. Otherwise it uploads, and excludes others that upload; a
    /// job that has ended may still do so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trains: bool,
    /// Identity under which the vault that the job uploads from holds leases; another one after each boot.
    pub vault: String,
    /// Seconds without renewal, by the store's clock, after which the lease expires.
    pub time_to_live_seconds: u64,
}

impl WriterLease {
    /// Returns whether both belong to one job: they have the same launch or, without one, the same vault or the same
    /// several nodes.
    pub fn is_of_same_job(&self, other: &Self) -> bool {
        if self.vault == other.vault {
            return true;
        }
        match (&self.launch, &other.launch) {
            (Some(own), Some(their)) => own == their,
            (None, None) => self.nodes.is_several() && self.nodes == other.nodes,
            _ => false,
        }
    }
}

/// The orphans that gc saw; an object is deleted only when two runs of gc saw it unreferenced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GcRecord {
    /// Format version.
    pub format: u32,
    /// Unreferenced keys, each with its entity tag, or its size if the store has no tags.
    pub orphans: BTreeMap<String, String>,
}

impl VaultMarker {
    /// Returns a marker with this identity.
    pub fn new(vault: String) -> Self {
        Self { format: FORMAT, vault }
    }
}

impl Record for VaultMarker {
    const WHAT: &'static str = "vault marker";

    fn check(&self) -> Result<()> {
        if is_hex(&self.vault, 32) {
            return Ok(());
        }
        let what = "its identity is not 32 hexadecimal digits";
        Err(Error::new(ErrorKind::Damaged, what))
    }
}

macro_rules! record {
    ($record:ident, $what:literal $(, $name:ident)?) => {
        impl Record for $record {
            const WHAT: &'static str = $what;
            $(
                // The name is part of the keys that are listed, and deleted, as the step's.
                fn check(&self) -> Result<()> {
                    check_step_name(&self.$name)
                }
            )?
        }
    };
}

record!(Claim, "claim", name);
record!(Tombstone, "tombstone", name);
record!(StagedParts, "record of staged parts");
record!(Follower, "record of a node that follows a decision");
record!(DamagedStep, "damaged record");
record!(Resume, "resume record");
record!(Pin, "pin");
record!(Lease, "lease");
record!(WriterLease, "writer's lease");
record!(GcRecord, "gc record");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use crate::ids::Step;

    #[test]
    fn a_job_is_told_by_its_launch_and_without_one_by_its_vault_or_nodes() {
        let lease = |launch: Option<&str>, nodes: &str, vault: &str| WriterLease {
            trains: false,
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            launch: launch.map(|name| LaunchName::new(name).unwrap()),
            nodes: nodes.parse().unwrap(),
            vault: vault.to_owned(),
            time_to_live_seconds: 1,
        };
        for (one, other, same) in [
            (lease(Some("j"), "a", "1"), lease(Some("j"), "b", "2"), true),
            (lease(Some("j"), "a", "1"), lease(Some("k"), "a", "2"), false),
            // Started again over the same vault.
            (lease(Some("j"), "a", "1"), lease(Some("k"), "a", "1"), true),
            (lease(None, "a,b", "1"), lease(None, "a,b", "2"), true),
            (lease(None, "a", "1"), lease(None, "a", "2"), false),
            (lease(None, "a", "1"), lease(Some("j"), "a", "2"), false),
        ] {
            assert_eq!(one.is_of_same_job(&other), same, "{one:?} {other:?}");
            assert_eq!(other.is_of_same_job(&one), same);
        }
    }

    #[test]
    fn a_tombstone_or_claim_of_another_place_is_refused() {
        let tombstone = |name: &str| Tombstone {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(5).unwrap()),
            name: name.to_owned(),
            by_gc: false,
        };
        let claim = |name: &str| Claim {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(5).unwrap()),
            name: name.to_owned(),
            nodes: NodeSet::single_node(NodeName::new("node-0").unwrap()),
            launch: None,
        };
        let read = |name: &str| {
            let tombstone = decode::<Tombstone>(&encode(&tombstone(name)).unwrap(), "t").is_ok();
            let claim = decode::<Claim>(&encode(&claim(name)).unwrap(), "c").is_ok();
            (tombstone, claim)
        };
        assert_eq!(read("step_5"), (true, true));
        for bad in ["", "..", "other/step_5", "../other/step_5", ".stepvault", "a\nb"] {
            assert_eq!(read(bad), (false, false), "{bad:?}");
        }
    }
}
