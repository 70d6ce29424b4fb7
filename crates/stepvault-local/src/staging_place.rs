//! Where steps are staged, by restores and by trainers: on the target's filesystem, and out of the trainer's sight
//! where that is possible.
//!
//! Trainers list the directory that holds their steps, and some count or delete whatever they find there. The vault
//! comes first, then a place beside that directory, and only then one inside it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::errors;
use crate::space::same_filesystem;
use crate::vault::Vault;

/// Beside the directory that holds the steps: the vault by default, and where steps are staged without one.
pub(crate) const OWN: &str = ".stepvault";
/// Begins the names inside that directory, where nothing beside it is on the same filesystem.
pub(crate) const OWN_INSIDE: &str = ".stepvault-";
/// Holds restores under way.
pub(crate) const RESTORE: &str = "restore";
/// Holds steps that are being written.
pub(crate) const SAVES: &str = "saves";
/// Holds what restores moved out of the trainer's way.
pub(crate) const MOVED_ASIDE: &str = "moved-aside";

const WHAT: &str = "cannot stage a step by way of the directory";

/// A directory that holds what is staged for one purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) path: PathBuf,
    /// Where what stood in the trainer's way is put; beside `path`, and not there until it is needed.
    pub(crate) aside: PathBuf,
    /// Directories that exist for this purpose alone and go when they are empty, the innermost first.
    pub(crate) removable: Vec<PathBuf>,
}

/// Chooses the place for what is to stand in the directory `parent`, for the purpose [`RESTORE`] or [`SAVES`]. The same
/// arguments give the same place.
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
                tracing::debug!(%error, "nothing can be staged there");
                refused = Some(error);
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::new(ErrorKind::Failed, "no place to stage a step for").on(parent.display())
    }))
}

/// Creates the directories, or checks that nobody else can reach into them.
fn make_private(base: &Base) -> Result<()> {
    durable::create_directories(&base.path)?;
    for path in base.removable.iter().chain([&base.path]) {
        let facts = path
            .symlink_metadata()
            .map_err(|error| errors::io(WHAT, path, error))?;
        if !facts.is_dir() || facts.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::new(ErrorKind::Refused, WHAT)
                .on(path.display())
                .because("it is a link, or belongs to another user, who could change files before they are in place")
                .hint("remove it, or work as the user that owns it"));
        }
        if facts.mode() & 0o077 != 0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
                .map_err(|error| errors::io(WHAT, path, error))?;
        }
    }
    Ok(())
}
