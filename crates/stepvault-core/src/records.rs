//! The small records beside manifests and commits: marker, claim, pin, tombstone, lease, sweep, and what nodes tell
//! each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Attempt, NodeName, RunName, StepId};
use crate::keys::check_step_name;
use crate::launch::LaunchName;
use crate::nodes::NodeSet;

/// Marks a run on a remote (or a local vault) as ours, with an identity that tells two of them apart.
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

/// Somebody began to upload this step: the name of its data is known from here on, whatever happens to the upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// The step's directory or file name: its data stands below it.
    pub name: String,
    /// The nodes whose parts make the step whole: fixed by whoever comes first.
    pub nodes: NodeSet,
    /// The launch that wrote it, so that two of them never mix in one step; none where nobody named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchName>,
}

/// What a node still has sealed of its own parts: said at every restore of a launch of several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagedParts {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The launch's attempt.
    pub attempt: Attempt,
    /// Whose parts they are.
    pub node: NodeName,
    /// The newest step that the launch had committed by then; none at its beginning.
    pub after: Option<StepId>,
    /// The steps of which the node has its part, sorted.
    pub steps: Vec<StepId>,
}

/// A step that nodes had agreed on and that one of them found damaged: the next agreement passes it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unfit {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The step.
    pub id: StepId,
    /// Who found it.
    pub node: NodeName,
    /// What is wrong with it.
    pub reasons: Vec<String>,
}

/// The step that all nodes of a launch go on from: decided once, by whichever node comes first.
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
    /// The step; none when there was nothing to go on from.
    pub step: Option<StepId>,
    /// Whether it stands on the remotes; otherwise every node takes its own part from its own vault.
    pub durable: bool,
    /// Who decided.
    pub node: NodeName,
}

/// A step that has been removed, or is being removed: its name is spent and never used again.
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
    /// Written by a sweep that saw no commit: where one was there all the same, the step is spared. Not written by
    /// retention, which means what it condemns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_sweep: bool,
}

/// Somebody reads a step, or prunes a run. Its age is measured by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Format version.
    pub format: u32,
    /// Random identity of the holder, one plain segment.
    pub holder: String,
    /// `restore` or `prune`.
    pub purpose: String,
    /// After this many seconds without renewal, by the store's clock, the lease no longer counts.
    pub time_to_live_seconds: u64,
}

/// What a sweep for orphans saw; an object goes only when two sweeps saw it unreferenced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Format version.
    pub format: u32,
    /// Unreferenced keys and the entity tag (or size, where the store has none) each had.
    pub orphans: BTreeMap<String, String>,
}

fn check_format(format: u32) -> Result<()> {
    if format == FORMAT {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Damaged, "its format is not known").on(format))
}

impl VaultMarker {
    /// A marker with this identity.
    pub fn new(vault: String) -> Self {
        Self {
            format: FORMAT,
            vault,
        }
    }
}

impl Record for VaultMarker {
    const WHAT: &'static str = "vault marker";

    fn check(&self) -> Result<()> {
        check_format(self.format)?;
        if self.vault.len() == 32
            && self
                .vault
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Damaged,
            "its identity is not 32 hexadecimal digits",
        ))
    }
}

macro_rules! named_record {
    ($record:ident, $what:literal) => {
        impl Record for $record {
            const WHAT: &'static str = $what;

            // The name is a part of the keys of what is listed, and deleted, as the step's.
            fn check(&self) -> Result<()> {
                check_format(self.format)?;
                check_step_name(&self.name)
            }
        }
    };
}

named_record!(Claim, "claim");
named_record!(Tombstone, "tombstone");

macro_rules! plain_record {
    ($record:ident, $what:literal) => {
        impl Record for $record {
            const WHAT: &'static str = $what;

            fn check(&self) -> Result<()> {
                check_format(self.format)
            }
        }
    };
}

plain_record!(StagedParts, "record of staged parts");
plain_record!(Unfit, "record of an unfit step");
plain_record!(Resume, "resume record");
plain_record!(Pin, "pin");
plain_record!(Lease, "lease");
plain_record!(Sweep, "sweep record");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use crate::ids::Step;

    #[test]
    fn a_tombstone_or_claim_of_another_place_is_refused() {
        let tombstone = |name: &str| Tombstone {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(5).unwrap()),
            name: name.to_owned(),
            by_sweep: false,
        };
        let claim = |name: &str| Claim {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(5).unwrap()),
            name: name.to_owned(),
            nodes: NodeSet::alone(NodeName::new("node-0").unwrap()),
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
