//! The service's own starts: recorded in the vault of each run, copied to its remotes, and checked for a restart loop.

use std::sync::Arc;

use stepvault_core::config::NotifyEvent;
use stepvault_core::starts::{End, Ending, RestartLoopRule, Start, StartedProgram, restart_loop};
use stepvault_core::{NodeName, Result, RunName};
use stepvault_engine::node_records::{read_starts, write_starts};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{Vault, clock, process};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::notifications::Occurrence;
use crate::remotes::remotes_of;
use crate::shared::Shared;
use crate::stop::StopRequest;

/// Returns the record of a start by this process.
pub fn new_start(who: StartedProgram, node: NodeName, launch: Option<String>) -> Start {
    Start {
        id: uuid::Uuid::new_v4().simple().to_string(),
        who,
        node,
        started_at: clock::now(),
        launch,
        restored: None,
        process: process::identify(std::process::id()),
        trainer: None,
        end: None,
    }
}

/// The record of this start.
pub(crate) struct OwnStart {
    vault: Vault,
    start: Start,
    runs: Vec<RunName>,
    begun: Instant,
    copies: Vec<JoinHandle<()>>,
}

impl OwnStart {
    /// Records the start, and warns if it is one of too many. A round started by cron does not count as a start, nor does
    /// a service whose caller records the starts. Faults are warned of and block nothing.
    pub(crate) async fn record(shared: &Arc<Shared>) -> Self {
        record_invocation(shared).await;
        let (options, vault) = (&shared.options, &shared.vault.vault);
        let start = new_start(StartedProgram::Agent, options.node().clone(), None);
        let mut own =
            Self { vault: vault.clone(), start, runs: Vec::new(), begun: Instant::now(), copies: Vec::new() };
        let Some(rule) = options.lifecycle.restart_loop.filter(|_| !options.lifecycle.once) else {
            return own;
        };
        for run in &options.runs {
            let (in_vault, name, start) = (vault.clone(), run.name.clone(), own.start.clone());
            match blocking(move || in_vault.note_start(&name, &start)).await {
                Ok(history) => {
                    own.runs.push(run.name.clone());
                    let copies = HistoryCopies {
                        shared: Arc::clone(shared),
                        run: run.name.clone(),
                        rule,
                        remotes: remotes_of(run, options, vault),
                    };
                    copies.warn_of_loop(&history);
                    own.copies.push(tokio::spawn(copies.exchange()));
                }
                Err(error) => {
                    let text = format!("{}: cannot record the start: {error}", run.name);
                    shared.reporter.warn_once("starts", &text);
                }
            }
        }
        own
    }

    /// Drops the start, because the vault that it was recorded in no longer exists.
    pub(crate) fn abandon(self) {
        self.copies.iter().for_each(JoinHandle::abort);
    }

    /// Records the end; `requested` if the service was asked to stop.
    pub(crate) async fn record_end<T>(self, requested: Option<StopRequest>, lived: &Result<T>) {
        let end = End {
            lasted_seconds: self.begun.elapsed().as_secs(),
            how: match (lived, requested) {
                (Err(error), _) => Ending::failed(error),
                (Ok(_), Some(request)) => Ending::stopped(request.reason),
                (Ok(_), None) => Ending::Exited(0),
            },
        };
        self.copies.iter().for_each(JoinHandle::abort);
        let (vault, id, runs) = (self.vault, self.start.id, self.runs);
        let recorded = blocking(move || {
            for run in runs {
                vault.change_start(&run, &id, |start| start.end = Some(end.clone()))?;
            }
            Ok(())
        });
        if let Err(error) = recorded.await {
            tracing::debug!(%error, "cannot record the end");
        }
    }
}

async fn record_invocation(shared: &Shared) {
    let Some(invocation) = shared.options.lifecycle.invocation.clone() else {
        return;
    };
    let vault = shared.vault.vault.clone();
    if let Err(error) = blocking(move || vault.replace_invocation(&invocation)).await {
        let text = format!("cannot record how this agent was started: {error}");
        shared.reporter.warn_once("invocation", &text);
    }
}

/// The copies of a run's start history on its remotes.
struct HistoryCopies {
    shared: Arc<Shared>,
    run: RunName,
    rule: RestartLoopRule,
    remotes: Vec<RunRemote>,
}

impl HistoryCopies {
    /// Imports what the remotes recorded of this node, for a new disk, and exports what is recorded here.
    async fn exchange(self) {
        let node = self.shared.options.node();
        let (mut remembered, mut faults) = read_starts(&self.remotes).await;
        remembered.retain(|start| start.node == *node);
        let (vault, in_vault) = (self.shared.vault.vault.clone(), self.run.clone());
        match blocking(move || vault.adopt_starts(&in_vault, remembered)).await {
            Ok(history) => {
                self.warn_of_loop(&history);
                faults.extend(write_starts(&self.remotes, node, &history).await);
            }
            Err(error) => faults.push(error.to_string()),
        }
        for fault in faults {
            // An outage has its own warnings.
            tracing::debug!(fault, "cannot copy the history of starts to every remote");
        }
    }

    /// Warns once, whatever the number of runs: all of them have the same starts.
    fn warn_of_loop(&self, history: &[Start]) {
        let Shared { options, reporter, .. } = &*self.shared;
        let (node, now) = (options.node(), clock::now());
        if let Some(found) = restart_loop(history, &self.run, node, StartedProgram::Agent, self.rule, now) {
            if reporter.status.is_new_warning("restart loop", "restart loop") {
                reporter.warn(&found.to_string());
                let occurrence = Occurrence::new(NotifyEvent::RestartLoop, &self.run, found.to_string());
                self.shared.notifier.notify(occurrence.cause("restart loop of the agent"));
            }
            reporter.status.restart_loop(found);
        }
    }
}
