//! Second names for the files of a step that may not be sealed yet, so that its trainer cannot delete them meanwhile.
//!
//! They are in `staging/`, where nothing lists or restores them and where the next start removes what a killed process
//! left. Files are linked or share their blocks with the trainer's: they take no space until the trainer deletes its
//! own. Whether they are a whole step must be proved before they are sealed.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode};
use stepvault_core::config::LinkPolicy;
use stepvault_core::{RelativePath, Result};

use crate::beneath::times;
use crate::errors::IoAt as _;
use crate::remove;
use crate::seal::Snapshot;
use crate::sealed::DATA;
use crate::tree::{Tree, scan_members, source_changed};
use crate::vault::Vault;

const WHAT: &str = "cannot link the step's files";

/// The early links of one step; removed when this is dropped.
#[derive(Debug)]
pub struct EarlyLinks {
    path: PathBuf,
    /// The trainer's files as they were linked.
    source: Tree,
    /// The links.
    linked: Tree,
}

impl EarlyLinks {
    /// Links `members`, which are paths below `root`, into the vault: as reflinks, else as hard links if `links` allows
    /// them. Nothing is copied.
    ///
    /// # Errors
    /// `SourceChanged` when a file changed meanwhile; `Usage` where a file can be neither; the
    /// filesystem's error. Nothing is left behind then.
    pub fn create(vault: &Vault, root: &Path, members: &[RelativePath], links: LinkPolicy) -> Result<Self> {
        let source = scan_members(root, members)?;
        let mut early = Self { path: vault.fresh_place("staging")?, linked: source.clone(), source };
        let data = early.data();
        vault.create_directories(&data)?;
        let source = &early.source;
        Snapshot::new(root, &data, links, source)?.without_copies().take_all(source, None)?;
        // Inner directories first: each entry changes the time of its parent.
        for entry in source.directories.iter().rev() {
            let Some(path) = &entry.path else { continue };
            let place = data.join(path);
            // This user must be able to remove it.
            rustix::fs::chmod(&place, Mode::from_raw_mode(entry.mode | 0o700))
                .and_then(|()| rustix::fs::utimensat(CWD, &place, &times(entry.mtime), AtFlags::empty()))
                .at(WHAT, &place)?;
        }
        let changed = |change: &str| source_changed(WHAT, root, change);
        if let Some(change) = source.change_until(&scan_members(root, members)?) {
            return Err(changed(&change));
        }
        let linked = scan_members(&data, members)?;
        if !is_same_content(source, &linked) {
            return Err(changed("its files changed while they were linked"));
        }
        early.linked = linked;
        Ok(early)
    }

    /// Returns the directory that stands for the trainer's: the members have the same paths below it.
    pub fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Returns the trainer's files as they were linked.
    pub fn source(&self) -> &Tree {
        &self.source
    }

    /// Returns whether the links still lead to what was linked. A trainer that writes to a file in place changes a hard
    /// link as well.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn is_unchanged(&self, members: &[RelativePath]) -> Result<bool> {
        Ok(self.linked.change_until(&scan_members(&self.data(), members)?).is_none())
    }
}

impl Drop for EarlyLinks {
    fn drop(&mut self) {
        if let Err(error) = remove::tree(&self.path) {
            tracing::warn!(%error, "cannot remove the links of a step; the next start removes them");
        }
    }
}

/// Whether two trees have the same paths, sizes and times; reflinks are other files.
fn is_same_content(one: &Tree, other: &Tree) -> bool {
    let facts = |tree: &Tree| {
        let files = tree.files.iter();
        files.map(|file| (file.path.clone(), file.size_bytes, file.mtime)).collect::<Vec<_>>()
    };
    facts(one) == facts(other) && one.symlinks == other.symlinks
}
