//! The task that finds finished steps and seals them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::LinkPolicy;
use stepvault_core::placement::LiveSave;
use stepvault_core::{Clock as _, Error, ErrorKind, Result, RunName, Step, Timestamp};
use stepvault_engine::blocking::blocking;
use stepvault_engine::launches::{knows_launches, record_beginning};
use stepvault_engine::placement::CurrentWriter;
use stepvault_engine::push::{CheckpointToSeal, MetricsSource, SealOutcome, identify_and_seal};
use stepvault_local::seal_record::AttemptOrigin;
use stepvault_local::{Checkpoint, SystemClock};
use tokio::time::Instant;

use crate::announcements::{Announcement, SealedFor};
use crate::discovery::{Discovery, Ready, ScanReport, Wake, ready_alone};
use crate::pause::{AfterFailedSeal, LONGEST, after_failed_seal, earliest};
use crate::remotes::ServedRun;
use crate::retention::clean_source;
use crate::retries::Retries;
use crate::shared::Shared;
use crate::stop::StopReason;

/// After the disk was full, nothing is sealed for this long, whatever else is ready.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);
/// Maximum interval between tries of a step that found the disk full.
const LONGEST_FULL_DISK_PAUSE: Duration = Duration::from_secs(5);
/// After this many poll intervals, an entry that is not sealed yet is worth a line in the log.
const LOG_UNFINISHED_AFTER_POLLS: u32 = 30;
/// Many events may happen at once in a directory; they are handled together.
const GATHER: Duration = Duration::from_millis(100);
/// Minimum interval between scans.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

/// One run, as far as sealing its steps is concerned.
#[derive(Debug)]
pub(crate) struct SealedRun {
    /// Its settings and its remotes.
    pub(crate) served: ServedRun,
    /// `None` for a run that is not watched, and during a scan.
    pub(crate) discovery: Option<Discovery>,
    /// Whether the vault had recorded launches when the service started: times then tell which one wrote an entry.
    knows_launches: bool,
    /// What the first scan found: only these entries can be older than this service. Entries that appear later were
    /// written since, whatever their times are.
    first_scan: Option<BTreeSet<String>>,
    /// The last whole save that this service saw appear, if it was at or below the run's highest number.
    live_below_highest: Option<Step>,
    /// `None` for a run without cleaning.
    cleaning: Option<Cleaning>,
    /// Announced steps that could not be sealed and that no entry of a watched directory represents.
    retries: Retries,
}

/// When the trainer's own steps are cleaned.
#[derive(Debug)]
struct Cleaning {
    next: Instant,
    /// Number of cleaning rounds so far.
    turn: usize,
}

impl SealedRun {
    pub(crate) fn new(served: ServedRun, discovery: Option<Discovery>) -> Self {
        let is_cleaned = served.settings.clean_source;
        Self {
            served,
            discovery,
            knows_launches: false,
            first_scan: None,
            live_below_highest: None,
            cleaning: is_cleaned.then(|| Cleaning {
                next: Instant::now(),
                // Start at a different position each time, or rounds started by cron would all check the same steps.
                turn: usize::try_from(SystemClock.now().seconds_since(Timestamp::default()))
                    .unwrap_or_default(),
            }),
            retries: Retries::default(),
        }
    }

    fn name(&self) -> &RunName {
        self.served.name()
    }
}

/// The task that seals.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<SealedRun>,
    /// While the disk is full, nothing is sealed before this time.
    pub(crate) not_before: Option<Instant>,
}

impl Sealer {
    /// Scans and seals until told to stop; with `once`, until there is nothing left to wait for.
    pub(crate) async fn work(&mut self) -> Result<()> {
        self.record_launch().await;
        let mut wake = Some(Wake::new());
        let changed = wake.as_ref().map(Wake::changed).unwrap_or_default();
        let quiet_times = self.discoveries().map(Discovery::quiet_time);
        let patience = quiet_times.max().unwrap_or_default() + self.shared.options.agent.poll_interval;
        let mut give_up = Instant::now() + patience;
        // What exists when a stop is requested is quiet by then; ages are known in whole seconds.
        let mut quiet_by = None;
        let until_quiet = patience + Duration::from_secs(1);
        loop {
            let asked = self.shared.drain.stop.requested();
            // Checked before the scan: this scan is the last one, and seals what is complete by now.
            let last = asked.as_ref().is_some_and(|request| !request.uses_all_of_its_time());
            let watched: Vec<PathBuf> = self.discoveries().flat_map(Discovery::directories).collect();
            if let Some(mut watcher) = wake.take() {
                let watch = move || {
                    watcher.watch(watched.iter().map(PathBuf::as_path));
                    Ok(watcher)
                };
                wake = Some(blocking(watch).await?);
            }
            let begun = Instant::now();
            let scan_again = self.scan_and_seal().await?;
            // A long seal must not shorten the other steps' quiet time.
            give_up += begun.elapsed();
            // A step that nothing but its quiet time proves is waited for, if the drain's deadline allows it.
            if asked.is_some() {
                quiet_by.get_or_insert_with(|| Instant::now() + until_quiet);
            }
            let waits_for_quiet_time = scan_again
                .zip(quiet_by)
                .is_some_and(|(time, quiet_by)| time <= quiet_by && self.has_time_until(time));
            if last && !waits_for_quiet_time
                || self.shared.options.lifecycle.once && (scan_again.is_none() || Instant::now() >= give_up)
            {
                break;
            }
            let already_asked = asked.is_some();
            let regular = Instant::now() + self.shared.options.agent.poll_interval;
            let next =
                scan_again.map_or(regular, |time| time.min(regular)).max(Instant::now() + SHORTEST_WAIT);
            tokio::select! {
                () = self.stop_requested(already_asked), if !waits_for_quiet_time => {}
                () = tokio::time::sleep_until(next) => {}
                () = changed.notified() => tokio::time::sleep(GATHER).await,
                () = self.shared.announcements.wake.notified() => {}
            }
        }
        self.shared.announcements.close();
        for index in 0..self.runs.len() {
            self.record_waiting(index);
        }
        for run in &self.runs {
            for (path, why) in run.discovery.iter().flat_map(Discovery::unfinished) {
                self.shared.reporter.status.skipped(run.name(), &path, why);
            }
        }
        Ok(())
    }

    /// Returns when the current scan should be followed by the next at once: on the first request to stop, then on one
    /// from a client that waits for the end.
    async fn stop_requested(&self, already_asked: bool) {
        let now = |waits: bool| waits.then(Instant::now);
        self.shared.drain.stop.until(|request| now(!already_asked || !request.uses_all_of_its_time())).await;
    }

    /// Finds out whether the vault knows launches, and records the beginning of this one for a later single round.
    async fn record_launch(&mut self) {
        let vault = &self.shared.vault.vault;
        for run in &mut self.runs {
            run.knows_launches = knows_launches(vault, run.name()).await;
            if let (Some(launch), false) =
                (&self.shared.options.writer.launch, self.shared.options.lifecycle.once)
            {
                let recorded = record_beginning(vault, run.name(), launch, self.shared.started_at).await;
                if let Err(error) = recorded {
                    tracing::debug!(%error, run = %run.name(), "cannot record the beginning of the launch");
                }
            }
        }
    }

    /// Whether nothing can write a checkpoint any more.
    fn is_trainer_gone(&self) -> bool {
        let request = self.shared.drain.stop.requested();
        self.shared.options.lifecycle.trainer_ended
            || request.is_some_and(|request| request.reason == StopReason::TrainerGone)
    }

    /// Returns the longest time to wait for silence after the trainer's end: none if nothing writes any more, and half of
    /// what is left of the deadline if processes that it started may still write.
    fn longest_quiet_time(&self) -> Option<Duration> {
        if self.is_trainer_gone() {
            return Some(Duration::ZERO);
        }
        let has_ended = (self.shared.drain.stop.requested())
            .is_some_and(|request| request.reason == StopReason::TrainerEnded);
        let left = self.shared.drain.time_left().until_the_end;
        left.filter(|_| has_ended).map(|left| left / 2)
    }

    fn has_time_until(&self, time: Instant) -> bool {
        let left = self.shared.drain.time_left().until_the_end;
        left.is_none_or(|left| time < Instant::now() + left)
    }

    /// Records the steps that had all their files and were left at the end because they were not quiet yet.
    fn record_waiting(&self, index: usize) {
        let run = &self.runs[index];
        let waiting = run.discovery.as_ref().map(Discovery::waiting).unwrap_or_default();
        if (self.shared.options.lifecycle.once || self.shared.drain.stop.is_requested())
            && !waiting.is_empty()
        {
            let mut unsealed = self.shared.reporter.status.unsealed_of(run.name(), usize::MAX);
            unsealed.extend(waiting);
            self.shared.reporter.status.unsealed(run.name(), unsealed);
        }
    }

    fn discoveries(&self) -> impl Iterator<Item = &Discovery> {
        self.runs.iter().filter_map(|run| run.discovery.as_ref())
    }

    /// One round over all runs; returns when to scan again at the latest, if something is worth waiting for.
    async fn scan_and_seal(&mut self) -> Result<Option<Instant>> {
        let mut scan_again: Option<Instant> = None;
        for index in 0..self.runs.len() {
            let run = self.runs[index].name().clone();
            let is_last = self.shared.drain.stop.is_requested();
            let announced = self.shared.announcements.take(&run);
            self.retry_announced(index).await;
            let Some(mut discovery) = self.runs[index].discovery.take() else {
                for announcement in announced {
                    self.seal_announced(index, None, announcement).await?;
                }
                self.record_unsealed(index, None, None);
                scan_again = earliest(scan_again, self.runs[index].retries.next_try());
                continue;
            };
            if !announced.is_empty() {
                discovery.allow_immediate_scan();
            }
            if let Some(longest) = self.longest_quiet_time() {
                discovery.shorten_quiet_time(longest);
            }
            if is_last || self.shared.options.lifecycle.once || self.is_trainer_gone() {
                discovery.accept_missing_files();
            }
            if is_last && !self.shared.reporter.status.has_final_scan(&run) {
                // There may be no time left after a pause.
                discovery.allow_immediate_scan();
                discovery.try_now();
            }
            let vault = self.shared.vault.vault.clone();
            let (discovery, look) = blocking(move || {
                let mut discovery = discovery;
                // With an unreadable vault everything seems new; sealing then reports the vault's fault.
                let sealed = || vault.steps(&run).map(|scan| scan.steps).unwrap_or_default();
                let look = discovery.scan(SystemClock.now(), sealed);
                Ok((discovery, look))
            })
            .await?;
            let mut known = Some(discovery);
            for announcement in announced {
                known = self.seal_announced(index, known, announcement).await?;
            }
            let Some(mut discovery) = known else { continue };
            self.runs[index].first_scan.get_or_insert_with(|| discovery.keys());
            self.report_scan(self.runs[index].name(), &look);
            // Before the first step is sealed, which may take longer than the remaining time.
            self.record_unsealed(index, Some(&discovery), look.fault.as_ref());
            for ready in &look.ready {
                if let Some(time) = self.not_before.filter(|time| *time > Instant::now()) {
                    scan_again = earliest(scan_again, Some(time));
                    break;
                }
                // A failure is recorded, and retried at a later scan.
                let _ = self.seal_and_record(index, Some(&mut discovery), ready).await;
            }
            self.report_unfinished(index, &discovery, &look.ready);
            self.record_unsealed(index, Some(&discovery), look.fault.as_ref());
            if is_last {
                self.shared.reporter.status.scanned_at_end(self.runs[index].name());
            }
            let cleaning = self.runs[index].cleaning.as_ref();
            let is_due = cleaning.is_some_and(|cleaning| cleaning.next <= Instant::now());
            // A single round cleans at its very end.
            if is_due && !self.shared.options.lifecycle.once {
                discovery = self.clean(index, discovery).await?;
            }
            for time in [look.again_at, discovery.next_try(), self.runs[index].retries.next_try()] {
                scan_again = earliest(scan_again, time);
            }
            self.runs[index].discovery = Some(discovery);
        }
        Ok(scan_again)
    }

    /// Reports what a scan has found beside finished steps.
    fn report_scan(&self, run: &RunName, look: &ScanReport) {
        let reporter = &self.shared.reporter;
        let about = format!("watch {run}");
        match &look.fault {
            Some(error) => reporter.warn_once(&about, &format!("{run}: {error}")),
            None => reporter.resolved(&about),
        }
        for info in look.infos.iter().chain(&look.news) {
            reporter.info(&format!("{run}: {info}"));
        }
        if let Some(advice) = &look.advice {
            reporter.warn_once(&format!("series {run}"), &format!("{run}: {advice}"));
        }
        for (path, text) in &look.warnings {
            let about = format!("files of {}", path.display());
            reporter.warn_once(&about, &format!("{run}: {text}"));
        }
        for (path, reason) in &look.skipped {
            tracing::info!(path = %path.display(), reason, "skipped");
            reporter.status.skipped(run, path, reason.clone());
        }
    }

    /// Records what is finished but not sealed, for clients that ask what is durable.
    fn record_unsealed(&self, index: usize, discovery: Option<&Discovery>, fault: Option<&Error>) {
        let run = &self.runs[index];
        let mut unsealed = discovery.map(Discovery::unsealed).unwrap_or_default();
        if let (Some(discovery), Some(error)) = (discovery, fault) {
            let directory = discovery.directories().into_iter().next();
            let why = format!("cannot determine whether it holds a finished step: {error}");
            unsealed.extend(directory.map(|directory| (directory, why)));
        }
        unsealed.extend(run.retries.unsealed());
        self.shared.reporter.status.unsealed(run.name(), unsealed);
    }

    /// Retries announced steps that could not be sealed, while they are unchanged.
    async fn retry_announced(&mut self, index: usize) {
        for ready in self.runs[index].retries.due() {
            if self.seal_and_record(index, None, &ready).await.is_ok() {
                self.runs[index].retries.forget(&ready.path);
            }
        }
    }

    /// Reports once why an entry of a run's directory has not been sealed for a while. Failed seals are reported
    /// separately.
    fn report_unfinished(&self, index: usize, discovery: &Discovery, tried: &[Ready]) {
        let run = self.runs[index].name();
        let logged_after = if self.shared.options.lifecycle.once {
            Duration::ZERO
        } else {
            self.shared.options.agent.poll_interval * LOG_UNFINISHED_AFTER_POLLS
        };
        let tried: BTreeSet<PathBuf> = tried.iter().map(|ready| discovery.path_of(ready)).collect();
        for (path, why) in self.shared.reporter.status.unfinished(run, discovery.unfinished(), logged_after) {
            if !tried.contains(&path) {
                let path = path.display();
                self.shared.reporter.info(&format!("{run}: {path} exists but is not sealed yet: {why}"));
            }
        }
    }

    /// Removes the steps that the trainers no longer need, in all runs with cleaning.
    pub(crate) async fn clean_all(&mut self) -> Result<()> {
        for index in 0..self.runs.len() {
            let asks = self.runs[index].cleaning.is_some();
            if let Some(discovery) = self.runs[index].discovery.take_if(|_| asks) {
                self.runs[index].discovery = Some(self.clean(index, discovery).await?);
            }
        }
        Ok(())
    }

    /// Removes the trainer's own steps that are durable and no longer needed. Faults are warned of, and retried the
    /// next time.
    async fn clean(&mut self, index: usize, mut discovery: Discovery) -> Result<Discovery> {
        let run = &mut self.runs[index];
        if self.shared.drain.stop.is_requested() {
            return Ok(discovery);
        }
        let Some(cleaning) = &mut run.cleaning else {
            return Ok(discovery);
        };
        cleaning.next = Instant::now() + self.shared.options.agent.retention_interval;
        let (discovery, steps) = blocking(move || {
            let steps = discovery.prunable_steps();
            Ok((discovery, steps))
        })
        .await?;
        let about = format!("clean {}", run.served.name());
        let cleaned = match steps {
            Ok(steps) => {
                cleaning.turn = cleaning.turn.wrapping_add(1);
                let (vault, name, turn) = (&self.shared.vault.vault, run.served.name(), cleaning.turn);
                clean_source(vault, &self.shared.reporter, name, &run.served.remotes, steps, turn).await
            }
            Err(error) => Err(error),
        };
        match cleaned {
            Ok(()) => self.shared.reporter.resolved(&about),
            Err(error) => {
                let run = run.served.name();
                let text = format!("{run}: cannot clean the trainer's own steps; they stay for now: {error}");
                self.shared.reporter.warn_once(&about, &text);
            }
        }
        Ok(discovery)
    }

    /// Seals a step, and records the outcome: in `discovery` if an entry of a watched directory represents it.
    async fn seal_and_record(
        &mut self,
        index: usize,
        discovery: Option<&mut Discovery>,
        ready: &Ready,
    ) -> Result<SealOutcome> {
        let is_resaved = discovery.as_ref().is_some_and(|discovery| discovery.was_handled(ready));
        let placed = self.seal_in_own_task(index, ready, is_resaved).await;
        match &placed {
            Ok(placed) => {
                if let SealOutcome::Sealed { step, new: true, is_live_below_highest } = placed
                    && !step.record().origin.unnumbered
                {
                    self.runs[index].live_below_highest = is_live_below_highest.then(|| step.id().step);
                }
                if let Some(discovery) = discovery {
                    discovery.handled(ready);
                }
                self.on_sealed(index, ready, placed);
            }
            Err(error) => {
                // Links are retried by themselves: the entry has lost its files.
                let known = discovery.filter(|discovery| ready.early.is_none() && discovery.knows(ready));
                self.on_failure(index, known, ready, error);
            }
        }
        placed
    }

    /// Seals announced steps and reports the outcome. Returns the discovery.
    async fn seal_announced(
        &mut self,
        index: usize,
        discovery: Option<Discovery>,
        announcement: Announcement,
    ) -> Result<Option<Discovery>> {
        let id = announcement.id;
        let profiles = Arc::clone(&self.shared.options.profiles);
        let profile = self.runs[index].served.settings.profile.clone();
        let extent = self.shared.options.extent_of(&self.runs[index].served.settings);
        let (mut discovery, ready) = blocking(move || {
            let there = announcement.check_unchanged().and_then(|()| match &discovery {
                Some(discovery) => discovery.ready_there(&announcement),
                None => Ok(None),
            });
            let key =
                discovery.as_ref().map(|discovery| discovery.key_of(&announcement.path)).unwrap_or_default();
            let ready = match there {
                Ok(Some(ready)) => Ok(ready),
                Ok(None) => ready_alone(&announcement, key, &profiles, profile.as_deref(), extent),
                Err(error) => Err(error),
            };
            // Exactly what was checked here is sealed.
            let ready = ready.and_then(|ready| announcement.check_unchanged().map(|()| ready));
            Ok((discovery, ready))
        })
        .await?;
        let placed = match ready {
            Ok(ready) => {
                let placed = self.seal_and_record(index, discovery.as_mut(), &ready).await;
                if placed.is_ok() {
                    self.runs[index].retries.forget(&ready.path);
                }
                placed
            }
            Err(error) => Err(error),
        };
        let result = placed.map(|placed| SealedFor {
            id: placed.summary().id,
            provisional: placed.is_provisional(),
            newly_sealed: matches!(placed, SealOutcome::Sealed { new: true, .. }),
        });
        self.shared.announcements.settle(id, &result);
        Ok(discovery)
    }

    /// Notifies all interested tasks that a step is in the vault, or durable on every remote.
    fn on_sealed(&self, index: usize, ready: &Ready, placed: &SealOutcome) {
        self.shared.reporter.resolved(&format!("seal {}", ready.path.display()));
        if let SealOutcome::Sealed { step, new, .. } = placed {
            if *new {
                self.shared.reporter.status.sealed(self.runs[index].name(), step.id());
                self.shared.signals.attempts.notify_one();
            }
            self.shared.signals.wake_uploads();
            // Space was used: the limits may be reached.
            self.shared.signals.eviction.notify_one();
        }
    }

    /// Seals a step in a task of its own, so that a panic over one checkpoint affects only that one.
    /// `is_resaved` is true if an earlier state of it was sealed while this service was running.
    async fn seal_in_own_task(&self, index: usize, ready: &Ready, is_resaved: bool) -> Result<SealOutcome> {
        let run = &self.runs[index];
        let was_there = |there: &BTreeSet<String>| there.contains(&ready.key);
        let has_appeared =
            !self.shared.options.lifecycle.once && !run.first_scan.as_ref().is_some_and(was_there);
        let is_live = has_appeared || is_resaved && !self.shared.options.lifecycle.once;
        let checkpoint = ready.checkpoint.clone();
        let request = CheckpointToSeal {
            run: run.name().clone(),
            checkpoint: Checkpoint {
                links: stricter(self.shared.options.local.links, checkpoint.links),
                ..checkpoint
            },
            tree: Some(Arc::clone(&ready.tree)),
            step: ready.step,
            attempt: self.shared.options.attempt,
            origin: AttemptOrigin {
                // A single round finds what was written before it: in the same launch, as far as the vault knows of no
                // other.
                in_launch: self.shared.options.lifecycle.once && !run.knows_launches || is_live,
                not_before: is_live.then_some(self.shared.started_at),
                live: is_live.then_some(LiveSave { after: run.live_below_highest }),
                ..AttemptOrigin::default()
            },
            current: CurrentWriter {
                writer: self.shared.options.writer_of(&run.served.settings),
                launch_since: self.shared.started_at,
            },
            links_for_later: None,
            is_overwritten: false,
            metrics_source: MetricsSource::of(&run.served.settings),
            digest: run.served.settings.digest,
            shown_in: Some(self.shared.signals.copy.clone()),
        };
        let (access, remotes) = (self.shared.vault.clone(), run.served.remotes.clone());
        let (observer, early) = (Arc::clone(&self.shared.reporter.observer), ready.early.clone());
        let work = tokio::task::spawn_local(async move {
            // Links that are sealed from stay until then.
            let _early = early;
            let _in_order = access.attempt_order.lock().await;
            identify_and_seal(&access.vault, &remotes, request, &observer).await
        });
        match work.await {
            Ok(placed) => placed,
            Err(error) => Err(Error::new(ErrorKind::Failed, "sealing ended unexpectedly").caused_by(error)),
        }
    }

    /// Records why a finished step was not sealed, and when to retry: in `discovery` if an entry of a watched directory
    /// represents it.
    fn on_failure(&mut self, index: usize, discovery: Option<&mut Discovery>, ready: &Ready, error: &Error) {
        let run = self.runs[index].name();
        let about = format!("seal {}", ready.path.display());
        let reason = error.to_string();
        let text = format!("{run}: {}", error.text_with_hint());
        let after = after_failed_seal(error);
        match after {
            AfterFailedSeal::LeftAlone => {
                self.shared.reporter.status.skipped(run, &ready.path, reason.clone());
                self.runs[index].retries.forget(&ready.path);
                if error.is_pruned() {
                    if let Some(discovery) = discovery {
                        discovery.handled(ready);
                    }
                    // A step that retention removed and the trainer still has is no fault.
                    tracing::info!(path = %ready.path.display(), reason, "skipped");
                } else {
                    // An empty directory has nothing to lose.
                    match discovery {
                        Some(discovery) if ready.tree.data_bytes() > 0 => discovery.skipped(ready, reason),
                        Some(discovery) => discovery.handled(ready),
                        None => {}
                    }
                    self.shared.reporter.warn_once(&about, &text);
                }
                return;
            }
            AfterFailedSeal::NoSpace => {
                // The free space changes constantly; only the shortage itself is new.
                self.shared.reporter.warn_of_cause(&about, "no space", &text);
                if ready.early.is_some() {
                    // They take the space of the files that the trainer has deleted.
                    self.runs[index].retries.forget(&ready.path);
                    return;
                }
                self.not_before = Some(Instant::now() + FULL_DISK_PAUSE);
                self.shared.signals.request_bytes(ready.tree.data_bytes());
            }
            AfterFailedSeal::Unfinished | AfterFailedSeal::Later => {
                self.shared.reporter.warn_once(&about, &text);
            }
        }
        let longest = match after {
            AfterFailedSeal::NoSpace => LONGEST_FULL_DISK_PAUSE,
            _ => LONGEST,
        };
        match (discovery, after) {
            (Some(discovery), _) => discovery.failed(ready, longest, reason),
            // The process that modifies it announces it again.
            (None, AfterFailedSeal::Unfinished) => self.runs[index].retries.forget(&ready.path),
            (None, _) => self.runs[index].retries.failed(ready, longest, reason),
        }
    }
}

/// Returns the policy that satisfies both.
fn stricter(one: LinkPolicy, other: LinkPolicy) -> LinkPolicy {
    let strictness = |policy: &LinkPolicy| match policy {
        LinkPolicy::Auto => 0,
        LinkPolicy::ReflinkOrCopy => 1,
        LinkPolicy::Copy => 2,
    };
    std::cmp::max_by_key(one, other, strictness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_configuration_nor_the_profile_is_made_laxer() {
        use LinkPolicy::{Auto, Copy, ReflinkOrCopy};
        assert_eq!(stricter(Auto, Auto), Auto);
        assert_eq!(stricter(Auto, ReflinkOrCopy), ReflinkOrCopy);
        assert_eq!(stricter(ReflinkOrCopy, Auto), ReflinkOrCopy);
        assert_eq!(stricter(Copy, ReflinkOrCopy), Copy);
    }
}
