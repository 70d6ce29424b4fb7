//! File work on threads that may block.

use stepvault_core::{Error, ErrorKind, Result};

/// Runs `work` on a thread where blocking is allowed.
pub async fn blocking<T, Work>(work: Work) -> Result<T>
where
    T: Send + 'static,
    Work: FnOnce() -> Result<T> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Failed, "a worker ended early").caused_by(error)),
    }
}
