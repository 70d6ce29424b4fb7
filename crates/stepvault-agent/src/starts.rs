//! The service's own starts: recorded in the vault of each run, copied to its remotes, and checked for a restart loop.

use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{NodeName, RunName};
use stepvault_core::starts::{End, Ending, RestartLoopRule, Start, Who, restart_loop};
use stepvault_engine::blocking::blocking;
use stepvault_engine::starts::{read_starts, write_starts};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::process;
use stepvault_local::vault::Vault;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::options::AgentOptions;
use crate::remotes::remotes_of;
use crate::reporter::Reporter;
use crate::stop::StopRequest;
use stepvault_local::clock::SystemClock;

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
    pub(crate) async fn record(options: &AgentOptions, vault: &Vault, reporter: &Reporter) -> Self {
        record_invocation(options, vault, reporter).await;
        let node = options.writer.place.node();
        let start = Start {
            id: uuid::Uuid::new_v4().simple().to_string(),
            who: Who::Agent,
            node: node.clone(),
            started_at: SystemClock.now(),
            launch: None,
            restored: None,
            process: process::identify(std::process::id()),
            trainer: None,
            end: None,
        };
        let mut own = Self {
            vault: vault.clone(),
            start,
            runs: Vec::new(),
            begun: Instant::now(),
            copies: Vec::new(),
        };
        let Some(rule) = options.restart_loop.filter(|_| !options.once) else {
            return own;
        };
        for run in &options.runs {
            let (in_vault, name, start) = (vault.clone(), run.run.clone(), own.start.clone());
            match blocking(move || in_vault.note_start(&name, &start)).await {
                Ok(history) => {
                    own.runs.push(run.run.clone());
                    let copies = HistoryCopies {
                        vault: vault.clone(),
                        reporter: reporter.clone(),
                        node: node.clone(),
                        rule,
                        remotes: remotes_of(run, &options.remotes, vault),
                    };
                    copies.warn_of_loop(&run.run, &history);
                    own.copies.push(tokio::spawn(copies.exchange(run.run.clone())));
                }
                Err(error) => {
                    let text = format!("{}: cannot record the start: {error}", run.run);
                    reporter.warn_once("starts", &text);
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

async fn record_invocation(options: &AgentOptions, vault: &Vault, reporter: &Reporter) {
    let Some(invocation) = options.invocation.clone() else {
        return;
    };
    let vault = vault.clone();
    if let Err(error) = blocking(move || vault.replace_invocation(&invocation)).await {
        let text = format!("cannot record how this agent was started: {error}");
        reporter.warn_once("invocation", &text);
    }
}

/// The copies of a run's start history on its remotes.
struct HistoryCopies {
    vault: Vault,
    reporter: Reporter,
    node: NodeName,
    rule: RestartLoopRule,
    remotes: Vec<RunRemote>,
}

impl HistoryCopies {
    /// Imports what the remotes recorded of this node, for a new disk, and exports what is recorded here.
    async fn exchange(self, run: RunName) {
        let (mut remembered, mut faults) = read_starts(&self.remotes).await;
        remembered.retain(|start| start.node == self.node);
        let (vault, in_vault) = (self.vault.clone(), run.clone());
        match blocking(move || vault.adopt_starts(&in_vault, remembered)).await {
            Ok(history) => {
                self.warn_of_loop(&run, &history);
                faults.extend(write_starts(&self.remotes, &self.node, &history).await);
            }
            Err(error) => faults.push(error.to_string()),
        }
        for fault in faults {
            // An outage has its own warnings.
            tracing::debug!(fault, "cannot copy the history of starts to every remote");
        }
    }

    /// Warns once, whatever the number of runs: all of them have the same starts.
    fn warn_of_loop(&self, run: &RunName, history: &[Start]) {
        if let Some(found) = restart_loop(history, run, &self.node, Who::Agent, self.rule, SystemClock.now())
        {
            self.reporter
                .warn_of_cause("restart loop", "restart loop", &found.to_string());
            self.reporter.status.restart_loop(found);
        }
    }
}
