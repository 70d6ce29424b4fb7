//! Drains in time: what is still sent when time is short, and the record of what was left.

pub(crate) mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use stepvault_core::codec::{decode, encode};
use stepvault_core::config::RunSettings;
use stepvault_core::drain::{DrainRecord, LeftStep, RemotePlan, Waiting, parts_at_once, plan};
use stepvault_core::file_parts::FileParts;
use stepvault_core::{NodeName, RemoteName, Result, RunName, StepId};
use stepvault_engine::node_records::Drains;
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{SealedStep, Vault, clock};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::agent_status::Reporter;
use crate::backlog::{Backlog, is_durable, unsent_bytes};
use crate::remotes::remotes_of;
use crate::report::AgentReport;
use crate::shared::Shared;
use crate::stop::StopRequest;

/// How often a running upload is compared with the plan.
const INTERVAL: Duration = Duration::from_secs(2);

/// Plans the uploads to one remote when time is short.
#[derive(Debug, Clone)]
pub(crate) struct DrainPlanner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) remote: RemoteName,
    pub(crate) runs: Vec<RunRemote>,
    pub(crate) excluded: Excluded,
}

/// Steps that are given up, paused or deferred: each until some time, or permanently.
#[derive(Debug, Clone, Default)]
pub(crate) struct Excluded {
    pub(crate) runs: BTreeMap<RunName, Option<Instant>>,
    pub(crate) steps: BTreeMap<(RunName, StepId), Option<Instant>>,
}

impl Excluded {
    fn contains(&self, run: &RunName, id: StepId) -> bool {
        let known = [self.runs.get(run), self.steps.get(&(run.clone(), id))];
        let now = Instant::now();
        let mut known = known.into_iter().flatten();
        known.any(|until| until.is_none_or(|until| until > now))
    }
}

impl DrainPlanner {
    /// Plans what is left to send, from the current state of the vault.
    pub(crate) async fn plan(&self) -> Result<RemotePlan> {
        let mut backlogs = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            backlogs.push((run.keys.run().clone(), Backlog::read(&self.shared.vault.vault, run).await?));
        }
        self.plan_of(&backlogs).await
    }

    /// The same, from an existing scan.
    pub(crate) async fn plan_of(&self, backlogs: &[(RunName, Backlog)]) -> Result<RemotePlan> {
        let mut steps = Vec::new();
        for (run, backlog) in backlogs {
            let waits = |step: &&SealedStep| {
                backlog.missing.contains(&step.id()) && !self.excluded.contains(run, step.id())
            };
            steps.extend(backlog.sealed.iter().filter(waits).cloned());
        }
        let (vault, remote) = (self.shared.vault.vault.clone(), self.remote.clone());
        let waiting = blocking(move || {
            let waiting = steps.iter().map(|step| Waiting {
                run: step.run().clone(),
                id: step.id(),
                missing_bytes: unsent_bytes(&vault, step, &remote),
            });
            Ok(waiting.collect())
        })
        .await?;
        let left = self.shared.drain.time_left();
        Ok(plan(self.remote.clone(), waiting, self.rate(), left))
    }

    /// Returns the measured rate or, before anything was measured, the configured limit.
    fn rate(&self) -> Option<u64> {
        let limit = || self.runs.first()?.settings.bandwidth_limit.lowest_bytes_per_second();
        let measured = self.shared.throughput.bytes_per_second(&self.remote);
        measured.or_else(limit)
    }

    /// Returns when the upload of this step should be preempted by another one.
    pub(crate) async fn until_preempted(self, run: RunName, id: StepId) {
        self.shared.drain.urgent().await;
        loop {
            // A momentarily unreadable vault changes nothing.
            if self.plan().await.is_ok_and(|plan| plan.gives_way(&run, id)) {
                return;
            }
            sleep(INTERVAL).await;
        }
    }

    /// Returns how many parts of the step to send at once: `at_most`, unless few of them would be whole at the deadline.
    pub(crate) fn parts_at_once(&self, step: &SealedStep, at_most: usize) -> PartsAtOnce {
        let files = step.record().own_files().into_iter();
        let largest = files.map(|file| file.size_bytes).max().unwrap_or_default();
        let part_bytes = FileParts::of(largest).map_or(largest, FileParts::part_size_bytes);
        let mut parts = PartsAtOnce { part_bytes: part_bytes.min(largest), count: at_most };
        parts.count = self.fewer(parts).unwrap_or(at_most);
        parts
    }

    fn fewer(&self, parts: PartsAtOnce) -> Option<usize> {
        let left = self.shared.drain.time_left().until_the_end?;
        let rate = self.rate()?;
        let count = parts_at_once(parts.part_bytes, rate, left, parts.count);
        (count < parts.count).then_some(count)
    }

    /// Returns when fewer parts should be sent at once, and those under way would not be finished in half of the time
    /// left: what was sent of them is lost then, and the parts that take their place are finished.
    pub(crate) async fn until_fewer_at_once(self, parts: PartsAtOnce) {
        self.shared.drain.urgent().await;
        loop {
            if self.fewer(parts).is_some() && !self.are_finished_soon(parts) {
                return;
            }
            sleep(INTERVAL).await;
        }
    }

    fn are_finished_soon(&self, parts: PartsAtOnce) -> bool {
        let under_way = parts.part_bytes.saturating_mul(parts.count as u64);
        let unsent = under_way.saturating_sub(self.shared.throughput.in_flight_bytes(&self.remote));
        let rate = self.rate().unwrap_or_default();
        let left = self.shared.drain.time_left().until_the_end.unwrap_or_default();
        u128::from(unsent) * 1000 <= u128::from(rate) * left.as_millis() / 2
    }
}

/// How many parts of a step are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartsAtOnce {
    /// Length of the step's largest part.
    part_bytes: u64,
    pub(crate) count: usize,
}

/// Reports once, when the service is asked to stop, what is expected to be finished in the remaining time.
pub(crate) async fn announce_plans(planners: Vec<DrainPlanner>, shared: Arc<Shared>) {
    let (drain, reporter) = (&shared.drain, &shared.reporter);
    drain.stop.wait().await;
    let Some(request) = drain.stop.requested() else {
        return;
    };
    for mut planner in planners {
        // Their bytes are sent: whether they become durable depends on other nodes.
        let mut wait_for_others = 0;
        for run in &planner.runs {
            let run = run.keys.run().clone();
            let state = reporter.status.remote(&run, &planner.remote);
            wait_for_others += state.lacking_parts().count();
            let lacking = state.lacking_parts().map(|(id, _)| *id);
            let not_ours = state.steps_for_operator().chain(lacking);
            let not_ours = not_ours.map(|id| ((run.clone(), id), None));
            planner.excluded.steps.extend(not_ours);
        }
        let Ok(plan) = planner.plan().await else { continue };
        if plan.steps.is_empty() && wait_for_others == 0 {
            continue;
        }
        let left = drain.time_left().until_the_end.unwrap_or_default();
        let others = match wait_for_others {
            0 => String::new(),
            1 => "; 1 step waits for other nodes' parts".to_owned(),
            steps => format!("; {steps} steps wait for other nodes' parts"),
        };
        reporter.warn(&format!(
            "draining after {}, uploads have {} s left: {}{others}",
            request.reason,
            left.as_secs(),
            plan.summary()
        ));
    }
}

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
    let mut records: Vec<(&RunSettings, DrainRecord)> = Vec::new();
    for run in &options.runs {
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
            continue;
        }
        let (reason, now) = (request.reason.to_string(), clock::now());
        let record = DrainRecord::new(run.name.clone(), options.node().clone(), reason, now, left);
        let written = timeout_at(deadline, write_to_vault(vault, &record)).await;
        if !matches!(written, Ok(Ok(()))) {
            reporter.warn(&format!("{}: cannot write the drain record to the vault", run.name));
        }
        records.push((run, record));
    }
    let writes = records.iter().flat_map(|(run, record)| {
        let remotes = remotes_of(run, options, vault).into_iter();
        remotes.map(move |remote| async move { write_to_remote(&remote, record, deadline).await })
    });
    join_all(writes).await;
}

/// Writes the record to a remote, for readers with a different vault.
async fn write_to_remote(remote: &RunRemote, record: &DrainRecord, deadline: Instant) {
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
const RECORD_INTERVAL: Duration = Duration::from_secs(10);
/// How soon it is looked again whether the first bytes were sent.
const SOON: Duration = Duration::from_millis(500);
/// With fewer bytes than these to upload, the first record is written only after [`RECORD_INTERVAL`].
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
            let wait = self.told_at.map_or(SOON, |told_at| RECORD_INTERVAL.saturating_sub(told_at.elapsed()));
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
            if self.told_at.is_none() && bytes < SMALL_BYTES && began.elapsed() < RECORD_INTERVAL {
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
    let mut record = DrainRecord::new(run, node.clone(), "uploads".to_owned(), clock::now(), left);
    record.bytes_per_second = rate;
    write_to_remote(remote, &record, Instant::now() + RECORD_INTERVAL).await;
}
