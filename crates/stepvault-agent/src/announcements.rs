//! Queue of announced steps: finished steps on their way to the task that seals.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use parking_lot::Mutex;
use stepvault_core::document::ErrorInfo;
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result, Revision, RunName, Sha256Digest, Step, StepId};
use stepvault_local::process;
use stepvault_local::tree::scan;
use tokio::sync::{Notify, watch};

use crate::messages::{AnnounceAnswer, AnnounceRequest, AnnouncedStep, AnnouncementState, AnnouncingRank};

/// Maximum number of waiting announcements.
const MAX_WAITING: usize = 64;
/// Maximum number of steps that some ranks have announced and others have not. A trainer has one at a time, or as many
/// as it saves at once.
const MAX_GATHERING: usize = 16;
/// Maximum number of ranks of a node.
const MAX_RANKS: u32 = 1024;
/// Maximum number of announcements whose outcome is kept.
const MAX_REMEMBERED: usize = 512;

/// The sealed step of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealedFor {
    pub(crate) id: StepId,
    /// Whether its attempt may still change.
    pub(crate) provisional: bool,
    /// Whether it was sealed for this announcement.
    pub(crate) newly_sealed: bool,
}

/// One announced step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Announcement {
    pub(crate) id: u64,
    pub(crate) run: RunName,
    /// The absolute path.
    pub(crate) path: PathBuf,
    pub(crate) step: Option<Step>,
    pub(crate) name: Option<String>,
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Fingerprint of the files when they were announced with an explicit number: the next step may be written over
    /// them before they are sealed. `None` if the name contains the number.
    pub(crate) announced: Option<Sha256Digest>,
}

impl Announcement {
    /// Checks that the path still holds what was announced. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::SourceChanged`] when it was modified since.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let Some(announced) = self.announced else {
            return Ok(());
        };
        if scan(&self.path)?.fingerprint() == announced {
            return Ok(());
        }
        Err(Error::new(ErrorKind::SourceChanged, "cannot seal the announced step")
            .on(self.path.display())
            .because("it was modified after it was announced and before it was sealed")
            .hint("write the next step under this name only after the announcement is 'sealed'"))
    }

    fn is_of_the_same_step(&self, other: &Self) -> bool {
        (&self.run, &self.path, self.step, &self.name) == (&other.run, &other.path, other.step, &other.name)
    }
}

/// A step that some of the ranks that write it have announced.
#[derive(Debug)]
struct Gathering {
    announcement: Announcement,
    of: u32,
    /// The ranks that have announced it.
    ranks: BTreeMap<u32, AnnouncedRank>,
}

#[derive(Debug)]
struct AnnouncedRank {
    process: Process,
    metrics: BTreeMap<String, f64>,
    /// Whether it has detached since: it has written all it had to.
    has_left: bool,
}

impl AnnouncedRank {
    fn counts(&self) -> bool {
        self.has_left || process::is_running(&self.process)
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// The step waits to be sealed under this number.
    Waiting(u64),
    /// Other ranks have not announced it yet.
    Gathering(u64),
}

/// All announcements.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    state: Mutex<State>,
    /// Wakes the task that seals.
    pub(crate) wake: Notify,
    /// Counts settled announcements.
    settled: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether sealing has ended.
    closed: bool,
    last_id: u64,
    waiting: VecDeque<Announcement>,
    /// The oldest first.
    gathering: VecDeque<Gathering>,
    /// The state of each announcement by number, including waiting ones.
    known: BTreeMap<u64, AnnounceAnswer>,
}

impl Announcements {
    /// Adds an announcement. Repeating one that still waits returns the same number. That of one rank waits until all
    /// ranks have announced the step, with the metrics of all of them, or of the first that has one.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] when nothing more is sealed; [`ErrorKind::Held`] when too many wait;
    /// [`ErrorKind::Usage`] for a rank or a process that cannot be.
    pub(crate) fn add(
        &self,
        run: RunName,
        request: AnnounceRequest,
        announced: Option<Sha256Digest>,
    ) -> Result<Added> {
        let mut state = self.state.lock();
        let rank = request.rank;
        let mut announcement = Announcement {
            id: state.last_id + 1,
            run,
            path: request.path,
            step: request.step,
            name: request.name,
            metrics: request.metrics,
            announced,
        };
        if state.closed {
            return Err(refused(&announcement, ErrorKind::Interrupted, ENDING).hint(AFTER_ENDING));
        }
        if let Some(rank) = rank {
            if let Some(id) = state.gather(&mut announcement, rank)? {
                return Ok(Added::Gathering(id));
            }
        } else if let Some(same) = state.waiting.iter().find(|waiting| {
            waiting.is_of_the_same_step(&announcement)
                && waiting.metrics == announcement.metrics
                && waiting.announced == announcement.announced
        }) {
            return Ok(Added::Waiting(same.id));
        }
        if state.waiting.len() >= MAX_WAITING {
            let why = format!("{MAX_WAITING} other announcements wait to be sealed");
            return Err(refused(&announcement, ErrorKind::Held, &why)
                .hint("announce it again later; a watched directory is scanned anyway"));
        }
        let id = announcement.id;
        state.remember(&announcement);
        state.waiting.push_back(announcement);
        drop(state);
        self.wake.notify_one();
        Ok(Added::Waiting(id))
    }

    /// A rank has detached: what it has announced counts though its process ends.
    pub(crate) fn left(&self, process_id: u32) {
        for gathering in &mut self.state.lock().gathering {
            for announced in gathering.ranks.values_mut() {
                announced.has_left |= announced.process.id == process_id;
            }
        }
    }

    /// A rank has attached: those that have left before belong to an earlier start of the job.
    pub(crate) fn joined(&self) {
        for gathering in &mut self.state.lock().gathering {
            gathering.ranks.retain(|_, announced| !announced.has_left);
        }
    }

    /// Takes the waiting announcements of a run, in order; the caller settles each.
    pub(crate) fn take(&self, run: &RunName) -> Vec<Announcement> {
        let mut state = self.state.lock();
        let (taken, left) = state.waiting.drain(..).partition(|waiting| waiting.run == *run);
        state.waiting = left;
        Vec::from(taken)
    }

    /// Records the outcome of an announcement.
    pub(crate) fn settle(&self, id: u64, result: &Result<SealedFor>) {
        let mut state = self.state.lock();
        match result {
            Ok(taken) => {
                if let Some(AnnounceAnswer { announced, .. }) = state.known.get_mut(&id) {
                    announced.state = AnnouncementState::Sealed;
                    announced.step = Some(taken.id.step);
                    announced.attempt = Some(taken.id.attempt);
                    announced.revision = taken.id.revision;
                    announced.provisional = taken.provisional;
                    announced.newly_sealed = taken.newly_sealed;
                }
            }
            Err(error) => state.fail(id, error),
        }
        drop(state);
        self.settled.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns the state of an announcement; `None` if it was forgotten or never existed.
    pub(crate) fn answer(&self, id: u64) -> Option<AnnounceAnswer> {
        self.state.lock().known.get(&id).cloned()
    }

    /// Returns when an announcement is settled or forgotten.
    pub(crate) async fn settled(&self, id: u64) {
        let mut settled = self.settled.subscribe();
        let waits = |answer: AnnounceAnswer| answer.announced.state == AnnouncementState::Queued;
        while self.answer(id).is_some_and(waits) {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Accepts no more announcements, and settles the waiting ones.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        let gathering = std::mem::take(&mut state.gathering);
        drop(state);
        let gathering = gathering.into_iter().map(|gathering| gathering.announcement);
        for announcement in waiting.into_iter().chain(gathering) {
            let error = Error::new(ErrorKind::Interrupted, "cannot seal the step")
                .on(announcement.path.display())
                .because(ENDING)
                .hint(AFTER_ENDING);
            self.settle(announcement.id, &Err(error));
        }
    }
}

impl State {
    /// Adds a rank to those that have announced the step, and returns its number while others have not. Once all have,
    /// `announcement` has that number and the metrics of all of them.
    ///
    /// A rank whose process has ended without detaching does not count: its files may be those of an earlier start of the
    /// job. Its step is left to the search in the watched directory, unless the ranks announce it again.
    fn gather(&mut self, announcement: &mut Announcement, rank: AnnouncingRank) -> Result<Option<u64>> {
        if rank.number >= rank.of || rank.of > MAX_RANKS {
            let why = format!("there is no rank {} of {}", rank.number, rank.of);
            return Err(refused(announcement, ErrorKind::Usage, &why)
                .hint(format!("number the ranks of a node from 0, at most {MAX_RANKS}")));
        }
        let process = process::identify(rank.process_id).ok_or_else(|| {
            let why = format!("there is no process {}", rank.process_id);
            refused(announcement, ErrorKind::Usage, &why)
                .hint("give the number that it has where the agent runs, in the same container")
        })?;
        let is_same = |gathering: &Gathering| {
            gathering.of == rank.of && gathering.announcement.is_of_the_same_step(announcement)
        };
        let mut gathering = match self.gathering.iter().position(is_same) {
            Some(found) => self.gathering.remove(found),
            None => None,
        }
        .unwrap_or_else(|| Gathering {
            announcement: announcement.clone(),
            of: rank.of,
            ranks: BTreeMap::new(),
        });
        gathering.ranks.retain(|_, announced| announced.counts());
        let announced =
            AnnouncedRank { process, metrics: std::mem::take(&mut announcement.metrics), has_left: false };
        gathering.ranks.insert(rank.number, announced);
        announcement.id = gathering.announcement.id;
        if gathering.ranks.len() == gathering.of as usize {
            // Of a metric that each rank has for itself, the first rank's counts.
            let ranks = gathering.ranks.into_values().rev();
            announcement.metrics = ranks.flat_map(|announced| announced.metrics).collect();
            return Ok(None);
        }
        self.remember(&gathering.announcement);
        self.gathering.push_back(gathering);
        if self.gathering.len() > MAX_GATHERING
            && let Some(oldest) = self.gathering.pop_front()
        {
            let why = format!(
                "not all of its ranks have announced it, and {MAX_GATHERING} later steps wait for theirs"
            );
            let error = refused(&oldest.announcement, ErrorKind::Held, &why)
                .hint("announce it again from each rank; a watched directory is scanned anyway");
            self.fail(oldest.announcement.id, &error);
        }
        Ok(Some(announcement.id))
    }

    fn fail(&mut self, id: u64, error: &Error) {
        if let Some(answer) = self.known.get_mut(&id) {
            answer.announced.state = AnnouncementState::Failed;
            answer.error = Some(ErrorInfo::from(error));
        }
    }

    /// Keeps the state of an announcement from now on.
    fn remember(&mut self, announcement: &Announcement) {
        self.last_id = self.last_id.max(announcement.id);
        if self.known.contains_key(&announcement.id) {
            return;
        }
        while self.known.len() >= MAX_REMEMBERED {
            // More are kept than may wait, so the oldest is not waiting.
            self.known.pop_first();
        }
        let answer = AnnounceAnswer {
            announcement_id: announcement.id,
            announced: AnnouncedStep {
                run: announcement.run.clone(),
                path: announcement.path.clone(),
                state: AnnouncementState::Queued,
                step: None,
                attempt: None,
                revision: Revision::FIRST,
                provisional: false,
                newly_sealed: false,
            },
            error: None,
        };
        self.known.insert(announcement.id, answer);
    }
}

fn refused(announcement: &Announcement, kind: ErrorKind, why: &str) -> Error {
    Error::new(kind, "cannot accept the announcement").on(announcement.path.display()).because(why)
}

const ENDING: &str = "the agent is stopping and seals no more steps";
const AFTER_ENDING: &str = "start the agent again: it finds the steps in a watched directory";

#[cfg(test)]
mod tests {
    use stepvault_testkit::process::TestProcess;

    use super::*;

    fn run() -> RunName {
        "demo/a".parse().unwrap()
    }

    fn announced(path: &str, step: Option<Step>) -> AnnounceRequest {
        AnnounceRequest {
            run: None,
            path: path.into(),
            step,
            name: None,
            metrics: BTreeMap::new(),
            rank: None,
        }
    }

    fn add(all: &Announcements, path: &str) -> Result<u64> {
        all.add(run(), announced(path, None), None).map(|added| match added {
            Added::Waiting(id) | Added::Gathering(id) => id,
        })
    }

    #[tokio::test]
    async fn the_same_again_is_the_same_one_while_it_waits() {
        let all = Announcements::default();
        let id = add(&all, "/out/step_1").unwrap();
        assert_eq!(add(&all, "/out/step_1").unwrap(), id);
        let numbered = all.add(run(), announced("/out/step_1", Step::new(7).ok()), None);
        assert_ne!(numbered.unwrap(), Added::Waiting(id));
        assert_eq!(all.take(&"demo/b".parse().unwrap()), []);
        let taken = all.take(&run());
        assert_eq!(taken.len(), 2);
        assert_ne!(add(&all, "/out/step_1").unwrap(), id);
        let step = StepId::from_label("000000000001.a2").unwrap();
        let taken = SealedFor { id: step, provisional: false, newly_sealed: true };
        let settled = async {
            tokio::join!(all.settled(id), async { all.settle(id, &Ok(taken)) });
        };
        settled.await;
        let answer = all.answer(id).unwrap();
        assert_eq!(
            (answer.announced.state, answer.announced.step, answer.announced.newly_sealed),
            (AnnouncementState::Sealed, Some(step.step), true)
        );
    }

    #[test]
    fn neither_the_queue_nor_the_memory_grows_without_bound() {
        let all = Announcements::default();
        for number in 0..MAX_WAITING {
            add(&all, &format!("/out/step_{number}")).unwrap();
        }
        let error = add(&all, "/out/step_x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        assert_eq!(
            error.to_string(),
            "cannot accept the announcement: /out/step_x: 64 other announcements wait to be sealed"
        );
        for round in 0..2 * MAX_REMEMBERED {
            for announcement in all.take(&run()) {
                all.settle(announcement.id, &Err(Error::new(ErrorKind::Damaged, "broken")));
            }
            add(&all, &format!("/again/{round}")).unwrap();
        }
        assert_eq!(all.state.lock().known.len(), MAX_REMEMBERED);
        assert_eq!(all.answer(1), None);
    }

    /// A request of a rank, with a metric.
    fn by_rank(path: &str, number: u32, of: u32, process_id: u32) -> AnnounceRequest {
        AnnounceRequest {
            metrics: [(format!("metric-{number}"), 1.0), ("loss".to_owned(), f64::from(number))].into(),
            rank: Some(AnnouncingRank { number, of, process_id }),
            ..announced(path, None)
        }
    }

    #[test]
    fn a_step_of_several_ranks_waits_until_all_have_announced_it() {
        let all = Announcements::default();
        let own = std::process::id();
        let add = |path: &str, number| all.add(run(), by_rank(path, number, 3, own), None).unwrap();
        let Added::Gathering(id) = add("/out/step_1", 1) else {
            panic!("it waits for two others");
        };
        assert_eq!(all.answer(id).unwrap().announced.state, AnnouncementState::Queued);
        // Once more is once.
        assert_eq!(add("/out/step_1", 1), Added::Gathering(id));
        assert_eq!(add("/out/step_1", 0), Added::Gathering(id));
        assert_ne!(add("/out/step_2", 2), Added::Gathering(id));
        assert_eq!(all.take(&run()), []);
        assert_eq!(add("/out/step_1", 2), Added::Waiting(id));
        let taken = all.take(&run());
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].id, taken[0].metrics.len()), (id, 4));
        assert_eq!(taken[0].metrics.get("loss"), Some(&0.0), "the first rank's");
        // The next save under this name begins anew.
        assert!(matches!(add("/out/step_1", 2), Added::Gathering(again) if again != id));
        for (number, of, process_id) in [(3, 3, own), (0, 0, own), (0, 2_000, own), (0, 2, u32::MAX)] {
            let request = by_rank("/out/step_3", number, of, process_id);
            let error = all.add(run(), request, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        for number in 0..2 * MAX_GATHERING {
            add(&format!("/out/half_{number}"), 0);
        }
        assert_eq!(all.state.lock().gathering.len(), MAX_GATHERING);
        let displaced = all.answer(id + 1).unwrap();
        assert_eq!(displaced.error.unwrap().kind, "held");
        let Added::Gathering(last) = add("/out/step_4", 0) else {
            panic!("it waits for two others");
        };
        all.close();
        assert_eq!(all.answer(last).unwrap().error.unwrap().kind, "interrupted");
    }

    /// Files of an earlier start of the job are not taken for those of a rank that has not written yet.
    #[test]
    fn a_rank_that_has_ended_does_not_count() {
        let all = Announcements::default();
        let add = |number, process_id| {
            let request = by_rank("/out/step_1", number, 2, process_id);
            all.add(run(), request, None).unwrap()
        };
        let rank = TestProcess::idle();
        assert!(matches!(add(0, rank.id()), Added::Gathering(_)));
        rank.kill();
        assert!(matches!(add(1, std::process::id()), Added::Gathering(_)));
        assert!(matches!(add(0, std::process::id()), Added::Waiting(_)));

        // One that has said that it ends does, until a later start begins.
        for joined in [false, true] {
            let rank = TestProcess::idle();
            assert!(matches!(add(0, rank.id()), Added::Gathering(_)));
            all.left(rank.id());
            rank.kill();
            if joined {
                all.joined();
            }
            let last = add(1, std::process::id());
            assert_eq!(matches!(last, Added::Waiting(_)), !joined);
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_at_the_end_is_told() {
        let all = Announcements::default();
        let id = add(&all, "/out/step_1").unwrap();
        tokio::join!(all.settled(id), async { all.close() });
        let answer = all.answer(id).unwrap();
        assert_eq!(answer.announced.state, AnnouncementState::Failed);
        assert_eq!(answer.error.unwrap().kind, "interrupted");
        assert_eq!(add(&all, "/out/step_2").unwrap_err().kind(), ErrorKind::Interrupted);
    }
}
