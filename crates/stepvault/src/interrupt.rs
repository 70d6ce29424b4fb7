//! SIGINT and SIGTERM: the first one stops the command cleanly, the second one ends the process at once. The exit
//! deadline bounds how long a clean stop takes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

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

/// Reserved for the exit of the process itself.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// An exit deadline that a command may set and the shutdown of the process obeys. Cheap to clone; all clones share one
/// deadline.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExitDeadline {
    time: Arc<OnceLock<Instant>>,
}

impl ExitDeadline {
    /// Sets the deadline. Later calls have no effect.
    pub(crate) fn set(&self, time: Instant) {
        let _ = self.time.set(time);
    }

    /// Returns how long pending work may still take before the deadline, at most `longest`.
    pub(crate) fn within(&self, longest: Duration) -> Duration {
        match self.time.get() {
            Some(time) => {
                let left = time.saturating_duration_since(Instant::now());
                left.saturating_sub(LAST_MOMENT).min(longest)
            }
            None => longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_time_there_is_the_usual_one() {
        let exit_deadline = ExitDeadline::default();
        assert_eq!(exit_deadline.within(Duration::from_secs(2)), Duration::from_secs(2));
        exit_deadline.clone().set(Instant::now());
        assert_eq!(exit_deadline.within(Duration::from_secs(2)), Duration::ZERO);
    }
}
