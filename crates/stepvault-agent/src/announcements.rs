//! Queue of announced steps: finished steps on their way to the task that seals.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepvault_core::digest::Sha256Digest;
use stepvault_core::document::ErrorInfo;
use stepvault_core::ids::{RunName, Step, StepId};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::tree::scan;
use tokio::sync::{Notify, watch};

use crate::messages::{AnnounceAnswer, AnnounceRequest, AnnouncementState};

/// Maximum number of waiting announcements.
const MAX_WAITING: usize = 64;
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
        Err(
            Error::new(ErrorKind::SourceChanged, "cannot seal the announced step")
                .on(self.path.display())
                .because("it was modified after it was announced and before it was sealed")
                .hint("write the next step under this name only after the announcement is 'sealed'"),
        )
    }

    fn is_for_the_same(&self, other: &Self) -> bool {
        (&self.run, &self.path, self.step, &self.name, &self.metrics)
            == (&other.run, &other.path, other.step, &other.name, &other.metrics)
    }
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
    /// The state of each announcement by number, including waiting ones.
    known: BTreeMap<u64, AnnounceAnswer>,
}

impl Announcements {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an announcement and returns its number. Repeating an announcement that still waits returns the same number.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] when nothing more is sealed; [`ErrorKind::Held`] when too many wait.
    pub(crate) fn add(
        &self,
        run: RunName,
        request: AnnounceRequest,
        announced: Option<Sha256Digest>,
    ) -> Result<u64> {
        let mut state = self.state();
        let announcement = Announcement {
            id: state.last_id + 1,
            run,
            path: request.path,
            step: request.step,
            name: request.name,
            metrics: request.metrics,
            announced,
        };
        let fault = |kind, why: &str| {
            Error::new(kind, "cannot accept the announcement")
                .on(announcement.path.display())
                .because(why)
        };
        if state.closed {
            return Err(fault(ErrorKind::Interrupted, ENDING).hint(AFTER_ENDING));
        }
        if let Some(same) = state.waiting.iter().find(|waiting| {
            waiting.is_for_the_same(&announcement) && waiting.announced == announcement.announced
        }) {
            return Ok(same.id);
        }
        if state.waiting.len() >= MAX_WAITING {
            let why = format!("{MAX_WAITING} other announcements wait to be sealed");
            return Err(fault(ErrorKind::Held, &why)
                .hint("announce it again later; a watched directory is scanned anyway"));
        }
        state.last_id = announcement.id;
        let answer = AnnounceAnswer {
            announcement_id: announcement.id,
            run: announcement.run.clone(),
            path: announcement.path.clone(),
            state: AnnouncementState::Queued,
            step: None,
            attempt: None,
            provisional: false,
            newly_sealed: false,
            error: None,
        };
        while state.known.len() >= MAX_REMEMBERED {
            // More are kept than may wait, so the oldest is not waiting.
            state.known.pop_first();
        }
        state.known.insert(announcement.id, answer);
        state.waiting.push_back(announcement);
        let id = state.last_id;
        drop(state);
        self.wake.notify_one();
        Ok(id)
    }

    /// Takes the waiting announcements of a run, in order; the caller settles each.
    pub(crate) fn take(&self, run: &RunName) -> Vec<Announcement> {
        let mut state = self.state();
        let (taken, left) = state.waiting.drain(..).partition(|waiting| waiting.run == *run);
        state.waiting = left;
        Vec::from(taken)
    }

    /// Records the outcome of an announcement.
    pub(crate) fn settle(&self, id: u64, result: &Result<SealedFor>) {
        let mut state = self.state();
        if let Some(answer) = state.known.get_mut(&id) {
            match result {
                Ok(taken) => {
                    answer.state = AnnouncementState::Sealed;
                    answer.step = Some(taken.id.step);
                    answer.attempt = Some(taken.id.attempt);
                    answer.provisional = taken.provisional;
                    answer.newly_sealed = taken.newly_sealed;
                }
                Err(error) => {
                    answer.state = AnnouncementState::Failed;
                    answer.error = Some(ErrorInfo::from(error));
                }
            }
        }
        drop(state);
        self.settled.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns the state of an announcement; `None` if it was forgotten or never existed.
    pub(crate) fn answer(&self, id: u64) -> Option<AnnounceAnswer> {
        self.state().known.get(&id).cloned()
    }

    /// Returns when an announcement is settled or forgotten.
    pub(crate) async fn settled(&self, id: u64) {
        let mut settled = self.settled.subscribe();
        let waits = |answer: AnnounceAnswer| answer.state == AnnouncementState::Queued;
        while self.answer(id).is_some_and(waits) {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Accepts no more announcements, and settles the waiting ones.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        for announcement in left {
            let error = Error::new(ErrorKind::Interrupted, "cannot seal the step")
                .on(announcement.path.display())
                .because(ENDING)
                .hint(AFTER_ENDING);
            self.settle(announcement.id, &Err(error));
        }
    }
}

const ENDING: &str = "the agent is stopping and seals no more steps";
const AFTER_ENDING: &str = "start the agent again: it finds the steps in a watched directory";

#[cfg(test)]
mod tests {
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
        }
    }

    fn add(all: &Announcements, path: &str) -> Result<u64> {
        all.add(run(), announced(path, None), None)
    }

    #[tokio::test]
    async fn the_same_again_is_the_same_one_while_it_waits() {
        let all = Announcements::default();
        let id = add(&all, "/out/step_1").unwrap();
        assert_eq!(add(&all, "/out/step_1").unwrap(), id);
        let numbered = all.add(run(), announced("/out/step_1", Step::new(7).ok()), None);
        assert_ne!(numbered.unwrap(), id);
        assert_eq!(all.take(&"demo/b".parse().unwrap()), []);
        let taken = all.take(&run());
        assert_eq!(taken.len(), 2);
        assert_ne!(add(&all, "/out/step_1").unwrap(), id);
        let step = StepId::from_label("000000000001.a2").unwrap();
        let taken = SealedFor {
            id: step,
            provisional: false,
            newly_sealed: true,
        };
        let settled = async {
            tokio::join!(all.settled(id), async { all.settle(id, &Ok(taken)) });
        };
        settled.await;
        let answer = all.answer(id).unwrap();
        assert_eq!(
            (answer.state, answer.step, answer.newly_sealed),
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
        assert_eq!(all.state().known.len(), MAX_REMEMBERED);
        assert_eq!(all.answer(1), None);
    }

    #[tokio::test]
    async fn a_client_that_waits_at_the_end_is_told() {
        let all = Announcements::default();
        let id = add(&all, "/out/step_1").unwrap();
        tokio::join!(all.settled(id), async { all.close() });
        let answer = all.answer(id).unwrap();
        assert_eq!(answer.state, AnnouncementState::Failed);
        assert_eq!(answer.error.unwrap().kind, "interrupted");
        assert_eq!(
            add(&all, "/out/step_2").unwrap_err().kind(),
            ErrorKind::Interrupted
        );
    }
}
