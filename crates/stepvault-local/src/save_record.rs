//! What is kept of a save beside its files: where it is to go, and what became of it.

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record};
use stepvault_core::ids::Step;
use stepvault_core::{Error, ErrorKind, Result};

/// Where a save is to go. Written once, by whoever stages it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveRecord {
    format: u32,
    /// The directory of the steps, absolute, with links resolved.
    pub(crate) directory: String,
    /// The name that the step is to have there.
    pub(crate) name: String,
    pub(crate) step: Step,
}

impl SaveRecord {
    pub(crate) fn new(directory: String, name: String, step: Step) -> Self {
        Self {
            format: FORMAT,
            directory,
            name,
            step,
        }
    }
}

impl Record for SaveRecord {
    const WHAT: &'static str = "record of a save";

    fn check(&self) -> Result<()> {
        if self.directory.starts_with('/') && !self.name.is_empty() && !self.name.contains('/') {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, "not a place for a step").on(&self.directory))
    }
}

/// How far a save was committed. Written before the rename that publishes it, and again when all is done: so that
/// whoever comes later can tell a step that this save became from one that was there before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveOutcome {
    format: u32,
    /// The inode of the step's directory, which a rename does not change.
    pub(crate) inode: u64,
    /// Whether the link has been moved too.
    pub(crate) finished: bool,
}

impl SaveOutcome {
    pub(crate) fn new(inode: u64, finished: bool) -> Self {
        Self {
            format: FORMAT,
            inode,
            finished,
        }
    }
}

impl Record for SaveOutcome {
    const WHAT: &'static str = "outcome of a save";

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
