//! Evicts local copies that are durable elsewhere, and gives up undurable steps when the disk has no space.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::forecast::{Forecast, Taken, next_step};
use stepvault_core::given_up::GivenUpRecord;
use stepvault_core::retention::{LocalLimits, Verdict};
use stepvault_core::room::Room;
use stepvault_core::{RemoteName, Result, RunName, StepId, Tier};
use stepvault_engine::blocking::blocking;
use stepvault_engine::node_records::{read_given_up, write_given_up};
use stepvault_engine::prune::{LocalPrune, PruneReport, prune_local_runs};
use stepvault_local::seal_record::SealRecord;
use stepvault_local::{Vault, space};

use super::{faults_of, refusal_of};
use crate::remotes::ServedRun;
use crate::report::RunStep;
use crate::shared::Shared;

/// Interval of free-space checks if a low mark is configured.
const SPACE_POLL: Duration = Duration::from_secs(5);

/// Retention on the local tier, over all runs.
#[derive(Debug)]
pub(crate) struct LocalRetention {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<ServedRun>,
    /// The given-up record last written to each remote.
    pub(crate) published: RefCell<BTreeMap<(RunName, RemoteName), GivenUpRecord>>,
}

impl LocalRetention {
    /// Applies retention whenever a step has become durable or space is missing, and regularly, until told to stop.
    pub(crate) async fn work(self) {
        let interval = self.shared.options.agent.retention_interval;
        loop {
            tokio::select! {
                () = self.shared.drain.stop.wait() => return,
                () = self.shared.signals.eviction.notified() => {}
                () = tokio::time::sleep(interval) => {}
                () = self.space_runs_out() => {}
            }
            self.apply().await;
        }
    }

    /// Waits until the disk falls below the low mark, or considerably further below it.
    async fn space_runs_out(&self) {
        let Some(low) = self.shared.options.local.limits.free_space_low_bytes else {
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
            let text = format!("cannot evict local copies: {error}");
            self.shared.reporter.warn_once("eviction", &text);
        }
    }

    async fn try_apply(&self) -> Result<()> {
        let missing_bytes = self.shared.signals.take_requested_bytes();
        let needs = self.needs().await;
        let limits = self.limits_for(missing_bytes, &needs).await?;
        if !limits.is_unset() || self.runs.iter().any(|run| !run.settings.keep_local.is_unset()) {
            self.prune(&limits).await?;
        }
        self.publish_given_up().await;
        self.warn_of_shortage(needs).await;
        Ok(())
    }

    async fn prune(&self, limits: &LocalLimits) -> Result<()> {
        let prunes: Vec<LocalPrune> = self.runs.iter().map(|run| self.prune_of(run)).collect();
        let claim = async |run: &RunName, id: StepId, verdict: Verdict| {
            let step = RunStep::new(run, id);
            match verdict {
                Verdict::GiveUp => self.shared.vault.in_use.for_giving_up(&step).await,
                _ => self.shared.vault.in_use.for_eviction(&step),
            }
        };
        // The forecast of the next checkpoint never stops an upload, which may end before it: only the configured mark
        // does.
        let uploads_below_bytes = self.shared.options.local.limits.free_space_low_bytes.unwrap_or(0);
        let reports = prune_local_runs(&prunes, limits, uploads_below_bytes, claim).await?;
        for (prune, report) in prunes.iter().zip(reports) {
            match report {
                Ok(report) => self.applied(&prune.run, &report),
                Err(error) => self.warn(&prune.run, &error.to_string()),
            }
        }
        Ok(())
    }

    fn applied(&self, run: &RunName, report: &PruneReport) {
        let status = &self.shared.reporter.status;
        status.retention_blocked(run, &Tier::Local, refusal_of(&report.plan).is_some());
        let faults = faults_of(&report.plan);
        if !faults.is_empty() {
            self.warn(run, &faults);
        }
        let reporter = &self.shared.reporter;
        let status = &reporter.status;
        report.removed.iter().for_each(|id| status.evicted(run, *id));
        report.given_up.iter().for_each(|id| status.given_up(run, *id));
        let about = format!("spared {run}");
        match report.spared.first() {
            Some((id, reason)) => {
                let more = match report.spared.len() {
                    1 => String::new(),
                    count => format!(" (and {} more)", count - 1),
                };
                let text = format!("{run}, local tier: {id} is due for eviction but stays{more}: {reason}");
                reporter.warn_once(&about, &text);
            }
            None => reporter.resolved(&about),
        }
        if !report.given_up.is_empty() {
            // The waiting steps have changed.
            self.shared.signals.wake_uploads();
        }
    }

    /// Writes to each remote, once it answers, which steps the vault gave up: restores elsewhere have no other source.
    async fn publish_given_up(&self) {
        for run in &self.runs {
            let (vault, name) = (self.shared.vault.vault.clone(), run.name().clone());
            let Ok(Some(record)) = blocking(move || read_given_up(&vault, &name)).await else {
                continue;
            };
            for remote in &run.remotes {
                let on_remote = (run.name().clone(), remote.name().clone());
                if self.published.borrow().get(&on_remote) == Some(&record) {
                    continue;
                }
                match write_given_up(remote, &record).await {
                    Ok(()) => {
                        self.published.borrow_mut().insert(on_remote, record.clone());
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
            let Some(watched) = run.settings.watch.clone() else {
                continue;
            };
            let (vault, name) = (self.shared.vault.vault.clone(), run.name().clone());
            match blocking(move || needs(&vault, &name, &watched)).await {
                Ok(needs) => all.extend(needs),
                Err(error) => {
                    tracing::info!(%error, run = %run.name(), "cannot estimate the next step's size");
                }
            }
        }
        all
    }

    /// Warns of steps that will not fit even after evicting everything that may be evicted.
    async fn warn_of_shortage(&self, needs: Vec<Need>) {
        for need in needs {
            let about = format!("next step {} {}", need.run, need.place.display());
            let short = blocking(move || shortfall(&need)).await;
            match short {
                // The free space changes constantly; only the shortage itself is new.
                Ok(Some(text)) => self.shared.reporter.warn_of_cause(&about, "short", &text),
                Ok(None) => self.shared.reporter.resolved(&about),
                Err(error) => tracing::info!(%error, "cannot estimate the next step's size"),
            }
        }
    }

    /// Returns the configured limits, raised to hold the next steps; while the disk is too full to seal, also the step
    /// that failed.
    async fn limits_for(&self, missing_bytes: u64, needs: &[Need]) -> Result<LocalLimits> {
        let (room, limits) = (self.room().await?, self.shared.options.local.limits);
        let mut wanted_bytes = wanted_bytes(needs, room);
        if missing_bytes > 0 {
            // The mark includes the current free space, which was not enough.
            wanted_bytes = wanted_bytes.max(room.free_bytes.saturating_add(missing_bytes));
        }
        if wanted_bytes <= room.free_bytes {
            return Ok(limits);
        }
        let wanted_bytes = wanted_bytes.max(limits.free_space_low_bytes.unwrap_or(0));
        let high = limits.free_space_high_bytes.map(|high| high.max(wanted_bytes));
        Ok(LocalLimits { free_space_low_bytes: Some(wanted_bytes), free_space_high_bytes: high, ..limits })
    }

    async fn room(&self) -> Result<Room> {
        let root = self.shared.vault.vault.root().to_owned();
        blocking(move || space::free(&root)).await
    }

    fn prune_of(&self, run: &ServedRun) -> LocalPrune {
        LocalPrune {
            vault: self.shared.vault.vault.clone(),
            run: run.name().clone(),
            remotes: run.remotes.clone(),
            rules: run.settings.keep_local.clone(),
            // They apply to all runs at once, below.
            limits: LocalLimits::default(),
            maximum_deletions: None,
            uploading: self.shared.reporter.status.progressing(run.name()),
            observer: Arc::clone(&self.shared.reporter.observer),
        }
    }

    fn warn(&self, run: &RunName, text: &str) {
        let text = format!("{run}, local tier: {text}");
        self.shared.reporter.warn_once(&format!("eviction {run}"), &text);
    }
}

// Ensures space for coming steps while there is still time to free it.

/// The expected space that the next step of a run needs on one filesystem.
#[derive(Debug, Clone)]
pub(super) struct Need {
    pub(super) run: RunName,
    /// The directory it is written to.
    pub(super) place: PathBuf,
    pub(super) forecast: Forecast,
    /// The data written there before it.
    pub(super) after: Taken,
    /// Whether evicting from the vault frees space there.
    pub(super) shares_vault: bool,
    /// Whether the trainer writes it; otherwise it is the copy in the vault.
    pub(super) is_trainers: bool,
}

/// Returns the space that the next step of a run needs: where the trainer writes it, and in the vault if it has to be
/// copied.
pub(super) fn needs(vault: &Vault, run: &RunName, watched: &Path) -> Result<Vec<Need>> {
    let steps = vault.steps(run)?.steps;
    let by = |of: fn(&SealRecord) -> Taken| {
        let taken: Vec<Taken> = steps.iter().map(|step| of(step.record())).collect();
        next_step(&taken)
    };
    let Some(forecast) = by(SealRecord::taken) else {
        return Ok(Vec::new());
    };
    let shares_vault = space::same_filesystem(watched, vault.root())?;
    // On one filesystem, files are mostly linked; if the last steps were copied, the next one will be.
    let (of_copy, after) = if shares_vault {
        (by(SealRecord::copied), forecast.taken)
    } else {
        (Some(forecast), Taken::default())
    };
    let trainers = Need {
        run: run.clone(),
        place: watched.to_path_buf(),
        forecast,
        after: Taken::default(),
        shares_vault,
        is_trainers: true,
    };
    let of_copy = of_copy.filter(|forecast| forecast.taken.bytes > 0);
    let copy = of_copy.map(|forecast| Need {
        place: vault.root().to_owned(),
        forecast,
        after,
        shares_vault: true,
        is_trainers: false,
        ..trainers.clone()
    });
    Ok(std::iter::once(trainers).chain(copy).collect())
}

/// Returns the free bytes that the vault's disk needs so that these needs fit; 0 when there are none.
pub(super) fn wanted_bytes(needs: &[Need], vault: Room) -> u64 {
    let here = || needs.iter().filter(|need| need.shares_vault);
    let bytes = here().fold(0_u64, |sum, need| sum.saturating_add(need.forecast.taken.bytes));
    let inodes = here().fold(0_u64, |sum, need| sum.saturating_add(need.forecast.taken.inodes()));
    if vault.lacks_inodes(inodes) {
        // Steps have bytes and inodes in proportion: evicting for a step's bytes also frees its inodes.
        return bytes.max(vault.free_bytes.saturating_add(bytes));
    }
    bytes
}

/// Returns the warning for a need that does not fit now; `None` if it fits.
pub(super) fn shortfall(need: &Need) -> Result<Option<String>> {
    let room = space::free(&need.place)?;
    let both = Forecast { taken: need.forecast.taken.and(&need.after), ..need.forecast };
    let Some(numbers) = both.shortfall(room) else {
        return Ok(None);
    };
    let (run, place) = (&need.run, need.place.display());
    let consequence = match (need.is_trainers, need.after.bytes) {
        (true, _) => "the trainer's next checkpoint is expected to fail",
        (false, 0) => "it is expected not to be sealed",
        (false, _) => "this includes its copy in the vault, without which it cannot be sealed",
    };
    let remedy = if need.shares_vault {
        "nothing more can be evicted: free some space, have the trainer keep fewer steps, or lower keep.local"
    } else {
        "the vault is on another disk, so eviction frees no space here: free some space, or have the trainer keep \
         fewer steps"
    };
    Ok(Some(format!("{run}: {numbers} at {place}: {consequence} ({remedy})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(bytes: u64, inodes: u64, shares_vault: bool) -> Need {
        Need {
            run: RunName::new("demo").unwrap(),
            place: PathBuf::from("/"),
            forecast: next_step(&[Taken { bytes, files: inodes, directories: 0 }]).unwrap(),
            after: Taken::default(),
            shares_vault,
            is_trainers: true,
        }
    }

    #[test]
    fn what_is_needed_on_the_vaults_disk_adds_up() {
        let room =
            Room { free_bytes: 1000, total_bytes: 10_000, free_inodes: Some(10), total_inodes: Some(100) };
        assert_eq!(wanted_bytes(&[], room), 0);
        let needs = [need(300, 3, true), need(400, 4, true), need(5000, 1, false)];
        assert_eq!(wanted_bytes(&needs, room), 700);
        assert_eq!(wanted_bytes(&[need(300, 11, true)], room), 1300, "room for its inodes");
    }

    #[test]
    fn a_need_that_is_not_met_says_what_will_happen() {
        assert_eq!(shortfall(&need(1, 1, true)).unwrap(), None);
        let text = shortfall(&need(u64::MAX, 1, true)).unwrap().unwrap();
        assert!(
            text.starts_with(
                "demo: the next step needs about 16.0 EiB (estimated from the last step), but only "
            ),
            "{text}"
        );
        assert!(
            text.contains(
                " are free at /: the trainer's next checkpoint is expected to fail (nothing more can be \
                 evicted: "
            ),
            "{text}"
        );
        let copy = Need {
            after: Taken { bytes: u64::MAX / 2, ..Taken::default() },
            is_trainers: false,
            ..need(1 + u64::MAX / 2, 1, true)
        };
        let text = shortfall(&copy).unwrap().unwrap();
        assert!(text.contains("needs about 16.0 EiB "), "{text}");
        assert!(
            text.contains(": this includes its copy in the vault, without which it cannot be sealed ("),
            "{text}"
        );
    }
}
