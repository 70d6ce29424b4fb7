//! The remotes of each run, for the tasks that use them.

use std::sync::Arc;

use stepvault_core::ids::RunName;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use crate::options::{AgentOptions, AgentRemote, AgentRun};
use crate::timeout_store::TimeoutStore;

/// A served run and its remotes, each wrapped in a timeout.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) run: RunName,
    pub(crate) remotes: Vec<RunRemote>,
}

/// Returns the served runs, with timeouts of their own.
pub(crate) fn served_runs(options: &AgentOptions, vault: &Vault) -> Vec<ServedRun> {
    let remotes = with_timeouts(&options.remotes);
    let served = options.runs.iter().map(|run| ServedRun {
        run: run.run.clone(),
        remotes: remotes_of(run, &remotes, vault),
    });
    served.collect()
}

/// Returns a run on one remote.
pub(crate) fn on_remote(run: &RunName, remote: &AgentRemote, vault: &Vault) -> RunRemote {
    RunRemote::new(
        Arc::clone(&remote.store),
        Arc::clone(&remote.settings),
        run.clone(),
    )
    .remembered_by(vault)
}

/// Returns a run on its remotes, as recorded in the vault.
pub(crate) fn remotes_of(run: &AgentRun, remotes: &[AgentRemote], vault: &Vault) -> Vec<RunRemote> {
    let its = remotes
        .iter()
        .filter(|remote| run.remotes.contains(&remote.settings.name));
    its.map(|remote| on_remote(&run.run, remote, vault)).collect()
}

/// Returns the remotes, each wrapped in a timeout.
pub(crate) fn with_timeouts(remotes: &[AgentRemote]) -> Vec<AgentRemote> {
    let wrap = |remote: &AgentRemote| AgentRemote {
        settings: Arc::clone(&remote.settings),
        store: Arc::new(TimeoutStore::new(Arc::clone(&remote.store))),
    };
    remotes.iter().map(wrap).collect()
}
