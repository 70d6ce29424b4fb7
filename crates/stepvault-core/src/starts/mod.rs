//! Recorded starts of agents and trainers, and what follows from them: the detection of restart loops, and of steps to
//! skip because the trainer crashes after resuming from them.
//!
//! Times of a node are compared only with times of the same node, and durations are measured by the node itself:
//! clocks of different nodes are never compared.

mod demotion;
mod history;
mod restart_loop;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodeName, StepId, Timestamp};

pub use demotion::{DemotionRule, demoted};
pub use history::{MAXIMUM_STARTS, StartHistory, merged};
pub use restart_loop::{RestartLoop, RestartLoopRule, restart_loop};

/// SIGHUP, SIGINT, SIGTERM: the process was asked to end.
const REQUESTS: [i32; 3] = [1, 2, 15];
/// The offset that a shell adds to the number of the signal that ended a command.
const SHELL_OFFSET: i32 = 128;
/// Maximum length of a recorded reason, in bytes.
const MAXIMUM_REASON_BYTES: usize = 300;

/// What was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display)]
pub enum StartedProgram {
    /// The agent.
    #[strum(to_string = "the agent")]
    Agent,
    /// A trainer, through `stepvault run`.
    #[strum(to_string = "the trainer")]
    Trainer,
}

/// One start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A random identity.
    pub id: String,
    /// What was started.
    pub who: StartedProgram,
    /// The node.
    pub node: NodeName,
    /// The time, by that node's clock.
    pub started_at: Timestamp,
    /// The launch it belonged to; the same for all nodes of one launch.
    pub launch: Option<String>,
    /// The step that was restored for it and from which it resumed.
    pub restored: Option<StepId>,
    /// The stepvault process that recorded it.
    pub process: Option<Process>,
    /// The trainer's process.
    pub trainer: Option<Process>,
    /// How it ended; `None` while it runs, and permanently if no process was left to record the end.
    pub end: Option<End>,
}

/// A process, identified uniquely even if its number is reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The kernel's identity of the boot.
    pub boot: String,
    /// The process id.
    pub id: u32,
    /// When it started, in the kernel's ticks since the boot.
    pub started_ticks: u64,
}

/// The end of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// How long it lasted, by a monotonic clock.
    pub lasted_seconds: u64,
    /// How it ended.
    pub how: Ending,
}

/// How something ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It ended by itself, with this code.
    #[strum(to_string = "exit {0}")]
    Exited(i32),
    /// By this signal, which stepvault had not passed on.
    #[strum(to_string = "signal {0}")]
    Killed(i32),
    /// It was asked to stop; contains the source of the request.
    #[strum(to_string = "stopped by {0}")]
    Stopped(String),
    /// Stepvault itself failed; a trainer with this ending was never started.
    #[strum(to_string = "stepvault failed: {0}")]
    Failed(String),
}

impl Ending {
    /// Returns the ending of a start that was asked to stop.
    pub fn stopped(by: impl fmt::Display) -> Self {
        Self::Stopped(shortened(&by.to_string()))
    }

    /// Returns the ending of a start after which stepvault itself failed.
    pub fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(shortened(&why.to_string()))
    }

    /// Returns whether it was asked to end, through stepvault or by a signal from elsewhere.
    pub fn was_requested(&self) -> bool {
        match self {
            Self::Stopped(_) => true,
            Self::Exited(code) => REQUESTS.contains(&code.wrapping_sub(SHELL_OFFSET)),
            Self::Killed(signal) => REQUESTS.contains(signal),
            Self::Failed(_) => false,
        }
    }
}

impl Start {
    /// Returns how it ended, in words.
    pub fn ending(&self) -> String {
        self.end.as_ref().map_or_else(|| "unknown".to_owned(), |end| end.how.to_string())
    }
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAXIMUM_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// Formats a time span: `90 s`, `5 min`, `2 h`.
fn span(seconds: u64) -> String {
    match seconds {
        0 => "0 s".to_owned(),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}
