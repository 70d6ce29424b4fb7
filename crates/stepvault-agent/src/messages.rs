//! Requests and answers of the control socket. Within version 1, members may be added to answers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepvault_core::document::ErrorInfo;
use stepvault_core::ids::{Attempt, RemoteName, Revision, RunName, Step, StepId};

use crate::report::{LeftUndone, OtherWriter};
use crate::step_progress::{Goal, Outcome, StepProgress};

/// `GET /v1/status`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// The agent's version.
    pub version: String,
    /// The node.
    pub node: String,
    /// Its process.
    #[serde(flatten)]
    pub process: AgentProcess,
    /// One entry for each run that it serves.
    pub runs: Vec<RunStatus>,
    /// One entry for each remote.
    #[serde(default)]
    pub rates: Vec<RemoteRate>,
    /// The uploads in progress, one for each remote at most.
    #[serde(default)]
    pub uploads: Vec<UploadProgress>,
}

/// A running agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentProcess {
    /// The agent's process ID.
    pub process_id: u32,
    /// When the agent started, in UTC.
    pub started_at: String,
    /// Why it was asked to stop; null if it was not.
    pub stopping: Option<String>,
    /// Whether no problem keeps the agent from working.
    pub healthy: bool,
    /// Problems that keep the agent from working, as the health check reports them.
    pub problems: Vec<String>,
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
    /// What it saw of the trainer.
    #[serde(flatten)]
    pub seen: SeenOfRun,
}

/// What an agent saw of a run's trainer besides the steps that it has sealed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeenOfRun {
    /// Skipped entries of the watched directory, the latest first, at most 32.
    pub skipped: Vec<Skipped>,
    /// Entries of the watched directory that are not sealed yet, by path, at most 32.
    #[serde(default)]
    pub unfinished: Vec<Skipped>,
    /// Finished steps that could not be sealed yet, at most 32.
    #[serde(default)]
    pub unsealed: Vec<Skipped>,
    /// Other training jobs that were seen writing the run within the last hour.
    #[serde(default)]
    pub other_writers: Vec<OtherWriter>,
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
    pub run: Option<RunName>,
    /// The finished step: a directory or a file, by its absolute path.
    pub path: PathBuf,
    /// Its number; read from its name when not given.
    pub step: Option<Step>,
    /// The name to store it under; its own if omitted.
    pub name: Option<String>,
    /// Metrics for the rules that keep the best steps; they override those in the checkpoint.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Which of the node's ranks announces, if several write the step. It is sealed when all of them have announced it.
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
    /// What was announced.
    #[serde(flatten)]
    pub announced: AnnouncedStep,
    /// Why it was not sealed.
    pub error: Option<ErrorInfo>,
}

/// An announced step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnnouncedStep {
    /// The run.
    pub run: RunName,
    /// The announced path.
    pub path: PathBuf,
    /// The progress of the announcement.
    pub state: AnnouncementState,
    /// The step's number; null until it is sealed.
    pub step: Option<Step>,
    /// The attempt; null until it is sealed.
    pub attempt: Option<Attempt>,
    /// The revision; omitted when it is the first.
    #[serde(default, skip_serializing_if = "Revision::is_first")]
    pub revision: Revision,
    /// Whether the attempt may still change, because no remote has answered since the step was sealed.
    #[serde(default)]
    pub provisional: bool,
    /// Whether it was sealed for this announcement; false if it was already in the vault.
    pub newly_sealed: bool,
}

/// `POST /v1/attach`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// The run that the process writes; may be omitted if the agent serves only one.
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
    /// The run's remotes, each tried out for this answer.
    #[serde(default)]
    pub remotes: Vec<TriedRemote>,
}

/// Whether a remote can be used at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedRemote {
    /// The remote.
    pub remote: RemoteName,
    /// Why it cannot be used; null if it can.
    pub error: Option<ErrorInfo>,
    /// Whether the error needs an operator: credentials, a missing bucket or directory, a certificate.
    pub needs_operator: bool,
}

/// `POST /v1/detach`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetachRequest {
    /// The process, which writes no checkpoints any longer.
    pub process_id: u32,
    /// How long uploads may continue if the agent ends; the configured time if omitted.
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
    pub run: Option<RunName>,
    /// The step.
    pub step: Step,
    /// Its attempt; the newest that has this step if omitted.
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
    /// What it left undone, once it has ended.
    #[serde(flatten)]
    pub left: LeftUndone,
}
