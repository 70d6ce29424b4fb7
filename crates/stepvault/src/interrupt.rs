//! SIGINT and SIGTERM: the first ends the work cleanly, the second ends the process at once.

use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit_code::ExitCode;

/// Tells when the process was asked to end.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    token: CancellationToken,
}

impl Interrupt {
    /// Begins to listen. Must be called inside the runtime.
    pub(crate) fn listen() -> Result<Self> {
        let fault = |error| Error::new(ErrorKind::Failed, "cannot listen for signals").caused_by(error);
        let interrupts = signal(SignalKind::interrupt()).map_err(fault)?;
        let terminations = signal(SignalKind::terminate()).map_err(fault)?;
        let token = CancellationToken::new();
        tokio::spawn(watch(interrupts, terminations, token.clone()));
        Ok(Self { token })
    }

    /// For a command that listens by itself.
    pub(crate) fn never() -> Self {
        Self {
            token: CancellationToken::new(),
        }
    }

    /// Ends with the first signal.
    pub(crate) async fn requested(&self) {
        self.token.cancelled().await;
    }
}

/// Has a write beyond the limit on the size of files fail, with an error that says so: otherwise the kernel ends the process
/// without a word. Must be called inside the runtime; holds until the process ends, and not for programs that it starts.
pub(crate) fn outlive_large_writes() -> Result<()> {
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    let fault = |error| Error::new(ErrorKind::Failed, "cannot listen for signals").caused_by(error);
    signal(kind).map(drop).map_err(fault)
}

/// The error of a command that was interrupted.
pub(crate) fn error(hint: &str) -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted").hint(hint)
}

async fn watch(mut interrupts: Signal, mut terminations: Signal, token: CancellationToken) {
    loop {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
        }
        if token.is_cancelled() {
            // Asked twice: whatever still cleans up is left where it is, as after a kill.
            std::process::exit(i32::from(ExitCode::Interrupted.number()));
        }
        token.cancel();
    }
}
