//! The signals that are forwarded to the trainer, and what process 1 of a container has to do.

use std::process::Command;
use std::task::Poll;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit_code::ExitCode;

/// The forwarded signals, each with its name and whether the terminal sends it to the whole foreground group.
const PASSED_ON: [(Signal, &str, bool); 9] = [
    (Signal::TERM, "SIGTERM", false),
    (Signal::INT, "SIGINT", true),
    (Signal::HUP, "SIGHUP", false),
    (Signal::QUIT, "SIGQUIT", true),
    (Signal::USR1, "SIGUSR1", false),
    (Signal::USR2, "SIGUSR2", false),
    (Signal::WINCH, "SIGWINCH", true),
    (Signal::TSTP, "SIGTSTP", true),
    (Signal::CONT, "SIGCONT", true),
];

/// A received signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) struct Received {
    pub(in crate::commands) signal: Signal,
    pub(in crate::commands) name: &'static str,
    /// Whether the terminal also sends it to a trainer in the same foreground group.
    pub(in crate::commands) from_terminal: bool,
}

impl Received {
    /// Returns whether the signal asks the trainer to end.
    pub(in crate::commands) fn asks_to_end(&self) -> bool {
        [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&self.signal)
    }
}

/// Streams of the forwarded signals.
pub(in crate::commands) struct Signals {
    streams: Vec<(Received, tokio::signal::unix::Signal)>,
}

impl Signals {
    /// Starts to listen. If the process shares the terminal, leaves SIGTSTP, SIGCONT and SIGWINCH to job control.
    pub(in crate::commands) fn listen(shares_terminal: bool) -> Result<Self> {
        let mut streams = Vec::new();
        for (signal_, name, from_terminal) in PASSED_ON {
            if shares_terminal && [Signal::TSTP, Signal::CONT, Signal::WINCH].contains(&signal_) {
                continue;
            }
            let received = Received { signal: signal_, name, from_terminal };
            let stream = signal(SignalKind::from_raw(signal_.as_raw())).map_err(|error| {
                Error::new(ErrorKind::Failed, "cannot listen for signals").on(name).caused_by(error)
            })?;
            streams.push((received, stream));
        }
        Ok(Self { streams })
    }

    /// Waits for the next signal.
    pub(in crate::commands) async fn next(&mut self) -> Received {
        std::future::poll_fn(|context| {
            for (received, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*received);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that asks to end.
    pub(in crate::commands) async fn next_end(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.asks_to_end() {
                return received;
            }
        }
    }
}

/// Returns whether this process is in the foreground of the terminal on its stdin. The shell's job control and Ctrl-C
/// then affect it and the trainer together.
pub(in crate::commands) fn shares_terminal() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Starts the same command line as a child, forwards signals to it, reaps every orphan, and exits with the child's
/// code. The kernel then kills all remaining processes of the container.
pub(in crate::commands) async fn run_as_init() -> Result<ExitCode> {
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
