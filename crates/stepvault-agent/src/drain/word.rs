//! Writing down what a drain left, in the vault and on every remote, and saying it at the next start.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::codec::{decode, encode};
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::ids::RunName;
use stepvault_core::observe::Event;
use stepvault_engine::blocking::blocking;
use stepvault_engine::drains::Drains;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::vault::Vault;
use tokio::time::{Instant, timeout, timeout_at};

use crate::assembly::remotes_of;
use crate::clock::SystemClock;
use crate::lane::is_durable;
use crate::options::{AgentOptions, AgentRun};
use crate::report::AgentReport;
use crate::shared::Shared;

/// The note in the vault.
const DRAIN_NOTE: &str = "drain.json";
/// A remote that takes longer to say what other drains left is not waited for.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Reads what the last drain left of a run; `None` when there is no word of it, or none that can be read.
pub fn read_drain(vault: &Vault, run: &RunName) -> Result<Option<DrainRecord>> {
    let Some(bytes) = vault.read_note(run, DRAIN_NOTE)? else {
        return Ok(None);
    };
    Ok(decode(&bytes, DRAIN_NOTE).ok())
}

/// Writes down what is not durable, as far as there is time for it: in the vault first, then on the remotes. A drain that
/// left nothing needs no word: what an earlier one said is held against what is there now.
pub(crate) async fn leave_word(
    options: &AgentOptions,
    shared: &Arc<Shared>,
    report: &AgentReport,
    last_word_by: Instant,
) {
    let Some(request) = shared.hurry.stop.requested() else {
        return;
    };
    let records: Vec<(&AgentRun, DrainRecord)> = options
        .runs
        .iter()
        .filter_map(|run| {
            let its = report.not_durable.iter().filter(|step| step.run == run.run);
            let left: Vec<LeftStep> = its
                .map(|step| LeftStep {
                    id: step.id,
                    remote: step.remote.clone(),
                    required: step.required,
                    missing_bytes: step.missing_bytes,
                })
                .collect();
            if left.is_empty() {
                return None;
            }
            let (reason, now) = (request.reason.to_string(), SystemClock.now());
            let record = DrainRecord::new(
                run.run.clone(),
                options.writer.place.node().clone(),
                reason,
                now,
                left,
            );
            Some((run, record))
        })
        .collect();
    for (run, record) in &records {
        let written = timeout_at(last_word_by, write_note(shared, record)).await;
        if !matches!(written, Ok(Ok(()))) {
            let text = format!(
                "{}: what the drain left could not be written to the vault",
                run.run
            );
            shared.observer.on_event(&Event::Warning { message: &text });
        }
    }
    let words = records.iter().flat_map(|(run, record)| {
        let remotes = remotes_of(run, &options.remotes).into_iter();
        remotes.map(move |remote| write_there(remote, record, last_word_by))
    });
    join_all(words).await;
}

/// The word on a remote, for whoever has another vault.
async fn write_there(remote: RunRemote, record: &DrainRecord, last_word_by: Instant) {
    let key = remote.keys.drain(&record.node);
    match timeout_at(last_word_by, remote.replace_record(&key, record)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(%error, "the word of the drain is not on the remote"),
        Err(_) => tracing::info!(remote = %remote.name(), "no time was left for the word of the drain"),
    }
}

async fn write_note(shared: &Arc<Shared>, record: &DrainRecord) -> Result<()> {
    let (vault, run, bytes) = (shared.vault.clone(), record.run.clone(), encode(record)?);
    blocking(move || vault.write_note(&run, DRAIN_NOTE, &bytes)).await
}

/// Says what the last drains left: this node's by the vault's own note; where the vault holds nothing of a run, as on a
/// machine that takes another's place, what the remotes know of it.
pub(crate) async fn say_what_was_left(shared: Arc<Shared>, runs: Vec<(AgentRun, Vec<RunRemote>)>) {
    for (run, remotes) in runs {
        let (vault, name, its) = (shared.vault.clone(), run.run.clone(), remotes.clone());
        let known = blocking(move || {
            let steps = vault.steps(&name)?.steps;
            let text = read_drain(&vault, &name)?.and_then(|record| {
                record.summary(|left| {
                    let step = steps.iter().find(|step| step.id() == left.id);
                    let remote = its.iter().find(|remote| *remote.name() == left.remote);
                    let (Some(step), Some(remote)) = (step, remote) else {
                        return false;
                    };
                    !is_durable(step, remote)
                })
            });
            Ok((text, steps.is_empty()))
        });
        match known.await {
            Ok((Some(text), _)) => {
                let text = format!("{}: {text}; it goes on with that now", run.run);
                shared.observer.on_event(&Event::Warning { message: &text });
            }
            Ok((None, true)) => say_what_remotes_know(&shared, &run.run, &remotes).await,
            _ => {}
        }
    }
}

async fn say_what_remotes_know(shared: &Arc<Shared>, run: &RunName, remotes: &[RunRemote]) {
    // A remote that does not answer says nothing here, and its lane will say so.
    let Ok(drains) = timeout(ANSWER_WITHIN, Drains::ask(remotes)).await else {
        return;
    };
    for record in &drains.records {
        if let Some(text) = record.summary(|left| drains.is_missed(left)) {
            let text =
                format!("{run}: {text}; only that node's vault holds it, and this vault is another one");
            shared.observer.on_event(&Event::Warning { message: &text });
        }
    }
}
