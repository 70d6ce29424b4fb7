//! What a running service leaves in the vault for `status`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::vault::Vault;

use crate::board::Board;
use crate::options::{AgentOptions, AgentRun};
use crate::shared::Shared;

const KEY: &str = "agent.json";
const FORMAT: u32 = 1;
/// Most entries of each list.
const MOST: usize = 32;
/// Each note that says something new costs a sync.
const INTERVAL: Duration = Duration::from_secs(2);

/// A service's state in one run, as it was when something last changed. Whether the service still runs is told by the
/// vault's lock alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentNote {
    /// Version of this note.
    pub format: u32,
    /// The node.
    pub node: NodeName,
    /// The service's process.
    pub process_id: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteNote>,
    /// What was passed over in the watched directory and why, the latest first, at most 32.
    pub skipped: Vec<(PathBuf, String)>,
}

/// A service's state with one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNote {
    /// The remote.
    pub remote: RemoteName,
    /// The step that is being uploaded.
    pub uploading: Option<StepId>,
    /// Why the remote is waited for, if it is.
    pub last_error: Option<String>,
    /// Steps that are given up there until the service is started again, at most 32.
    pub failed: Vec<FailedStep>,
    /// Steps whose part of this node is there and that lack other nodes' parts, at most 32.
    #[serde(default)]
    pub lacking_parts: Vec<FailedStep>,
}

/// A step that is not durable on a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedStep {
    /// Step and attempt.
    #[serde(flatten)]
    pub id: StepId,
    /// Why.
    pub reason: String,
}

/// Reads the note of a run; `None` when there is none, or it is of a version that this program does not know.
pub fn read_note(vault: &Vault, run: &RunName) -> Result<Option<AgentNote>> {
    let Some(bytes) = vault.read_note(run, KEY)? else {
        return Ok(None);
    };
    let note: Option<AgentNote> = serde_json::from_slice(&bytes).ok();
    Ok(note.filter(|note| note.format == FORMAT))
}

/// Writes the notes of all runs whenever they say something new.
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

    /// What the notes say now, by run.
    pub(crate) fn current(&self, board: &Board) -> Vec<(RunName, AgentNote)> {
        let notes = self.writers.iter();
        notes
            .map(|writer| (writer.run.clone(), writer.note(board)))
            .collect()
    }

    /// Writes now and then until nothing more will be sealed.
    pub(crate) async fn work(mut self, shared: Arc<Shared>) {
        while !shared.all_sealed.is_cancelled() {
            self = self.write(&shared).await;
            tokio::select! {
                () = shared.all_sealed.cancelled() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Writes what is new.
    pub(crate) async fn write(mut self, shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        let fallback = Self {
            writers: Vec::new(),
            ..self.clone()
        };
        let write = move || {
            for writer in &mut self.writers {
                // On a full disk there are better things to say than this.
                if let Err(error) = writer.write(&shared.vault, &shared.board) {
                    tracing::debug!(%error, "the note for 'status' was not written");
                }
            }
            Ok(self)
        };
        blocking(write).await.unwrap_or(fallback)
    }
}

impl NoteWriter {
    fn note(&self, board: &Board) -> AgentNote {
        let remotes = self.remotes.iter().map(|remote| {
            let (uploading, last_error, failed) = board.on_remote(&self.run, remote);
            let told = |steps: Vec<(StepId, String)>| {
                let newest_first = steps.into_iter().rev().take(MOST);
                newest_first
                    .map(|(id, reason)| FailedStep { id, reason })
                    .collect()
            };
            RemoteNote {
                remote: remote.clone(),
                uploading,
                last_error,
                failed: told(failed),
                lacking_parts: told(board.lacking_parts(&self.run, remote)),
            }
        });
        AgentNote {
            format: FORMAT,
            node: self.node.clone(),
            process_id: std::process::id(),
            started_at: self.started_at,
            remotes: remotes.collect(),
            skipped: board.skipped_of(&self.run, MOST),
        }
    }

    /// Blocks: it syncs.
    fn write(&mut self, vault: &Vault, board: &Board) -> Result<()> {
        let note = self.note(board);
        if self.written.as_ref() == Some(&note) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&note)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a note").caused_by(error))?;
        vault.write_note(&self.run, KEY, &bytes)?;
        self.written = Some(note);
        Ok(())
    }
}
