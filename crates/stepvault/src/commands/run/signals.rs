//! The signals that are forwarded to the trainer.

use std::task::Poll;

use rustix::process::Signal;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};

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
pub(super) struct Received {
    pub(super) signal: Signal,
    pub(super) name: &'static str,
    /// Whether the terminal also sends it to a trainer in the same foreground group.
    pub(super) from_terminal: bool,
}

impl Received {
    /// Returns whether the signal asks the trainer to end.
    pub(super) fn asks_to_end(&self) -> bool {
        [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&self.signal)
    }
}

/// Streams of the forwarded signals.
pub(super) struct Signals {
    streams: Vec<(Received, tokio::signal::unix::Signal)>,
}

impl Signals {
    /// Starts to listen. If the process shares the terminal, leaves SIGTSTP, SIGCONT and SIGWINCH to job control.
    pub(super) fn listen(shares_terminal: bool) -> Result<Self> {
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
    pub(super) async fn next(&mut self) -> Received {
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
    pub(super) async fn next_end(&mut self) -> Received {
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
pub(super) fn shares_terminal() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}
