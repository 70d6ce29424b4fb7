//! What is known of the steps of one run on one tier: the input of a plan.

use std::collections::BTreeMap;

use crate::ids::{RemoteName, StepId};
use crate::observe::Tier;
use crate::timestamp::Timestamp;

/// Whether the list of steps can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListingState {
    /// It was read to its end.
    Complete,
    /// It was not, and why.
    Failed(String),
}

/// What is known of the bytes of a step on the tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// They were compared with the manifest.
    Yes,
    /// They were not looked at: the step is merely listed.
    No,
    /// They are not what the manifest says, and how.
    Damaged(String),
}

/// One step of the run on the tier.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
#[derive(Debug, Clone, PartialEq)]
pub struct StepFacts {
    /// Its identity, by which age is ordered.
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// When it came to the tier, by the tier's own clock.
    pub created: Timestamp,
    /// When the trainer wrote it, by the trainer's clock. Never decides anything.
    pub written_at: Timestamp,
    /// Bytes it takes on the tier.
    pub bytes: u64,
    /// Metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// A pin keeps it.
    pub pinned: bool,
    /// Somebody reads it.
    pub leased: bool,
    /// What is known of its bytes.
    pub verified: Verified,
    /// Remotes on which it has been read back as durable.
    pub durable_on: Vec<RemoteName>,
    /// Remotes on which it was durable until retention removed it there: those that hold its tombstone.
    pub retired_on: Vec<RemoteName>,
    /// It is on its way to or from this tier.
    pub uploading: bool,
    /// A later attempt began at or before it: see [`abandoned_steps`](super::abandoned_steps).
    pub abandoned: bool,
}

impl StepFacts {
    /// Whether it takes a place in the rules that count.
    pub(super) fn counts(&self) -> bool {
        self.verified == Verified::Yes && !self.abandoned
    }
}

/// One run on one tier, as it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct TierView {
    /// The tier.
    pub tier: Tier,
    /// The steps, in any order.
    pub steps: Vec<StepFacts>,
    /// Records that could not be read: key and reason. While there is one, nothing is deleted.
    pub unreadable: Vec<(String, String)>,
    /// Whether the list is whole.
    pub listing: ListingState,
    /// The current time by the tier's own clock.
    pub now: Timestamp,
    /// Free bytes on the local tier's file system, where known.
    pub free_bytes: Option<u64>,
}
