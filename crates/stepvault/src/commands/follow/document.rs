//! What `follow` reports: one document for each event.

use std::path::PathBuf;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Attempt, RemoteName, Revision, RunName, Step, StepId};

use crate::output::{Report, human};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) enum FollowEvent {
    /// No step is durable yet.
    Waiting,
    /// A remote does not answer. It is waited for.
    Unreachable,
    /// A remote answers again.
    Reachable,
    /// A step is restored, verified and in its place.
    Restored,
    /// A step cannot be restored now. It is tried again.
    Delayed,
    /// A step cannot be restored, and is not followed.
    Skipped,
    /// The command succeeded.
    Finished,
    /// The command failed and is run again; if a signal ended it, at the next start.
    Retrying,
    /// The command failed, and is not run again for this step.
    Failed,
    /// An older step was removed from the directory.
    Removed,
    /// The command `follow` ends.
    Ended,
}

/// One event of `follow`. Each is printed on a line of its own.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(in crate::commands) struct FollowDocument {
    /// What happened. An error that ends the command is another document, `error`, with the event `error`.
    pub(super) event: FollowEvent,
    /// The run.
    pub(super) run: RunName,
    /// The step's number; null for an event that concerns no step.
    pub(super) step: Option<Step>,
    /// The attempt; null like the step.
    pub(super) attempt: Option<Attempt>,
    /// The revision. Omitted when it is the first.
    #[serde(skip_serializing_if = "Revision::is_first")]
    pub(super) revision: Revision,
    /// The remote of `unreachable` and `reachable`.
    pub(super) remote: Option<RemoteName>,
    /// Path of the restored step, or the directory of the removed one.
    pub(super) path: Option<PathBuf>,
    /// Number of restored files; null if the step was in its place already.
    pub(super) files: Option<u64>,
    /// Bytes of these files; null like `files`.
    pub(super) bytes: Option<u64>,
    /// Older steps that became durable meanwhile and are not followed, the oldest first.
    pub(super) passed_over: Vec<StepId>,
    /// The command's exit code; 128 plus the signal number if a signal killed it.
    pub(super) exit_code: Option<u8>,
    /// The last 16 KiB of the command's output.
    pub(super) output: Option<String>,
    /// How often the command has been run for the step.
    pub(super) tries: Option<u32>,
    /// The reason.
    pub(super) reason: Option<String>,
    /// Duration of the restore or of the command in seconds.
    pub(super) seconds: Option<f64>,
}

impl FollowDocument {
    /// Creates the document of an event without details.
    pub(super) fn new(event: FollowEvent, run: &RunName, id: Option<StepId>) -> Self {
        Self {
            event,
            run: run.clone(),
            step: id.map(|id| id.step),
            attempt: id.map(|id| id.attempt),
            revision: id.map_or(Revision::FIRST, |id| id.revision),
            remote: None,
            path: None,
            files: None,
            bytes: None,
            passed_over: Vec::new(),
            exit_code: None,
            output: None,
            tries: None,
            reason: None,
            seconds: None,
        }
    }

    /// Whether the event needs attention.
    pub(super) fn is_warning(&self) -> bool {
        use FollowEvent::{Delayed, Failed, Retrying, Skipped, Unreachable};
        matches!(self.event, Delayed | Failed | Retrying | Skipped | Unreachable)
    }

    /// Whether the event is the result of the command.
    pub(super) fn is_restored(&self) -> bool {
        self.event == FollowEvent::Restored
    }

    /// Returns the event in words.
    pub(super) fn text(&self) -> String {
        let id = self.step.zip(self.attempt);
        let id = id.map(|(step, attempt)| StepId { revision: self.revision, ..StepId::new(attempt, step) });
        let step = id.map_or_else(String::new, |id| id.to_string());
        let path = self.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let reason = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let remote = self.remote.as_ref().map(ToString::to_string).unwrap_or_default();
        let tries = self.tries.filter(|tries| *tries > 1).map(|tries| format!(" ({tries} tries)"));
        let tries = tries.unwrap_or_default();
        match self.event {
            FollowEvent::Waiting => {
                format!("waiting for the first durable step of '{}'{reason}", self.run)
            }
            FollowEvent::Unreachable => format!("{remote} is waited for{reason}"),
            FollowEvent::Reachable => format!("{remote} answers again"),
            FollowEvent::Restored => self.restored_text(&step, &path),
            FollowEvent::Delayed => format!("{step} cannot be restored yet{reason}"),
            FollowEvent::Skipped => format!("{step} is skipped{reason}"),
            FollowEvent::Finished => format!("the command succeeded for {step}{tries}"),
            FollowEvent::Retrying => format!("the command failed for {step}{tries}{reason}"),
            FollowEvent::Failed => {
                format!("the command failed for {step}{tries} and is not run again{reason}")
            }
            FollowEvent::Removed if self.reason.is_some() => format!("{path} is kept in part{reason}"),
            FollowEvent::Removed => format!("removed {path}"),
            FollowEvent::Ended => format!("following '{}' ends{reason}", self.run),
        }
    }

    fn restored_text(&self, step: &str, path: &str) -> String {
        let passed = match self.passed_over.as_slice() {
            [] => String::new(),
            steps => {
                let numbers = steps.iter().map(|id| id.step).join(", ");
                format!("; passed over, as newer steps were durable: {numbers}")
            }
        };
        match self.files.zip(self.bytes) {
            Some((files, bytes)) => format!(
                "restored {step} of '{}': {}, {} to {path}{passed}",
                self.run,
                human::count(files, "file"),
                human::bytes(bytes)
            ),
            None => format!("{step} of '{}' is in {path} already{passed}", self.run),
        }
    }
}

impl Report for FollowDocument {
    fn human(&self) -> String {
        self.text()
    }
}
