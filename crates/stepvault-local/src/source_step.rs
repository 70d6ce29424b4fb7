//! Removes a trainer's own step. This is the only change that stepvault makes to a watched directory.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::errors;
use crate::remove;
use crate::rename::{self, Place};
use crate::tree::{Tree, scan_members};
use crate::vault::Vault;

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
