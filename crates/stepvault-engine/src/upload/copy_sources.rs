//! Decides what the store may copy for one step's upload: files and file parts of an earlier revision of it, or of the
//! newest other step. A failed copy never fails an upload: the bytes are sent instead.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::copies::Copies;
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::seal_record::SealRecord;

use super::session::UploadSession;
use crate::blocking::blocking;
use crate::tier::catalog::{committed_ids, read_commit, read_part_manifest};
use crate::tier::step_state::is_durable_on;

/// The objects of an earlier step that the store may copy, shared by all files of one upload.
#[derive(Debug, Default)]
pub(super) struct CopySources {
    copies: Copies,
    /// Keys that are no longer used as copy sources.
    unusable: Mutex<BTreeSet<String>>,
    /// Whether copying has stopped for this upload, so that all remaining bytes are sent.
    stopped: AtomicBool,
}

/// What the store was asked to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyOf {
    File,
    Part,
}

impl UploadSession {
    /// Finds the data of a step that the remote already has. A failure only costs bytes.
    pub(super) async fn copy_sources(&self, record: &SealRecord) -> CopySources {
        let sizes: BTreeSet<u64> = record.own_files().iter().map(|file| file.size_bytes).collect();
        let has_bytes = sizes.iter().any(|size| *size > 0);
        let may_copy = self.remote.settings.copy_unchanged && self.remote.may_copy.load(Ordering::Relaxed);
        if !has_bytes || !may_copy || !self.remote.store.capabilities().copies {
            return CopySources::default();
        }
        let planned = match self.previous_part(record.id, &record.node).await {
            Ok(Some(previous)) => Copies::plan(&sizes, &previous, &self.remote.keys),
            Ok(None) => Ok(Copies::default()),
            Err(error) => Err(error),
        };
        let copies = planned.unwrap_or_else(|error| {
            tracing::debug!(remote = %self.remote.name(), %error, "cannot copy inside the store: every file is sent");
            Copies::default()
        });
        CopySources { copies, ..CopySources::default() }
    }

    /// Returns this node's part of the nearest other step on this remote, as in [`nearness`]. If the vault still has that
    /// step and knows it to be durable there, this takes no request; on a new node it takes one listing and two records.
    async fn previous_part(&self, id: StepId, node: &NodeName) -> Result<Option<PartManifest>> {
        match self.previous_in_vault(id).await? {
            Some(known) => Ok(Some(known)),
            None => self.previous_on_remote(id, node).await,
        }
    }

    async fn previous_in_vault(&self, id: StepId) -> Result<Option<PartManifest>> {
        let session = self.clone();
        blocking(move || {
            let scan = session.vault.steps(session.remote.keys.run())?;
            let mut others: Vec<_> = scan.steps.into_iter().filter(|step| step.id() != id).collect();
            others.sort_by_key(|step| nearness(id, step.id()));
            for step in others.iter().rev() {
                if is_durable_on(step, &session.remote)? {
                    return step.manifest();
                }
            }
            Ok(None)
        })
        .await
    }

    async fn previous_on_remote(&self, id: StepId, node: &NodeName) -> Result<Option<PartManifest>> {
        let committed = committed_ids(&self.remote).await?;
        let others = committed.into_keys().filter(|known| *known != id);
        let Some(nearest) = others.max_by_key(|known| nearness(id, *known)) else {
            return Ok(None);
        };
        let commit = read_commit(&self.remote, nearest).await?;
        match part_of(&commit, node) {
            Some(part) => read_part_manifest(&self.remote, &commit, part).await.map(Some),
            None => Ok(None),
        }
    }
}

impl CopySources {
    /// Whether nothing can be copied.
    pub(super) fn is_idle(&self) -> bool {
        self.copies.is_empty() || self.stopped.load(Ordering::Relaxed)
    }

    /// Returns the key of a file with this digest.
    pub(super) fn source_of_file(&self, digest: &FileDigest) -> Option<&str> {
        self.usable(self.copies.of_file(digest))
    }

    /// Returns the key of a file of that size whose part `index` has this digest.
    pub(super) fn source_of_part(&self, size_bytes: u64, index: u32, digest: &PartDigest) -> Option<&str> {
        self.usable(self.copies.of_part(size_bytes, index, digest))
    }

    fn usable<'a>(&self, source: Option<&'a str>) -> Option<&'a str> {
        let unusable = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        source.filter(|source| !self.is_idle() && !unusable.contains(*source))
    }

    /// Stops copying, because copied data turned out to be wrong.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Handles a failed copy from `source`: decides what is retried, and warns if a user has to act.
    pub(super) fn failed(&self, session: &UploadSession, (of, source): (CopyOf, &str), error: &Error) {
        let remote = session.remote.name();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Damaged => {
                let is_new =
                    self.unusable.lock().unwrap_or_else(PoisonError::into_inner).insert(source.to_owned());
                if is_new && error.kind() == ErrorKind::Damaged {
                    session.observer.warn(format!(
                            "{} no longer holds what was uploaded and is not used as a copy source: {error} (check \
                             its step with `stepvault verify --deep`)",
                            session.remote.describe(source)
                        ));
                } else {
                    tracing::debug!(%remote, source, %error, "sent instead of copied");
                }
            }
            // These errors would recur for every part, or every file and step.
            ErrorKind::Failed if of == CopyOf::Part && !error.is_transient() => {
                if session.remote.may_copy_parts.swap(false, Ordering::Relaxed) {
                    tracing::info!(%remote, %error, "the store does not copy parts: changed files are sent again");
                }
            }
            ErrorKind::Failed | ErrorKind::Denied | ErrorKind::Usage if !error.is_transient() => {
                self.stop();
                if session.remote.may_copy.swap(false, Ordering::Relaxed) {
                    tracing::info!(%remote, %error, "the store does not support copies: unchanged files are sent \
                                                     again");
                }
            }
            _ => {
                self.stop();
                tracing::info!(%remote, %error, "the store could not copy: the remaining files of this step are sent");
            }
        }
    }
}

/// Returns how likely another step has the bytes of a step: a revision of it the most, otherwise the newest one.
fn nearness(id: StepId, other: StepId) -> (bool, StepId) {
    (other.is_revision_of(id), other)
}

/// Returns the node's own part. A node that replaces another may have a different name; the only part of a step counts
/// as its own.
fn part_of<'a>(commit: &'a Commit, node: &NodeName) -> Option<&'a CommittedPart> {
    let own = commit.parts.iter().find(|part| part.node == *node);
    own.or(match &commit.parts[..] {
        [only] => Some(only),
        _ => None,
    })
}
