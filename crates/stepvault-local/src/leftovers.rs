//! What an interrupted process leaves behind, and its removal at the next start.

use std::path::PathBuf;

use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::lock::VaultLock;
use crate::remove;
use crate::temporary::remove_abandoned;
use crate::vault::{Vault, entries, is_temporary};

/// What [`Vault::clean_leftovers`] removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Paths that are gone now: half-made seals, half-deleted steps, temporary files of records.
    pub removed: Vec<PathBuf>,
}

impl Vault {
    /// Removes what an interrupted process left in `staging/` and `trash/` and beside records; never touches a sealed
    /// step, nor what another process is writing right now without the vault's lock (a pin, a note). Makes the names of all sealed steps durable: the process may have died between a rename and its sync.
    pub fn clean_leftovers(&self, lock: &VaultLock) -> Result<Leftovers> {
        if !lock.is_of(self.root()) {
            return Err(Error::new(ErrorKind::Refused, "cannot clean the vault")
                .on(self.root().display())
                .because("the lock that is held is another vault's"));
        }
        let mut leftovers = Leftovers::default();
        for area in ["staging", "trash"] {
            for path in entries(&self.root().join(area))? {
                remove::tree(&path)?;
                leftovers.removed.push(path);
            }
        }
        let mut record_directories = vec![self.root().to_path_buf()];
        for run in self.runs()? {
            let directory = self.run_directory(&run);
            record_directories.extend([directory.join("pins"), directory.join("notes")]);
            let steps = self.steps_directory(&run);
            if steps.is_dir() {
                // Each holds the name of the one before.
                for path in steps.ancestors().take_while(|path| path.starts_with(self.root())) {
                    durable::fsync_directory(path)?;
                }
            }
            for step in entries(&steps)?.into_iter().filter(|step| step.is_dir()) {
                record_directories.push(step.join("remotes"));
                record_directories.push(step);
            }
        }
        for directory in record_directories {
            for path in entries(&directory)?.into_iter().filter(|path| is_temporary(path)) {
                if remove_abandoned(&path)? {
                    leftovers.removed.push(path);
                }
            }
        }
        for path in &leftovers.removed {
            tracing::info!(path = %path.display(), "removed what an interrupted process left");
        }
        Ok(leftovers)
    }
}
