//! What to restore, where, and with what.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::ids::{Attempt, Revision, RunName, Step, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::staging::Existing;
use stepvault_local::vault::Vault;
use tokio::time::Duration;

use super::parts::Parts;
use crate::memory::MemoryBudget;
use crate::tier::run_remote::RunRemote;

/// What to restore, and where.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The run.
    pub run: RunName,
    /// Where to put the step.
    pub target: Target,
    /// Only this step; `None` for the newest valid one.
    pub step: Option<Step>,
    /// Only this attempt; `None` for any.
    pub attempt: Option<Attempt>,
    /// Only this revision; `None` for the newest valid one.
    pub revision: Option<Revision>,
    /// Which parts of a multi-node step to restore.
    pub parts: Parts,
    /// The nodes that restore the same step at the same time; `None` for a node that restores alone.
    pub together: Option<Together>,
    /// Whether the trainer resumes from the step. The vault then records it, because it decides the attempts of later
    /// checkpoints.
    pub resumes: bool,
    /// Globs of the files to restore; empty for all.
    pub include: Vec<String>,
    /// What to do when the target exists and differs.
    pub existing: Existing,
    /// How the trainer is made to resume from the step; `None` to only put the step in place.
    pub handoff: Option<HandoffOptions>,
    /// Steps to skip while another one is available, with the reason: the trainer crashes on them. An explicitly
    /// requested step is restored regardless.
    pub demoted: BTreeMap<StepId, String>,
    /// Whether to restore an older step when a newer one exists but cannot be read. Otherwise that is an error.
    pub allow_older: bool,
}

impl RestoreRequest {
    /// Whether the trainer resumes from the newest step, whichever that is.
    pub(super) fn resumes_from_newest(&self) -> bool {
        self.resumes && self.step.is_none() && self.attempt.is_none()
    }

    /// Requests the newest valid step, whole, at a path where nothing exists yet, for a node that restores alone.
    pub const fn newest(run: RunName, target: Target) -> Self {
        Self {
            run,
            target,
            step: None,
            attempt: None,
            revision: None,
            parts: Parts::All,
            together: None,
            resumes: false,
            include: Vec::new(),
            existing: Existing::Refuse,
            handoff: None,
            demoted: BTreeMap::new(),
            allow_older: false,
        }
    }
}

/// Where to put a restored step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// In this directory, at the paths that the step had below the trainer's watched directory.
    Into(PathBuf),
    /// The same, but a step of one path has this name there: its trainer saved it under two.
    IntoNamed(PathBuf, String),
    /// At this path, as one directory or file.
    As(PathBuf),
}

/// A node that restores together with others.
#[derive(Debug, Clone)]
pub struct Together {
    /// The restoring writer: its node, the other nodes and the launch.
    pub writer: Writer,
    /// A lower bound of the launch's start, by this node's clock.
    pub since: Timestamp,
    /// How long to wait for the other nodes to start, and for any progress of their uploads.
    pub patience: Duration,
}

/// How the trainer is made to resume from a restored step.
#[derive(Debug, Clone)]
pub struct HandoffOptions {
    /// The known frameworks.
    pub profiles: Arc<ProfileSet>,
    /// The framework to use instead of the detected one.
    pub profile: Option<String>,
    /// False to only report how to resume, without changing anything.
    pub write: bool,
}

/// Resources that a restore uses.
#[derive(Debug, Clone)]
pub struct RestoreContext {
    /// The local tier, when there is one.
    pub vault: Option<Vault>,
    /// The remotes in the order in which they are queried.
    pub remotes: Vec<RunRemote>,
    /// Memory for parts in transfer.
    pub budget: MemoryBudget,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}
