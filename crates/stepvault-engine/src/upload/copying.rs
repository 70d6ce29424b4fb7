//! What of one step's upload the store may copy, and what becomes of that when it does not work. A copy that fails is
//! never the end of an upload: the bytes are sent.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use stepvault_core::copies::Copies;
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::observe::Event;
use stepvault_core::{Error, ErrorKind};
use stepvault_local::seal_record::SealRecord;

use super::lane::Lane;

/// Shared by all files of one upload.
#[derive(Debug, Default)]
pub(super) struct Copying {
    copies: Copies,
    /// Keys that nothing is copied from any more.
    left_alone: Mutex<BTreeSet<String>>,
    /// Everything is sent from here on.
    stopped: AtomicBool,
}

impl Lane {
    /// Finds out what of a step stands on the remote already. Not to know it costs bytes, and nothing else.
    pub(super) async fn copying(&self, record: &SealRecord) -> Copying {
        let sizes: BTreeSet<u64> = record.own_files().iter().map(|file| file.size_bytes).collect();
        let has_bytes = sizes.iter().any(|size| *size > 0);
        if !has_bytes || !self.remote.store.abilities().copies || !self.may_copy() {
            return Copying::default();
        }
        let planned = match self.earlier_part(record.id, &record.node).await {
            Ok(Some(earlier)) => Copies::plan(&sizes, &earlier, &self.remote.keys),
            Ok(None) => Ok(Copies::default()),
            Err(error) => Err(error),
        };
        let copies = planned.unwrap_or_else(|error| {
            tracing::debug!(remote = %self.remote.name(), %error, "every file is sent");
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
    /// Whether there is anything to copy at all.
    pub(super) fn is_idle(&self) -> bool {
        self.copies.is_empty() || self.stopped.load(Ordering::Relaxed)
    }

    /// Where a file with these bytes stands.
    pub(super) fn source_of_file(&self, digest: &FileDigest) -> Option<&str> {
        self.usable(self.copies.of_file(digest))
    }

    /// Where these bytes stand as part `index` of a file of that size.
    pub(super) fn source_of_part(&self, size_bytes: u64, index: u32, digest: &PartDigest) -> Option<&str> {
        self.usable(self.copies.of_part(size_bytes, index, digest))
    }

    fn usable<'a>(&self, source: Option<&'a str>) -> Option<&'a str> {
        let left_alone = self.left_alone.lock().unwrap_or_else(PoisonError::into_inner);
        source.filter(|source| !self.is_idle() && !left_alone.contains(*source))
    }

    /// Nothing is copied any more: what was made of copies turned out wrong.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// A copy from `source` did not come about. Decides what is tried again, and says what a person should know.
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
                            "{} no longer holds what was uploaded there, and is not copied from: {error} (look at its \
                             step with `stepvault verify --deep`)",
                            lane.remote.describe(source)
                        ),
                    });
                } else {
                    tracing::debug!(%remote, source, %error, "sent instead of copied");
                }
            }
            // These will be the same for the next file and the next step.
            ErrorKind::Failed | ErrorKind::Denied | ErrorKind::Usage if !error.is_transient() => {
                self.stop();
                if lane.remote.may_copy.swap(false, Ordering::Relaxed) {
                    tracing::info!(%remote, %error, "the store copies nothing: unchanged files are sent again");
                }
            }
            _ => {
                self.stop();
                tracing::info!(%remote, %error, "the store did not copy: what is left of this step is sent");
            }
        }
    }
}
