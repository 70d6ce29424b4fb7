//! What a vault remembers of one remote of a run, one note for each kind.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::notes::encode;

/// How the keys of [`Note::Archive`] begin.
pub(super) const ARCHIVE_PREFIX: &str = "remote-";

/// A kind of note. All but the archive are caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// Which archive the remote holds.
    Archive,
    /// What its store enforces.
    Guarantees,
    /// How many requests at once it was measured to serve best.
    Concurrency,
    /// Commits that were read from it: one of several notes.
    Commits(usize),
}

impl Note {
    pub(super) fn key(self, remote: &RemoteName) -> String {
        match self {
            Self::Archive => format!("{ARCHIVE_PREFIX}{remote}"),
            Self::Guarantees => format!("guarantees-{remote}"),
            Self::Concurrency => format!("level-{remote}"),
            Self::Commits(number) => format!("commits-{remote}-{number}"),
        }
    }
}

/// The notes of one remote of a run.
#[derive(Debug, Clone)]
pub(crate) struct RemoteNotes {
    vault: Vault,
    run: RunName,
    remote: RemoteName,
}

impl RemoteNotes {
    pub(super) fn new(vault: &Vault, run: &RunName, remote: &RemoteName) -> Self {
        Self {
            vault: vault.clone(),
            run: run.clone(),
            remote: remote.clone(),
        }
    }

    /// Returns a note; `None` if there is none or it is damaged: it is then written again.
    ///
    /// # Errors
    /// When the vault cannot be read.
    pub(super) async fn read<T: DeserializeOwned>(&self, note: Note) -> Result<Option<T>> {
        let notes = self.clone();
        let bytes = blocking(move || notes.bytes(note)).await?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Writes a note.
    ///
    /// # Errors
    /// When the vault cannot be written.
    pub(super) async fn write<T: Serialize>(&self, note: Note, value: &T) -> Result<()> {
        let (notes, bytes) = (self.clone(), encode(value)?);
        blocking(move || notes.put(note, &bytes)).await
    }

    /// Writes a note that only saves work. A full disk must not keep steps from being uploaded.
    pub(super) async fn keep<T: Serialize>(&self, note: Note, value: &T) {
        if let Err(error) = self.write(note, value).await {
            tracing::debug!(%error, ?note, "cannot keep what is known of the remote");
        }
    }

    /// Returns the bytes of a note. Blocks.
    pub(super) fn bytes(&self, note: Note) -> Result<Option<Vec<u8>>> {
        self.vault.read_note(&self.run, &note.key(&self.remote))
    }

    /// Writes the bytes of a note. Blocks.
    pub(super) fn put(&self, note: Note, bytes: &[u8]) -> Result<()> {
        self.vault.write_note(&self.run, &note.key(&self.remote), bytes)
    }

    /// Removes a note; returns `false` if there was none. Blocks.
    pub(super) fn remove(&self, note: Note) -> Result<bool> {
        self.vault.remove_note(&self.run, &note.key(&self.remote))
    }

    /// Removes the notes of commits from number `first` on. Blocks.
    pub(super) fn remove_commits(&self, first: usize) -> Result<()> {
        let mut number = first;
        while self.remove(Note::Commits(number))? {
            number += 1;
        }
        Ok(())
    }

    /// Forgets everything; returns whether an archive was recorded. That is removed last: after an interruption before, the
    /// remote is still unreachable. Blocks.
    pub(super) fn forget(&self) -> Result<bool> {
        self.remove(Note::Guarantees)?;
        self.remove(Note::Concurrency)?;
        self.remove_commits(0)?;
        self.remove(Note::Archive)
    }
}
