//! The trainer's process and its child processes.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stepvault_agent::Stop;
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::process;
use stepvault_local::starts::TrainerLock;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::signals::{Received, Signals};

/// Interval at which to check for remaining processes of the trainer's group; the kernel does not report their end.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The trainer's share of the drain deadline; the rest is for uploading its last steps.
const TRAINERS_SHARE: f64 = 0.75;

/// A running trainer.
pub(super) struct Trainer {
    id: Pid,
    /// Whether the trainer has its own process group.
    own_group: bool,
    pub(super) process: Option<Process>,
    begun: Instant,
    waiting: oneshot::Receiver<std::io::Result<ExitStatus>>,
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
        let signalled = || self.status.signal().map_or(1, |signal| signal.saturating_add(128));
        u8::try_from(self.status.code().unwrap_or_else(signalled)).unwrap_or(1)
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
        if !shares_terminal {
            builder.process_group(0);
        }
        let mut child = builder.spawn().map_err(|error| {
            fault()
                .on(program.to_string_lossy())
                .caused_by(error)
                .hint("give the program after '--', with its path unless it is in PATH")
        })?;
        let begun = Instant::now();
        let id = Pid::from_child(&child);
        let process = process::identify(child.id());
        let (tell, waiting) = oneshot::channel();
        let wait = move || {
            let _ = tell.send(child.wait());
        };
        std::thread::Builder::new().name("trainer".to_owned()).spawn(wait).map_err(|error| {
            let _ = kill_process(id, Signal::TERM);
            fault().caused_by(error)
        })?;
        Ok(Self { id, own_group: !shares_terminal, process, begun, waiting, _lock: lock })
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
                && !(times.is_some() && !was_killed && self.has_others())
            {
                break status;
            }
            let kill_at = times.map(|(kill_at, _)| kill_at).filter(|_| !was_killed);
            tokio::select! {
                ended = &mut self.waiting, if status.is_none() => {
                    let fault = || Error::new(ErrorKind::Failed, "cannot wait for the trainer");
                    let ended = ended.map_err(|gone| fault().caused_by(gone))?;
                    let ended = ended.map_err(|error| fault().caused_by(error))?;
                    status = Some((ended, self.begun.elapsed()));
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
                    self.signal(Signal::TERM);
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    say("the trainer did not exit in time after SIGTERM: killing it");
                    was_killed = true;
                    self.signal(Signal::KILL);
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
            left_others: !was_killed && self.has_others(),
            left_none: self.own_group && !was_killed && status.code().is_some() && !self.has_others(),
        })
    }

    fn pass_on(&self, received: &Received) {
        if self.own_group || !received.from_terminal {
            self.signal(received.signal);
        }
    }

    /// Sends a signal to the trainer. A trainer that has exited is not an error.
    fn signal(&self, signal: Signal) {
        let sent =
            if self.own_group { kill_process_group(self.id, signal) } else { kill_process(self.id, signal) };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "cannot send the signal to the trainer");
        }
    }

    /// Returns whether the trainer's group still has processes.
    fn has_others(&self) -> bool {
        let group = u32::try_from(self.id.as_raw_pid());
        self.own_group && group.is_ok_and(process::group_is_running)
    }
}
