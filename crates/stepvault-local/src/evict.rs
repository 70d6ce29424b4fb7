//! Removes steps from the vault: eviction deletes them, quarantine keeps them aside.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, RelativePath, RemoteName, Result, RunName, StepId};

use crate::durable;
use crate::errors;
use crate::remove;
use crate::rename::{self, MAX_OF_ONE_NAME, Place};
use crate::sealed::{self, RemoteState};
use crate::tree::{Tree, scan_members};
use crate::vault::{Vault, entries, file_name};

const REASON: &str = "reason.txt";
const MAX_REASON_BYTES: u64 = 64 << 10;

/// A step that failed validation and is kept aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Step and attempt.
    pub id: StepId,
    /// Its directory in quarantine.
    pub directory: PathBuf,
    /// Why it was quarantined; empty when the reason could not be written (the disk was full).
    pub reason: String,
}

impl Quarantined {
    /// Returns the recorded state of the step on a remote, or `None` when none was recorded.
    pub fn remote_state(&self, remote: &RemoteName) -> Result<Option<RemoteState>> {
        sealed::remote_state_in(&self.directory, remote)
    }
}

impl Vault {
    /// Deletes a step. Returns `false` when it does not exist. The caller must make sure that the remotes have it.
    ///
    /// The caller holds the vault's lock. If the process is killed, the step is either intact in its place or removed
    /// from it, with the rest in `trash/`.
    pub fn evict(&self, run: &RunName, id: StepId) -> Result<bool> {
        let path = self.step_directory(run, id);
        let trash = self.fresh_place("trash")?;
        match rename::no_replace(Place::path(&path), Place::path(&trash)) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(errors::io("cannot evict the step", &path, error)),
        }
        durable::fsync_directory(&self.steps_directory(run))?;
        remove::tree(&trash)?;
        remove::tree(&self.journal_directory(run, id))?;
        Ok(true)
    }

    /// Moves a step aside, with the reason, whether or not it can be read. The caller holds the vault's lock.
    pub fn quarantine(&self, run: &RunName, id: StepId, reason: &str) -> Result<Quarantined> {
        let path = self.step_directory(run, id);
        let quarantine = self.run_directory(run).join("quarantine");
        self.create_directories(&quarantine)?;
        let directory = move_aside(&path, &quarantine, &id.label())?;
        // Written after the move, and as far as possible: on a full disk a damaged step must still be moved aside.
        let written = durable::replace(&directory.join(REASON), reason.as_bytes());
        if let Err(error) = &written {
            tracing::warn!(%error, "cannot write the reason for a quarantine");
        }
        durable::fsync_directory(&quarantine)?;
        durable::fsync_directory(&self.steps_directory(run))?;
        remove::tree(&self.journal_directory(run, id))?;
        let reason = if written.is_ok() { reason.to_owned() } else { String::new() };
        Ok(Quarantined { id, directory, reason })
    }

    /// Returns the quarantined steps, sorted by name.
    pub fn quarantined(&self, run: &RunName) -> Result<Vec<Quarantined>> {
        let mut steps = Vec::new();
        for directory in entries(&self.run_directory(run).join("quarantine"))? {
            let number = file_name(&directory).rsplit_once('-');
            let Some(id) = number.and_then(|(label, _)| StepId::from_label(label)) else {
                continue;
            };
            let reason =
                durable::read_bounded(&directory.join(REASON), MAX_REASON_BYTES)?.unwrap_or_default();
            let reason = String::from_utf8_lossy(&reason).into_owned();
            steps.push(Quarantined { id, directory, reason });
        }
        Ok(steps)
    }
}

/// Moves a step to the first free name in quarantine.
fn move_aside(path: &Path, quarantine: &Path, label: &str) -> Result<PathBuf> {
    let numbered = |number| format!("{label}-{number}");
    rename::to_free_name(Place::path(path), quarantine, numbered).map_err(|error| match error {
        Errno::EXIST => Error::at(ErrorKind::Conflict, "cannot quarantine the step", path)
            .because(format!("{MAX_OF_ONE_NAME} steps of that name are already quarantined"))
            .hint(format!("check {} and delete what is not needed", quarantine.display())),
        error => errors::io("cannot quarantine the step", path, error),
    })
}

// Removes a trainer's own step. This is the only change that stepvault makes to a watched directory.

const WHAT: &str = "cannot remove the trainer's step";

impl Vault {
    /// Removes the trainer's files at `source`, or at `members` below it. The caller must know that they are durable
    /// elsewhere. Where the vault is on the same filesystem, each path disappears in one rename, so a starting trainer
    /// never sees half a step.
    ///
    /// # Errors
    /// `SourceChanged` when it no longer equals `expected`; then nothing is removed.
    pub fn remove_source(&self, source: &Path, members: &[RelativePath], expected: &Tree) -> Result<()> {
        let now = scan_members(source, members)?;
        if let Some(change) = expected.change_until(&now) {
            return Err(Error::at(ErrorKind::SourceChanged, WHAT, source)
                .because(change)
                .hint("it is kept until its current content has been sealed"));
        }
        let paths: Vec<PathBuf> = match members {
            [] => vec![source.to_owned()],
            members => members.iter().map(|member| source.join(member)).collect(),
        };
        let trash = self.fresh_place("trash")?;
        self.create_directories(&trash)?;
        for (index, path) in paths.iter().enumerate() {
            let away = trash.join(index.to_string());
            match rename::no_replace(Place::path(path), Place::path(&away)) {
                // Already removed.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::XDEV) => remove::tree(path)?,
                Err(error) => return Err(errors::io(WHAT, path, error)),
            }
        }
        remove::tree(&trash)
    }
}
