//! The newest steps, tier by tier.

use std::time::Duration;

use serde::Serialize;
use stepvault_agent::RemoteNote;
use stepvault_agent::control::RemotePace;
use stepvault_core::Result;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::upload::missing_bytes;
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::vault::Vault;

use crate::commands::inventory::is_durable_on;
use crate::output::{human, table};

/// Most steps that are shown, the newest.
const SHOWN: usize = 8;

/// One of the newest steps in the vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct StepStatus {
    step: u64,
    attempt: u32,
    bytes: u64,
    /// By remote, in the configured order.
    remotes: Vec<StepOnRemote>,
}

/// How far a step has come on one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct StepOnRemote {
    remote: String,
    state: State,
    /// Bytes that the remote has not been sent.
    missing_bytes: u64,
    /// At the rate of the last uploads; null where it is not being uploaded, or nothing was measured.
    seconds_left: Option<u64>,
    /// What keeps it from being durable, as the agent has it.
    reason: Option<String>,
}

/// A step's state on a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It waits for its turn.
    Staged,
    /// It is being sent.
    Uploading,
    /// All bytes are there, and the commit is not.
    Uploaded,
    /// Other nodes' parts are missing.
    Waiting,
    /// It is not tried again before the next start.
    Failed,
    /// It is safe.
    Durable,
}

/// The newest steps on all remotes, the newest first. Blocks.
pub(super) fn look(
    vault: &Vault,
    steps: &[SealedStep],
    remotes: &[RunRemote],
    notes: &[RemoteNote],
    paces: &[RemotePace],
) -> Result<Vec<StepStatus>> {
    let newest = steps.iter().rev().take(SHOWN);
    newest
        .map(|step| {
            let on = remotes
                .iter()
                .map(|remote| on_remote(vault, step, remote, notes, paces));
            Ok(StepStatus {
                step: step.id().step.number(),
                attempt: step.id().attempt.number(),
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
    notes: &[RemoteNote],
    paces: &[RemotePace],
) -> Result<StepOnRemote> {
    let mut found = StepOnRemote {
        remote: remote.name().to_string(),
        state: State::Durable,
        missing_bytes: 0,
        seconds_left: None,
        reason: None,
    };
    if is_durable_on(step, remote)? {
        return Ok(found);
    }
    let note = notes.iter().find(|note| note.remote == *remote.name());
    let reason_in = |list: &[stepvault_agent::FailedStep]| {
        let known = list.iter().find(|known| known.id == step.id());
        known.map(|known| known.reason.clone())
    };
    let failed = note.and_then(|note| reason_in(&note.failed));
    let lacking = note.and_then(|note| reason_in(&note.lacking_parts));
    let is_uploading = note.is_some_and(|note| note.uploading == Some(step.id()));
    let is_uploaded = step
        .remote_state(remote.name())?
        .is_some_and(|state| state.state == UploadState::Uploaded && state.url == remote.store.url());
    // A journal that cannot be read is begun anew, and so is the step.
    found.missing_bytes =
        missing_bytes(vault, step, remote.name()).unwrap_or_else(|_| step.record().data_bytes());
    (found.state, found.reason) = match (failed, lacking) {
        (Some(reason), _) => (State::Failed, Some(reason)),
        (None, Some(reason)) => (State::Waiting, Some(reason)),
        (None, None) if is_uploading => (State::Uploading, None),
        (None, None) => {
            let state = if is_uploaded {
                State::Uploaded
            } else {
                State::Staged
            };
            (state, note.and_then(|note| note.last_error.clone()))
        }
    };
    let pace = paces.iter().find(|pace| pace.remote == *remote.name());
    if found.state == State::Uploading {
        found.seconds_left = pace
            .and_then(|pace| pace.bytes_per_second)
            .and_then(|rate| found.missing_bytes.checked_div(rate));
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
                match self.seconds_left {
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

/// The steps as a table: one column for each tier.
pub(super) fn text(steps: &[StepStatus]) -> Option<String> {
    let first = steps.first()?;
    let remotes = first.remotes.iter().map(|on| on.remote.as_str());
    let headings: Vec<&str> = ["step", "attempt", "size", "local"]
        .into_iter()
        .chain(remotes)
        .collect();
    let mut table = table::table(&headings, &[0, 1, 2]);
    for step in steps {
        let on = step.remotes.iter().map(|on| on.text(step.bytes));
        let row = [
            step.step.to_string(),
            step.attempt.to_string(),
            human::bytes(step.bytes),
            "sealed".to_owned(),
        ];
        table.add_row(row.into_iter().chain(on));
    }
    Some(table::text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(remote: &str, state: State, missing_bytes: u64, seconds_left: Option<u64>) -> StepOnRemote {
        StepOnRemote {
            remote: remote.to_owned(),
            state,
            missing_bytes,
            seconds_left,
            reason: None,
        }
    }

    #[test]
    fn tiers_stand_side_by_side() {
        let step = |step, remotes| StepStatus {
            step,
            attempt: 1,
            bytes: 2048,
            remotes,
        };
        let steps = [
            step(
                20,
                vec![
                    on("s3", State::Uploading, 1024, Some(65)),
                    on("gcs", State::Staged, 2048, None),
                ],
            ),
            step(
                10,
                vec![
                    on("s3", State::Durable, 0, None),
                    on("gcs", State::Waiting, 0, None),
                ],
            ),
        ];
        assert_eq!(
            text(&steps).unwrap(),
            "STEP  ATTEMPT     SIZE  LOCAL   S3                          GCS\n\
             \u{20} 20        1  2.0 KiB  sealed  uploading 50 %, 1m 5s left  staged\n\
             \u{20} 10        1  2.0 KiB  sealed  durable                     waits for other nodes"
        );
        assert_eq!(text(&[]), None);
        let unmeasured = on("s3", State::Uploading, 0, None);
        assert_eq!(unmeasured.text(0), "uploading 100 %");
    }
}
