//! The trainer's process, and whatever it starts.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stepvault_agent::Stop;
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::process;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::signals::{Received, Signals};

/// How often it is looked whether the last of the trainer's processes has gone: nobody tells.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Of the drain deadline so much is the trainer's; the rest is for what it saved last.
const TRAINERS_SHARE: f64 = 0.75;

/// A trainer that was started.
pub(super) struct Trainer {
    id: Pid,
    /// Whether it has a process group of its own.
    own_group: bool,
    pub(super) process: Option<Process>,
    begun: Instant,
    waiting: oneshot::Receiver<std::io::Result<ExitStatus>>,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) lasted: Duration,
    /// The first signal that asked it to.
    pub(super) asked_by: Option<&'static str>,
    /// Whether it had to be killed.
    pub(super) was_killed: bool,
    /// When everything is to be over; of a trainer that nobody asked with SIGTERM there is no such time.
    pub(super) deadline: Option<Instant>,
    /// Whether processes that it started still run.
    pub(super) left_others: bool,
}

impl Ended {
    /// The code as a shell has it.
    pub(super) fn code(&self) -> u8 {
        let signalled = || {
            self.status
                .signal()
                .map_or(1, |signal| signal.saturating_add(128))
        };
        u8::try_from(self.status.code().unwrap_or_else(signalled)).unwrap_or(1)
    }
}

impl Trainer {
    /// Starts it. Its streams are this process's own.
    ///
    /// In the foreground of a terminal it stays in this process's group, so that it may read from the terminal and is
    /// reached by Ctrl-C and Ctrl-Z; everywhere else it has a group of its own, whose every process signals reach.
    pub(super) fn start(
        command: &[OsString],
        environment: Vec<(&'static str, OsString)>,
        shares_terminal: bool,
    ) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, "cannot start the trainer");
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| fault().because("no command is given"))?;
        let mut builder = Command::new(program);
        builder.args(arguments).envs(environment);
        if !shares_terminal {
            builder.process_group(0);
        }
        let mut child = builder.spawn().map_err(|error| {
            fault()
                .on(program.to_string_lossy())
                .caused_by(error)
                .hint("name the program behind '--', with its path unless it is in PATH")
        })?;
        let begun = Instant::now();
        let id = Pid::from_child(&child);
        let process = process::identify(child.id());
        let (tell, waiting) = oneshot::channel();
        let wait = move || {
            let _ = tell.send(child.wait());
        };
        std::thread::Builder::new()
            .name("trainer".to_owned())
            .spawn(wait)
            .map_err(|error| {
                let _ = kill_process(id, Signal::TERM);
                fault().caused_by(error)
            })?;
        Ok(Self {
            id,
            own_group: !shares_terminal,
            process,
            begun,
            waiting,
        })
    }

    /// Waits for its end, and passes signals on until then. After SIGTERM its group has a share of `drain_deadline`;
    /// what is left of it by then is killed. The same when the agent beside it is told to drain: a machine that is taken
    /// away takes the trainer with it.
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
                    status = Some((exit_status(ended)?, self.begun.elapsed()));
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
                        say(&format!("drained by {}: the trainer is asked to end", request.reason));
                        let deadline = request.leave_by(drain_deadline);
                        let left = deadline.saturating_duration_since(now);
                        times.get_or_insert((now + left.mul_f64(TRAINERS_SHARE), deadline));
                    }
                    asked_by.get_or_insert("a drain");
                    self.signal(Signal::TERM);
                }
                () = until(kill_at) => {
                    say("the trainer has not ended in time after SIGTERM: it is killed");
                    was_killed = true;
                    self.signal(Signal::KILL);
                }
                () = tokio::time::sleep(LOOK_INTERVAL), if status.is_some() => {}
            }
        };
        Ok(Ended {
            status,
            lasted,
            asked_by,
            was_killed,
            deadline: times.map(|(_, deadline)| deadline),
            left_others: !was_killed && self.has_others(),
        })
    }

    fn pass_on(&self, received: &Received) {
        if self.own_group || !received.from_terminal {
            self.signal(received.signal);
        }
    }

    /// One that has gone meanwhile needs no signal.
    fn signal(&self, signal: Signal) {
        let sent = if self.own_group {
            kill_process_group(self.id, signal)
        } else {
            kill_process(self.id, signal)
        };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "the signal did not reach the trainer");
        }
    }

    /// Whether its group has processes left.
    fn has_others(&self) -> bool {
        let group = u32::try_from(self.id.as_raw_pid());
        self.own_group && group.is_ok_and(process::group_is_running)
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn exit_status(
    ended: std::result::Result<std::io::Result<ExitStatus>, oneshot::error::RecvError>,
) -> Result<ExitStatus> {
    let fault = || Error::new(ErrorKind::Failed, "cannot wait for the trainer");
    match ended {
        Ok(waited) => waited.map_err(|error| fault().caused_by(error)),
        Err(gone) => Err(fault().caused_by(gone)),
    }
}
