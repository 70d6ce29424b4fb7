//! The status file that a running service keeps in the vault for `status`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::vault::Vault;

use crate::agent_status::{AgentStatus, Trouble};
use crate::options::{AgentOptions, AgentRun};
use crate::shared::Shared;

const KEY: &str = "agent.json";
const FORMAT: u32 = 1;
/// Maximum number of entries of each list.
const MOST: usize = 32;
/// Minimum interval between writes, as each costs a sync.
const INTERVAL: Duration = Duration::from_secs(2);

/// A service's state in one run at the last change. Only the vault's lock shows whether the service still runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentNote {
    /// Version of this format.
    pub format: u32,
    /// The node.
    pub node: NodeName,
    /// The service's process.
    pub process_id: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteNote>,
    /// Entries skipped in the watched directory with the cause, the latest first, at most 32.
    pub skipped: Vec<(PathBuf, String)>,
}

/// A service's state with one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteNote {
    /// The remote.
    pub remote: RemoteName,
    /// The step that is being uploaded; null if there is none.
    pub uploading: Option<StepId>,
    /// The error that prevents all uploads to the remote; null if there is none.
    pub last_error: Option<String>,
    /// The kind of that error, as in the document `error`; null if there is none.
    #[serde(default)]
    pub error_kind: Option<String>,
    /// Whether the error needs an operator: credentials, a missing bucket, a certificate. It is retried regardless.
    #[serde(default)]
    pub needs_operator: bool,
    /// Steps whose last upload to it failed, the newest first, at most 32. Each is retried.
    pub failed: Vec<FailedStep>,
    /// Steps whose part of this node is uploaded but that lack other nodes' parts, at most 32.
    #[serde(default)]
    pub lacking_parts: Vec<FailedStep>,
}

/// A step that is not durable on a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedStep {
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// The cause.
    pub reason: String,
    /// Whether it needs an operator.
    #[serde(default)]
    pub needs_operator: bool,
}

/// Reads the status file of a run; `None` when there is none, or its version is unknown.
pub fn read_note(vault: &Vault, run: &RunName) -> Result<Option<AgentNote>> {
    let Some(bytes) = vault.read_note(run, KEY)? else {
        return Ok(None);
    };
    let note: Option<AgentNote> = serde_json::from_slice(&bytes).ok();
    Ok(note.filter(|note| note.format == FORMAT))
}

/// Writes the status files of all runs when they change.
#[derive(Debug, Clone)]
pub(crate) struct Notes {
    node: NodeName,
    started_at: Timestamp,
    writers: Vec<NoteWriter>,
}

#[derive(Debug, Clone)]
struct NoteWriter {
    run: RunName,
    remotes: Vec<RemoteName>,
    node: NodeName,
    started_at: Timestamp,
    written: Option<AgentNote>,
}

impl Notes {
    pub(crate) fn new(options: &AgentOptions, started_at: Timestamp) -> Self {
        let writer = |run: &AgentRun| NoteWriter {
            run: run.run.clone(),
            remotes: run.remotes.clone(),
            node: options.writer.place.node().clone(),
            started_at,
            written: None,
        };
        Self {
            node: options.writer.place.node().clone(),
            started_at,
            writers: options.runs.iter().map(writer).collect(),
        }
    }

    pub(crate) fn node(&self) -> &NodeName {
        &self.node
    }

    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// Returns the current contents, by run.
    pub(crate) fn current(&self, status: &AgentStatus) -> Vec<(RunName, AgentNote)> {
        let notes = self.writers.iter();
        notes
            .map(|writer| (writer.run.clone(), writer.note(status)))
            .collect()
    }

    /// Writes periodically until nothing more will be sealed.
    pub(crate) async fn work(mut self, shared: Arc<Shared>) {
        while !shared.all_sealed.is_cancelled() {
            self = self.write(&shared).await;
            tokio::select! {
                () = shared.all_sealed.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Writes the files that changed.
    pub(crate) async fn write(mut self, shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        let fallback = Self {
            writers: Vec::new(),
            ..self.clone()
        };
        let write = move || {
            for writer in &mut self.writers {
                // A full disk has its own warnings.
                if let Err(error) = writer.write(&shared.vault, &shared.status) {
                    tracing::debug!(%error, "cannot write the agent's status file");
                }
            }
            Ok(self)
        };
        blocking(write).await.unwrap_or(fallback)
    }
}

impl NoteWriter {
    fn note(&self, status: &AgentStatus) -> AgentNote {
        let remotes = self.remotes.iter().map(|remote| {
            let troubles = status.on_remote(&self.run, remote);
            let told = |steps: Vec<&(StepId, Trouble)>| {
                let newest_first = steps.into_iter().rev().take(MOST);
                newest_first
                    .map(|(id, trouble)| FailedStep {
                        id: *id,
                        reason: trouble.reason.clone(),
                        needs_operator: trouble.needs_operator,
                    })
                    .collect()
            };
            RemoteNote {
                remote: remote.clone(),
                uploading: troubles.uploading,
                failed: told(troubles.failing().collect()),
                lacking_parts: told(troubles.lacking_parts().collect()),
                error_kind: troubles
                    .remote
                    .as_ref()
                    .and_then(|trouble| Some(trouble.kind?.name().to_owned())),
                needs_operator: troubles
                    .remote
                    .as_ref()
                    .is_some_and(|trouble| trouble.needs_operator),
                last_error: troubles.remote.map(|trouble| trouble.reason),
            }
        });
        AgentNote {
            format: FORMAT,
            node: self.node.clone(),
            process_id: std::process::id(),
            started_at: self.started_at,
            remotes: remotes.collect(),
            skipped: status.skipped_of(&self.run, MOST),
        }
    }

    /// Blocks: it syncs.
    fn write(&mut self, vault: &Vault, status: &AgentStatus) -> Result<()> {
        let note = self.note(status);
        if self.written.as_ref() == Some(&note) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&note)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a record").caused_by(error))?;
        vault.write_note(&self.run, KEY, &bytes)?;
        self.written = Some(note);
        Ok(())
    }
}
