//! Records stored beside a staged step: its target, and the state of its commit.

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record};
use stepvault_core::ids::Step;
use stepvault_core::{Error, ErrorKind, Result};

/// The target of a staged step. Written once, by the process that stages it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveRecord {
    format: u32,
    /// The directory of the steps, absolute, with links resolved.
    pub(crate) directory: String,
    /// The name of the step in that directory.
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
    const WHAT: &'static str = "record of a staged step";

    fn check(&self) -> Result<()> {
        if self.directory.starts_with('/') && !self.name.is_empty() && !self.name.contains('/') {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, "invalid path for a step").on(&self.directory))
    }
}

/// The state of a commit. Written before the rename that publishes the step, and again when all is done, so that a
/// later process can distinguish the committed step from one that existed before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaveOutcome {
    format: u32,
    /// The inode of the step's directory, which a rename preserves.
    pub(crate) inode: u64,
    /// Whether the link has been moved as well.
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
    const WHAT: &'static str = "outcome of a staged step";

    fn check(&self) -> Result<()> {
        Ok(())
    }
}
