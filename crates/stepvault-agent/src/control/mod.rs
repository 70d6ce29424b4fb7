//! Control API of a running service: HTTP and JSON over a Unix socket that only its own user can open, and optional
//! metrics on a loopback port.
//!
//! Clients may be slow, malicious or numerous: connections, requests, waits and the time for each are bounded, and none
//! of them runs on the threads that seal and upload.

mod client;
mod drain;
mod http;
mod messages;
mod routes;
mod serve;
mod start;
mod wait;

pub use client::Client;
pub use messages::{
    AnnounceAnswer, AnnounceRequest, AnnouncementState, DrainAnswer, DrainRequest, RemoteRate, RunStatus,
    Skipped, StatusAnswer, WaitAnswer, WaitRequest,
};
pub use wait::LONGEST_WAIT;

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::ids::RunName;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::run_remote::RunRemote;
use tokio::sync::{Semaphore, watch};

use crate::metrics::Metrics;
use crate::note::Notes;
use crate::shared::Shared;
pub(crate) use start::Control;

/// Maximum number of requests that wait at once.
const MAX_WAITS: usize = 64;

/// A served run, as seen by the API.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) run: RunName,
    /// The run's remotes, each wrapped in a timeout.
    pub(crate) remotes: Vec<RunRemote>,
}

/// The state from which requests are answered.
#[derive(Debug)]
pub(crate) struct ControlState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<ServedRun>,
    pub(crate) notes: Notes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) drain_deadline: Duration,
    /// What the service left undone, once it has ended.
    pub(crate) ended: watch::Receiver<Option<Arc<DrainAnswer>>>,
    waits: Semaphore,
}

impl ControlState {
    pub(crate) fn new(
        shared: Arc<Shared>,
        runs: Vec<ServedRun>,
        notes: Notes,
        metrics: Arc<Metrics>,
        drain_deadline: Duration,
        ended: watch::Receiver<Option<Arc<DrainAnswer>>>,
    ) -> Self {
        Self {
            shared,
            runs,
            notes,
            metrics,
            drain_deadline,
            ended,
            waits: Semaphore::new(MAX_WAITS),
        }
    }

    /// Returns the named run, or the only one.
    fn run(&self, name: Option<&RunName>) -> Result<&ServedRun> {
        let names: Vec<&str> = self.runs.iter().map(|served| served.run.as_str()).collect();
        let names = names.join(", ");
        match (name, self.runs.as_slice()) {
            (Some(name), runs) => runs.iter().find(|served| served.run == *name).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "this agent does not serve the run")
                    .on(name)
                    .hint(format!("use one of its runs: {names}"))
            }),
            (None, [only]) => Ok(only),
            (None, _) => Err(Error::new(ErrorKind::Usage, "no run selected")
                .because("the agent serves several")
                .hint(format!("name one: {names}"))),
        }
    }

    /// Returns a permit to wait. Excess requests are refused: queueing them would be an unbounded wait.
    fn leave_to_wait(&self) -> Result<tokio::sync::SemaphorePermit<'_>> {
        self.waits.try_acquire().map_err(|_| {
            Error::new(ErrorKind::Held, "too many waiting requests")
                .because(format!("{MAX_WAITS} requests are already waiting"))
                .hint("retry later")
        })
    }
}
