//! Retention on one remote.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::RunSettings;
use stepvault_core::retention::KeepRules;
use stepvault_core::{Error, ErrorKind, Result, StepId, Timestamp};
use stepvault_engine::prune::{PruneReport, RemotePrune, prune_remote};
use stepvault_engine::tier::catalog::pins;
use stepvault_engine::{RunRemote, blocking};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{faults_of, refusal_of};
use crate::report::StepOnRemote;
use crate::shared::Shared;
use stepvault_local::clock;

/// Maximum number of intervals before a remote that refuses deletions is tried again: permissions may be granted later,
/// and every try leaves a lease behind that cannot be deleted either.
const MAX_INTERVALS: u32 = 64;

/// One run on the remote.
#[derive(Debug)]
pub(crate) struct PrunedRun {
    remote: RunRemote,
    /// The run's other remotes, each wrapped in a timeout: their pins count here too, and what the selective ones wait for.
    others: Vec<RunRemote>,
    rules: KeepRules,
    manages_imported: bool,
    denials: u32,
    not_before: Option<Instant>,
}

impl PrunedRun {
    pub(crate) fn new(remote: RunRemote, others: Vec<RunRemote>, run: &RunSettings) -> Self {
        let (rules, manages_imported) = (run.keep_remote.clone(), run.manage_imported);
        Self { remote, others, rules, manages_imported, denials: 0, not_before: None }
    }
}

/// The task that prunes one remote.
#[derive(Debug)]
pub(crate) struct PruneTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<PrunedRun>,
    /// Notified of every step that has become durable.
    pub(crate) uploaded: Arc<Notify>,
}

impl PruneTask {
    /// Prunes every interval, and after the first upload, until told to stop.
    pub(crate) async fn work(mut self) {
        let started = Instant::now();
        let mut last: Option<Instant> = None;
        loop {
            let due = last.unwrap_or(started) + self.interval();
            self.record_schedule(due);
            tokio::select! {
                () = self.shared.drain.stop.wait() => return,
                () = self.uploaded.notified(), if last.is_none() => {}
                () = tokio::time::sleep_until(due) => {}
            }
            last = Some(Instant::now());
            self.apply().await;
        }
    }

    fn interval(&self) -> Duration {
        self.shared.options.agent.retention_interval
    }

    fn record_schedule(&self, due: Instant) {
        let ruled = self.runs.iter().find(|run| !run.rules.is_unset());
        if let Some(run) = ruled {
            let wait = due.saturating_duration_since(Instant::now());
            let now = clock::now();
            let seconds = i64::try_from(wait.as_secs()).unwrap_or(i64::MAX);
            let time = Timestamp::from_seconds(now.seconds.saturating_add(seconds));
            let status = &self.shared.reporter.status;
            status.next_prune_is_at(run.remote.name(), time);
        }
    }

    /// Prunes each run once. Faults are warned of, and retried the next time.
    pub(crate) async fn apply(&mut self) {
        for index in 0..self.runs.len() {
            if self.shared.drain.stop.is_requested() {
                return;
            }
            let run = &self.runs[index];
            if run.rules.is_unset() || run.not_before.is_some_and(|time| time > Instant::now()) {
                continue;
            }
            match self.prune(run).await {
                Ok(report) => self.done(index, report.as_ref()),
                Err(error) => self.failed(index, &error),
            }
        }
    }

    async fn prune(&self, run: &PrunedRun) -> Result<Option<PruneReport>> {
        let name = run.remote.keys.run().clone();
        if run.remote.marker().await?.is_none() {
            // Nothing was uploaded to it yet, or it is a different remote than before.
            return Ok(None);
        }
        let (vault, reporter) = (self.shared.vault.vault.clone(), &self.shared.reporter);
        let local = blocking(move || vault.pins(&name)).await?;
        let mut pinned_elsewhere: BTreeSet<StepId> = local.into_iter().map(|pin| pin.id).collect();
        for other in &run.others {
            let about = format!("pins {} {}", run.remote.keys.run(), other.name());
            match pins(other).await {
                Ok(ids) => {
                    pinned_elsewhere.extend(ids);
                    reporter.resolved(&about);
                }
                // Pins are on every tier; an unreachable one must not block pruning of the others.
                Err(error) => {
                    let text = format!(
                        "{}: cannot read its pins; other remotes are pruned without them: {error}",
                        described(other)
                    );
                    reporter.warn_of_cause(&about, "unread", &text);
                }
            }
        }
        let selective = run.others.iter().filter(|other| other.settings.is_fed_by(run.remote.name()));
        let prune = RemotePrune {
            remote: run.remote.clone(),
            selective: selective.cloned().collect(),
            rules: run.rules.clone(),
            manages_imported: run.manages_imported,
            maximum_deletions: None,
            pinned_elsewhere,
            observer: Arc::clone(&reporter.observer),
        };
        prune_remote(&prune).await.map(Some)
    }

    fn done(&mut self, index: usize, report: Option<&PruneReport>) {
        let run = &mut self.runs[index];
        (run.denials, run.not_before) = (0, None);
        let (about, reporter) = (about(&run.remote), &self.shared.reporter);
        let Some(report) = report else { return };
        for id in &report.removed {
            let step = StepOnRemote::new(run.remote.keys.run(), *id, run.remote.name());
            reporter.status.pruned(step);
        }
        let is_blocked = refusal_of(&report.plan).is_some();
        reporter.status.retention_blocked(run.remote.keys.run(), &run.remote.tier, is_blocked);
        let text = faults_of(&report.plan);
        if text.is_empty() {
            reporter.resolved(&about);
        } else {
            let place = described(&run.remote);
            reporter.warn_once(&about, &format!("{place}: {text}"));
        }
    }

    fn failed(&mut self, index: usize, error: &Error) {
        let (interval, reporter) = (self.interval(), &self.shared.reporter);
        let run = &mut self.runs[index];
        let is_blocked = error.kind() == ErrorKind::Denied;
        reporter.status.retention_blocked(run.remote.keys.run(), &run.remote.tier, is_blocked);
        let (about, place) = (about(&run.remote), described(&run.remote));
        match error.kind() {
            ErrorKind::Held => tracing::debug!(%error, "another prune is running"),
            ErrorKind::Denied => {
                let intervals = 1 << run.denials.min(MAX_INTERVALS.ilog2());
                run.denials = run.denials.saturating_add(1);
                run.not_before = Some(Instant::now() + interval.saturating_mul(intervals));
                let text = format!(
                    "{place}: retention cannot delete on it: {error} (uploads continue; grant this node's credentials \
                     the right to delete, or prune from a machine that has it)"
                );
                // The refused request differs each time.
                if run.denials == 1 {
                    reporter.warn_once(&about, &text);
                }
            }
            _ => reporter.warn_once(&about, &format!("{place}: retention did not run: {error}")),
        }
    }
}

fn about(remote: &RunRemote) -> String {
    format!("prune {} {}", remote.keys.run(), remote.name())
}

fn described(remote: &RunRemote) -> String {
    format!("{}, remote {}", remote.keys.run(), remote.name())
}
