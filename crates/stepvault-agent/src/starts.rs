//! The service's own starts: recorded in the vault of each run, copied to its remotes, and checked for a restart loop.

use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{NodeName, RunName};
use stepvault_core::starts::{End, Ending, RestartLoopRule, Start, Who, restart_loop};
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::starts::{read_starts, write_starts};
use stepvault_local::process;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::assembly::remotes_of;
use crate::clock::SystemClock;
use crate::options::AgentOptions;
use crate::shared::Shared;

/// The record of this start.
pub(crate) struct OwnStart {
    start: Start,
    runs: Vec<RunName>,
    begun: Instant,
    copies: Vec<JoinHandle<()>>,
}

impl OwnStart {
    /// Records the start, and warns if it is one of too many. A round started by cron does not count as a start. Faults
    /// are warned of and block nothing.
    pub(crate) async fn note(options: &AgentOptions, shared: &Arc<Shared>) -> Self {
        let start = Start {
            id: uuid::Uuid::new_v4().simple().to_string(),
            who: Who::Agent,
            node: options.writer.place.node().clone(),
            started_at: SystemClock.now(),
            launch: None,
            restored: None,
            process: process::identify(std::process::id()),
            trainer: None,
            end: None,
        };
        let mut own = Self {
            start,
            runs: Vec::new(),
            begun: Instant::now(),
            copies: Vec::new(),
        };
        if options.once {
            return own;
        }
        for run in &options.runs {
            let (vault, name, start) = (shared.vault.clone(), run.run.clone(), own.start.clone());
            match blocking(move || vault.note_start(&name, &start)).await {
                Ok(history) => {
                    own.runs.push(run.run.clone());
                    tell_of_loop(
                        shared,
                        &history,
                        options.writer.place.node(),
                        options.restart_loop,
                    );
                    let remotes = remotes_of(run, &options.remotes, &shared.vault);
                    let (shared, name) = (Arc::clone(shared), run.run.clone());
                    let (node, rule) = (options.writer.place.node().clone(), options.restart_loop);
                    own.copies
                        .push(tokio::spawn(copy(shared, name, node, rule, remotes)));
                }
                Err(error) => shared.warn(
                    "starts",
                    &format!("{}: cannot record the start: {error}", run.run),
                ),
            }
        }
        own
    }

    /// Drops the start, because the vault that it was recorded in no longer exists.
    pub(crate) fn abandon(self) {
        self.copies.iter().for_each(JoinHandle::abort);
    }

    /// Records the end.
    pub(crate) async fn note_end<T>(self, shared: &Arc<Shared>, lived: &Result<T>) {
        let requested = shared.stopping.requested();
        let end = End {
            lasted_seconds: self.begun.elapsed().as_secs(),
            how: match (lived, requested) {
                (Err(error), _) => Ending::failed(error),
                (Ok(_), Some(request)) => Ending::stopped(request.reason),
                (Ok(_), None) => Ending::Exited(0),
            },
        };
        self.copies.iter().for_each(JoinHandle::abort);
        let (vault, id, runs) = (shared.vault.clone(), self.start.id, self.runs);
        let noted = blocking(move || {
            for run in runs {
                vault.change_start(&run, &id, |start| start.end = Some(end.clone()))?;
            }
            Ok(())
        });
        if let Err(error) = noted.await {
            tracing::debug!(%error, "cannot record the end");
        }
    }
}

/// Imports what the remotes recorded of this node, for a new disk, and exports what is recorded here.
async fn copy(
    shared: Arc<Shared>,
    run: RunName,
    node: NodeName,
    rule: RestartLoopRule,
    remotes: Vec<RunRemote>,
) {
    let (mut remembered, mut faults) = read_starts(&remotes).await;
    remembered.retain(|start| start.node == node);
    let vault = shared.vault.clone();
    match blocking(move || vault.adopt_starts(&run, remembered)).await {
        Ok(history) => {
            tell_of_loop(&shared, &history, &node, rule);
            faults.extend(write_starts(&remotes, &node, &history).await);
        }
        Err(error) => faults.push(error.to_string()),
    }
    for fault in faults {
        // An outage has its own warnings.
        tracing::debug!(fault, "cannot copy the history of starts to every remote");
    }
}

fn tell_of_loop(shared: &Shared, history: &[Start], node: &NodeName, rule: RestartLoopRule) {
    if let Some(found) = restart_loop(history, node, Who::Agent, rule, SystemClock.now()) {
        shared.warn("restart loop", &found.to_string());
        shared.status.restart_loop(found);
    }
}
