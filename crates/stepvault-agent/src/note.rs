//! What a running service leaves in the vault for `status`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stepvault_core::ids::{NodeName, RemoteName, RunName, StepId};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::vault::Vault;

use crate::board::Board;

const KEY: &str = "agent.json";
const FORMAT: u32 = 1;
/// Most entries of each list.
const MOST: usize = 32;

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
}

/// A step that is given up on a remote.
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
    let Some(bytes) = vault.read_note(run, KEY)? else { return Ok(None) };
    let note: Option<AgentNote> = serde_json::from_slice(&bytes).ok();
    Ok(note.filter(|note| note.format == FORMAT))
}

/// Writes the note of one run whenever it says something new.
#[derive(Debug)]
pub(crate) struct NoteWriter {
    run: RunName,
    remotes: Vec<RemoteName>,
    node: NodeName,
    started_at: Timestamp,
    written: Option<AgentNote>,
}

impl NoteWriter {
    pub(crate) fn new(run: RunName, remotes: Vec<RemoteName>, node: NodeName, started_at: Timestamp) -> Self {
        Self { run, remotes, node, started_at, written: None }
    }

    /// Blocks: it syncs.
    pub(crate) fn write(&mut self, vault: &Vault, board: &Board) -> Result<()> {
        let remotes = self.remotes.iter().map(|remote| {
            let (uploading, last_error, failed) = board.on_remote(&self.run, remote);
            let newest_first = failed.into_iter().rev().take(MOST);
            let failed = newest_first.map(|(id, reason)| FailedStep { id, reason }).collect();
            RemoteNote { remote: remote.clone(), uploading, last_error, failed }
        });
        let note = AgentNote {
            format: FORMAT,
            node: self.node.clone(),
            process_id: std::process::id(),
            started_at: self.started_at,
            remotes: remotes.collect(),
            skipped: board.skipped_of(&self.run, MOST),
        };
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
