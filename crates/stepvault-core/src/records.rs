//! The small records beside manifests and commits: marker, pin, tombstone, lease, sweep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{RunName, StepId};

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

plain_record!(Claim, "claim");
plain_record!(Pin, "pin");
plain_record!(Tombstone, "tombstone");
plain_record!(Lease, "lease");
plain_record!(Sweep, "sweep record");
