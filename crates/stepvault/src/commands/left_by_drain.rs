//! The steps that a drain did not finish, as the commands show them.

use serde::Serialize;
use stepvault_core::drain::{DrainRecord, LeftStep};

/// The drain of a node, with the unfinished steps that are still missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LeftByDrain {
    node: String,
    reason: String,
    ended_at: String,
    left: Vec<Left>,
    #[serde(skip)]
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Left {
    step: u64,
    attempt: u32,
    remote: String,
    required: bool,
    missing_bytes: u64,
}

impl LeftByDrain {
    /// Selects the steps of a record for which `still` returns true; returns `None` if there are none.
    pub(super) fn of(record: &DrainRecord, still: impl Fn(&LeftStep) -> bool) -> Option<Self> {
        let text = record.summary(&still)?;
        let left = record.left.iter().filter(|step| still(step)).map(|step| Left {
            step: step.id.step.number(),
            attempt: step.id.attempt.number(),
            remote: step.remote.to_string(),
            required: step.required,
            missing_bytes: step.missing_bytes,
        });
        Some(Self {
            node: record.node.to_string(),
            reason: record.reason.clone(),
            ended_at: record.ended_at.to_rfc3339(),
            left: left.collect(),
            text,
        })
    }

    /// Returns a summary in one sentence.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}
