//! The steps that a drain did not finish, as the commands show them.

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::ids::StepId;

/// The drain of a node, with the unfinished steps that are still missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct LeftByDrain {
    /// The node.
    node: String,
    /// Why the agent was asked to stop.
    reason: String,
    /// When it ended, by that node's clock.
    ended_at: String,
    /// The steps that were not finished, with the remote.
    left: Vec<Left>,
    /// A summary in one sentence.
    #[serde(skip)]
    pub(super) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct Left {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The remote's name.
    remote: String,
    /// Whether a step must be durable on this remote to count as durable.
    required: bool,
    /// Bytes that were not sent to the remote; 0 if only records were missing.
    missing_bytes: u64,
}

impl LeftByDrain {
    /// Selects the steps of a record for which `still` returns true; returns `None` if there are none.
    pub(super) fn of(record: &DrainRecord, still: impl Fn(&LeftStep) -> bool) -> Option<Self> {
        let text = record.summary(&still)?;
        let left = record.left.iter().filter(|step| still(step)).map(|step| Left {
            id: step.id,
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
}
