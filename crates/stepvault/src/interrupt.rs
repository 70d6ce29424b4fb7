//! SIGINT and SIGTERM: the first one stops the command cleanly, the second one ends the process at once.

use stepvault_core::{Error, ErrorKind, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit_code::ExitCode;

/// Starts to listen for signals; the token is cancelled by the first one. Must be called inside the runtime.
pub(crate) fn listen() -> Result<CancellationToken> {
    let interrupts = handler(SignalKind::interrupt())?;
    let terminations = handler(SignalKind::terminate())?;
    let token = CancellationToken::new();
    tokio::spawn(watch(interrupts, terminations, token.clone()));
    Ok(token)
}

/// Handles SIGXFSZ, so that a write beyond the file size limit fails with an error: by default the kernel kills the
/// process without a message. Must be called inside the runtime. It holds until the process ends; child processes do
/// not inherit it.
pub(crate) fn outlive_large_writes() -> Result<()> {
    handler(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

fn handler(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Error::new(ErrorKind::Failed, "cannot listen for signals").caused_by(error))
}

/// Returns the error of an interrupted command.
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
            // Second signal: clean-up under way is abandoned, as after a kill.
            std::process::exit(i32::from(ExitCode::Interrupted.number()));
        }
        token.cancel();
    }
}
