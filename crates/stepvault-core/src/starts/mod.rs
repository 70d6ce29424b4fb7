//! What is known of the starts of agents and trainers, and what follows from it: a restart loop that is named, and a
//! step that is passed over because the trainer does not survive it.
//!
//! Times of a node compare with that node's own times alone, and how long something lasted is what its own node
//! measured: clocks of different nodes are never compared.

mod demotion;
mod history;
mod restart_loop;

#[cfg(test)]
mod properties;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeName, StepId};
use crate::timestamp::Timestamp;

pub use demotion::{DemotionRule, demoted};
pub use history::{MAXIMUM_STARTS, StartHistory, merged};
pub use restart_loop::{RestartLoop, RestartLoopRule, restart_loop};

/// Longest text that is kept of why something ended, in bytes.
const MAXIMUM_REASON_BYTES: usize = 300;

/// Who was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// The agent.
    Agent,
    /// A trainer, through `stepvault run`.
    Trainer,
}

/// One start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// A random identity.
    pub id: String,
    /// Who was started.
    pub who: Who,
    /// On which node.
    pub node: NodeName,
    /// When, by that node's clock.
    pub started_at: Timestamp,
    /// The launch that it was a part of; all nodes of one launch give the same.
    pub launch: Option<String>,
    /// The step that was restored for it and that it went on from.
    pub restored: Option<StepId>,
    /// The stepvault process that noted it.
    pub process: Option<Process>,
    /// The trainer's own process.
    pub trainer: Option<Process>,
    /// How it ended; `None` while it runs, and for ever when nobody was left to note it.
    pub end: Option<End>,
}

/// A process, told apart from any other that ever has its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The kernel's identity of the boot.
    pub boot: String,
    /// The process's number.
    pub id: u32,
    /// When it started, in the kernel's ticks since the boot.
    pub started_ticks: u64,
}

/// An end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// How long it lasted, by a clock that is never set.
    pub lasted_seconds: u64,
    /// How it ended.
    pub how: Ending,
}

/// How something ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal, which nobody passed on to it.
    Killed(i32),
    /// Because it was asked to, and by what.
    Stopped(String),
    /// By a fault of stepvault's own; of a trainer: it was never started.
    Failed(String),
}

impl Ending {
    /// It was asked to stop.
    pub fn stopped(by: impl fmt::Display) -> Self {
        Self::Stopped(shortened(&by.to_string()))
    }

    /// Stepvault itself could not go on.
    pub fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(shortened(&why.to_string()))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(out, "exit {code}"),
            Self::Killed(signal) => write!(out, "signal {signal}"),
            Self::Stopped(by) => write!(out, "stopped by {by}"),
            Self::Failed(why) => write!(out, "stepvault failed: {why}"),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Agent => "the agent",
            Self::Trainer => "the trainer",
        })
    }
}

impl Start {
    /// How it ended, in words.
    pub fn ending(&self) -> String {
        self.end
            .as_ref()
            .map_or_else(|| "did not say".to_owned(), |end| end.how.to_string())
    }
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAXIMUM_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// A span in words: `90 s`, `5 min`, `2 h`.
fn span(seconds: u64) -> String {
    match seconds {
        0 => "0 s".to_owned(),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ids::{Attempt, Step};

    pub(crate) fn step(number: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(number).unwrap())
    }

    /// A trainer's start on `node` that went on from `restored`.
    pub(crate) fn start(id: &str, node: &str, at: i64, restored: Option<StepId>) -> Start {
        Start {
            id: id.to_owned(),
            who: Who::Trainer,
            node: NodeName::new(node).unwrap(),
            started_at: Timestamp::from_seconds(at),
            launch: None,
            restored,
            process: None,
            trainer: None,
            end: None,
        }
    }

    pub(crate) fn ended(start: Start, lasted_seconds: u64, how: Ending) -> Start {
        let end = Some(End { lasted_seconds, how });
        Start { end, ..start }
    }

    #[test]
    fn endings_and_spans_are_words() {
        assert_eq!(Ending::Exited(1).to_string(), "exit 1");
        assert_eq!(Ending::Killed(11).to_string(), "signal 11");
        assert_eq!(Ending::stopped("a signal").to_string(), "stopped by a signal");
        assert_eq!(start("a", "n", 0, None).ending(), "did not say");
        for (seconds, text) in [(0, "0 s"), (90, "90 s"), (300, "5 min"), (7200, "2 h")] {
            assert_eq!(span(seconds), text);
        }
        let Ending::Failed(text) = Ending::failed("ü".repeat(400)) else {
            panic!("another ending")
        };
        assert_eq!(text.len(), MAXIMUM_REASON_BYTES);
    }
}
