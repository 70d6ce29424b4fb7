//! What is asked and answered on the control socket. Within version 1 members may be added to answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stepvault_core::ids::{Attempt, RemoteName, RunName, Step};
use stepvault_core::{Error, ErrorKind};

use crate::note::RemoteNote;
use crate::report::NotDurable;
use crate::standing::{Goal, Outcome, Standing};

/// Version of the shape of all answers.
pub(crate) const FORMAT: u32 = 1;

/// An answer, after the version of its shape.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Document<Body> {
    pub(crate) format: u32,
    #[serde(flatten)]
    pub(crate) body: Body,
}

/// What became of a request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorInfo,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// For programs: the error's kind in kebab-case.
    pub kind: String,
    /// For people: what, on what, why.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().name().to_owned(),
            message: error.to_string(),
            hint: error
                .hint_text()
                .filter(|hint| !hint.is_empty())
                .map(str::to_owned),
        }
    }
}

impl ErrorInfo {
    /// The error that it tells of.
    pub fn into_error(self) -> Error {
        let error = Error::new(ErrorKind::from_name(&self.kind), self.message);
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// `GET /v1/status`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// The agent's version.
    pub version: String,
    /// The node.
    pub node: String,
    /// The agent's process.
    pub process_id: u32,
    /// When it started, in UTC.
    pub started_at: String,
    /// Why it was asked to stop; null while it was not.
    pub stopping: Option<String>,
    /// Whether nothing keeps it from its work; the health check says the same.
    pub healthy: bool,
    /// What does.
    pub complaints: Vec<String>,
    /// One entry for each run that it serves.
    pub runs: Vec<RunStatus>,
    /// One entry for each remote.
    #[serde(default)]
    pub paces: Vec<RemotePace>,
}

/// How an agent goes about with a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotePace {
    /// The remote.
    pub remote: RemoteName,
    /// What it took in a second of uploading lately; null where nothing was moved.
    pub bytes_per_second: Option<u64>,
    /// When retention is applied to it next, in UTC; null where none is configured.
    pub next_prune_at: Option<String>,
}

/// The agent's state in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run.
    pub run: RunName,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteNote>,
    /// What was passed over in the watched directory, the latest first, at most 32.
    pub skipped: Vec<Skipped>,
    /// What stands in the watched directory and is not taken over yet, by path, at most 32.
    #[serde(default)]
    pub unfinished: Vec<Skipped>,
}

/// Something in a watched directory that was not taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Where it is, or was.
    pub path: PathBuf,
    /// Why it was not taken over.
    pub reason: String,
}

/// `POST /v1/announce`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnounceRequest {
    /// The run; may be left out where one is served.
    #[serde(default)]
    pub run: Option<RunName>,
    /// The finished step: a directory or a file, by its absolute path.
    pub path: PathBuf,
    /// Its number; read from its name when not given.
    #[serde(default)]
    pub step: Option<Step>,
    /// The name that it is kept under; its own when not given.
    #[serde(default)]
    pub name: Option<String>,
}

/// How far an announced step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnnouncementState {
    /// It waits for its turn, or is being sealed.
    Queued,
    /// It is in the vault, or durable on every remote.
    Sealed,
    /// It was not taken over.
    Failed,
}

/// The answer to `POST /v1/announce` and `GET /v1/announcements/ID`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnounceAnswer {
    /// Names this announcement until the agent ends or has forgotten it.
    pub announcement_id: u64,
    /// The run.
    pub run: RunName,
    /// The announced path.
    pub path: PathBuf,
    /// How far it has come.
    pub state: AnnouncementState,
    /// The step, once it is sealed.
    pub step: Option<Step>,
    /// Its attempt, once it is sealed.
    pub attempt: Option<Attempt>,
    /// Whether it was sealed for this announcement, or was there already.
    pub newly_sealed: bool,
    /// Why it was not taken over.
    pub error: Option<ErrorInfo>,
}

/// `POST /v1/wait`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitRequest {
    /// The run; may be left out where one is served.
    #[serde(default)]
    pub run: Option<RunName>,
    /// The step.
    pub step: Step,
    /// Its attempt; the newest that has this step when not given.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// How far it has to come.
    #[serde(rename = "for")]
    pub goal: Goal,
    /// How long to wait, at most 600; 0 looks once.
    pub timeout_seconds: u64,
}

/// The answer to `POST /v1/wait`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitAnswer {
    /// What was waited for.
    #[serde(rename = "for")]
    pub goal: Goal,
    /// What came of it.
    pub outcome: Outcome,
    /// How far the step has come.
    #[serde(flatten)]
    pub standing: Standing,
}

/// `POST /v1/drain`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// How long uploads may go on; as configured when not given.
    #[serde(default)]
    pub deadline_seconds: Option<u64>,
    /// Answer when the agent has ended instead of at once.
    #[serde(default)]
    pub wait: bool,
}

/// The answer to `POST /v1/drain`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// Whether the agent has done all it will do.
    pub ended: bool,
    /// Seconds until it ends at the latest.
    pub remaining_seconds: u64,
    /// Whether every sealed step is durable on every remote that it has to be on; null until it has ended.
    pub safe: Option<bool>,
    /// Sealed steps that are not durable on one of their remotes, once it has ended; at most 100.
    pub not_durable: Vec<NotDurable>,
}
