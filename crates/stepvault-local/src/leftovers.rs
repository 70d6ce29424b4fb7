//! Removes the leftovers of interrupted processes at the next start.

use std::path::PathBuf;

use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::lock::VaultLock;
use crate::remove;
use crate::temporary::remove_abandoned;
use crate::vault::{Vault, entries, is_temporary};

/// The result of [`Vault::clean_leftovers`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Removed paths: unfinished seals, partly deleted steps, temporary files of records.
    pub removed: Vec<PathBuf>,
}

impl Vault {
    /// Removes the leftovers of interrupted processes in `staging/`, in `trash/` and beside records. Never touches a
    /// sealed step, or a file that another process is writing without the vault's lock (a pin, a note). Makes the names
    /// of all sealed steps durable, because the process may have died between a rename and its sync.
    pub fn clean_leftovers(&self, lock: &VaultLock) -> Result<Leftovers> {
        if !lock.is_of(self.root()) {
            return Err(Error::at(ErrorKind::Refused, "cannot clean the vault", self.root())
                .because("the lock that is held belongs to another vault"));
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
                // Each directory holds the name of the one before.
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
            tracing::info!(path = %path.display(), "removed the leftovers of an interrupted process");
        }
        Ok(leftovers)
    }
}
