//! Runs file operations on threads that may block, and bounded work in parallel.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use stepvault_core::{Error, ErrorKind, Result, RunName};
use stepvault_local::sealed::StepScan;
use stepvault_local::vault::Vault;
use tokio::task::JoinSet;

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

/// Does the work for each item, at most `limit` at once, and returns the results in order, or the first error.
pub(crate) async fn in_order<I, T, Working: Future<Output = Result<T>>>(
    limit: usize,
    items: impl IntoIterator<Item = I>,
    work: impl FnMut(I) -> Working,
) -> Result<Vec<T>> {
    stream::iter(items).map(work).buffered(limit).try_collect().await
}

/// Runs the futures that `jobs` yields, at most `limit` at once, in tasks that spread over all cores. At the first error
/// the others are cancelled and the error is returned.
pub(crate) async fn run_bounded<Jobs, Job>(jobs: Jobs, limit: usize) -> Result<()>
where
    Jobs: IntoIterator<Item = Job>,
    Jobs::IntoIter: Send + 'static,
    Job: Future<Output = Result<()>> + Send + 'static,
{
    let jobs = Arc::new(Mutex::new(jobs.into_iter().fuse()));
    let next = |jobs: &Mutex<std::iter::Fuse<Jobs::IntoIter>>| jobs.lock().next();
    let mut running = JoinSet::new();
    for _ in 0..limit.max(1) {
        let Some(mut job) = next(&jobs) else { break };
        let jobs = Arc::clone(&jobs);
        // Each task takes its next job by itself: waking this one between two small requests costs as much as a request.
        running.spawn(async move {
            loop {
                job.await?;
                match next(&jobs) {
                    Some(another) => job = another,
                    None => return Ok(()),
                }
            }
        });
    }
    drop(jobs);
    while let Some(joined) = running.join_next().await {
        let error = match joined {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(error) => {
                Error::new(ErrorKind::Failed, "a transfer task ended unexpectedly").caused_by(error)
            }
        };
        running.shutdown().await;
        return Err(error);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    #[tokio::test]
    async fn every_job_runs_and_no_more_at_once_than_the_limit() {
        let counts: Arc<[AtomicUsize; 3]> = Arc::default();
        let jobs = (0..100).map({
            let counts = Arc::clone(&counts);
            move |_| {
                let counts = Arc::clone(&counts);
                async move {
                    let [running, most, done] = &*counts;
                    most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
            }
        });
        run_bounded(jobs, 7).await.unwrap();
        let counts = Arc::into_inner(counts).expect("the jobs are dropped");
        assert_eq!(counts.map(AtomicUsize::into_inner), [0, 7, 100]);
    }

    #[tokio::test]
    async fn the_first_error_ends_the_others() {
        let begun: Arc<AtomicUsize> = Arc::default();
        let jobs = (0..100).map({
            let begun = Arc::clone(&begun);
            move |number| {
                let begun = Arc::clone(&begun);
                async move {
                    begun.fetch_add(1, Ordering::Relaxed);
                    if number == 2 {
                        return Err(Error::new(ErrorKind::Damaged, "it is damaged"));
                    }
                    std::future::pending().await
                }
            }
        });
        let error = run_bounded(jobs, 3).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert_eq!(Arc::into_inner(begun).expect("the jobs are dropped").into_inner(), 3);
        run_bounded(std::iter::empty::<std::future::Ready<Result<()>>>(), 0).await.unwrap();
    }
}
