//! A directory of a probe's own, which goes with it.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use stepvault_core::Result;

use crate::errors;
use crate::remove;

/// How the names of probes begin. The leading dot keeps trainers' scans away.
pub(crate) const PROBE_PREFIX: &str = ".stepvault-doctor-";

/// A directory that nobody else knows of; deleted with all that is in it when dropped.
#[derive(Debug)]
pub(super) struct ProbePlace {
    path: PathBuf,
}

impl ProbePlace {
    /// In the directory `above`.
    pub(super) fn create(above: &Path) -> Result<Self> {
        let path = above.join(format!("{PROBE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| errors::io("cannot create a directory", above, error))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes it, and says when that cannot be done.
    pub(super) fn remove(self) -> Result<()> {
        let removed = remove::tree(&self.path);
        if removed.is_ok() {
            std::mem::forget(self);
        }
        removed
    }
}

impl Drop for ProbePlace {
    fn drop(&mut self) {
        let _ = remove::tree(&self.path);
    }
}
