//! What to restore, where, and with what.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use stepvault_core::config::RestoreSync;
use stepvault_core::ids::{Attempt, NodeName, Revision, RunName, Step, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_core::nodes::{Writer, listed};
use stepvault_core::observe::Observer;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::ProfileSet;
use stepvault_local::staging::Existing;
use stepvault_local::vault::Vault;
use stepvault_remote::store::ThawSpeed;
use tokio::time::Duration;

use crate::memory::MemoryBudget;
use crate::tier::run_remote::RunRemote;

/// What to restore, and where.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    /// The run.
    pub run: RunName,
    /// Where to put the step.
    pub target: Target,
    /// The steps to choose from.
    pub wanted: WantedSteps,
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
    /// How archived objects are made readable; `None` to count them as unreadable.
    pub thaw: Option<ThawOptions>,
}

impl RestoreRequest {
    /// Requests the newest valid step, whole, at a path where nothing exists yet, for a node that restores alone.
    pub const fn newest(run: RunName, target: Target) -> Self {
        Self {
            run,
            target,
            wanted: WantedSteps { step: None, attempt: None, revision: None },
            parts: Parts::All,
            together: None,
            resumes: false,
            include: Vec::new(),
            existing: Existing::Refuse,
            handoff: None,
            demoted: BTreeMap::new(),
            allow_older: false,
            thaw: None,
        }
    }
}

/// The steps that a restore may choose, as far as the user, or the nodes together, have named one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WantedSteps {
    /// Only this step; `None` for the newest valid one.
    pub step: Option<Step>,
    /// Only this attempt; `None` for any.
    pub attempt: Option<Attempt>,
    /// Only this revision; `None` for the newest valid one.
    pub revision: Option<Revision>,
}

impl WantedSteps {
    /// Only the step with this identity.
    pub(super) fn only(id: StepId) -> Self {
        Self { step: Some(id.step), attempt: Some(id.attempt), revision: Some(id.revision) }
    }

    /// Whether neither a step nor an attempt is named.
    pub fn are_newest(&self) -> bool {
        self.step.is_none() && self.attempt.is_none()
    }

    /// Returns whether a restore may choose this step.
    pub fn contain(&self, id: StepId) -> bool {
        self.step.is_none_or(|step| step == id.step)
            && self.attempt.is_none_or(|attempt| attempt == id.attempt)
            && self.revision.is_none_or(|revision| revision == id.revision)
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

/// How archived objects are made readable.
#[derive(Debug, Clone, Copy)]
pub struct ThawOptions {
    /// How fast.
    pub speed: ThawSpeed,
    /// How long to wait until they are readable.
    pub patience: Duration,
}

/// Resources that a restore uses.
#[derive(Debug, Clone)]
pub struct RestoreContext {
    /// The local tier, when there is one.
    pub vault: Option<Vault>,
    /// The remotes in the order in which they are queried.
    pub remotes: Vec<RunRemote>,
    /// When the restored files are on the disk.
    pub sync: RestoreSync,
    /// Memory for parts in transfer.
    pub budget: MemoryBudget,
    /// Receives progress and warnings.
    pub observer: Arc<dyn Observer>,
}

/// A restore: what it restores, and with what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restore<'a> {
    pub(super) context: &'a RestoreContext,
    pub(super) request: &'a RestoreRequest,
}

// Selects parts of a multi-node step.

/// A selection among the parts of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Parts {
    /// The whole step: always correct when the number of nodes has changed.
    #[default]
    All,
    /// The part that this node wrote.
    Of(NodeName),
    /// The parts of the nodes whose names match one of these patterns.
    Matching(Vec<String>),
    /// The part that this node has sealed of a step that is not durable: the nodes of a launch may agree on such a
    /// step.
    OwnSealed,
}

impl Parts {
    /// Returns the manifests of the selected parts. The files of a directory that all nodes share belong to all of
    /// them.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when no part is selected, naming the existing ones; and for an invalid pattern.
    pub(super) fn choose<'a>(&self, manifests: &'a [PartManifest]) -> Result<Vec<&'a PartManifest>> {
        let shared = manifests.iter().any(|manifest| manifest.shared_tree_sha256.is_some());
        let patterns = match self {
            Self::Matching(patterns) => Some(compiled(patterns)?),
            Self::All | Self::Of(_) | Self::OwnSealed => None,
        };
        let wanted = |manifest: &&PartManifest| match (self, &patterns) {
            (Self::Of(node), _) => shared || manifest.node == *node,
            (Self::Matching(_), Some(patterns)) => shared || patterns.is_match(manifest.node.as_str()),
            _ => true,
        };
        let chosen: Vec<&PartManifest> = manifests.iter().filter(wanted).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let nodes: Vec<NodeName> = manifests.iter().map(|manifest| manifest.node.clone()).collect();
        Err(Error::new(ErrorKind::Usage, "no part of the step is selected")
            .because(format!("{self} was requested, and the step has parts of {}", listed(&nodes)))
            .hint("restore the whole step with --parts all; the trainer may have to reshard it"))
    }
}

fn compiled(patterns: &[String]) -> Result<GlobSet> {
    let fault = |error| Error::new(ErrorKind::Usage, "invalid node pattern").caused_by(error);
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(fault)?);
    }
    set.build().map_err(fault)
}

impl fmt::Display for Parts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => out.write_str("all parts"),
            Self::Of(node) => write!(out, "the part of {node}"),
            Self::OwnSealed => out.write_str("the part that is sealed here"),
            Self::Matching(patterns) => write!(out, "parts of {}", patterns.join(", ")),
        }
    }
}
