//! As process 1 of a container: nothing but an init, which is what every orphan in there becomes a child of.
//!
//! The work is done by the same program once more, as its child. Waiting for any child at all would take the ends of
//! children that libraries wait for by themselves (helpers that fetch credentials); this process has none of those.

use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::signals::Signals;
use crate::exit_code::ExitCode;

/// Whether this process has to be an init.
pub(super) fn is_needed() -> bool {
    std::process::id() == 1
}

/// Starts the same command line as a child, passes signals on to it, reaps every orphan, and ends as the child ends:
/// the kernel then ends whatever is left in the container.
pub(super) async fn run() -> Result<ExitCode> {
    let fault = |error: std::io::Error| {
        Error::new(ErrorKind::Failed, "cannot start as process 1")
            .caused_by(error)
            .hint("start the container with an init (docker run --init)")
    };
    let mut signals = Signals::listen(false)?;
    let mut children = signal(SignalKind::child()).map_err(fault)?;
    let program = std::env::current_exe().map_err(fault)?;
    let worker = Command::new(program)
        .args(std::env::args_os().skip(1))
        .spawn()
        .map_err(fault)?;
    let worker = Pid::from_child(&worker);
    loop {
        if let Some(code) = reap(worker) {
            return Ok(ExitCode::Trainer(code));
        }
        tokio::select! {
            received = signals.next() => {
                // Stopping the whole container is nothing that its first process could do.
                if received.signal != Signal::TSTP {
                    let _ = kill_process(worker, received.signal);
                }
            }
            _ = children.recv() => {}
        }
    }
}

/// Takes the ends of all that have ended; the worker's code once it is among them.
fn reap(worker: Pid) -> Option<u8> {
    while let Ok(Some((id, status))) = wait(WaitOptions::NOHANG) {
        if id != worker {
            continue;
        }
        let signalled = status
            .terminating_signal()
            .map(|signal| signal.saturating_add(128));
        let code = status.exit_status().or(signalled);
        if let Some(code) = code {
            return Some(u8::try_from(code).unwrap_or(1));
        }
    }
    None
}
