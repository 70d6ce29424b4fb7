//! Unfinished uploads, as their journals show them. Reads the journals without changing them.

use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::timestamp::Timestamp;

use crate::journal::{ENDING, FileProgress, read_state};
use crate::survey::mtime;
use crate::vault::{Vault, entries, file_name};

/// Maximum number of journals that are read, those of the newest steps.
const MAXIMUM_JOURNALS: usize = 64;

/// An unfinished upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The step.
    pub id: StepId,
    /// The destination.
    pub remote: RemoteName,
    /// Time of the last record.
    pub written_at: Timestamp,
    /// Number of files that are done.
    pub files_done: u64,
    /// Number of files of the step.
    pub files: u64,
    /// Number of acknowledged parts of files that are not done.
    pub parts_done: u64,
}

impl Vault {
    /// Returns the unfinished uploads of a run, the newest steps first.
    pub fn unfinished_uploads(&self, run: &RunName) -> Result<Vec<UnfinishedUpload>> {
        let mut found = Vec::new();
        for step in self.steps(run)?.steps.iter().rev() {
            for path in entries(&self.journal_directory(run, step.id()))? {
                let name = file_name(&path).strip_suffix(ENDING);
                let Some(remote) = name.and_then(|name| RemoteName::new(name).ok()) else {
                    continue;
                };
                // The upload may end while its journal is read.
                let (Ok(facts), Ok(state)) = (path.metadata(), read_state(self, run, step.id(), &remote))
                else {
                    continue;
                };
                let done = |file: &&FileProgress| file.done.is_some();
                let begun = state.files.values();
                found.push(UnfinishedUpload {
                    id: step.id(),
                    remote,
                    written_at: mtime(&facts),
                    files_done: begun.clone().filter(done).count() as u64,
                    files: step.record().files.len() as u64,
                    parts_done: begun.map(|file| file.parts.len() as u64).sum(),
                });
                if found.len() == MAXIMUM_JOURNALS {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}
