//! `run` as process 1 of a container: acts only as an init, which becomes the parent of every orphan process.
//!
//! A child with the same command line does the work. Reaping every child would also reap those that libraries wait for
//! themselves (credential helpers); the init process has no such children.

use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::signals::Signals;
use crate::exit_code::ExitCode;

/// Returns whether this process must act as an init.
pub(super) fn is_needed() -> bool {
    std::process::id() == 1
}

/// Starts the same command line as a child, forwards signals to it, reaps every orphan, and exits with the child's
/// code. The kernel then kills all remaining processes of the container.
pub(super) async fn run() -> Result<ExitCode> {
    let fault = |error: std::io::Error| {
        Error::new(ErrorKind::Failed, "cannot start as process 1")
            .caused_by(error)
            .hint("start the container with an init (docker run --init)")
    };
    let mut signals = Signals::listen(false)?;
    let mut children = signal(SignalKind::child()).map_err(fault)?;
    let program = std::env::current_exe().map_err(fault)?;
    let worker = Command::new(program).args(std::env::args_os().skip(1)).spawn().map_err(fault)?;
    let worker = Pid::from_child(&worker);
    loop {
        if let Some(code) = reap(worker) {
            return Ok(ExitCode::Trainer(code));
        }
        tokio::select! {
            received = signals.next() => {
                // The first process of a container cannot stop the container.
                if received.signal != Signal::TSTP {
                    let _ = kill_process(worker, received.signal);
                }
            }
            _ = children.recv() => {}
        }
    }
}

/// Reaps all processes that have ended; returns the worker's exit code once it is among them.
fn reap(worker: Pid) -> Option<u8> {
    while let Ok(Some((id, status))) = wait(WaitOptions::NOHANG) {
        if id != worker {
            continue;
        }
        let signalled = status.terminating_signal().map(|signal| signal.saturating_add(128));
        let code = status.exit_status().or(signalled);
        if let Some(code) = code {
            return Some(u8::try_from(code).unwrap_or(1));
        }
    }
    None
}
