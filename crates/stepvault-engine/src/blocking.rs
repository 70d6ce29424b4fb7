//! Runs file operations on threads that may block.

use std::cell::Cell;

use stepvault_core::ids::RunName;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::StepScan;
use stepvault_local::vault::Vault;

thread_local! {
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on a thread where blocking is allowed.
pub async fn blocking<T, Work>(work: Work) -> Result<T>
where
    T: Send + 'static,
    Work: FnOnce() -> Result<T> + Send + 'static,
{
    if IN_PLACE.get() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Failed, "a worker ended unexpectedly").caused_by(error)),
    }
}

/// Scans the sealed steps of a run.
///
/// # Errors
/// When the vault cannot be read.
pub async fn sealed_steps(vault: &Vault, run: &RunName) -> Result<StepScan> {
    let (vault, run) = (vault.clone(), run.clone());
    blocking(move || vault.steps(&run)).await
}

/// While this lives, file operations requested on its thread run on that thread immediately. For simulations only,
/// which run everything on one thread so that it happens in the same order every time. Work that waits for the runtime
/// itself, such as reading a step's files for its resume handoff, cannot run this way.
#[derive(Debug)]
pub struct InPlace(());

impl InPlace {
    /// Makes this thread run its own file operations until the value is dropped.
    #[must_use]
    pub fn on_this_thread() -> Self {
        IN_PLACE.set(true);
        Self(())
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        IN_PLACE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_elsewhere_unless_this_thread_is_to_do_it() {
        let thread = || Ok(std::thread::current().id());
        assert_ne!(blocking(thread).await.unwrap(), thread().unwrap());
        let in_place = InPlace::on_this_thread();
        assert_eq!(blocking(thread).await.unwrap(), thread().unwrap());
        drop(in_place);
        assert_ne!(blocking(thread).await.unwrap(), thread().unwrap());
    }
}
