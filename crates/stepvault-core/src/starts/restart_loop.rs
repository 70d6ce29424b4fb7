//! Detects many starts in a short time, which is a different fault from a crash and is reported as such.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Start, StartedProgram, span};
use crate::{NodeName, RunName, Timestamp};

/// Maximum number of reasons that are listed.
const MAXIMUM_REASONS: usize = 5;

/// When starts are a restart loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartLoopRule {
    /// Number of starts …
    pub starts: usize,
    /// … within this many seconds.
    pub within_seconds: u64,
}

/// A restart loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RestartLoop {
    /// What is restarted repeatedly.
    pub who: StartedProgram,
    /// The run.
    pub run: RunName,
    /// The node.
    pub node: NodeName,
    /// Number of starts, without those that were asked to end.
    pub starts: usize,
    /// The time span in seconds.
    pub within_seconds: u64,
    /// How the last of them ended, the latest last.
    pub endings: Vec<String>,
}

/// Looks for a restart loop in a run's history on `node` at `now`, by that node's clock. A start ahead of `now` does not
/// count: the clock was set. Neither does a start that was asked to end, such as by a restart of its service, and the
/// start after it is no loop.
pub fn restart_loop(
    history: &[Start],
    run: &RunName,
    node: &NodeName,
    who: StartedProgram,
    rule: RestartLoopRule,
    now: Timestamp,
) -> Option<RestartLoop> {
    let was_requested = |start: &Start| start.end.as_ref().is_some_and(|end| end.how.was_requested());
    let mut recent: Vec<&Start> = history
        .iter()
        .filter(|start| start.who == who && start.node == *node)
        .filter(|start| start.started_at <= now && now.seconds_since(start.started_at) <= rule.within_seconds)
        .collect();
    if let [.., before, last] = recent[..]
        && last.end.is_none()
        && was_requested(before)
    {
        return None;
    }
    recent.retain(|start| !was_requested(start));
    if rule.starts == 0 || recent.len() < rule.starts {
        return None;
    }
    // The latest start has only begun.
    let (last, before) = recent.split_last()?;
    let told = if last.end.is_some() { &recent[..] } else { before };
    let untold = told.len().saturating_sub(MAXIMUM_REASONS);
    let endings = told.iter().skip(untold).map(|start| start.ending()).collect();
    Some(RestartLoop {
        who,
        run: run.clone(),
        node: node.clone(),
        starts: recent.len(),
        within_seconds: rule.within_seconds,
        endings,
    })
}

impl fmt::Display for RestartLoop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "restart loop: {} of '{}' was started {} times within {} on {}; the last starts ended with: {}",
            self.who,
            self.run,
            self.starts,
            span(self.within_seconds),
            self.node,
            self.endings.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ending;
    use super::super::tests::{ended, start};
    use super::*;

    fn node() -> NodeName {
        NodeName::new("node-0").unwrap()
    }

    fn look(history: &[Start], now: i64) -> Option<RestartLoop> {
        let rule = RestartLoopRule { starts: 3, within_seconds: 600 };
        let run = RunName::new("grpo").unwrap();
        restart_loop(history, &run, &node(), StartedProgram::Trainer, rule, Timestamp::from_seconds(now))
    }

    #[test]
    fn a_loop_is_named_with_how_the_last_starts_ended() {
        let clone = Ending::failed("git clone: destination path already exists");
        let history = [
            ended(start("a", "node-0", 1000, None), 2, clone),
            start("b", "node-0", 1017, None),
            start("c", "node-0", 1034, None),
        ];
        assert_eq!(look(&history[..2], 1034), None);
        assert_eq!(
            look(&history, 1034).unwrap().to_string(),
            "restart loop: the trainer of 'grpo' was started 3 times within 10 min on node-0; the last starts \
             ended with: stepvault failed: git clone: destination path already exists, unknown"
        );
        assert_eq!(look(&history, 1611), None, "it is over");
        assert_eq!(look(&history, 1020), None, "the clock was set back");
    }

    #[test]
    fn ordered_restarts_are_no_crashes() {
        let crash = |id, at| ended(start(id, "node-0", at, None), 2, Ending::Exited(1));
        for ordered in [Ending::stopped("SIGTERM, with exit 1"), Ending::Killed(15), Ending::Exited(143)] {
            let mut history = vec![crash("a", 1000), crash("b", 1010)];
            history.push(ended(start("c", "node-0", 1020, None), 2, ordered));
            assert_eq!(look(&history, 1030), None, "{history:?}");
            history.push(start("d", "node-0", 1030, None));
            assert_eq!(look(&history, 1030), None, "{history:?}");
            history[3] = crash("d", 1030);
            history.push(start("e", "node-0", 1040, None));
            assert_eq!(look(&history, 1040).unwrap().endings, ["exit 1"; 3]);
        }
    }

    #[test]
    fn other_nodes_and_agents_do_not_count() {
        let mut history = vec![
            start("a", "node-0", 1000, None),
            start("b", "node-1", 1000, None),
            start("c", "node-0", 1000, None),
        ];
        history[2].who = StartedProgram::Agent;
        assert_eq!(look(&history, 1001), None);
    }
}
