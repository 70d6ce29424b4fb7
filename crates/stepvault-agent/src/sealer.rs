//! The task that finds finished steps and seals them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::clock::Clock as _;
use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::{Attempt, RunName};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Event;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::metrics::MetricsSource;
use stepvault_engine::push::{Placed, StageRequest, stage};
use stepvault_engine::run_remote::RunRemote;
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use tokio::time::Instant;

use crate::announcements::{Announcement, Taken};
use crate::clock::SystemClock;
use crate::discovery::{Discovery, Ready, Wake, ready_alone};
use crate::outcome::{AfterStaging, after_staging};
use crate::pause::LONGEST;
use crate::retention::clean_source;
use crate::retries::Retries;
use crate::shared::Shared;
use crate::stop::StopReason;

/// After the disk was full, nothing is sealed for this long, whatever else is ready.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);
/// Maximum interval between tries of a step that found the disk full.
const LONGEST_FULL_DISK_PAUSE: Duration = Duration::from_secs(5);
/// Many events may happen at once in a directory; they are handled together.
const GATHER: Duration = Duration::from_millis(100);
/// Minimum interval between scans.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

/// One run, as far as sealing its steps is concerned.
#[derive(Debug)]
pub(crate) struct SealedRun {
    pub(crate) run: RunName,
    /// `None` for a run that is not watched, and during a scan.
    pub(crate) discovery: Option<Discovery>,
    pub(crate) shared: bool,
    /// What the first scan found: only these entries can be older than this service. Entries that appear later were
    /// written since, whatever their times are.
    pub(crate) there_at_first: Option<BTreeSet<String>>,
    /// The profile for announced steps, if one is configured.
    pub(crate) profile: Option<String>,
    pub(crate) metrics_source: MetricsSource,
    /// Its remotes, each wrapped in a timeout.
    pub(crate) remotes: Vec<RunRemote>,
    /// When the trainer's own steps are cleaned next; `None` for a run without cleaning.
    pub(crate) clean_at: Option<Instant>,
    /// Number of cleaning rounds so far.
    pub(crate) clean_turn: usize,
    /// Announced steps that could not be sealed and that no entry of a watched directory represents.
    pub(crate) retries: Retries,
}

/// The task that seals.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<SealedRun>,
    pub(crate) writer: Writer,
    pub(crate) attempt: Option<Attempt>,
    /// Steps older than this were not written in the launch that this service is part of.
    pub(crate) launch_since: Timestamp,
    pub(crate) profiles: Arc<ProfileSet>,
    pub(crate) links: LinkPolicy,
    pub(crate) poll_interval: Duration,
    /// Interval between cleaning rounds.
    pub(crate) clean_interval: Duration,
    /// Whether to end once everything is sealed that waiting out a quiet time can finish.
    pub(crate) once: bool,
    pub(crate) not_before: Option<Instant>,
}

impl Sealer {
    /// Scans and seals until told to stop; with `once`, until there is nothing left to wait for.
    pub(crate) async fn work(&mut self) -> Result<()> {
        let mut wake = Some(Wake::new());
        let changed = wake.as_ref().map(Wake::changed).unwrap_or_default();
        let quiet_times = self.discoveries().map(Discovery::quiet_time);
        let patience = quiet_times.max().unwrap_or_default() + self.poll_interval;
        let mut give_up = Instant::now() + patience;
        loop {
            let asked = self.shared.stopping.requested();
            // Checked before the scan: this scan is the last one, and seals what is complete by now.
            let last = asked
                .as_ref()
                .is_some_and(|request| !request.uses_all_of_its_time());
            let watched: Vec<PathBuf> = self.discoveries().flat_map(Discovery::directories).collect();
            if let Some(mut hands) = wake.take() {
                let watch = move || {
                    hands.watch(watched.iter().map(PathBuf::as_path));
                    Ok(hands)
                };
                wake = Some(blocking(watch).await?);
            }
            let begun = Instant::now();
            let look_again = self.look_and_seal().await?;
            // A long seal must not shorten the other steps' quiet time.
            give_up += begun.elapsed();
            // The trainer no longer writes: a step that only silence proves is worth its quiet time, within the drain's
            // deadline.
            let proves_silence = look_again.is_some()
                && asked
                    .as_ref()
                    .is_some_and(|request| request.reason == StopReason::TrainerEnded);
            if last && !proves_silence || self.once && (look_again.is_none() || Instant::now() >= give_up) {
                break;
            }
            let already_asked = asked.is_some();
            let regular = Instant::now() + self.poll_interval;
            let next = look_again
                .map_or(regular, |time| time.min(regular))
                .max(Instant::now() + SHORTEST_WAIT);
            tokio::select! {
                () = self.asked_to_end(already_asked), if !proves_silence => {}
                () = tokio::time::sleep_until(next) => {}
                () = changed.notified() => tokio::time::sleep(GATHER).await,
                () = self.shared.announcements.wake.notified() => {}
            }
        }
        self.shared.announcements.close();
        for run in &self.runs {
            for (path, why) in run.discovery.iter().flat_map(Discovery::unfinished) {
                self.shared.status.skipped(&run.run, &path, why);
            }
        }
        Ok(())
    }

    /// Returns when the current scan should be followed by the next at once: on the first request to stop, then on one
    /// from a client that waits for the end.
    async fn asked_to_end(&self, already_asked: bool) {
        let now = |waits: bool| waits.then(Instant::now);
        self.shared
            .stopping
            .until(|request| now(!already_asked || !request.uses_all_of_its_time()))
            .await;
    }

    fn discoveries(&self) -> impl Iterator<Item = &Discovery> {
        self.runs.iter().filter_map(|run| run.discovery.as_ref())
    }

    /// One round over all runs; returns when to scan again at the latest, if something is worth waiting for.
    async fn look_and_seal(&mut self) -> Result<Option<Instant>> {
        let mut look_again: Option<Instant> = None;
        for index in 0..self.runs.len() {
            let run = self.runs[index].run.clone();
            let is_last = self.shared.stopping.is_requested();
            let announced = self.shared.announcements.take(&run);
            self.retry_announced(index).await;
            let Some(mut discovery) = self.runs[index].discovery.take() else {
                for announcement in announced {
                    self.take_announced(index, None, announcement).await?;
                }
                self.note_unsealed(index, None, None);
                look_again = [look_again, self.runs[index].retries.next_try()]
                    .into_iter()
                    .flatten()
                    .min();
                continue;
            };
            if !announced.is_empty() {
                discovery.hurry();
            }
            if is_last && !self.shared.status.has_looked_last(&run) {
                // There may be no time left after a pause.
                discovery.hurry();
                discovery.try_now();
            }
            let vault = self.shared.vault.clone();
            let (discovery, look) = blocking(move || {
                let mut discovery = discovery;
                // With an unreadable vault everything seems new; sealing then reports the vault's fault.
                let sealed = || vault.steps(&run).map(|scan| scan.steps).unwrap_or_default();
                let look = discovery.look(SystemClock.now(), sealed);
                Ok((discovery, look))
            })
            .await?;
            let mut known = Some(discovery);
            for announcement in announced {
                known = self.take_announced(index, known, announcement).await?;
            }
            let Some(mut discovery) = known else { continue };
            self.runs[index]
                .there_at_first
                .get_or_insert_with(|| discovery.seen());
            let run = &self.runs[index].run;
            let about = format!("watch {run}");
            match &look.fault {
                Some(error) => self.shared.warn(&about, &format!("{run}: {error}")),
                None => self.shared.status.is_well(&about),
            }
            if let Some(news) = look.news {
                self.shared.tell(&format!("{run}: {news}"));
            }
            if let Some(advice) = look.advice {
                self.shared
                    .warn(&format!("series {run}"), &format!("{run}: {advice}"));
            }
            for (path, reason) in look.passed_over {
                tracing::info!(path = %path.display(), reason, "skipped");
                self.shared.status.skipped(run, &path, reason);
            }
            // Before the first step is sealed, which may take longer than the remaining time.
            self.note_unsealed(index, Some(&discovery), look.fault.as_ref());
            for ready in &look.ready {
                if let Some(time) = self.not_before.filter(|time| *time > Instant::now()) {
                    look_again = [look_again, Some(time)].into_iter().flatten().min();
                    break;
                }
                self.take_over(index, &mut discovery, ready).await;
            }
            self.tell_unfinished(index, &discovery, &look.ready);
            self.note_unsealed(index, Some(&discovery), look.fault.as_ref());
            if is_last {
                self.shared.status.looked_last(&self.runs[index].run);
            }
            let is_due = self.runs[index]
                .clean_at
                .is_some_and(|time| time <= Instant::now());
            // A single round cleans at its very end.
            if is_due && !self.once {
                discovery = self.clean(index, discovery).await?;
            }
            let retry_at = self.runs[index].retries.next_try();
            look_again = [look_again, look.again_at, discovery.next_try(), retry_at]
                .into_iter()
                .flatten()
                .min();
            self.runs[index].discovery = Some(discovery);
        }
        Ok(look_again)
    }

    /// Records what is finished but not sealed, for clients that ask what is safe.
    fn note_unsealed(&self, index: usize, discovery: Option<&Discovery>, fault: Option<&Error>) {
        let run = &self.runs[index];
        let mut unsealed = discovery.map(Discovery::unsealed).unwrap_or_default();
        if let (Some(discovery), Some(error)) = (discovery, fault) {
            let directory = discovery.directories().into_iter().next();
            let why = format!("cannot determine whether it holds a finished step: {error}");
            unsealed.extend(directory.map(|directory| (directory, why)));
        }
        unsealed.extend(run.retries.unsealed());
        self.shared.status.unsealed(&run.run, unsealed);
    }

    /// Retries announced steps that could not be sealed, while they are unchanged.
    async fn retry_announced(&mut self, index: usize) {
        for ready in self.runs[index].retries.due() {
            let run = self.runs[index].run.clone();
            match self.stage(index, &ready).await {
                Ok(placed) => {
                    self.runs[index].retries.forget(&ready.path);
                    self.taken_over(index, Some((None, &ready)), &placed);
                }
                Err(error) => self.not_taken_over(index, &run, None, &ready, &error),
            }
        }
    }

    /// Reports once why a new entry of a run's directory is not sealed yet. Failed seals are reported separately.
    fn tell_unfinished(&self, index: usize, discovery: &Discovery, tried: &[Ready]) {
        let run = &self.runs[index].run;
        let tried: BTreeSet<PathBuf> = tried.iter().map(|ready| discovery.path_of(ready)).collect();
        for (path, why) in self.shared.status.unfinished(run, discovery.unfinished()) {
            if !tried.contains(&path) {
                let path = path.display();
                self.shared
                    .tell(&format!("{run}: {path} exists but is not sealed yet: {why}"));
            }
        }
    }

    /// Removes the steps that the trainers no longer need, in all runs with cleaning.
    pub(crate) async fn clean_all(&mut self) -> Result<()> {
        for index in 0..self.runs.len() {
            let asks = self.runs[index].clean_at.is_some();
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
        if self.shared.stopping.is_requested() {
            return Ok(discovery);
        }
        run.clean_at = Some(Instant::now() + self.clean_interval);
        let (discovery, spent) = blocking(move || {
            let spent = discovery.spent();
            Ok((discovery, spent))
        })
        .await?;
        let about = format!("clean {}", run.run);
        let cleaned = match spent {
            Ok(spent) => {
                run.clean_turn = run.clean_turn.wrapping_add(1);
                clean_source(&self.shared, &run.run, &run.remotes, spent, run.clean_turn).await
            }
            Err(error) => Err(error),
        };
        match cleaned {
            Ok(()) => self.shared.status.is_well(&about),
            Err(error) => {
                let text = format!(
                    "{}: cannot clean the trainer's own steps; they stay for now: {error}",
                    run.run
                );
                self.shared.warn(&about, &text);
            }
        }
        Ok(discovery)
    }

    async fn take_over(&mut self, index: usize, discovery: &mut Discovery, ready: &Ready) {
        let run = self.runs[index].run.clone();
        match self.stage(index, ready).await {
            Ok(placed) => self.taken_over(index, Some((Some(discovery), ready)), &placed),
            Err(error) => self.not_taken_over(index, &run, Some(discovery), ready, &error),
        }
    }

    /// Seals announced steps and reports the outcome. Returns the discovery.
    async fn take_announced(
        &mut self,
        index: usize,
        discovery: Option<Discovery>,
        announcement: Announcement,
    ) -> Result<Option<Discovery>> {
        let id = announcement.id;
        let profiles = Arc::clone(&self.profiles);
        let profile = self.runs[index].profile.clone();
        let extent = Extent::of(&Writer {
            shared: self.runs[index].shared,
            ..self.writer.clone()
        });
        let (mut discovery, ready) = blocking(move || {
            let there = announcement.check_unchanged().and_then(|()| match &discovery {
                Some(discovery) => discovery.ready_there(&announcement),
                None => Ok(None),
            });
            let key = discovery
                .as_ref()
                .map(|discovery| discovery.key_of(&announcement.path))
                .unwrap_or_default();
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
                let placed = self.stage(index, &ready).await;
                match &placed {
                    Ok(placed) => {
                        self.runs[index].retries.forget(&ready.path);
                        self.taken_over(index, Some((discovery.as_mut(), &ready)), placed);
                    }
                    Err(error) => {
                        let run = self.runs[index].run.clone();
                        let known = discovery.as_mut().filter(|discovery| discovery.knows(&ready));
                        self.not_taken_over(index, &run, known, &ready, error);
                    }
                }
                placed
            }
            Err(error) => Err(error),
        };
        let result = placed.map(|placed| {
            let (id, ..) = placed.summary();
            Taken {
                id,
                provisional: placed.is_provisional(),
                newly_sealed: matches!(placed, Placed::Sealed { new: true, .. }),
            }
        });
        self.shared.announcements.settle(id, &result);
        Ok(discovery)
    }

    /// Notifies all interested tasks that a step is in the vault, or durable on every remote.
    fn taken_over(&self, index: usize, found: Option<(Option<&mut Discovery>, &Ready)>, placed: &Placed) {
        if let Some((discovery, ready)) = found {
            if let Some(discovery) = discovery {
                discovery.handled(ready);
            }
            self.shared
                .status
                .is_well(&format!("seal {}", ready.path.display()));
        }
        if let Placed::Sealed { step, new } = placed {
            if *new {
                self.shared.status.sealed(&self.runs[index].run, step.id());
                self.shared.provisional.notify_one();
            }
            self.shared.wake_lanes();
            // Space was used: the limits may be reached.
            self.shared.evict.notify_one();
        }
    }

    /// Runs in its own task, so that a panic over one checkpoint affects only that one.
    async fn stage(&self, index: usize, ready: &Ready) -> Result<Placed> {
        let run = &self.runs[index];
        let was_there = |there: &BTreeSet<String>| there.contains(&ready.key);
        let has_appeared = !self.once && !run.there_at_first.as_ref().is_some_and(was_there);
        let mut request = StageRequest {
            run: run.run.clone(),
            source: ready.origin.source.clone(),
            members: ready.origin.members.clone(),
            name: Some(ready.origin.name.clone()),
            step: Some(ready.step),
            attempt: self.attempt,
            writer: Writer {
                shared: run.shared,
                ..self.writer.clone()
            },
            launch_since: self.launch_since,
            // A single round finds what was written before it, in the same launch.
            in_launch: self.once || has_appeared,
            not_before: has_appeared.then_some(self.launch_since),
            metrics: std::collections::BTreeMap::new(),
            metrics_source: run.metrics_source.clone(),
            links: stricter(self.links, ready.links),
            expected: None,
        };
        let (shared, remotes) = (Arc::clone(&self.shared), run.remotes.clone());
        let found = ready.clone();
        let work = tokio::task::spawn_local(async move {
            request.expected = Some(blocking(move || found.unchanged()).await?);
            let _placing = shared.placing.lock().await;
            stage(&shared.vault, &remotes, request, &shared.observer).await
        });
        match work.await {
            Ok(placed) => placed,
            Err(error) => Err(Error::new(ErrorKind::Failed, "sealing ended unexpectedly").caused_by(error)),
        }
    }

    /// Evicts local copies until this many bytes are free, as far as possible.
    fn make_room(&self, bytes: u64) {
        self.shared
            .missing_bytes
            .fetch_max(bytes.max(1), Ordering::Relaxed);
        self.shared.evict.notify_one();
    }

    /// Records why a finished step was not sealed, and when to retry: in `discovery` if an entry of a watched directory
    /// represents it.
    fn not_taken_over(
        &mut self,
        index: usize,
        run: &RunName,
        discovery: Option<&mut Discovery>,
        ready: &Ready,
        error: &Error,
    ) {
        let about = format!("seal {}", ready.path.display());
        let reason = error.to_string();
        let text = format!("{run}: {}", error.text_with_hint());
        let after = after_staging(error);
        match after {
            AfterStaging::LeftAlone => {
                self.runs[index].retries.forget(&ready.path);
                self.shared.status.skipped(run, &ready.path, reason.clone());
                if error.kind() == ErrorKind::Refused {
                    if let Some(discovery) = discovery {
                        discovery.handled(ready);
                    }
                    // A step that retention removed and the trainer still has is no fault.
                    tracing::info!(path = %ready.path.display(), reason, "skipped");
                } else {
                    // An empty directory has nothing to lose.
                    match discovery {
                        Some(discovery) if ready.bytes > 0 => discovery.unfit(ready, reason),
                        Some(discovery) => discovery.handled(ready),
                        None => {}
                    }
                    self.shared.warn(&about, &text);
                }
                return;
            }
            AfterStaging::NoSpace => {
                // The free space changes constantly; only the shortage itself is new.
                if self.shared.status.is_news(&about, "no space") {
                    self.shared.observer.on_event(&Event::Warning { message: &text });
                }
                self.not_before = Some(Instant::now() + FULL_DISK_PAUSE);
                self.make_room(ready.bytes);
            }
            AfterStaging::Unfinished | AfterStaging::Later => self.shared.warn(&about, &text),
        }
        let longest = match after {
            AfterStaging::NoSpace => LONGEST_FULL_DISK_PAUSE,
            _ => LONGEST,
        };
        match (discovery, after) {
            (Some(discovery), _) => discovery.failed(ready, longest, reason),
            // The process that modifies it announces it again.
            (None, AfterStaging::Unfinished) => self.runs[index].retries.forget(&ready.path),
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
