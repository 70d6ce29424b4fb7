//! Decides what the store may copy for one step's upload, and handles failures. A failed copy never fails an upload:
//! the bytes are sent instead.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::observe::Event;
use stepvault_core::{Error, ErrorKind};
use stepvault_local::seal_record::SealRecord;

use super::lane::Lane;
use crate::copies::Copies;

/// State shared by all files of one upload.
#[derive(Debug, Default)]
pub(super) struct Copying {
    copies: Copies,
    /// Keys that are no longer used as copy sources.
    left_alone: Mutex<BTreeSet<String>>,
    /// Whether copying has stopped for this upload, so that all remaining bytes are sent.
    stopped: AtomicBool,
}

impl Lane {
    /// Finds the data of a step that the remote already has. A failure only costs bytes.
    pub(super) async fn copying(&self, record: &SealRecord) -> Copying {
        let sizes: BTreeSet<u64> = record.own_files().iter().map(|file| file.size_bytes).collect();
        let has_bytes = sizes.iter().any(|size| *size > 0);
        if !has_bytes || !self.remote.store.capabilities().copies || !self.may_copy() {
            return Copying::default();
        }
        let planned = match self.earlier_part(record.id, &record.node).await {
            Ok(Some(earlier)) => Copies::plan(&sizes, &earlier, &self.remote.keys),
            Ok(None) => Ok(Copies::default()),
            Err(error) => Err(error),
        };
        let copies = planned.unwrap_or_else(|error| {
            tracing::debug!(remote = %self.remote.name(), %error, "cannot copy inside the store: every file is sent");
            Copies::default()
        });
        Copying {
            copies,
            ..Copying::default()
        }
    }

    fn may_copy(&self) -> bool {
        self.remote.settings.copy_unchanged && self.remote.may_copy.load(Ordering::Relaxed)
    }
}

impl Copying {
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
        let left_alone = self.left_alone.lock().unwrap_or_else(PoisonError::into_inner);
        source.filter(|source| !self.is_idle() && !left_alone.contains(*source))
    }

    /// Stops copying, because copied data turned out to be wrong.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Handles a failed copy from `source`: decides what is retried, and warns if a user has to act.
    pub(super) fn failed(&self, lane: &Lane, source: &str, error: &Error) {
        let remote = lane.remote.name();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Damaged => {
                let is_new = self
                    .left_alone
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(source.to_owned());
                if is_new && error.kind() == ErrorKind::Damaged {
                    lane.observer.on_event(&Event::Warning {
                        message: &format!(
                            "{} no longer holds what was uploaded and is not used as a copy source: {error} (check \
                             its step with `stepvault verify --deep`)",
                            lane.remote.describe(source)
                        ),
                    });
                } else {
                    tracing::debug!(%remote, source, %error, "sent instead of copied");
                }
            }
            // These errors would recur for every file and step.
            ErrorKind::Failed | ErrorKind::Denied | ErrorKind::Usage if !error.is_transient() => {
                self.stop();
                if lane.remote.may_copy.swap(false, Ordering::Relaxed) {
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
