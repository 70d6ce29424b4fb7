//! A temporary directory of a probe, deleted with the probe.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use stepvault_core::Result;

use crate::errors;
use crate::remove;

/// Prefix of the names of probes. The leading dot hides them from trainers' scans.
pub(crate) const PROBE_PREFIX: &str = ".stepvault-doctor-";

/// A directory known only to this probe; deleted with its content when dropped.
#[derive(Debug)]
pub(super) struct ProbePlace {
    pub(super) path: PathBuf,
}

impl ProbePlace {
    /// Creates it in the directory `above`.
    pub(super) fn create(above: &Path) -> Result<Self> {
        let path = above.join(format!("{PROBE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| errors::io("cannot create a directory", above, error))?;
        Ok(Self { path })
    }

    /// Deletes it and reports a failure to do so.
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
