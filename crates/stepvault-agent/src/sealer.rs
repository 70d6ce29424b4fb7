//! The task that finds finished steps and takes them over.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::clock::Clock as _;
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
use stepvault_local::seal::LinkPolicy;
use tokio::time::Instant;

use crate::announcements::Announcement;
use crate::clock::SystemClock;
use crate::discovery::{Discovery, Ready, Wake, ready_alone};
use crate::outcome::{AfterStaging, after_staging};
use crate::pause::LONGEST;
use crate::retention::clean_source;
use crate::shared::Shared;
use crate::stop::StopReason;

/// After a full disk nothing is sealed for this long, whatever else is ready.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);
/// A step that found the disk full is tried again at least this often.
const LONGEST_FULL_DISK_PAUSE: Duration = Duration::from_secs(5);
/// Many things may happen at once in a directory; they are looked at together.
const GATHER: Duration = Duration::from_millis(100);
/// Looks are never closer together than this.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

/// One run, as far as taking over its steps goes.
#[derive(Debug)]
pub(crate) struct SealedRun {
    pub(crate) run: RunName,
    /// `None` for a run that is not watched, and while somebody is looking.
    pub(crate) discovery: Option<Discovery>,
    pub(crate) shared: bool,
    /// What the first look found: only of that can anything be older than this service. What came later was written
    /// since, whatever the clock says.
    pub(crate) there_at_first: Option<BTreeSet<String>>,
    /// The profile to go by for what is announced, where one is configured.
    pub(crate) profile: Option<String>,
    pub(crate) metrics_source: MetricsSource,
    /// Its remotes, such that asking them takes no longer than it may.
    pub(crate) remotes: Vec<RunRemote>,
    /// When the trainer's own steps are to be cleaned next; `None` for a run that does not ask for it.
    pub(crate) clean_at: Option<Instant>,
    /// How often they were.
    pub(crate) clean_turn: usize,
}

/// The task that seals.
#[derive(Debug)]
pub(crate) struct Sealer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<SealedRun>,
    pub(crate) writer: Writer,
    pub(crate) attempt: Option<Attempt>,
    /// What is older was not written in the launch that this service is part of.
    pub(crate) launch_since: Timestamp,
    pub(crate) profiles: Arc<ProfileSet>,
    pub(crate) links: LinkPolicy,
    pub(crate) poll_interval: Duration,
    /// Between two rounds of cleaning.
    pub(crate) clean_interval: Duration,
    /// Come to an end once all that can be finished by waiting out its quiet time is taken over.
    pub(crate) once: bool,
    pub(crate) not_before: Option<Instant>,
}

impl Sealer {
    /// Looks and seals until told to stop; with `once`, until nothing is left to wait for.
    pub(crate) async fn work(&mut self) -> Result<()> {
        let mut wake = Some(Wake::new());
        let bell = wake.as_ref().map(Wake::bell).unwrap_or_default();
        let quiet_times = self
            .runs
            .iter()
            .filter_map(|run| run.discovery.as_ref()?.quiet_time());
        let patience = quiet_times.max().unwrap_or_default() + self.poll_interval;
        let mut give_up = Instant::now() + patience;
        loop {
            let asked = self.shared.stopping.requested();
            // Asked before looking: this look is the last one, and takes what is complete by now.
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
            // What is sealed for a long time must not take the others' time to become quiet.
            give_up += begun.elapsed();
            // Nobody writes any more: what only silence can prove is worth its quiet time, within the drain's.
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
                () = bell.notified() => tokio::time::sleep(GATHER).await,
                () = self.shared.announcements.bell.notified() => {}
            }
        }
        self.shared.announcements.close();
        for run in &self.runs {
            for (path, why) in run.discovery.iter().flat_map(Discovery::unfinished) {
                self.shared.board.skipped(&run.run, &path, why);
            }
        }
        Ok(())
    }

    /// Ends when this look should be followed by the next at once: with the first request to stop, then with one from
    /// somebody who waits for the end.
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

    /// One round over all runs; when to look again at the latest, if something is worth waiting for.
    async fn look_and_seal(&mut self) -> Result<Option<Instant>> {
        let mut look_again: Option<Instant> = None;
        for index in 0..self.runs.len() {
            let run = self.runs[index].run.clone();
            let announced = self.shared.announcements.take(&run);
            let Some(mut discovery) = self.runs[index].discovery.take() else {
                for announcement in announced {
                    self.take_announced(index, None, announcement).await?;
                }
                continue;
            };
            if !announced.is_empty() {
                discovery.hurry();
            }
            let vault = self.shared.vault.clone();
            let (discovery, look) = blocking(move || {
                let mut discovery = discovery;
                // An unreadable vault makes everything news; sealing then says what is wrong with it.
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
                None => self.shared.board.is_well(&about),
            }
            if let Some(news) = look.news {
                self.shared.tell(&format!("{run}: {news}"));
            }
            if let Some(advice) = look.advice {
                self.shared
                    .warn(&format!("series {run}"), &format!("{run}: {advice}"));
            }
            for (path, reason) in look.passed_over {
                tracing::info!(path = %path.display(), reason, "passed over");
                self.shared.board.skipped(run, &path, reason);
            }
            for ready in &look.ready {
                if let Some(time) = self.not_before.filter(|time| *time > Instant::now()) {
                    look_again = [look_again, Some(time)].into_iter().flatten().min();
                    break;
                }
                self.take_over(index, &mut discovery, ready).await;
            }
            self.tell_unfinished(index, &discovery, &look.ready);
            let is_due = self.runs[index]
                .clean_at
                .is_some_and(|time| time <= Instant::now());
            // A single round cleans at its very end.
            if is_due && !self.once {
                discovery = self.clean(index, discovery).await?;
            }
            look_again = [look_again, look.again_at, discovery.next_try()]
                .into_iter()
                .flatten()
                .min();
            self.runs[index].discovery = Some(discovery);
        }
        Ok(look_again)
    }

    /// Says once of what is new in a run's directory why it is not taken over yet. Of what was tried, and failed, people
    /// are told elsewhere.
    fn tell_unfinished(&self, index: usize, discovery: &Discovery, tried: &[Ready]) {
        let run = &self.runs[index].run;
        let tried: BTreeSet<PathBuf> = tried.iter().map(|ready| discovery.path_of(ready)).collect();
        for (path, why) in self.shared.board.unfinished(run, discovery.unfinished()) {
            if !tried.contains(&path) {
                let path = path.display();
                self.shared
                    .tell(&format!("{run}: {path} is there, and not taken over yet: {why}"));
            }
        }
    }

    /// Removes what the trainers can spare, in all runs that ask for it.
    pub(crate) async fn clean_all(&mut self) -> Result<()> {
        for index in 0..self.runs.len() {
            let asks = self.runs[index].clean_at.is_some();
            if let Some(discovery) = self.runs[index].discovery.take_if(|_| asks) {
                self.runs[index].discovery = Some(self.clean(index, discovery).await?);
            }
        }
        Ok(())
    }

    /// Removes the trainer's own steps that are safe and spent. What goes wrong is warned of, and tried again the next
    /// time.
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
            Ok(()) => self.shared.board.is_well(&about),
            Err(error) => {
                let text = format!("{}: the trainer's own steps stay for now: {error}", run.run);
                self.shared.warn(&about, &text);
            }
        }
        Ok(discovery)
    }

    async fn take_over(&mut self, index: usize, discovery: &mut Discovery, ready: &Ready) {
        let run = self.runs[index].run.clone();
        match self.stage(index, ready).await {
            Ok(placed) => self.taken_over(index, Some((discovery, ready)), &placed),
            Err(error) => self.not_taken_over(&run, discovery, ready, &error),
        }
    }

    /// Seals what somebody says is finished, and says what became of it. Gives the discovery back.
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
            let there = discovery
                .as_ref()
                .map_or(Ok(None), |discovery| discovery.ready_there(&announcement));
            let key = discovery
                .as_ref()
                .map(|discovery| discovery.key_of(&announcement.path))
                .unwrap_or_default();
            let ready = match there {
                Ok(Some(ready)) => Ok(ready),
                Ok(None) => ready_alone(&announcement, key, &profiles, profile.as_deref(), extent),
                Err(error) => Err(error),
            };
            Ok((discovery, ready))
        })
        .await?;
        let placed = match ready {
            Ok(ready) => {
                let placed = self.stage(index, &ready).await;
                match (&placed, &mut discovery) {
                    (Ok(placed), discovery) => {
                        self.taken_over(index, discovery.as_mut().map(|known| (known, &ready)), placed);
                    }
                    (Err(error), Some(discovery)) => {
                        let run = self.runs[index].run.clone();
                        self.not_taken_over(&run, discovery, &ready, error);
                    }
                    (Err(error), None) if after_staging(error) == AfterStaging::NoSpace => {
                        self.make_room(ready.bytes);
                    }
                    (Err(_), None) => {}
                }
                placed
            }
            Err(error) => Err(error),
        };
        let result = placed.map(|placed| {
            let (step, ..) = placed.summary();
            (step, matches!(placed, Placed::Sealed { new: true, .. }))
        });
        self.shared.announcements.settle(id, &result);
        Ok(discovery)
    }

    /// A step is in the vault, or durable on every remote: everybody who has to do with it is told.
    fn taken_over(&self, index: usize, found: Option<(&mut Discovery, &Ready)>, placed: &Placed) {
        if let Some((discovery, ready)) = found {
            discovery.handled(ready);
            self.shared
                .board
                .is_well(&format!("seal {}", ready.path.display()));
        }
        if let Placed::Sealed { step, new } = placed {
            if *new {
                self.shared.board.sealed(&self.runs[index].run, step.id());
            }
            self.shared.wake_lanes();
            // Space is taken: the marks may be reached.
            self.shared.evict.notify_one();
        }
    }

    /// In a task of its own, so that what breaks down over one checkpoint breaks that one.
    async fn stage(&self, index: usize, ready: &Ready) -> Result<Placed> {
        let run = &self.runs[index];
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
            in_launch: self.once
                || !run
                    .there_at_first
                    .as_ref()
                    .is_some_and(|there| there.contains(&ready.key)),
            metrics: std::collections::BTreeMap::new(),
            metrics_source: run.metrics_source.clone(),
            links: stricter(self.links, ready.links),
            expected: None,
        };
        let (shared, remotes) = (Arc::clone(&self.shared), run.remotes.clone());
        let found = ready.clone();
        let work = tokio::task::spawn_local(async move {
            request.expected = Some(blocking(move || found.unchanged()).await?);
            stage(&shared.vault, &remotes, request, &shared.observer).await
        });
        match work.await {
            Ok(placed) => placed,
            Err(error) => Err(Error::new(ErrorKind::Failed, "sealing ended early").caused_by(error)),
        }
    }

    /// Has local copies evicted that can be, until so many bytes are free.
    fn make_room(&self, bytes: u64) {
        self.shared
            .missing_bytes
            .fetch_max(bytes.max(1), Ordering::Relaxed);
        self.shared.evict.notify_one();
    }

    fn not_taken_over(&mut self, run: &RunName, discovery: &mut Discovery, ready: &Ready, error: &Error) {
        let about = format!("seal {}", ready.path.display());
        let reason = error.to_string();
        let hint = error
            .hint_text()
            .map(|hint| format!(" ({hint})"))
            .unwrap_or_default();
        let text = format!("{run}: {reason}{hint}");
        match after_staging(error) {
            AfterStaging::LeftAlone => {
                discovery.handled(ready);
                self.shared.board.skipped(run, &ready.path, reason.clone());
                if error.kind() == ErrorKind::Refused {
                    // What retention removed and the trainer still has is nothing to worry about.
                    tracing::info!(path = %ready.path.display(), reason, "passed over");
                } else {
                    self.shared.warn(&about, &text);
                }
            }
            AfterStaging::NoSpace => {
                discovery.failed(ready, LONGEST_FULL_DISK_PAUSE, reason);
                // How much is free changes all the time; that it is not enough is the news.
                if self.shared.board.is_news(&about, "no space") {
                    self.shared.observer.on_event(&Event::Warning { message: &text });
                }
                self.not_before = Some(Instant::now() + FULL_DISK_PAUSE);
                self.make_room(ready.bytes);
            }
            AfterStaging::Unfinished | AfterStaging::Later => {
                discovery.failed(ready, LONGEST, reason);
                self.shared.warn(&about, &text);
            }
        }
    }
}

/// The policy that satisfies both.
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
