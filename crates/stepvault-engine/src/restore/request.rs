//! What to restore, and where.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stepvault_core::ids::{Attempt, Revision, RunName, Step, StepId};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::staging::Existing;

use super::resolve::ResolvedStep;
use super::{HandoffOptions, Parts, Together};

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

impl Target {
    /// Returns where a step is, or will be.
    pub(super) fn location(&self, resolved: &ResolvedStep) -> Result<Location> {
        let (Self::Into(path) | Self::IntoNamed(path, _) | Self::As(path)) = self;
        let path = std::path::absolute(path).map_err(|error| {
            Error::new(ErrorKind::Usage, "not a path")
                .on(path.display())
                .caused_by(error)
        })?;
        if !resolved.members.is_empty() {
            let members = resolved.members.iter();
            return Ok(Location {
                paths: members.map(|member| path.join(member)).collect(),
                directory: path,
            });
        }
        let name = match self {
            Self::Into(_) => Some(&resolved.name),
            Self::IntoNamed(_, name) => Some(name),
            Self::As(_) => None,
        };
        if let Some(name) = name {
            let own = resolved.origin.directory_in(&path);
            return Ok(Location {
                paths: vec![own.join(name)],
                directory: path,
            });
        }
        match (path.parent(), path.file_name()) {
            (Some(directory), Some(_)) => Ok(Location {
                directory: directory.to_owned(),
                paths: vec![path],
            }),
            _ => Err(Error::new(ErrorKind::Usage, "cannot restore to this path")
                .on(path.display())
                .because("it has no last component")),
        }
    }
}

/// Where a step is, or will be.
#[derive(Debug)]
pub(super) struct Location {
    /// The directory in which the trainer looks for it.
    pub(super) directory: PathBuf,
    /// The step's paths in it: one, or all of a multi-path step.
    pub(super) paths: Vec<PathBuf>,
}
