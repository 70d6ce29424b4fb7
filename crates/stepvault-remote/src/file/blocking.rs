//! File system calls off the runtime's threads, with an end to the waiting.

use std::path::Path;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};

use crate::generic::transport::patience;

/// How long calls may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocking {
    pub(super) stall_timeout: Duration,
}

impl Blocking {
    /// Runs `work`, which moves about `size_bytes`, on a thread where it may block. A call that hangs (a network file
    /// system that is gone) keeps its thread, and no one waits for it any longer.
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
            Ok(Err(stopped)) => Err(Error::new(ErrorKind::Interrupted, what)
                .on(path.display())
                .caused_by(stopped)),
            Err(_) => Err(Error::new(ErrorKind::Unreachable, what)
                .on(path.display())
                .because(format!(
                    "the file system did not answer within {} seconds",
                    limit.as_secs()
                ))
                .hint("check that the file system is mounted and its server answers")),
        }
    }
}

/// The hints below this are about the local tier.
fn for_a_remote(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoSpace => {
            error.hint("free some space there, keep fewer steps on this remote, or use a larger disk")
        }
        ErrorKind::Denied => {
            error.hint("give the user that runs stepvault the right to read and write there")
        }
        _ => error,
    }
}
