//! Runs bounded parallel work that ends at the first error.

use std::future::Future;

use stepvault_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

/// Runs the futures that `jobs` yields, at most `limit` at once, each as its own task so that they spread over all
/// cores. At the first error the others are cancelled and the error is returned.
pub(crate) async fn run_bounded<Jobs, Job>(jobs: Jobs, limit: usize) -> Result<()>
where
    Jobs: IntoIterator<Item = Job>,
    Job: Future<Output = Result<()>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for job in jobs {
        while running.len() >= limit.max(1) {
            join_one(&mut running).await?;
        }
        running.spawn(job);
    }
    while !running.is_empty() {
        join_one(&mut running).await?;
    }
    Ok(())
}

async fn join_one(running: &mut JoinSet<Result<()>>) -> Result<()> {
    match running.join_next().await {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => {
            // Wait, so that nothing continues in the background after the error is reported.
            running.shutdown().await;
            Err(error)
        }
        Some(Err(error)) => {
            running.shutdown().await;
            Err(Error::new(ErrorKind::Failed, "a transfer task ended unexpectedly").caused_by(error))
        }
    }
}
