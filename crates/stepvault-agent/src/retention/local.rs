//! Evicts local copies that are durable elsewhere, and gives up undurable steps when the disk has no space.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::given_up::GivenUpRecord;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::observe::Event;
use stepvault_core::retention::{KeepRules, LocalLimits, RefusalKind, RetentionPlan, Verdict};
use stepvault_core::room::Room;
use stepvault_engine::blocking::blocking;
use stepvault_engine::given_up::{read_given_up, write_given_up};
use stepvault_engine::prune::{LocalPrune, PruneReport, prune_local_runs};
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::space;

use super::admission::{Need, needs, shortfall, wanted_bytes};
use crate::report::RunStep;
use crate::shared::Shared;

/// Interval of free-space checks if a low mark is configured.
const SPACE_POLL: Duration = Duration::from_secs(5);

/// One run on the local tier.
#[derive(Debug)]
pub(crate) struct LocalRun {
    pub(crate) run: RunName,
    /// The directory in which its trainer writes.
    pub(crate) watched: Option<PathBuf>,
    pub(crate) rules: KeepRules,
    /// Its remotes, each wrapped in a timeout.
    pub(crate) remotes: Vec<RunRemote>,
}

/// Retention on the local tier, over all runs.
#[derive(Debug)]
pub(crate) struct LocalRetention {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<LocalRun>,
    pub(crate) limits: LocalLimits,
    pub(crate) interval: Duration,
    /// The given-up record last written to each remote.
    pub(crate) told: Mutex<BTreeMap<(RunName, RemoteName), GivenUpRecord>>,
}

impl LocalRetention {
    /// Applies retention whenever a step has become durable or space is missing, and regularly, until told to stop.
    pub(crate) async fn work(self) {
        loop {
            tokio::select! {
                () = self.shared.stopping.wait() => return,
                () = self.shared.evict.notified() => {}
                () = tokio::time::sleep(self.interval) => {}
                () = self.space_runs_out() => {}
            }
            self.apply().await;
        }
    }

    /// Waits until the disk falls below the low mark, or considerably further below it.
    async fn space_runs_out(&self) {
        let Some(low) = self.limits.free_space_low_bytes else {
            return std::future::pending().await;
        };
        let free = async || self.room().await.map_or(u64::MAX, |room| room.free_bytes);
        let begun_with = free().await;
        loop {
            tokio::time::sleep(SPACE_POLL).await;
            let now = free().await;
            if now < low && (begun_with >= low || now.saturating_add(low / 16) < begun_with) {
                return;
            }
        }
    }

    /// Applies retention once. Faults are warned of, and retried the next time.
    pub(crate) async fn apply(&self) {
        if let Err(error) = self.try_apply().await {
            self.shared
                .warn("eviction", &format!("cannot evict local copies: {error}"));
        }
    }

    async fn try_apply(&self) -> Result<()> {
        let missing_bytes = self.shared.missing_bytes.swap(0, Ordering::Relaxed);
        let needs = self.needs().await;
        let limits = self.limits_for(missing_bytes, &needs).await?;
        let nothing_to_do = limits.is_unset() && self.runs.iter().all(|run| run.rules.is_unset());
        if nothing_to_do {
            self.tell_remotes_what_was_given_up().await;
            self.tell_what_is_short(needs).await;
            return Ok(());
        }
        let prunes: Vec<LocalPrune> = self.runs.iter().map(|run| self.prune_of(run)).collect();
        let claim = async |run: &RunName, id: StepId, verdict: Verdict| {
            let step = RunStep { run: run.clone(), id };
            match verdict {
                Verdict::GiveUp => self.shared.occupied.for_giving_up(step).await,
                _ => self.shared.occupied.for_eviction(step),
            }
        };
        // The forecast of the next checkpoint never stops an upload, which may end before it: only the configured mark
        // does.
        let uploads_below_bytes = self.limits.free_space_low_bytes.unwrap_or(0);
        let reports = prune_local_runs(&prunes, &limits, uploads_below_bytes, claim).await?;
        for (prune, report) in prunes.iter().zip(reports) {
            match report {
                Ok(report) => self.carried_out(&prune.run, &report),
                Err(error) => self.complain(&prune.run, &error.to_string()),
            }
        }
        self.tell_remotes_what_was_given_up().await;
        self.tell_what_is_short(needs).await;
        Ok(())
    }

    fn carried_out(&self, run: &RunName, report: &PruneReport) {
        let texts: Vec<&str> = report
            .plan
            .warnings
            .iter()
            .chain(refusal_worth_telling(&report.plan))
            .map(String::as_str)
            .collect();
        if !texts.is_empty() {
            self.complain(run, &texts.join("; "));
        }
        report
            .removed
            .iter()
            .for_each(|id| self.shared.status.evicted(run, *id));
        report
            .given_up
            .iter()
            .for_each(|id| self.shared.status.given_up(run, *id));
        let about = format!("spared {run}");
        match report.spared.first() {
            Some((id, reason)) => {
                let more = match report.spared.len() {
                    1 => String::new(),
                    count => format!(" (and {} more)", count - 1),
                };
                let text = format!("{run}, local tier: {id} is due for eviction but stays{more}: {reason}");
                self.shared.warn(&about, &text);
            }
            None => self.shared.status.is_well(&about),
        }
        if !report.given_up.is_empty() {
            // The waiting steps have changed.
            self.shared.wake_lanes();
        }
    }

    /// Writes to each remote, once it answers, which steps the vault gave up: restores elsewhere have no other source.
    async fn tell_remotes_what_was_given_up(&self) {
        for run in &self.runs {
            let (vault, name) = (self.shared.vault.clone(), run.run.clone());
            let Ok(Some(record)) = blocking(move || read_given_up(&vault, &name)).await else {
                continue;
            };
            for remote in &run.remotes {
                let about = (run.run.clone(), remote.name().clone());
                let is_told = self
                    .told
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get(&about)
                    == Some(&record);
                if is_told {
                    continue;
                }
                match write_given_up(remote, &record).await {
                    Ok(()) => {
                        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
                        told.insert(about, record.clone());
                    }
                    Err(error) => {
                        tracing::info!(%error, remote = %remote.name(), "cannot record on the remote which steps were \
                                                                         given up");
                    }
                }
            }
        }
    }

    /// Returns the space that the next steps need, by directory.
    async fn needs(&self) -> Vec<Need> {
        let mut all = Vec::new();
        for run in &self.runs {
            let Some(watched) = run.watched.clone() else {
                continue;
            };
            let (vault, name) = (self.shared.vault.clone(), run.run.clone());
            match blocking(move || needs(&vault, &name, &watched)).await {
                Ok(needs) => all.extend(needs),
                Err(error) => tracing::info!(%error, run = %run.run, "cannot estimate the next step's size"),
            }
        }
        all
    }

    /// Warns of steps that will not fit even after evicting everything that may be evicted.
    async fn tell_what_is_short(&self, needs: Vec<Need>) {
        for need in needs {
            let about = format!("next step {} {}", need.run, need.place.display());
            let short = blocking(move || shortfall(&need)).await;
            match short {
                // The free space changes constantly; only the shortage itself is new.
                Ok(Some(text)) if self.shared.status.is_news(&about, "short") => {
                    self.shared.observer.on_event(&Event::Warning { message: &text });
                }
                Ok(Some(_)) => {}
                Ok(None) => self.shared.status.is_well(&about),
                Err(error) => tracing::info!(%error, "cannot estimate the next step's size"),
            }
        }
    }

    /// Returns the configured limits, raised to hold the next steps; while the disk is too full to seal, also the step
    /// that failed.
    async fn limits_for(&self, missing_bytes: u64, needs: &[Need]) -> Result<LocalLimits> {
        let room = self.room().await?;
        let mut wanted_bytes = wanted_bytes(needs, room);
        if missing_bytes > 0 {
            // The mark includes the current free space, which was not enough.
            wanted_bytes = wanted_bytes.max(room.free_bytes.saturating_add(missing_bytes));
        }
        if wanted_bytes <= room.free_bytes {
            return Ok(self.limits);
        }
        let wanted_bytes = wanted_bytes.max(self.limits.free_space_low_bytes.unwrap_or(0));
        let high = self
            .limits
            .free_space_high_bytes
            .map(|high| high.max(wanted_bytes));
        Ok(LocalLimits {
            free_space_low_bytes: Some(wanted_bytes),
            free_space_high_bytes: high,
            ..self.limits
        })
    }

    async fn room(&self) -> Result<Room> {
        let root: PathBuf = self.shared.vault.root().to_owned();
        blocking(move || space::free(&root)).await
    }

    fn prune_of(&self, run: &LocalRun) -> LocalPrune {
        LocalPrune {
            vault: self.shared.vault.clone(),
            run: run.run.clone(),
            remotes: run.remotes.clone(),
            rules: run.rules.clone(),
            // They apply to all runs at once, below.
            limits: LocalLimits::default(),
            maximum_deletions: None,
            uploading: self.shared.status.progressing(&run.run),
            observer: Arc::clone(&self.shared.observer),
        }
    }

    fn complain(&self, run: &RunName, text: &str) {
        self.shared
            .warn(&format!("eviction {run}"), &format!("{run}, local tier: {text}"));
    }
}

/// Returns the refusal to report. An empty tier is not reported.
fn refusal_worth_telling(plan: &RetentionPlan) -> Option<&String> {
    let refusal = plan
        .refusal
        .as_ref()
        .filter(|refusal| refusal.kind != RefusalKind::ListingEmpty)?;
    Some(&refusal.reason)
}
