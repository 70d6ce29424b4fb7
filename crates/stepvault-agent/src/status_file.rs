//! The status file that a running service keeps in the vault for `status`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::vault::Vault;

use crate::agent_status::{AgentStatus, Trouble};
use crate::messages::{FailedStep, RemoteUploads};
use crate::options::{AgentOptions, AgentRun};
use crate::signals::Signals;

const KEY: &str = "agent.json";
const FORMAT: u32 = 1;
/// Maximum number of entries of each list.
const MAX_ENTRIES: usize = 32;
/// Minimum interval between writes, as each costs a sync.
const INTERVAL: Duration = Duration::from_secs(2);

/// A service's state in one run at the last change. Only the vault's lock shows whether the service still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusFile {
    /// Version of this format.
    pub format: u32,
    /// The node.
    pub node: NodeName,
    /// The service's process.
    pub process_id: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteUploads>,
    /// Entries skipped in the watched directory with the cause, the latest first, at most 32.
    pub skipped: Vec<(PathBuf, String)>,
}

/// Reads the status file of a run; `None` when there is none, or its version is unknown.
pub fn read_status_file(vault: &Vault, run: &RunName) -> Result<Option<StatusFile>> {
    let Some(bytes) = vault.read_note(run, KEY)? else {
        return Ok(None);
    };
    let file: Option<StatusFile> = serde_json::from_slice(&bytes).ok();
    Ok(file.filter(|file| file.format == FORMAT))
}

/// Writes the status files of all runs when they change.
#[derive(Debug, Clone)]
pub(crate) struct StatusFiles {
    pub(crate) node: NodeName,
    pub(crate) started_at: Timestamp,
    runs: Vec<RunFile>,
}

#[derive(Debug, Clone)]
struct RunFile {
    run: RunName,
    remotes: Vec<RemoteName>,
    written: Option<StatusFile>,
}

impl StatusFiles {
    pub(crate) fn new(options: &AgentOptions, started_at: Timestamp) -> Self {
        let file = |run: &AgentRun| RunFile {
            run: run.run.clone(),
            remotes: run.remotes.clone(),
            written: None,
        };
        Self {
            node: options.writer.place.node().clone(),
            started_at,
            runs: options.runs.iter().map(file).collect(),
        }
    }

    /// Returns the current contents, by run.
    pub(crate) fn current(&self, status: &AgentStatus) -> Vec<(RunName, StatusFile)> {
        let runs = self.runs.iter();
        runs.map(|file| (file.run.clone(), self.current_of(file, status)))
            .collect()
    }

    /// Writes periodically until nothing more will be sealed.
    pub(crate) async fn work(mut self, vault: Vault, status: Arc<AgentStatus>, signals: Arc<Signals>) {
        while !signals.all_sealed.is_cancelled() {
            self = self.write(&vault, &status).await;
            tokio::select! {
                () = signals.all_sealed.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Writes the files that changed.
    pub(crate) async fn write(mut self, vault: &Vault, status: &Arc<AgentStatus>) -> Self {
        let (vault, status) = (vault.clone(), Arc::clone(status));
        let fallback = Self {
            runs: Vec::new(),
            ..self.clone()
        };
        let write = move || {
            for index in 0..self.runs.len() {
                let current = self.current_of(&self.runs[index], &status);
                // A full disk has its own warnings.
                if let Err(error) = self.runs[index].write(&vault, current) {
                    tracing::debug!(%error, "cannot write the agent's status file");
                }
            }
            Ok(self)
        };
        blocking(write).await.unwrap_or(fallback)
    }

    fn current_of(&self, file: &RunFile, status: &AgentStatus) -> StatusFile {
        let remotes = file.remotes.iter().map(|remote| {
            let state = status.remote(&file.run, remote);
            let described = |(id, trouble): (&StepId, &Trouble)| FailedStep {
                id: *id,
                reason: trouble.reason.clone(),
                needs_operator: trouble.needs_operator,
            };
            let (failing, lacking) = (state.failing().rev(), state.lacking_parts().rev());
            let error = state.fault.as_ref();
            RemoteUploads {
                remote: remote.clone(),
                uploading: state.uploading,
                failed: failing.take(MAX_ENTRIES).map(described).collect(),
                lacking_parts: lacking.take(MAX_ENTRIES).map(described).collect(),
                error_kind: error.and_then(|error| Some(error.kind?.name().to_owned())),
                needs_operator: error.is_some_and(|error| error.needs_operator),
                last_error: error.map(|error| error.reason.clone()),
            }
        });
        StatusFile {
            format: FORMAT,
            node: self.node.clone(),
            process_id: std::process::id(),
            started_at: self.started_at,
            remotes: remotes.collect(),
            skipped: status.skipped_of(&file.run, MAX_ENTRIES),
        }
    }
}

impl RunFile {
    /// Writes the file if it changed. Blocks: it syncs.
    fn write(&mut self, vault: &Vault, current: StatusFile) -> Result<()> {
        if self.written.as_ref() == Some(&current) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&current)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a record").caused_by(error))?;
        vault.write_note(&self.run, KEY, &bytes)?;
        self.written = Some(current);
        Ok(())
    }
}
