//! The trainer's process and its child processes.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::Signal;
use stepvault_agent::Stop;
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::starts::TrainerLock;
use tokio::time::{Instant, sleep, sleep_until};

use super::signals::{Received, Signals};
use crate::commands::child::{Child, LOOK_INTERVAL, code_of};

/// The trainer's share of the drain deadline; the rest is for uploading its last steps.
const TRAINERS_SHARE: f64 = 0.75;

/// A running trainer.
pub(super) struct Trainer {
    child: Child,
    pub(super) process: Option<Process>,
    /// Held for as long as the trainer and its group run.
    _lock: Option<TrainerLock>,
}

/// How the trainer ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) lasted: Duration,
    /// The first signal that asked it to end.
    pub(super) asked_by: Option<&'static str>,
    /// Whether it had to be killed.
    pub(super) was_killed: bool,
    /// When the drain must be finished; `None` if the trainer got neither SIGTERM nor a drain request.
    pub(super) deadline: Option<Instant>,
    /// Whether processes that the trainer started are still running.
    pub(super) left_others: bool,
    /// Whether no process of the trainer is known to run: it exited by itself, and its group is empty. Processes that a
    /// killed launcher has started may be in groups of their own.
    pub(super) left_none: bool,
}

impl Ended {
    /// Returns the exit code as a shell reports it.
    pub(super) fn code(&self) -> u8 {
        code_of(self.status)
    }
}

impl Trainer {
    /// Starts the trainer. It inherits this process's standard streams.
    ///
    /// In the foreground of a terminal it stays in this process's group, so that it may read from the terminal and
    /// receives Ctrl-C and Ctrl-Z. Otherwise it has its own group, and signals are sent to every process of the group.
    pub(super) fn start(
        command: &[OsString],
        environment: [(&'static str, OsString); 2],
        shares_terminal: bool,
        lock: Option<TrainerLock>,
    ) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, "cannot start the trainer");
        let (program, arguments) =
            command.split_first().ok_or_else(|| fault().because("no command is given"))?;
        let mut builder = Command::new(program);
        builder.args(arguments).envs(environment);
        let child = Child::start(builder, !shares_terminal, "the trainer")?;
        Ok(Self { process: child.process.clone(), child, _lock: lock })
    }

    /// Waits for the trainer to end, and forwards signals until then. After SIGTERM its group has a share of
    /// `drain_deadline` to exit; then remaining processes are killed. The same applies when the agent is asked to
    /// drain, because the trainer is lost with the machine.
    pub(super) async fn wait(
        mut self,
        signals: &mut Signals,
        stop: &Stop,
        drain_deadline: Duration,
        say: impl Fn(&str),
    ) -> Result<Ended> {
        let mut asked_by = None;
        let mut times: Option<(Instant, Instant)> = None;
        let mut was_killed = false;
        let mut was_told = false;
        let mut status: Option<(ExitStatus, Duration)> = None;
        let (status, lasted) = loop {
            if let Some(status) = status
                && !(times.is_some() && !was_killed && self.child.has_others())
            {
                break status;
            }
            let kill_at = times.map(|(kill_at, _)| kill_at).filter(|_| !was_killed);
            tokio::select! {
                ended = self.child.ended(), if status.is_none() => {
                    status = Some((ended?, self.child.begun.elapsed()));
                }
                received = signals.next() => {
                    self.pass_on(&received);
                    if received.asks_to_end() {
                        asked_by.get_or_insert(received.name);
                    }
                    if received.signal == Signal::TERM {
                        let now = Instant::now();
                        times.get_or_insert((now + drain_deadline.mul_f64(TRAINERS_SHARE), now + drain_deadline));
                    }
                }
                () = stop.wait(), if !was_told && status.is_none() => {
                    was_told = true;
                    let now = Instant::now();
                    if let Some(request) = stop.requested() {
                        say(&format!("drain requested by {}: sending SIGTERM to the trainer", request.reason));
                        let deadline = request.exit_deadline(drain_deadline);
                        let left = deadline.saturating_duration_since(now);
                        times.get_or_insert((now + left.mul_f64(TRAINERS_SHARE), deadline));
                    }
                    asked_by.get_or_insert("a drain");
                    self.child.signal(Signal::TERM);
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    say("the trainer did not exit in time after SIGTERM: killing it");
                    was_killed = true;
                    self.child.signal(Signal::KILL);
                }
                () = sleep(LOOK_INTERVAL), if status.is_some() => {}
            }
        };
        Ok(Ended {
            status,
            lasted,
            asked_by,
            was_killed,
            deadline: times.map(|(_, deadline)| deadline),
            left_others: !was_killed && self.child.has_others(),
            left_none: self.child.own_group
                && !was_killed
                && status.code().is_some()
                && !self.child.has_others(),
        })
    }

    fn pass_on(&self, received: &Received) {
        if self.child.own_group || !received.from_terminal {
            self.child.signal(received.signal);
        }
    }
}
