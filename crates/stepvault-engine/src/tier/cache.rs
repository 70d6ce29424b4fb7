//! What a vault remembers of the remotes of a run, one note for each kind.
//!
//! A vault that has seen a marker notices when it is missing: because a filesystem is not mounted, or a bucket was
//! emptied. Uploads and restores record the marker under the remote's name, and it is found again by its place, because
//! the same directory may be given under a different name.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stepvault_core::records::VaultMarker;
use stepvault_core::{RemoteName, RemoteSettings, Result, RunName};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::notes::encode;

/// How the keys of [`Note::Archive`] begin.
const ARCHIVE_PREFIX: &str = "remote-";

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

/// What a vault remembers of one remote of a run.
#[derive(Debug, Clone)]
pub(crate) struct RemoteCache {
    vault: Vault,
    run: RunName,
    remote: RemoteName,
}

impl RemoteCache {
    pub(super) fn new(vault: &Vault, run: &RunName, remote: &RemoteName) -> Self {
        Self { vault: vault.clone(), run: run.clone(), remote: remote.clone() }
    }

    /// Returns a note; `None` if it is missing or damaged: it is then written again.
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
    async fn write<T: Serialize>(&self, note: Note, value: &T) -> Result<()> {
        let (notes, bytes) = (self.clone(), encode(value)?);
        blocking(move || notes.put(note, &bytes)).await
    }

    /// Writes a note that only saves work. A full disk must not keep steps from being uploaded.
    pub(super) async fn keep<T: Serialize>(&self, note: Note, value: &T) {
        if let Err(error) = self.write(note, value).await {
            tracing::debug!(%error, ?note, "cannot keep what is known of the remote");
        }
    }

    /// Records which archive the remote at `place` holds.
    pub(super) async fn write_archive(&self, place: String, marker: &VaultMarker) -> Result<()> {
        let seen = SeenRemote { url: place, vault: marker.vault.clone() };
        self.write(Note::Archive, &seen).await
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
    fn remove(&self, note: Note) -> Result<bool> {
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
    fn forget(&self) -> Result<bool> {
        self.remove(Note::Guarantees)?;
        self.remove(Note::Concurrency)?;
        self.remove_commits(0)?;
        self.remove(Note::Archive)
    }
}

/// Returns where a store is, as [`RunRemote::identity_url`](super::run_remote::RunRemote::identity_url).
pub(crate) fn identity_url(url: &str, settings: &RemoteSettings) -> String {
    match &settings.endpoint {
        Some(endpoint) => format!("{url}?endpoint={endpoint}"),
        None => url.to_owned(),
    }
}

/// The record that is kept for a remote of a run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeenRemote {
    /// Its [identity URL](super::run_remote::RunRemote::identity_url).
    url: String,
    vault: String,
}

/// Returns the remotes that a run's records name, with their keys. An invalid record is ignored: it is written again.
fn archives(vault: &Vault, run: &RunName) -> Result<Vec<(String, SeenRemote)>> {
    let mut notes = Vec::new();
    for key in vault.note_keys(run)? {
        if key.starts_with(ARCHIVE_PREFIX)
            && let Some(bytes) = vault.read_note(run, &key)?
            && let Ok(seen) = serde_json::from_slice(&bytes)
        {
            notes.push((key, seen));
        }
    }
    Ok(notes)
}

/// Returns the identity that this vault saw at this place of a run before; `None` if it never saw one.
pub(crate) async fn seen_identity(vault: &Vault, run: &RunName, place: &str) -> Result<Option<String>> {
    let (vault, run, place) = (vault.clone(), run.clone(), place.to_owned());
    blocking(move || {
        let seen = archives(&vault, &run)?.into_iter().find(|(_, seen)| seen.url == place);
        Ok(seen.map(|(_, seen)| seen.vault))
    })
    .await
}

/// Returns the other runs of which this vault saw an archive at this place.
pub(crate) async fn other_runs_at(vault: &Vault, run: &RunName, place: &str) -> Result<Vec<RunName>> {
    let (vault, run, place) = (vault.clone(), run.clone(), place.to_owned());
    blocking(move || {
        let mut others = vault.runs()?;
        others.retain(|other| *other != run);
        let mut at_place = Vec::new();
        for other in others {
            if archives(&vault, &other)?.iter().any(|(_, seen)| seen.url == place) {
                at_place.push(other);
            }
        }
        Ok(at_place)
    })
    .await
}

/// What was forgotten of a run on a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Forgotten {
    /// The run.
    pub run: RunName,
    /// Whether the vault had recorded an archive at the remote.
    pub archive: bool,
    /// Number of steps that this vault had recorded as uploaded to, or durable on, it.
    pub steps: u64,
}

/// Forgets everything that this vault has recorded of a run's remote: which archive it holds, which steps it has, and
/// which uploads were in progress. Nothing is deleted on the remote. The next push examines the remote again, and
/// starts afresh if it is empty. The caller holds the vault's lock.
///
/// # Errors
/// When the vault cannot be read or written; the call can be repeated.
pub async fn forget(vault: &Vault, run: &RunName, remote: &RemoteName) -> Result<Forgotten> {
    let (vault, run, remote) = (vault.clone(), run.clone(), remote.clone());
    blocking(move || {
        let mut steps = 0;
        // The notes are deleted last: after an interruption before that, the remote is still unreachable.
        for step in &vault.steps(&run)?.steps {
            steps += u64::from(step.forget_remote(&remote)?);
            vault.forget_uploads(&run, step.id(), &remote)?;
        }
        let own = Note::Archive.key(&remote);
        let notes = archives(&vault, &run)?;
        let place = notes.iter().find(|(key, _)| *key == own).map(|(_, seen)| &seen.url);
        // The same place under other names: its archive is gone there as well.
        for (key, _) in notes.iter().filter(|(key, seen)| *key != own && Some(&seen.url) == place) {
            vault.remove_note(&run, key)?;
        }
        let archive = RemoteCache::new(&vault, &run, &remote).forget()?;
        Ok(Forgotten { run, archive, steps })
    })
    .await
}
