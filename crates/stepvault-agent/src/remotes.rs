//! The remotes of each run, for the tasks that use them.

use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_core::ids::RunName;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use crate::options::{AgentOptions, AgentRemote};
use crate::timeout_store::TimeoutStore;

/// A served run and its remotes, each wrapped in a timeout that other tasks may share.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) settings: RunSettings,
    pub(crate) remotes: Vec<RunRemote>,
}

impl ServedRun {
    pub(crate) fn name(&self) -> &RunName {
        &self.settings.name
    }
}

/// Returns the options with remotes that are each wrapped in a timeout.
pub(crate) fn with_timeouts(options: &AgentOptions) -> AgentOptions {
    let timed = |remote: &AgentRemote| AgentRemote {
        settings: Arc::clone(&remote.settings),
        store: Arc::new(TimeoutStore::new(Arc::clone(&remote.store))),
    };
    AgentOptions { remotes: options.remotes.iter().map(timed).collect(), ..options.clone() }
}

/// Returns the served runs, given options with timeouts.
pub(crate) fn served_runs(timed: &AgentOptions, vault: &Vault) -> Vec<ServedRun> {
    let served = timed
        .runs
        .iter()
        .map(|run| ServedRun { settings: run.clone(), remotes: remotes_of(run, timed, vault) });
    served.collect()
}

/// Returns a run on one remote.
pub(crate) fn on_remote(run: &RunName, remote: &AgentRemote, vault: &Vault) -> RunRemote {
    RunRemote::new(Arc::clone(&remote.store), Arc::clone(&remote.settings), run.clone()).remembered_by(vault)
}

/// Returns a run on its remotes, as recorded in the vault.
pub(crate) fn remotes_of(run: &RunSettings, options: &AgentOptions, vault: &Vault) -> Vec<RunRemote> {
    let remotes = options.remotes_of(run);
    remotes.map(|remote| on_remote(&run.name, remote, vault)).collect()
}
