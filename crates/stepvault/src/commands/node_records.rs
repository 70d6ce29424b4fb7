//! What nodes left in their records: the steps that their vaults gave up to free space, and those that a drain did not
//! finish.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::given_up::GivenUpRecord;
use stepvault_core::ids::StepId;
use stepvault_engine::blocking::blocking;
use stepvault_engine::node_records::{read_given_up, read_given_up_on};

use crate::context::Tiers;

/// Timeout for reading the remotes' records of given-up steps.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The steps that one node gave up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct GivenUpDocument {
    /// The node.
    pub(super) node: String,
    /// The steps, the latest given up first, at most 256.
    pub(super) steps: Vec<GivenUpStepDocument>,
    /// Number of earlier ones, which are not listed.
    more: u64,
    /// A summary in one sentence.
    #[serde(skip)]
    pub(super) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct GivenUpStepDocument {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    pub(super) id: StepId,
    /// Bytes of all files of the step.
    pub(super) bytes: u64,
    /// When it was given up, by the clock of that node.
    given_up_at: String,
    /// Remotes on which the step was durable.
    durable_on: Vec<String>,
}

impl From<GivenUpRecord> for GivenUpDocument {
    fn from(record: GivenUpRecord) -> Self {
        let steps = record.steps.iter().map(|step| GivenUpStepDocument {
            id: step.id,
            bytes: step.bytes,
            given_up_at: step.given_up_at.to_rfc3339(),
            durable_on: step.durable_on.iter().map(ToString::to_string).collect(),
        });
        Self {
            node: record.node.to_string(),
            steps: steps.collect(),
            more: record.more,
            text: record.summary(),
        }
    }
}

/// Returns the steps of the run that were given up, from this node's vault and the remotes that have not `failed`; one
/// record for each node.
pub(super) async fn known_records(tiers: &Tiers, failed: &[&str]) -> Vec<GivenUpRecord> {
    let mut remotes = tiers.remotes.clone();
    remotes.retain(|remote| !failed.contains(&remote.name().as_str()));
    let asked = tokio::time::timeout(ANSWERED_WITHIN, read_given_up_on(&remotes)).await;
    let mut by_node: BTreeMap<_, GivenUpRecord> =
        asked.unwrap_or_default().into_iter().map(|record| (record.node.clone(), record)).collect();
    if let Some(vault) = tiers.vault.clone() {
        let run = tiers.run_name().clone();
        // The vault's own record is at least as recent as its copy on a remote.
        if let Ok(Some(record)) = blocking(move || read_given_up(&vault, &run)).await {
            by_node.insert(record.node.clone(), record);
        }
    }
    by_node.into_values().collect()
}

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
