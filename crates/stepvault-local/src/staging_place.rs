//! Chooses where restores and trainers stage steps: on the target's filesystem, and hidden from the trainer where
//! possible.
//!
//! Trainers list the directory that holds their steps, and some count or delete whatever they find there. The vault is
//! preferred, then a directory beside that one, and only then a directory inside it.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::DIRECTORY_ITSELF;
use crate::durable;
use crate::errors;
use crate::lock::{self, Lock};
use crate::remove;
use crate::space::same_filesystem;
use crate::vault::Vault;

/// Directory beside the one that holds the steps: the default vault, and the staging directory where there is no vault.
pub(crate) const OWN: &str = ".stepvault";
/// Prefix of directory names inside it, used where nothing beside it is on the same filesystem.
pub(crate) const OWN_INSIDE: &str = ".stepvault-";
/// Restores in progress.
pub(crate) const RESTORE: &str = "restore";
/// Steps that are being written.
pub(crate) const SAVES: &str = "saves";
/// Content that restores moved out of the trainer's way.
pub(crate) const MOVED_ASIDE: &str = "moved-aside";

/// The directory of a restore that becomes the step.
pub(crate) const DATA: &str = "data";
/// The previous content of the target, on filesystems that cannot swap two names.
pub(crate) const REPLACED: &str = "replaced";
/// Directory that holds the previous content of the step's paths.
pub(crate) const TAKEN_DOWN: &str = "taken-down";

const WHAT: &str = "cannot use the directory for staging";

/// The private directory of one restore or resume handoff, and the lock on its target.
#[derive(Debug)]
pub(crate) struct Workplace {
    pub(crate) path: PathBuf,
    pub(crate) base: Base,
    lock_path: PathBuf,
    _lock: Lock,
}

impl Workplace {
    /// Chooses the directory for the target of `target_key`, below `parent`. It is not created yet.
    ///
    /// # Errors
    /// `Held` when another restore to the same target is in progress.
    pub(crate) fn choose(
        parent: &Path,
        vault: Option<&Vault>,
        target_key: &str,
        own_key: &str,
    ) -> Result<Self> {
        let mut tries_left = 16;
        loop {
            let base = choose(parent, vault, RESTORE)?;
            let lock_path = base.path.join(lock_name(target_key));
            match lock::take(&lock_path) {
                Ok(Some(lock)) => {
                    return Ok(Self {
                        path: base.path.join(format!("{target_key}.{own_key}")),
                        base,
                        lock_path,
                        _lock: lock,
                    });
                }
                Ok(None) => {
                    let what = "another restore to the same place is under way";
                    return Err(
                        lock::held(what, &lock_path).hint("let it finish, or end it: the lock goes with it")
                    );
                }
                // Another restore has just ended and removed the empty directory.
                Err(error) if error.kind() == ErrorKind::NotFound && tries_left > 0 => tries_left -= 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the directory, the lock, and directories that exist for restores only.
    pub(crate) fn remove(&self) -> Result<()> {
        remove::tree(&self.path)?;
        // A process that waits for the lock finds that the file has lost its name and creates a new one.
        let _ = std::fs::remove_file(&self.lock_path);
        for path in &self.base.removable {
            if std::fs::remove_dir(path).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the name of the lock of all restores to one target.
pub(crate) fn lock_name(target_key: &str) -> String {
    format!("{target_key}.lock")
}

/// A directory for staging with one purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) path: PathBuf,
    /// Directory for content moved out of the trainer's way; beside `path`, and created on demand.
    pub(crate) aside: PathBuf,
    /// Directories that exist for this purpose only and are removed when empty, innermost first.
    pub(crate) removable: Vec<PathBuf>,
}

/// Chooses the staging directory for content of the directory `parent`, for the purpose [`RESTORE`] or [`SAVES`]. The
/// same arguments give the same directory.
pub(crate) fn choose(parent: &Path, vault: Option<&Vault>, purpose: &str) -> Result<Base> {
    let base = |path, beside: &Path, removable| Base { path, aside: beside.join(MOVED_ASIDE), removable };
    let mut candidates = Vec::new();
    if let Some(vault) = vault {
        let root = vault.root();
        candidates.push((root, base(root.join(purpose), root, Vec::new())));
    }
    if let Some(above) = parent.parent() {
        let own = above.join(OWN);
        let path = own.join(purpose);
        candidates.push((above, base(path.clone(), &own, vec![path, own.clone()])));
    }
    let path = parent.join(format!("{OWN_INSIDE}{purpose}"));
    candidates.push((parent, base(path.clone(), &path, vec![path.clone()])));

    let mut refused = None;
    for (on, base) in candidates {
        if !same_filesystem(on, parent)? {
            continue;
        }
        match make_private(&base) {
            Ok(()) => return Ok(base),
            Err(error) => {
                tracing::debug!(%error, "cannot use this directory for staging");
                refused = Some(error);
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::at(ErrorKind::Failed, "cannot find a directory to stage a step for", parent)
    }))
}

/// Creates the directories, or checks that no other user can access them: the outermost first, and each by its
/// descriptor, so that a link put in its place is neither followed nor changed.
fn make_private(base: &Base) -> Result<()> {
    for path in base.removable.iter().rev().chain([&base.path]) {
        durable::create_directories(path)?;
        let fault = |error: Errno| errors::io(WHAT, path, error);
        let directory = match rustix::fs::openat(CWD, path, DIRECTORY_ITSELF, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => return Err(refused(path)),
            Err(error) => return Err(fault(error)),
        };
        let facts = rustix::fs::fstat(&directory).map_err(fault)?;
        if facts.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refused(path));
        }
        if Mode::from_raw_mode(facts.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
            rustix::fs::fchmod(&directory, Mode::RWXU).map_err(fault)?;
        }
    }
    Ok(())
}

fn refused(path: &Path) -> Error {
    Error::at(ErrorKind::Refused, WHAT, path)
        .because("it is a link, or belongs to another user, who could change staged files")
        .hint("remove it, or run stepvault as its owner")
}
