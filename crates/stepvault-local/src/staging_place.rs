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

const WHAT: &str = "cannot use the directory for staging";

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
    let mut candidates = Vec::new();
    if let Some(vault) = vault {
        candidates.push((
            vault.root(),
            Base {
                path: vault.root().join(purpose),
                aside: vault.root().join(MOVED_ASIDE),
                removable: Vec::new(),
            },
        ));
    }
    if let Some(above) = parent.parent() {
        let own = above.join(OWN);
        let path = own.join(purpose);
        candidates.push((
            above,
            Base {
                path: path.clone(),
                aside: own.join(MOVED_ASIDE),
                removable: vec![path, own],
            },
        ));
    }
    let path = parent.join(format!("{OWN_INSIDE}{purpose}"));
    candidates.push((
        parent,
        Base {
            path: path.clone(),
            aside: path.join(MOVED_ASIDE),
            removable: vec![path],
        },
    ));

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
        Error::new(ErrorKind::Failed, "cannot find a directory to stage a step for").on(parent.display())
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
    Error::new(ErrorKind::Refused, WHAT)
        .on(path.display())
        .because("it is a link, or belongs to another user, who could change staged files")
        .hint("remove it, or run stepvault as its owner")
}
