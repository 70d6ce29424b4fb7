//! Removing a trainer's own step. The only thing that this project ever does to a watched directory.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::errors;
use crate::remove;
use crate::rename::{self, Place};
use crate::tree::{Tree, scan_members};
use crate::vault::Vault;

const WHAT: &str = "cannot remove the trainer's step";

impl Vault {
    /// Removes what the trainer wrote at `source`, or at `members` below it, of which the caller knows that it is safe
    /// elsewhere. Where the vault shares its filesystem, each path goes in one instant: a trainer that starts meanwhile
    /// never sees half a step.
    ///
    /// # Errors
    /// `SourceChanged` when it is not as `expected` any more: then nothing is removed.
    pub fn remove_source(&self, source: &Path, members: &[RelativePath], expected: &Tree) -> Result<()> {
        let now = scan_members(source, members)?;
        if let Some(change) = expected.change_until(&now) {
            return Err(Error::new(ErrorKind::SourceChanged, WHAT)
                .on(source.display())
                .because(change)
                .hint("it is left alone until it has been taken over as it is now"));
        }
        let paths: Vec<PathBuf> = match members {
            [] => vec![source.to_owned()],
            members => members.iter().map(|member| source.join(member)).collect(),
        };
        let trash = self.fresh_place("trash")?;
        durable::create_directories(&trash)?;
        for (index, path) in paths.iter().enumerate() {
            let away = trash.join(index.to_string());
            match rename::no_replace(Place::path(path), Place::path(&away)) {
                // Gone already is as good.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::XDEV) => remove::tree(path)?,
                Err(error) => return Err(errors::io(WHAT, path, error)),
            }
        }
        remove::tree(&trash)
    }
}
