//! Requests and answers of the control socket. Within version 1, members may be added to answers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepvault_core::document::ErrorInfo;
use stepvault_core::ids::{Attempt, RemoteName, Revision, RunName, Step, StepId};

use crate::report::{NotDurable, OtherWriter, SkippedEntry, UnservedRun};
use crate::step_progress::{Goal, Outcome, StepProgress};

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
    /// Why it was asked to stop; null otherwise.
    pub stopping: Option<String>,
    /// Whether it works without problems; the health check reports the same.
    pub healthy: bool,
    /// The problems found.
    pub problems: Vec<String>,
    /// One entry for each run that it serves.
    pub runs: Vec<RunStatus>,
    /// One entry for each remote.
    #[serde(default)]
    pub rates: Vec<RemoteRate>,
    /// The uploads in progress, one for each remote at most.
    #[serde(default)]
    pub uploads: Vec<UploadProgress>,
}

/// How far the upload of a step has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadProgress {
    /// The remote.
    pub remote: RemoteName,
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// Bytes of this node's files in the step.
    pub bytes: u64,
    /// Bytes that the remote has: sent, copied from an earlier step, or found there.
    pub done_bytes: u64,
}

/// The agent's upload rate and retention schedule of a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteRate {
    /// The remote.
    pub remote: RemoteName,
    /// Its recent bytes per second of upload time; null if nothing was sent.
    pub bytes_per_second: Option<u64>,
    /// When retention is next applied to it, in UTC; null if none is configured.
    pub next_prune_at: Option<String>,
}

/// The agent's state in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run.
    pub run: RunName,
    /// By remote, in the configured order.
    pub remotes: Vec<RemoteUploads>,
    /// Entries skipped in the watched directory, the latest first, at most 32.
    pub skipped: Vec<Skipped>,
    /// Entries of the watched directory that are not sealed yet, by path, at most 32.
    #[serde(default)]
    pub unfinished: Vec<Skipped>,
    /// Other training jobs seen writing the run within the last hour.
    #[serde(default)]
    pub other_writers: Vec<OtherWriter>,
    /// Steps that are finished, as far as known, and could not be sealed yet, at most 32.
    #[serde(default)]
    pub unsealed: Vec<Skipped>,
}

/// A service's state with one remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteUploads {
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
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// The cause.
    pub reason: String,
    /// Whether it needs an operator.
    #[serde(default)]
    pub needs_operator: bool,
}

/// An entry of a watched directory that was not sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// Its path, which may no longer exist.
    pub path: PathBuf,
    /// Why it was not sealed.
    pub reason: String,
}

/// `POST /v1/announce`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnounceRequest {
    /// The run; may be omitted if the agent serves only one.
    #[serde(default)]
    pub run: Option<RunName>,
    /// The finished step: a directory or a file, by its absolute path.
    pub path: PathBuf,
    /// Its number; read from its name when not given.
    #[serde(default)]
    pub step: Option<Step>,
    /// The name to store it under; its own if omitted.
    #[serde(default)]
    pub name: Option<String>,
    /// Metrics for the rules that keep the best steps; they override those in the checkpoint.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Which of the node's ranks announces, if several write the step. It is sealed when all of them have announced it.
    #[serde(default)]
    pub rank: Option<AnnouncingRank>,
}

/// One of the ranks that write a step on this node, each of which announces it when its own files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnouncingRank {
    /// Its number on this node, from 0.
    pub number: u32,
    /// How many ranks of this node write the step.
    pub of: u32,
    /// Its process: what it has announced does not count for a later start of the job.
    pub process_id: u32,
}

/// How far an announced step has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AnnouncementState {
    /// It is waiting, or is being sealed.
    Queued,
    /// It is in the vault, or durable on every remote.
    Sealed,
    /// It was not sealed.
    Failed,
}

/// The answer to `POST /v1/announce` and `GET /v1/announcements/ID`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnounceAnswer {
    /// Identifies this announcement until the agent ends or has forgotten it.
    pub announcement_id: u64,
    /// The run.
    pub run: RunName,
    /// The announced path.
    pub path: PathBuf,
    /// Its progress.
    pub state: AnnouncementState,
    /// The step, once it is sealed.
    pub step: Option<Step>,
    /// Its attempt, once it is sealed.
    pub attempt: Option<Attempt>,
    /// Its revision; omitted when it is the first.
    #[serde(default, skip_serializing_if = "Revision::is_first")]
    pub revision: Revision,
    /// Whether the attempt may still change because no remote has answered since the step was sealed.
    #[serde(default)]
    pub provisional: bool,
    /// Whether it was sealed for this announcement; false if it was already in the vault.
    pub newly_sealed: bool,
    /// Why it was not sealed.
    pub error: Option<ErrorInfo>,
}

/// `POST /v1/attach`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// The run that the process writes; may be omitted if the agent serves only one.
    #[serde(default)]
    pub run: Option<RunName>,
    /// The process.
    pub process_id: u32,
}

/// The answer to `POST /v1/attach`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachAnswer {
    /// Whether the agent runs for as long as the process does. False if it was not started for a process: it then runs
    /// for as long as it is not told to end.
    pub followed: bool,
    /// The processes that it follows.
    pub process_ids: Vec<u32>,
}

/// `POST /v1/detach`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetachRequest {
    /// The process, which writes no checkpoints any longer.
    pub process_id: u32,
    /// How long uploads may continue if the agent ends; the configured time if omitted.
    #[serde(default)]
    pub deadline_seconds: Option<u64>,
    /// Whether to answer when the agent has ended, if it ends.
    #[serde(default)]
    pub wait: bool,
}

/// `POST /v1/wait`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitRequest {
    /// The run; may be omitted if the agent serves only one.
    #[serde(default)]
    pub run: Option<RunName>,
    /// The step.
    pub step: Step,
    /// Its attempt; the newest that has this step if omitted.
    #[serde(default)]
    pub attempt: Option<Attempt>,
    /// The goal to wait for.
    #[serde(rename = "for")]
    pub goal: Goal,
    /// How long to wait, at most 600; 0 checks once.
    pub timeout_seconds: u64,
}

/// The answer to `POST /v1/wait`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitAnswer {
    /// The goal.
    #[serde(rename = "for")]
    pub goal: Goal,
    /// The outcome.
    pub outcome: Outcome,
    /// How far the step has come.
    #[serde(flatten)]
    pub progress: StepProgress,
}

/// `POST /v1/drain`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// How long uploads may continue; the configured time if omitted.
    #[serde(default)]
    pub deadline_seconds: Option<u64>,
    /// Whether to answer when the agent has ended instead of immediately.
    #[serde(default)]
    pub wait: bool,
    /// Whether the trainer has ended with all of its processes: no quiet time is waited for then.
    #[serde(default)]
    pub trainer_ended: bool,
}

/// The answer to `POST /v1/drain`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainAnswer {
    /// Whether the agent has done all its work.
    pub ended: bool,
    /// Seconds until it ends at the latest.
    pub remaining_seconds: u64,
    /// Whether every finished and every sealed step, of any run in the vault, is durable on every remote that it must
    /// be on; null until the agent has ended.
    pub durable: Option<bool>,
    /// Sealed steps that are not durable on one of their remotes, once it has ended; at most 100.
    pub not_durable: Vec<NotDurable>,
    /// Finished steps that could not be sealed, and directories that may hold one but could not be read; at most 100.
    #[serde(default)]
    pub unsealed: Vec<SkippedEntry>,
    /// Steps in the vault that are unreadable or damaged and not known to be durable; at most 100.
    #[serde(default)]
    pub unreadable: Vec<SkippedEntry>,
    /// Runs that the agent does not serve but whose steps in the vault are not durable; at most 100.
    #[serde(default)]
    pub unserved: Vec<UnservedRun>,
}
