//! The newest steps, by tier.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::control::RemoteRate;
use stepvault_agent::{FailedStep, RemoteUploads};
use stepvault_core::document::StepIdMembers;
use stepvault_core::{Result, StepId};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::step_state::{is_durable_on, recorded_state};
use stepvault_engine::upload::missing_bytes;
use stepvault_local::{SealedStep, Vault};

use crate::commands::inventory::attempt_text;
use crate::output::{human, table};

/// Maximum number of steps to show, the newest.
const SHOWN: usize = 8;

/// One of the newest steps in the vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct StepStatus {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Whether the attempt may still change, because no remote has answered since the step was sealed.
    provisional: bool,
    /// Bytes of all files of the step.
    bytes: u64,
    /// The progress of the step on each remote, in the configured order.
    remotes: Vec<StepOnRemote>,
}

/// The progress of a step on one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct StepOnRemote {
    /// The remote's name.
    remote: String,
    /// The state of the step on the remote.
    state: State,
    /// Bytes that have not been sent to the remote.
    missing_bytes: u64,
    /// Remaining upload time at the rate of the last uploads; null if it is not being uploaded or no rate was
    /// measured.
    remaining_seconds: Option<u64>,
    /// Why it is not durable, as the agent reports it; null if unknown.
    reason: Option<String>,
}

/// A step's state on a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It is queued for upload.
    Staged,
    /// It is being sent.
    Uploading,
    /// It is fully uploaded but not committed.
    Uploaded,
    /// Other nodes' parts are missing.
    Waiting,
    /// Its upload failed and needs an operator.
    Failed,
    /// It is durable.
    Durable,
}

/// Returns the newest steps on all remotes, the newest first. Blocks.
pub(super) fn newest(
    vault: &Vault,
    steps: &[SealedStep],
    remotes: &[RunRemote],
    notes: &[RemoteUploads],
    rates: &[RemoteRate],
) -> Result<Vec<StepStatus>> {
    let newest = steps.iter().rev().take(SHOWN);
    newest
        .map(|step| {
            let on = remotes.iter().map(|remote| on_remote(vault, step, remote, notes, rates));
            Ok(StepStatus {
                id: step.id(),
                provisional: step.record().is_provisional(),
                bytes: step.record().data_bytes(),
                remotes: on.collect::<Result<_>>()?,
            })
        })
        .collect()
}

fn on_remote(
    vault: &Vault,
    step: &SealedStep,
    remote: &RunRemote,
    notes: &[RemoteUploads],
    rates: &[RemoteRate],
) -> Result<StepOnRemote> {
    let mut found = StepOnRemote {
        remote: remote.name().to_string(),
        state: State::Durable,
        missing_bytes: 0,
        remaining_seconds: None,
        reason: None,
    };
    if is_durable_on(step, remote)? {
        return Ok(found);
    }
    let note = notes.iter().find(|note| note.remote == *remote.name());
    let is_step = |known: &&FailedStep| known.id == step.id();
    let failing = note.and_then(|note| note.failed.iter().find(is_step));
    let lacking = note.and_then(|note| note.lacking_parts.iter().find(is_step));
    let is_uploading = note.is_some_and(|note| note.uploading == Some(step.id()));
    let is_uploaded = recorded_state(step, remote)?.is_some();
    // An unreadable journal is restarted, and so is the upload of the step.
    found.missing_bytes =
        missing_bytes(vault, step, remote.name()).unwrap_or_else(|_| step.record().data_bytes());
    (found.state, found.reason) = match (failing, lacking) {
        (Some(failing), _) if failing.needs_operator => (State::Failed, Some(failing.reason.clone())),
        (_, Some(lacking)) => (State::Waiting, Some(lacking.reason.clone())),
        _ if is_uploading => (State::Uploading, None),
        (failing, None) => {
            let state = if is_uploaded { State::Uploaded } else { State::Staged };
            let of_step = failing.map(|failing| failing.reason.clone());
            (state, of_step.or_else(|| note.and_then(|note| note.last_error.clone())))
        }
    };
    if found.state == State::Uploading {
        let rate = rates.iter().find(|rate| rate.remote == *remote.name());
        let rate = rate.and_then(|rate| rate.bytes_per_second);
        found.remaining_seconds = rate.and_then(|rate| found.missing_bytes.checked_div(rate));
    }
    Ok(found)
}

impl StepOnRemote {
    fn text(&self, bytes: u64) -> String {
        match self.state {
            State::Staged => "staged".to_owned(),
            State::Uploaded => "uploaded".to_owned(),
            State::Waiting => "waits for other nodes".to_owned(),
            State::Failed => "failed".to_owned(),
            State::Durable => "durable".to_owned(),
            State::Uploading => {
                let sent = u128::from(bytes.saturating_sub(self.missing_bytes)) * 100;
                let percent = sent.checked_div(u128::from(bytes)).unwrap_or(100);
                match self.remaining_seconds {
                    Some(seconds) => format!(
                        "uploading {percent} %, {} left",
                        human::duration(Duration::from_secs(seconds))
                    ),
                    None => format!("uploading {percent} %"),
                }
            }
        }
    }
}

/// Formats the steps as a table with one column for each tier.
pub(super) fn text(steps: &[StepStatus]) -> Option<String> {
    let first = steps.first()?;
    let remotes = first.remotes.iter().map(|on| on.remote.as_str());
    let headings: Vec<&str> = ["step", "attempt", "size", "local"].into_iter().chain(remotes).collect();
    let rows = steps.iter().map(|step| {
        let on = step.remotes.iter().map(|on| on.text(step.bytes));
        let row = [
            step.id.step.to_string(),
            format!("{}{}", attempt_text(step.id), if step.provisional { "?" } else { "" }),
            human::bytes(step.bytes),
            "sealed".to_owned(),
        ];
        row.into_iter().chain(on)
    });
    Some(table::text(&headings, &[0, 1, 2], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(remote: &str, state: State, missing_bytes: u64, remaining_seconds: Option<u64>) -> StepOnRemote {
        StepOnRemote { remote: remote.to_owned(), state, missing_bytes, remaining_seconds, reason: None }
    }

    #[test]
    fn tiers_stand_side_by_side() {
        let step = |step: u64, remotes| StepStatus {
            id: StepId::from_label(&format!("{step:012}.a1")).unwrap(),
            provisional: step == 20,
            bytes: 2048,
            remotes,
        };
        let steps = [
            step(20, vec![on("s3", State::Uploading, 1024, Some(65)), on("gcs", State::Staged, 2048, None)]),
            step(10, vec![on("s3", State::Durable, 0, None), on("gcs", State::Waiting, 0, None)]),
        ];
        assert_eq!(
            text(&steps).unwrap(),
            "STEP  ATTEMPT     SIZE  LOCAL   S3                          GCS\n\
             \u{20} 20       1?  2.0 KiB  sealed  uploading 50 %, 1m 5s left  staged\n\
             \u{20} 10        1  2.0 KiB  sealed  durable                     waits for other nodes"
        );
        assert_eq!(text(&[]), None);
        let unmeasured = on("s3", State::Uploading, 0, None);
        assert_eq!(unmeasured.text(0), "uploading 100 %");
    }
}
