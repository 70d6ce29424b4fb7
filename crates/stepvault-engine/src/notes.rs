//! Lists that this node stores in its vault for itself, one note for each.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::{Error, ErrorKind, Result, RunName};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;

/// Reads a stored list. An unreadable list counts as empty, and is rewritten later.
pub(crate) async fn read_list<T: DeserializeOwned>(
    vault: &Vault,
    run: &RunName,
    note: &'static str,
) -> Result<Vec<T>> {
    let (vault, run) = (vault.clone(), run.clone());
    let note = blocking(move || vault.read_note(&run, note)).await?;
    Ok(note.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

/// Stores the last `max_entries` entries, and drops the others from `list` as well.
pub(crate) async fn write_list<T: Serialize>(
    vault: &Vault,
    run: &RunName,
    note: &'static str,
    list: &mut Vec<T>,
    max_entries: usize,
) -> Result<()> {
    list.drain(..list.len().saturating_sub(max_entries));
    let bytes = encode(list)?;
    let (vault, run) = (vault.clone(), run.clone());
    blocking(move || vault.write_note(&run, note, &bytes)).await
}

/// Makes a list durable that was found to hold what would be added to it.
pub(crate) async fn sync_list(vault: &Vault, run: &RunName, note: &'static str) -> Result<()> {
    let (vault, run) = (vault.clone(), run.clone());
    blocking(move || vault.sync_note(&run, note)).await
}

/// Returns the bytes of a note.
pub(crate) fn encode<T: Serialize + ?Sized>(note: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(note)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a record").caused_by(error))
}
