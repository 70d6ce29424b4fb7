//! Runs work that may never return.

use std::time::Duration;

use tokio::sync::oneshot;

/// Time limit for one check of one directory.
pub(super) const ONE_LOOK: Duration = Duration::from_secs(10);

/// Runs `work` on its own thread; returns `None` when it has not returned in time or could not be started. The thread
/// is then abandoned and ends with the process: a call that hangs in the kernel cannot be cancelled.
pub(super) async fn bounded<T, Work>(limit: Duration, work: Work) -> Option<T>
where
    T: Send + 'static,
    Work: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let started = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        let _ = sender.send(work());
    });
    if let Err(error) = started {
        tracing::warn!(%error, "cannot start a thread for a check");
        return None;
    }
    tokio::time::timeout(limit, receiver).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_returns_is_handed_on() {
        assert_eq!(bounded(Duration::from_mins(1), || 5).await, Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_return_is_not_waited_for() {
        // Ends with the test, when its sender is dropped.
        let (keep, wait) = std::sync::mpsc::channel::<()>();
        let hanging = move || wait.recv().is_ok();
        assert_eq!(bounded(ONE_LOOK, hanging).await, None);
        drop(keep);
    }
}
