//! Talking to a running service: HTTP and JSON over a Unix socket that its own user alone can open, and metrics on a
//! port of this machine where one is asked for.
//!
//! Whoever connects may be slow, mad or many: connections, requests, waits and the time for each are bounded, and none
//! of it runs on the threads that seal and upload.

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
    AnnounceAnswer, AnnounceRequest, AnnouncementState, DrainAnswer, DrainRequest, ErrorAnswer, ErrorInfo,
    RemotePace, RunStatus, Skipped, StatusAnswer, WaitAnswer, WaitRequest,
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

/// Most requests that wait for something at once.
const MOST_WAITS: usize = 64;

/// A run as it is asked about.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) run: RunName,
    /// Asking these takes no longer than it may.
    pub(crate) remotes: Vec<RunRemote>,
}

/// What requests are answered from.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<ServedRun>,
    pub(crate) notes: Notes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) drain_deadline: Duration,
    /// What the service left undone, once it has ended.
    pub(crate) ended: watch::Receiver<Option<Arc<DrainAnswer>>>,
    waits: Semaphore,
}

impl Desk {
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
            waits: Semaphore::new(MOST_WAITS),
        }
    }

    /// The run that was named, or the only one.
    fn run(&self, name: Option<&RunName>) -> Result<&ServedRun> {
        let names: Vec<&str> = self.runs.iter().map(|served| served.run.as_str()).collect();
        let names = names.join(", ");
        match (name, self.runs.as_slice()) {
            (Some(name), runs) => runs.iter().find(|served| served.run == *name).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "this agent does not serve the run")
                    .on(name)
                    .hint(format!("it serves {names}"))
            }),
            (None, [only]) => Ok(only),
            (None, _) => Err(Error::new(ErrorKind::Usage, "which run?")
                .because("the agent serves several")
                .hint(format!("name one: {names}"))),
        }
    }

    /// Leave to wait. Too many that do are sent away: a place in the queue would be a wait without a bound.
    fn leave_to_wait(&self) -> Result<tokio::sync::SemaphorePermit<'_>> {
        self.waits.try_acquire().map_err(|_| {
            Error::new(ErrorKind::Held, "too many wait at once")
                .because(format!("{MOST_WAITS} requests wait for something already"))
                .hint("ask again later")
        })
    }
}
