//! Runs file system calls off the runtime's threads, with a time limit.

use std::path::Path;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};

use crate::pieces::patience;

/// Time limits for calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocking {
    pub(super) stall_timeout: Duration,
}

impl Blocking {
    /// Runs `work`, which moves about `size_bytes`, on a thread where it may block. A call that hangs (on an
    /// unreachable network file system) keeps its thread, but is no longer waited for after the time limit.
    pub(super) async fn run<T: Send + 'static>(
        self,
        what: &str,
        path: &Path,
        size_bytes: u64,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let limit = patience(self.stall_timeout, size_bytes);
        match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(outcome)) => outcome.map_err(for_a_remote),
            Ok(Err(stopped)) => {
                Err(Error::new(ErrorKind::Interrupted, what).on(path.display()).caused_by(stopped))
            }
            Err(_) => Err(Error::new(ErrorKind::Unreachable, what)
                .on(path.display())
                .because(format!("the file system did not answer within {} seconds", limit.as_secs()))
                .hint("check that the file system is mounted and its server answers")),
        }
    }
}

impl Blocking {
    /// Like [`Self::run`], for reads: a failed read may be retried and says nothing about the object.
    pub(super) async fn read<T: Send + 'static>(
        self,
        what: &str,
        path: &Path,
        size_bytes: u64,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let read = self.run(what, path, size_bytes, work).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::Unreachable if error.is_inconclusive() => error.passing(),
            ErrorKind::Failed if error.is_inconclusive() && !error.is_lasting() => {
                error.with_kind(ErrorKind::Unreachable)
            }
            _ => error,
        })
    }
}

/// Replaces the hints of lower layers, which are about the local tier.
fn for_a_remote(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => {
            error.hint("free some space there, keep fewer steps on this remote, or use a larger disk")
        }
        ErrorKind::Denied => error.hint("allow the user that runs stepvault to read and write there"),
        _ => error,
    }
}
