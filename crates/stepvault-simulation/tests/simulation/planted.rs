//! One planted bug for each promise: the simulation must find it with the check of that promise.

use std::time::SystemTime;

use stepvault_core::digest::PartDigest;
use stepvault_remote::store::{ObjectHead, ObjectInfo, StoredChecksum};

use crate::actor::Role;
use crate::link::Link;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An agent calls a step durable although its upload failed.
    AcknowledgesFailures,
    /// A store claims to hold some data that it does not hold.
    ForgetsData,
    /// Nobody detects that a filesystem is not mounted.
    OverlooksUnmounting,
    /// A reader uses the newest data directory.
    ReadsWithoutCommit,
    /// A pruner does not see pins.
    OverlooksPins,
    /// A pruner deletes the commit after the data.
    DeletesDataFirst,
    /// An agent evicts without checking whether a remote has the step.
    EvictsUnasked,
    /// gc has no grace period.
    GcAtOnce,
    /// Pruners and gc runs do not see the unreadable commit.
    OverlooksUnreadable,
    /// An agent does not see that a name is already used.
    OverlooksTombstones,
    /// Retention is told to delete nothing.
    NeverPrunes,
    /// An agent drops a step after its first failure, without a report.
    GivesUpSilently,
    /// gc only lists.
    NeverGc,
    /// A reader's listing of commits comes back empty.
    LosesListings,
    /// The nodes of a run do not know of each other.
    CommitsAlone,
    /// A file that somebody adds to a step begins an attempt.
    ChangesBeginAttempts,
    /// An agent believes for ever what its vault has recorded of a store.
    NeverCompares,
    /// A copy commits a step before its last file has arrived.
    CopiesTooSoon,
    /// A copier does not see that a name is already used.
    CopiesRemoved,
    /// A pruner does not see what a selective store waits for.
    OverlooksAwaited,
    /// A follower that starts again has forgotten what it finished.
    FollowsAgain,
    /// A follower takes what any store has.
    FollowsTooSoon,
    /// A follower also takes steps that a later attempt has left behind.
    FollowsAbandoned,
    /// A follower places what the responses hold, without comparing digests.
    FollowsUnverified,
    /// A follower takes each step that is older than a finished one for finished.
    FollowsNoneLate,
}

/// Each bug, the promise that it breaks, and the first seed that finds it.
pub const BUGS: [(Bug, &str, u64); 25] = [
    (Bug::AcknowledgesFailures, "S1", 0),
    (Bug::ForgetsData, "S2", 0),
    (Bug::OverlooksUnmounting, "S1", 40),
    (Bug::ReadsWithoutCommit, "S3", 1),
    (Bug::OverlooksPins, "S4", 4),
    (Bug::DeletesDataFirst, "S5", 0),
    (Bug::EvictsUnasked, "S6", 1),
    (Bug::GcAtOnce, "S7", 5),
    (Bug::OverlooksUnreadable, "S8", 114),
    (Bug::OverlooksTombstones, "S9", 106),
    (Bug::NeverPrunes, "L1", 0),
    (Bug::GivesUpSilently, "L2", 0),
    (Bug::NeverGc, "L3", 0),
    (Bug::LosesListings, "L4", 0),
    (Bug::CommitsAlone, "S3", 0),
    (Bug::ChangesBeginAttempts, "L4", 116),
    (Bug::NeverCompares, "S1", 71),
    (Bug::CopiesTooSoon, "S2", 6),
    (Bug::CopiesRemoved, "S9", 75),
    (Bug::OverlooksAwaited, "S4", 20),
    (Bug::FollowsAgain, "S10", 1),
    (Bug::FollowsTooSoon, "S10", 0),
    (Bug::FollowsAbandoned, "S10", 12),
    (Bug::FollowsUnverified, "S1", 32),
    (Bug::FollowsNoneLate, "L4", 35),
];

/// The number of the unreadable commit: no trainer writes a step of this number.
pub const UNREADABLE_STEP: u64 = 7;

impl Bug {
    /// Returns whether an object is invisible to a process with the bug.
    pub fn hides(self, role: Role, key: &str) -> bool {
        match self {
            Self::OverlooksPins => role == Role::Pruner && key.contains("/.stepvault/pins/"),
            Self::OverlooksTombstones => role == Role::Agent && is_of_removal(key),
            Self::CopiesRemoved => role == Role::Copier && is_of_removal(key),
            Self::LosesListings => role == Role::Restorer && key.contains("/.stepvault/commits/"),
            Self::OverlooksUnreadable => {
                matches!(role, Role::Pruner | Role::Gc)
                    && key.contains(&format!("/commits/{UNREADABLE_STEP:012}.a1"))
            }
            _ => false,
        }
    }

    /// Returns whether a write is dropped but reported as done.
    pub fn forgets(self, role: Role, key: &str) -> bool {
        let forgetful = match self {
            Self::ForgetsData => Some(Role::Agent),
            Self::CopiesTooSoon => Some(Role::Copier),
            _ => None,
        };
        forgetful == Some(role) && key.ends_with("/model.bin")
    }

    /// Returns what is deleted instead of `keys`, in this order.
    pub fn deleted_by(self, link: &Link, keys: Vec<String>) -> Vec<String> {
        if self != Self::DeletesDataFirst || link.actor.role != Role::Pruner {
            return keys;
        }
        let mut held = link.held.lock().unwrap();
        if keys.iter().all(|key| key.contains("/.stepvault/commits/")) {
            held.extend(keys);
            return Vec::new();
        }
        keys.into_iter().chain(held.drain(..)).collect()
    }
}

/// Returns whether an object says that a name is used up.
fn is_of_removal(key: &str) -> bool {
    key.contains("/.stepvault/tombstones/") || key.contains("/.stepvault/retired/")
}

/// Returns what is reported of an object that was dropped.
pub fn claimed(key: &str, digest: &PartDigest) -> ObjectHead {
    ObjectHead {
        info: ObjectInfo {
            key: key.to_owned(),
            size_bytes: digest.size_bytes,
            modified: SystemTime::UNIX_EPOCH,
            version: None,
        },
        checksum: StoredChecksum::of_part(digest),
    }
}
