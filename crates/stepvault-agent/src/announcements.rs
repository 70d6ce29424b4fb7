//! Steps that somebody says are finished, on their way to the task that seals.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepvault_core::ids::{RunName, Step, StepId};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use crate::control::{AnnounceAnswer, AnnouncementState, ErrorInfo};

/// Most that wait for their turn.
const MOST_WAITING: usize = 64;
/// Most of which is remembered what became of them.
const MOST_REMEMBERED: usize = 512;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) id: u64,
    pub(crate) run: RunName,
    /// Absolute.
    pub(crate) path: PathBuf,
    pub(crate) step: Option<Step>,
    pub(crate) name: Option<String>,
}

impl Announcement {
    fn is_for_the_same(&self, other: &Self) -> bool {
        (&self.run, &self.path, self.step, &self.name) == (&other.run, &other.path, other.step, &other.name)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    state: Mutex<State>,
    /// Wakes whoever seals.
    pub(crate) bell: Notify,
    /// Counts what was settled.
    settled: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Nobody seals any more.
    closed: bool,
    last_id: u64,
    waiting: VecDeque<Announcement>,
    /// By number, what is known of each, also of those that wait.
    known: BTreeMap<u64, AnnounceAnswer>,
}

impl Announcements {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one, and gives the number by which it is known. The same again, while it waits, is the same one.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] when nothing more is sealed; [`ErrorKind::Held`] when too many wait.
    pub(crate) fn add(
        &self,
        run: RunName,
        path: PathBuf,
        step: Option<Step>,
        name: Option<String>,
    ) -> Result<u64> {
        let mut state = self.state();
        let announcement = Announcement {
            id: state.last_id + 1,
            run,
            path,
            step,
            name,
        };
        let fault = |kind, why: &str| {
            Error::new(kind, "cannot take the announcement")
                .on(announcement.path.display())
                .because(why)
        };
        if state.closed {
            return Err(fault(ErrorKind::Interrupted, ENDING).hint(AFTER_ENDING));
        }
        if let Some(same) = state
            .waiting
            .iter()
            .find(|waiting| waiting.is_for_the_same(&announcement))
        {
            return Ok(same.id);
        }
        if state.waiting.len() >= MOST_WAITING {
            let why = format!("{MOST_WAITING} others wait to be sealed");
            return Err(fault(ErrorKind::Held, &why)
                .hint("announce it again later; a watched directory is looked at in any case"));
        }
        state.last_id = announcement.id;
        let answer = AnnounceAnswer {
            announcement_id: announcement.id,
            run: announcement.run.clone(),
            path: announcement.path.clone(),
            state: AnnouncementState::Queued,
            step: None,
            attempt: None,
            newly_sealed: false,
            error: None,
        };
        while state.known.len() >= MOST_REMEMBERED {
            // More are remembered than may wait: the oldest does not.
            state.known.pop_first();
        }
        state.known.insert(announcement.id, answer);
        state.waiting.push_back(announcement);
        let id = state.last_id;
        drop(state);
        self.bell.notify_one();
        Ok(id)
    }

    /// Those of a run, in their order; whoever takes them settles each.
    pub(crate) fn take(&self, run: &RunName) -> Vec<Announcement> {
        let mut state = self.state();
        let (taken, left) = state.waiting.drain(..).partition(|waiting| waiting.run == *run);
        state.waiting = left;
        Vec::from(taken)
    }

    /// Says what became of one: the step, and whether it was sealed for this.
    pub(crate) fn settle(&self, id: u64, result: &Result<(StepId, bool)>) {
        let mut state = self.state();
        if let Some(answer) = state.known.get_mut(&id) {
            match result {
                Ok((step, new)) => {
                    answer.state = AnnouncementState::Sealed;
                    answer.step = Some(step.step);
                    answer.attempt = Some(step.attempt);
                    answer.newly_sealed = *new;
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

    /// What is known of one; `None` when it was forgotten, or never was.
    pub(crate) fn answer(&self, id: u64) -> Option<AnnounceAnswer> {
        self.state().known.get(&id).cloned()
    }

    /// Ends when one is settled, or forgotten.
    pub(crate) async fn settled(&self, id: u64) {
        let mut settled = self.settled.subscribe();
        let waits = |answer: AnnounceAnswer| answer.state == AnnouncementState::Queued;
        while self.answer(id).is_some_and(waits) {
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes no more, and settles those that wait.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        for announcement in left {
            let error = Error::new(ErrorKind::Interrupted, "did not seal the step")
                .on(announcement.path.display())
                .because(ENDING)
                .hint(AFTER_ENDING);
            self.settle(announcement.id, &Err(error));
        }
    }
}

const ENDING: &str = "the agent was asked to stop, and seals no more";
const AFTER_ENDING: &str = "the next start finds what stands in a watched directory";

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunName {
        "demo/a".parse().unwrap()
    }

    fn add(all: &Announcements, path: &str) -> Result<u64> {
        all.add(run(), path.into(), None, None)
    }

    #[tokio::test]
    async fn the_same_again_is_the_same_one_while_it_waits() {
        let all = Announcements::default();
        let id = add(&all, "/out/step_1").unwrap();
        assert_eq!(add(&all, "/out/step_1").unwrap(), id);
        let numbered = all.add(run(), "/out/step_1".into(), Step::new(7).ok(), None);
        assert_ne!(numbered.unwrap(), id);
        assert_eq!(all.take(&"demo/b".parse().unwrap()), []);
        let taken = all.take(&run());
        assert_eq!(taken.len(), 2);
        assert_ne!(add(&all, "/out/step_1").unwrap(), id);
        let step = StepId::from_label("000000000001.a2").unwrap();
        let settled = async {
            tokio::join!(all.settled(id), async { all.settle(id, &Ok((step, true))) });
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
        for number in 0..MOST_WAITING {
            add(&all, &format!("/out/step_{number}")).unwrap();
        }
        let error = add(&all, "/out/step_x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        assert_eq!(
            error.to_string(),
            "cannot take the announcement: /out/step_x: 64 others wait to be sealed"
        );
        for round in 0..2 * MOST_REMEMBERED {
            for announcement in all.take(&run()) {
                all.settle(announcement.id, &Err(Error::new(ErrorKind::Damaged, "broken")));
            }
            add(&all, &format!("/again/{round}")).unwrap();
        }
        assert_eq!(all.state().known.len(), MOST_REMEMBERED);
        assert_eq!(all.answer(1), None);
    }

    #[tokio::test]
    async fn whoever_waits_at_the_end_is_told() {
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
