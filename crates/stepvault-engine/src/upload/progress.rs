//! Upload progress according to the journal.

use stepvault_core::Result;
use stepvault_core::ids::RemoteName;
use stepvault_local::journal::{FileProgress, JournalState, read_state};
use stepvault_local::seal_record::SealedFile;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

/// Returns the bytes of a sealed step that were not sent to a remote yet, according to the journal. Blocks.
///
/// # Errors
/// When the journal cannot be read.
pub fn missing_bytes(vault: &Vault, step: &SealedStep, remote: &RemoteName) -> Result<u64> {
    let state = read_state(vault, step.run(), step.id(), remote)?;
    let files = step.record().files.iter();
    Ok(files.map(|file| missing_of(file, &state)).sum())
}

fn missing_of(file: &SealedFile, state: &JournalState) -> u64 {
    match state.files.get(&file.path) {
        Some(FileProgress { done: Some(_), .. }) => 0,
        Some(FileProgress { parts, .. }) => {
            let sent = parts.values().map(|part| part.digest.size_bytes).sum();
            file.size_bytes.saturating_sub(sent)
        }
        None => file.size_bytes,
    }
}
