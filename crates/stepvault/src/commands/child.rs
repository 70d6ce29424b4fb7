//! A child process, with the processes that it starts.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use stepvault_core::starts::Process;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::process;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Interval at which to check for remaining processes of a group; the kernel does not report their end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A running child.
#[derive(Debug)]
pub(super) struct Child {
    id: Pid,
    /// Whether the child has its own process group.
    pub(super) own_group: bool,
    pub(super) process: Option<Process>,
    pub(super) begun: Instant,
    /// What it is, for messages.
    what: &'static str,
    waiting: oneshot::Receiver<std::io::Result<ExitStatus>>,
}

impl Child {
    /// Starts a child. In a group of its own, signals are sent to every process of the group.
    pub(super) fn start(mut builder: Command, own_group: bool, what: &'static str) -> Result<Self> {
        let fault = || Error::new(ErrorKind::Usage, format!("cannot start {what}"));
        if own_group {
            builder.process_group(0);
        }
        let mut child = builder.spawn().map_err(|error| {
            fault()
                .on(builder.get_program().to_string_lossy())
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
        std::thread::Builder::new().name("child".to_owned()).spawn(wait).map_err(|error| {
            let _ = kill_process(id, Signal::TERM);
            fault().caused_by(error)
        })?;
        Ok(Self { id, own_group, process, begun, what, waiting })
    }

    /// Waits for the end of the child. To be called until it has returned, and not after.
    pub(super) async fn ended(&mut self) -> Result<ExitStatus> {
        let fault = || Error::new(ErrorKind::Failed, format!("cannot wait for {}", self.what));
        let ended = (&mut self.waiting).await.map_err(|gone| fault().caused_by(gone))?;
        ended.map_err(|error| fault().caused_by(error))
    }

    /// Sends a signal to the child. One that has exited is not an error.
    pub(super) fn signal(&self, signal: Signal) {
        let sent =
            if self.own_group { kill_process_group(self.id, signal) } else { kill_process(self.id, signal) };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "cannot send the signal to {}", self.what);
        }
    }

    /// Returns whether the child's own group still has processes.
    pub(super) fn has_others(&self) -> bool {
        let group = u32::try_from(self.id.as_raw_pid());
        self.own_group && group.is_ok_and(process::group_is_running)
    }
}

/// Returns the exit code as a shell reports it.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let signalled = || status.signal().map_or(1, |signal| signal.saturating_add(128));
    u8::try_from(status.code().unwrap_or_else(signalled)).unwrap_or(1)
}
