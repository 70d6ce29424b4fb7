//! Records what a drain left, in the vault and on every remote, and reports it at the next start.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::codec::{decode, encode};
use stepvault_core::config::RunSettings;
use stepvault_core::drain::{DrainRecord, LeftStep};
use stepvault_core::ids::{NodeName, RunName};
use stepvault_engine::blocking::blocking;
use stepvault_engine::drains::Drains;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::clock::SystemClock;
use stepvault_local::vault::Vault;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::DrainPlanner;
use crate::agent_status::Reporter;
use crate::backlog::is_durable;
use crate::remotes::remotes_of;
use crate::report::AgentReport;
use crate::shared::Shared;
use crate::stop::StopRequest;

/// The record's name in the vault.
const DRAIN_NOTE: &str = "drain.json";
/// Maximum time to wait for a remote's drain records.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Reads what the last drain left of a run; `None` if there is no readable record.
pub fn read_drain(vault: &Vault, run: &RunName) -> Result<Option<DrainRecord>> {
    let Some(bytes) = vault.read_note(run, DRAIN_NOTE)? else {
        return Ok(None);
    };
    Ok(decode(&bytes, DRAIN_NOTE).ok())
}

/// Records what is not durable, as far as time allows: in the vault first, then on the remotes. A drain that left
/// nothing writes no record: an earlier record is compared with the current state anyway.
pub(crate) async fn write_drain_records(
    shared: &Shared,
    request: &StopRequest,
    report: &AgentReport,
    deadline: Instant,
) {
    let Shared { options, reporter, .. } = shared;
    let vault = &shared.vault.vault;
    let records: Vec<(&RunSettings, DrainRecord)> = options
        .runs
        .iter()
        .filter_map(|run| {
            let its = report.left.not_durable.iter().filter(|step| step.run == run.name);
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
            let record = DrainRecord::new(run.name.clone(), options.node().clone(), reason, now, left);
            Some((run, record))
        })
        .collect();
    for (run, record) in &records {
        let written = timeout_at(deadline, write_to_vault(vault, record)).await;
        if !matches!(written, Ok(Ok(()))) {
            reporter.warn(&format!("{}: cannot write the drain record to the vault", run.name));
        }
    }
    let writes = records.iter().flat_map(|(run, record)| {
        let remotes = remotes_of(run, options, vault).into_iter();
        remotes.map(move |remote| async move { write_to_remote(&remote, record, deadline).await })
    });
    join_all(writes).await;
}

/// Writes the record to a remote, for readers with a different vault.
pub(super) async fn write_to_remote(remote: &RunRemote, record: &DrainRecord, deadline: Instant) {
    let key = remote.keys.drain(&record.node);
    match timeout_at(deadline, remote.replace_record(&key, record)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(%error, "cannot write the drain record to the remote"),
        Err(_) => {
            tracing::info!(remote = %remote.name(), "no time was left to write the drain record to the remote");
        }
    }
}

async fn write_to_vault(vault: &Vault, record: &DrainRecord) -> Result<()> {
    let (vault, run, bytes) = (vault.clone(), record.run.clone(), encode(record)?);
    blocking(move || vault.write_note(&run, DRAIN_NOTE, &bytes)).await
}

/// Reports what the last drains left: this node's own from the vault's record; if the vault holds nothing of a run, as
/// on a replacement machine, the records on the remotes.
pub(crate) async fn report_earlier_drains(shared: Arc<Shared>) {
    let Shared { options, reporter, .. } = &*shared;
    for run in &options.runs {
        let remotes = remotes_of(run, options, &shared.vault.vault);
        let (vault, run, its) = (shared.vault.vault.clone(), &run.name, remotes.clone());
        let name = run.clone();
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
                reporter.warn(&format!("{run}: {text}; uploading the missing data now"));
            }
            Ok((None, true)) => report_drains_on_remotes(reporter, run, &remotes).await,
            _ => {}
        }
    }
}

async fn report_drains_on_remotes(reporter: &Reporter, run: &RunName, remotes: &[RunRemote]) {
    // An unreachable remote is ignored here; its upload worker reports it.
    let Ok(drains) = timeout(ANSWER_WITHIN, Drains::ask(remotes)).await else {
        return;
    };
    for record in &drains.records {
        if let Some(text) = record.summary(|left| drains.is_missed(left)) {
            let where_it_is = match record.bytes_per_second {
                None => "only that node's vault holds the missing data, and this is a different vault",
                Some(_) => "if that node is gone, the missing data is too",
            };
            reporter.warn(&format!("{run}: {text}; {where_it_is}"));
        }
    }
}

// Writes the drain record while uploads are under way, so that a start on another node can wait for them.

/// How often the record is rewritten.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon it is looked again whether the first bytes were sent.
const SOON: Duration = Duration::from_millis(500);
/// With fewer bytes than these to upload, the first record is written only after [`INTERVAL`].
const SMALL_BYTES: u64 = 16 << 20;

/// Tells other nodes of the uploads of one run to one remote.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    /// When the record was written last; `None` if it says that no upload is under way.
    told_at: Option<Instant>,
}

impl Telling {
    /// Rewrites the record until dropped. Nothing is written before bytes were sent: the remote may be another one than it
    /// must be.
    pub(crate) async fn tell(&mut self, remote: &RunRemote, planner: &DrainPlanner) {
        let (began, throughput) = (Instant::now(), &planner.shared.throughput);
        loop {
            let wait = self.told_at.map_or(SOON, |told_at| INTERVAL.saturating_sub(told_at.elapsed()));
            sleep(wait.max(SOON)).await;
            if throughput.in_flight_bytes(remote.name()) == 0
                && throughput.bytes_per_second(remote.name()).is_none()
            {
                continue;
            }
            let Ok(plan) = planner.plan().await else { continue };
            let its = plan.steps.iter().filter(|planned| planned.step.run == *remote.keys.run());
            let mut left: Vec<LeftStep> = its
                .map(|planned| LeftStep {
                    id: planned.step.id,
                    remote: remote.name().clone(),
                    required: remote.settings.required,
                    missing_bytes: planned.step.missing_bytes,
                })
                .collect();
            // The first one is being sent.
            if let Some(first) = left.first_mut() {
                let in_flight_bytes = throughput.in_flight_bytes(remote.name());
                first.missing_bytes = first.missing_bytes.saturating_sub(in_flight_bytes);
            }
            let bytes = left.iter().fold(0_u64, |sum, step| sum.saturating_add(step.missing_bytes));
            if self.told_at.is_none() && bytes < SMALL_BYTES && began.elapsed() < INTERVAL {
                continue;
            }
            self.told_at = Some(Instant::now());
            let rate = plan.bytes_per_second.unwrap_or(0);
            write(remote, planner.shared.options.node(), left, Some(rate)).await;
        }
    }

    /// Says that no upload is under way any more, if it was said that one is.
    pub(crate) async fn end(&mut self, remote: &RunRemote, node: &NodeName) {
        if self.told_at.take().is_some() {
            write(remote, node, Vec::new(), None).await;
        }
    }
}

async fn write(remote: &RunRemote, node: &NodeName, left: Vec<LeftStep>, rate: Option<u64>) {
    let run = remote.keys.run().clone();
    let mut record = DrainRecord::new(run, node.clone(), "uploads".to_owned(), SystemClock.now(), left);
    record.bytes_per_second = rate;
    write_to_remote(remote, &record, Instant::now() + INTERVAL).await;
}
