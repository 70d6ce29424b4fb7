//! The status file that a running service keeps in the vault for `status`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepvault_core::config::RunSettings;
use stepvault_core::{Error, ErrorKind, NodeName, Result, RunName, StepId, Timestamp};
use stepvault_engine::blocking::blocking;
use stepvault_local::vault::Vault;

use crate::agent_status::Trouble;
use crate::messages::{FailedStep, RemoteUploads};
use crate::options::AgentRemote;
use crate::shared::Shared;

const KEY: &str = "agent.json";
const FORMAT: u32 = 1;
/// Maximum number of entries of each list, also in answers about the status.
pub(crate) const MAX_ENTRIES: usize = 32;
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
#[derive(Debug)]
pub(crate) struct StatusFiles {
    shared: Arc<Shared>,
    /// What was last written, by run.
    written: BTreeMap<RunName, StatusFile>,
}

impl StatusFiles {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, written: BTreeMap::new() }
    }

    /// Writes periodically until nothing more will be sealed.
    pub(crate) async fn work(mut self) {
        let all_sealed = self.shared.signals.all_sealed.clone();
        while !all_sealed.is_cancelled() {
            self = self.write().await;
            tokio::select! {
                () = all_sealed.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Writes the files that changed.
    pub(crate) async fn write(mut self) -> Self {
        let fallback = Self::new(Arc::clone(&self.shared));
        let write = move || {
            for run in &self.shared.options.runs {
                let current = status_file(&self.shared, run);
                if self.written.get(&run.name) == Some(&current) {
                    continue;
                }
                match write_file(&self.shared.vault.vault, &run.name, &current) {
                    Ok(()) => drop(self.written.insert(run.name.clone(), current)),
                    // A full disk has its own warnings.
                    Err(error) => tracing::debug!(%error, "cannot write the agent's status file"),
                }
            }
            Ok(self)
        };
        blocking(write).await.unwrap_or(fallback)
    }
}

/// Writes the file. Blocks: it syncs.
fn write_file(vault: &Vault, run: &RunName, file: &StatusFile) -> Result<()> {
    let bytes = serde_json::to_vec(file)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a record").caused_by(error))?;
    vault.write_note(run, KEY, &bytes)
}

fn status_file(shared: &Shared, run: &RunSettings) -> StatusFile {
    StatusFile {
        format: FORMAT,
        node: shared.options.node().clone(),
        process_id: std::process::id(),
        started_at: shared.started_at,
        remotes: remote_uploads(shared, run),
        skipped: shared.reporter.status.skipped_of(&run.name, MAX_ENTRIES),
    }
}

/// Returns the current state of a run with each of its remotes, in the configured order.
pub(crate) fn remote_uploads(shared: &Shared, run: &RunSettings) -> Vec<RemoteUploads> {
    let described = |(id, trouble): (&StepId, &Trouble)| FailedStep {
        id: *id,
        reason: trouble.reason.clone(),
        needs_operator: trouble.needs_operator,
    };
    let of_remote = |remote: &AgentRemote| {
        let remote = &remote.settings.name;
        let state = shared.reporter.status.remote(&run.name, remote);
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
    };
    shared.options.remotes_of(run).map(of_remote).collect()
}
