//! The signals that are passed on to the trainer.

use std::task::Poll;

use rustix::process::Signal;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Each with its name, and whether the terminal sends it to a whole group by itself.
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

/// A signal that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: Signal,
    pub(super) name: &'static str,
    /// Whether a trainer that shares the terminal's foreground has it already.
    pub(super) from_terminal: bool,
}

impl Received {
    /// Whether whoever sent it wants the trainer to end.
    pub(super) fn asks_to_end(&self) -> bool {
        [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&self.signal)
    }
}

/// Listens from its making on.
pub(super) struct Signals {
    streams: Vec<(Received, tokio::signal::unix::Signal)>,
}

impl Signals {
    /// Begins to listen. Where the terminal's own job control is to work on the process, stopping it is left alone.
    pub(super) fn listen(shares_terminal: bool) -> Result<Self> {
        let mut streams = Vec::new();
        for (signal_, name, from_terminal) in PASSED_ON {
            if shares_terminal && [Signal::TSTP, Signal::CONT, Signal::WINCH].contains(&signal_) {
                continue;
            }
            let received = Received {
                signal: signal_,
                name,
                from_terminal,
            };
            let stream = signal(SignalKind::from_raw(signal_.as_raw())).map_err(|error| {
                Error::new(ErrorKind::Failed, "cannot listen for signals")
                    .on(name)
                    .caused_by(error)
            })?;
            streams.push((received, stream));
        }
        Ok(Self { streams })
    }

    /// The next one.
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

    /// The next one that asks to end.
    pub(super) async fn next_end(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.asks_to_end() {
                return received;
            }
        }
    }
}

/// Whether this process is in the foreground of the terminal on its stdin: then the shell's job control and Ctrl-C are
/// for it and the trainer together.
pub(super) fn shares_terminal() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}
