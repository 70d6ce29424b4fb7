//! One entry of a watched directory over time.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::config::Completion;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::content::tree_matches_record;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Tree, scan};
use tokio::time::Instant;

use super::judge::{Judgement, judge};
use crate::pause::{LONGEST, Pause};

/// A handled entry whose own directory is unchanged is looked into only this often.
const HANDLED_LOOK_INTERVAL: Duration = Duration::from_mins(1);
/// What changes while it is looked at is looked at again after this long.
const CHANGING_PAUSE: Duration = Duration::from_secs(1);

/// What a look at an entry came to.
#[derive(Debug)]
pub(super) enum Sight {
    /// Nothing to do.
    Nothing,
    /// Not now; when to look again at the latest, if that is known.
    Later(Option<Instant>),
    /// It is not to be taken over, and why.
    PassedOver(String),
    /// It is finished.
    Ready {
        fingerprint: Sha256Digest,
        newest: Timestamp,
        bytes: u64,
    },
}

/// Since when an entry has looked the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sighting {
    fingerprint: Sha256Digest,
    pub(super) since: Instant,
    pub(super) looks: u32,
}

/// Device, inode and time of the entry itself: cheap to compare, and blind to what lies deeper.
type Outside = (u64, u64, i64, i64);

/// What is remembered of an entry.
#[derive(Debug, Default)]
pub(super) struct Entry {
    sighting: Option<Sighting>,
    handled: Option<(Sha256Digest, Timestamp)>,
    /// When it was last looked into, and how it looked from outside.
    looked: Option<(Instant, Outside)>,
    pause: Pause,
    /// Why it was not taken over yet.
    trouble: Option<String>,
}

impl Entry {
    pub(super) fn look(
        &mut self,
        name: &str,
        path: &Path,
        metadata: &Metadata,
        completion: &Completion,
        now: Timestamp,
        sealed: &[SealedStep],
    ) -> Sight {
        if self.pause.until().is_some() {
            return Sight::Nothing;
        }
        let outside = (
            metadata.dev(),
            metadata.ino(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        if self.handled.is_some()
            && self
                .looked
                .is_some_and(|(time, before)| before == outside && time.elapsed() < HANDLED_LOOK_INTERVAL)
        {
            return Sight::Nothing;
        }
        let tree = match scan(path) {
            Ok(tree) => tree,
            Err(error) => return self.cannot_look(&error),
        };
        let first = self.is_new();
        self.looked = Some((Instant::now(), outside));
        if first && let Some(sight) = self.known(name, &tree, sealed) {
            return sight;
        }
        if self.is_handled(&tree) {
            return Sight::Nothing;
        }
        let sighting = self.sighted(tree.fingerprint());
        match judge(completion, name, &tree, sighting, now) {
            Judgement::Finished => {
                self.trouble = Some("it is finished, and there was no time left to take it over".to_owned());
                Sight::Ready {
                    fingerprint: sighting.fingerprint,
                    newest: tree.newest_mtime(),
                    bytes: tree.data_bytes(),
                }
            }
            Judgement::NotYet { why, look_again_in } => {
                self.trouble = Some(why);
                Sight::Later(look_again_in.map(|wait| Instant::now() + wait))
            }
        }
    }

    /// Whether it was never looked into.
    pub(super) fn is_new(&self) -> bool {
        self.looked.is_none()
    }

    fn sighted(&mut self, fingerprint: Sha256Digest) -> Sighting {
        let sighting = match self.sighting {
            Some(before) if before.fingerprint == fingerprint => Sighting {
                looks: before.looks.saturating_add(1),
                ..before
            },
            _ => Sighting {
                fingerprint,
                since: Instant::now(),
                looks: 1,
            },
        };
        self.sighting = Some(sighting);
        sighting
    }

    fn cannot_look(&mut self, error: &stepvault_core::Error) -> Sight {
        self.sighting = None;
        let text = error.to_string();
        let news = self.trouble.as_ref() != Some(&text);
        self.trouble = Some(text.clone());
        match error.kind() {
            // Written to, or deleted, this very moment.
            ErrorKind::NotFound | ErrorKind::SourceChanged => {
                Sight::Later(Some(Instant::now() + CHANGING_PAUSE))
            }
            ErrorKind::Usage if news => Sight::PassedOver(text),
            ErrorKind::Usage => Sight::Nothing,
            _ => {
                self.pause.failed(LONGEST, None);
                Sight::Later(self.pause.until())
            }
        }
    }

    /// Compares an entry that is seen for the first time with what stands in the vault.
    fn known(&mut self, name: &str, tree: &Tree, sealed: &[SealedStep]) -> Option<Sight> {
        let mut same_name = sealed.iter().filter(|step| step.name() == name).peekable();
        same_name.peek()?;
        let newest = tree.newest_mtime();
        let mut not_newer_than = None;
        for step in same_name {
            if tree_matches_record(tree, step.record()) {
                self.handled(tree.fingerprint(), newest);
                return Some(Sight::Nothing);
            }
            if newest <= step.record().written_at {
                not_newer_than = Some(step.id());
            }
        }
        let id = not_newer_than?;
        self.handled(tree.fingerprint(), newest);
        Some(Sight::PassedOver(format!(
            "its files are not those that were sealed as {id}, and none of them is newer: something deletes it"
        )))
    }

    /// Whether it was handled as it is, or has only lost files since.
    ///
    /// A trainer that deletes an old step file by file, or leaves a husk of it behind, has not saved it again: taken
    /// for a new save, it would become the newest step of a new attempt.
    fn is_handled(&mut self, tree: &Tree) -> bool {
        let Some((fingerprint, newest)) = self.handled else {
            return false;
        };
        let now = tree.fingerprint();
        if now == fingerprint {
            return true;
        }
        if tree.newest_mtime() <= newest {
            self.handled = Some((now, newest));
            return true;
        }
        self.handled = None;
        false
    }

    pub(super) fn handled(&mut self, fingerprint: Sha256Digest, newest: Timestamp) {
        self.handled = Some((fingerprint, newest));
        self.sighting = None;
        self.trouble = None;
        self.pause.clear();
    }

    pub(super) fn failed(&mut self, longest: Duration, reason: String) {
        self.pause.failed(longest, None);
        self.sighting = None;
        self.trouble = Some(reason);
    }

    pub(super) fn next_try(&self) -> Option<Instant> {
        self.pause.until()
    }

    /// Why it was not taken over yet; `None` when it was handled.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}
