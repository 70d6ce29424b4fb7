//! Control API of a running service: HTTP and JSON over a Unix socket that only its own user can open, and optional
//! metrics on a loopback port.
//!
//! Clients may be slow, malicious or numerous: connections, requests, waits and the time for each are bounded, and none
//! of them runs on the threads that seal and upload.

mod client;
mod drain;
mod http;
mod routes;
mod serve;
mod wait;

pub use client::Client;
pub use wait::LONGEST_WAIT;

use std::sync::Arc;

use stepvault_core::ids::RunName;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::followed::Followed;
pub use crate::messages::{
    AgentProcess, AnnounceAnswer, AnnounceRequest, AnnouncedStep, AnnouncementState, AttachAnswer,
    AttachRequest, DetachRequest, DrainAnswer, DrainRequest, RemoteRate, RunStatus, SeenOfRun, Skipped,
    StatusAnswer, WaitAnswer, WaitRequest,
};
use crate::metrics::Metrics;
use crate::remotes::ServedRun;
use crate::shared::Shared;
pub(crate) use serve::Control;

/// Maximum number of requests that wait at once.
const MAX_WAITS: usize = 64;

/// What a service left undone, once it has ended.
pub(crate) type FinalResponse = Option<Arc<DrainAnswer>>;

/// Returns the permits for requests that wait.
pub(crate) fn wait_permits() -> Semaphore {
    Semaphore::new(MAX_WAITS)
}

/// The state from which requests are answered.
#[derive(Debug)]
pub(crate) struct ControlState {
    pub(crate) shared: Arc<Shared>,
    /// The processes that the service runs for, if it was started for one.
    pub(crate) followed: Option<Arc<Followed>>,
    pub(crate) runs: Arc<[ServedRun]>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ended: watch::Receiver<FinalResponse>,
    pub(crate) waits: Semaphore,
}

impl ControlState {
    /// Returns the named run, or the only one.
    fn run(&self, name: Option<&RunName>) -> Result<&ServedRun> {
        let names: Vec<&str> = self.runs.iter().map(|served| served.name().as_str()).collect();
        let names = names.join(", ");
        match (name, &*self.runs) {
            (Some(name), runs) => runs.iter().find(|served| served.name() == name).ok_or_else(|| {
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
    fn wait_permit(&self) -> Result<SemaphorePermit<'_>> {
        self.waits.try_acquire().map_err(|_| {
            Error::new(ErrorKind::Held, "too many waiting requests")
                .because(format!("{MAX_WAITS} requests are already waiting"))
                .hint("retry later")
        })
    }
}
