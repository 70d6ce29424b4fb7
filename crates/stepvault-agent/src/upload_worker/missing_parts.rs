//! Tracks steps whose own part is uploaded and that lack other nodes' parts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::nodes::listed;
use tokio::time::Instant;

const FIRST_CHECK: Duration = Duration::from_secs(1);
const LONGEST_BETWEEN_CHECKS: Duration = Duration::from_secs(15);
/// A step marked incomplete is checked less often: the node that uploads the last part commits it.
const BETWEEN_CHECKS_WHEN_INCOMPLETE: Duration = Duration::from_mins(1);

#[derive(Debug)]
struct Wait {
    since: Instant,
    checks: u32,
    next_check: Instant,
    had_final_check: bool,
}

/// All such steps of one run on one remote.
#[derive(Debug, Default)]
pub(super) struct MissingParts {
    steps: BTreeMap<StepId, Wait>,
}

/// The state of a step that waits for other nodes' parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Whether it has waited too long.
    pub(super) is_incomplete: bool,
    pub(super) reason: String,
}

impl MissingParts {
    /// Records that these nodes' parts are still missing.
    pub(super) fn checked(&mut self, id: StepId, nodes: &[NodeName], incomplete_after: Duration) -> Waiting {
        let now = Instant::now();
        let wait = self.steps.entry(id).or_insert(Wait {
            since: now,
            checks: 0,
            next_check: now,
            had_final_check: false,
        });
        let is_incomplete = now - wait.since >= incomplete_after;
        let pause = if is_incomplete {
            BETWEEN_CHECKS_WHEN_INCOMPLETE
        } else {
            FIRST_CHECK
                .saturating_mul(1 << wait.checks.min(8))
                .min(LONGEST_BETWEEN_CHECKS)
                .min((wait.since + incomplete_after).saturating_duration_since(now))
        };
        wait.checks = wait.checks.saturating_add(1);
        wait.next_check = now + pause;
        let (their, parts, have, are) = match nodes {
            [_] => ("its", "part", "has", "is"),
            _ => ("their", "parts", "have", "are"),
        };
        let nodes = listed(nodes);
        Waiting {
            is_incomplete,
            reason: if is_incomplete {
                format!(
                    "it is incomplete: {nodes} {have} not uploaded {their} {parts} within {} s",
                    incomplete_after.as_secs()
                )
            } else {
                format!("this node's part is uploaded, but the {parts} of {nodes} {are} still missing")
            },
        }
    }

    /// Returns when a step is checked again; `None` for one that does not wait.
    pub(super) fn next_check(&self, id: StepId) -> Option<Instant> {
        self.steps.get(&id).map(|wait| wait.next_check)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = StepId> {
        self.steps.keys().copied()
    }

    /// Whether a step still needs its last check before the service ends; true once.
    ///
    /// The other nodes may have completed it since. The service does not wait for them.
    pub(super) fn take_final_check(&mut self, id: StepId) -> bool {
        self.steps.get_mut(&id).is_some_and(|wait| !std::mem::replace(&mut wait.had_final_check, true))
    }

    /// Whether a step had its last check.
    pub(super) fn had_final_check(&self, id: StepId) -> bool {
        self.steps.get(&id).is_some_and(|wait| wait.had_final_check)
    }

    pub(super) fn forget(&mut self, id: StepId) {
        self.steps.remove(&id);
    }

    pub(super) fn forget_all_but(&mut self, sealed: &BTreeSet<StepId>) {
        self.steps.retain(|id, _| sealed.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn checks_become_rare_and_the_deadline_names_who_is_missing() {
        let id = StepId::from_label("000000000100.a1").unwrap();
        let nodes = ["node-1", "node-3"].map(|name| NodeName::new(name).unwrap());
        let deadline = Duration::from_mins(2);
        let mut missing_parts = MissingParts::default();
        assert_eq!(missing_parts.next_check(id), None);
        let mut checks = 0;
        let reason = loop {
            let waiting = missing_parts.checked(id, &nodes, deadline);
            if waiting.is_incomplete {
                break waiting.reason;
            }
            assert_eq!(
                waiting.reason,
                "this node's part is uploaded, but the parts of node-1, node-3 are still missing"
            );
            checks += 1;
            tokio::time::sleep_until(missing_parts.next_check(id).unwrap()).await;
        };
        assert_eq!(reason, "it is incomplete: node-1, node-3 have not uploaded their parts within 120 s");
        // One more check if the runtime's millisecond clock wakes slightly too early.
        assert!((11..=12).contains(&checks), "{checks}");
        assert_eq!(missing_parts.next_check(id).unwrap() - Instant::now(), BETWEEN_CHECKS_WHEN_INCOMPLETE);
        missing_parts.forget_all_but(&BTreeSet::new());
        assert_eq!(missing_parts.next_check(id), None);
    }
}
