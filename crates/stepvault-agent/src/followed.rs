//! The processes that the service runs for: it drains when the last of them has ended.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::stop::{Stop, StopReason};

/// How often it is looked whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum number of processes: a node has at most some tens of ranks.
const MAX_PROCESSES: usize = 1024;

/// The followed processes of a service that was started for one.
///
/// A process is followed by a file descriptor of it (`pidfd_open(2)`), so that a later process with the same number is
/// none of them, and neither its threads nor processes that it forks matter.
#[derive(Debug)]
pub(crate) struct Followed {
    processes: Mutex<BTreeSet<u32>>,
    stop: Stop,
    succession: watch::Sender<Succession>,
}

/// Whether the next agent may continue what a drain has left.
#[derive(Debug, Default)]
struct Succession {
    /// Whether a process asked to be followed during the drain: it waits until it may start an agent.
    has_successor: bool,
    /// The number of clients that detached and wait for the end of the drain.
    waiting_clients: usize,
}

/// A client that waits for the end of the drain, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitingClient<'a>(&'a Followed);

impl Drop for WaitingClient<'_> {
    fn drop(&mut self) {
        self.0.succession.send_modify(|succession| succession.waiting_clients -= 1);
    }
}

impl Followed {
    /// Follows the first process.
    ///
    /// # Errors
    /// As [`follow`](Self::follow).
    pub(crate) fn new(process_id: u32, stop: Stop) -> Result<Arc<Self>> {
        let followed =
            Arc::new(Self { processes: Mutex::default(), stop, succession: watch::Sender::default() });
        followed.follow(process_id)?;
        Ok(followed)
    }

    /// Follows one more process. Following one twice is following it once.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such process; [`ErrorKind::Interrupted`] when the service drains already:
    /// see [`succeeded`](Self::succeeded).
    pub(crate) fn follow(self: &Arc<Self>, process_id: u32) -> Result<()> {
        let fault = |kind| Error::new(kind, "cannot follow the process").on(process_id);
        let system = |error: std::io::Error| fault(ErrorKind::Failed).caused_by(error);
        let pid = i32::try_from(process_id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| fault(ErrorKind::Usage).because("this is no number of a process"))?;
        let handle = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(handle) => handle,
            Err(Errno::SRCH) => {
                return Err(fault(ErrorKind::NotFound)
                    .because("there is no such process")
                    .hint("give the number that it has where the agent runs, in the same container"));
            }
            Err(error) => return Err(system(error.into())),
        };
        let mut processes = self.processes.lock();
        if self.stop.is_requested() {
            self.succession.send_modify(|succession| succession.has_successor = true);
            return Err(fault(ErrorKind::Interrupted)
                .because("the agent is about to end")
                .hint("start another agent when this one has ended"));
        }
        if processes.len() >= MAX_PROCESSES {
            return Err(fault(ErrorKind::Held).because(format!("{MAX_PROCESSES} others are followed")));
        }
        if processes.contains(&process_id) {
            return Ok(());
        }
        processes.insert(process_id);
        drop(processes);
        tokio::spawn(Arc::clone(self).until_ended(process_id, handle));
        Ok(())
    }

    async fn until_ended(self: Arc<Self>, process_id: u32, handle: OwnedFd) {
        while !has_ended(&handle) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // Processes that it started may still write.
        self.ended(process_id, StopReason::TrainerEnded, None);
    }

    /// No longer follows a process. Requests a stop if no other one is left, and returns whether it did.
    pub(crate) fn ended(&self, process_id: u32, reason: StopReason, deadline: Option<Instant>) -> bool {
        let mut processes = self.processes.lock();
        let was_last = processes.remove(&process_id) && processes.is_empty();
        if was_last {
            self.stop.request(reason, deadline);
        }
        was_last
    }

    /// Counts a client as waiting for the end of the drain.
    pub(crate) fn waiting_client(&self) -> WaitingClient<'_> {
        self.succession.send_modify(|succession| succession.waiting_clients += 1);
        WaitingClient(self)
    }

    /// Returns when a process asked to be followed during a drain at the trainer's end for which no client waits. Uploads
    /// of what is sealed may then be left to the agent that this process starts.
    pub(crate) async fn succeeded(&self) {
        let mut succession = self.succession.subscribe();
        let is_wanted = |wanted: &Succession| {
            wanted.has_successor
                && wanted.waiting_clients == 0
                && self.stop.requested().is_some_and(|request| request.trainers_end_only)
        };
        // The sender lives in `self`.
        let _ = succession.wait_for(is_wanted).await;
    }

    /// Returns the numbers of the followed processes.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.processes.lock().iter().copied().collect()
    }
}

/// Whether a process has ended: its file descriptor is readable then. One that cannot be asked counts as running.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use stepvault_testkit::process::TestProcess;

    use super::*;

    #[tokio::test]
    async fn the_service_is_stopped_when_the_last_process_has_ended_or_said_so() {
        let stop = Stop::new();
        let (first, second) = (TestProcess::idle(), TestProcess::idle());
        let (first_id, second_id) = (first.id(), second.id());
        let followed = Followed::new(first_id, stop.clone()).unwrap();
        followed.follow(second_id).unwrap();
        followed.follow(second_id).unwrap();
        first.kill();
        while followed.process_ids() != [second_id] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!stop.is_requested());
        second.kill();
        tokio::time::timeout(Duration::from_mins(1), stop.wait()).await.unwrap();
        assert_eq!(stop.requested().unwrap().reason, StopReason::TrainerEnded);
        let third = TestProcess::idle();
        let error = followed.follow(third.id()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);

        let stop = Stop::new();
        let followed = Followed::new(third.id(), stop.clone()).unwrap();
        assert!(!followed.ended(first_id, StopReason::TrainerGone, None));
        assert!(followed.ended(third.id(), StopReason::TrainerGone, None));
        assert_eq!(stop.requested().unwrap().reason, StopReason::TrainerGone);
    }

    #[tokio::test]
    async fn a_process_that_does_not_exist_is_refused() {
        let gone = TestProcess::idle();
        let process_id = gone.id();
        gone.kill();
        let stop = Stop::new();
        let error = Followed::new(process_id, stop.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(Followed::new(0, stop.clone()).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(Followed::new(u32::MAX, stop.clone()).unwrap_err().kind(), ErrorKind::Usage);
        assert!(!stop.is_requested());
    }
}
