//! The work that an agent left unfinished when it exited, as the commands show it.

use stepvault_agent::{AgentReport, NotDurable, SkippedEntry, UnservedRun};

use crate::output::human;

/// The unfinished work of an agent.
pub(super) struct LeftUndone<'a> {
    pub(super) not_durable: &'a [NotDurable],
    pub(super) unsealed: &'a [SkippedEntry],
    pub(super) unreadable: &'a [SkippedEntry],
    pub(super) unserved: &'a [UnservedRun],
}

impl<'a> From<&'a AgentReport> for LeftUndone<'a> {
    fn from(report: &'a AgentReport) -> Self {
        Self {
            not_durable: &report.not_durable,
            unsealed: &report.unsealed,
            unreadable: &report.unreadable,
            unserved: &report.unserved,
        }
    }
}

impl LeftUndone<'_> {
    /// Returns whether no finished step is left.
    pub(super) fn is_empty(&self) -> bool {
        self.not_durable.is_empty() && self.unsealed.is_empty() && self.unreadable.is_empty()
    }

    /// Returns one line for each entry.
    pub(super) fn lines(&self) -> Vec<String> {
        let not_durable = self.not_durable.iter().map(|step| {
            format!(
                "{} of '{}' is not durable on {}{}, {} missing: {}",
                step.id,
                step.run,
                step.remote,
                if step.required { "" } else { " (optional)" },
                human::bytes(step.missing_bytes),
                step.reason
            )
        });
        let entries = |entries: &'static str, of: &[SkippedEntry]| -> Vec<String> {
            of.iter()
                .map(|entry| format!("{} {entries}: {}", entry.path.display(), entry.reason))
                .collect()
        };
        not_durable
            .chain(entries("is not sealed", self.unsealed))
            .chain(entries("cannot be uploaded", self.unreadable))
            .chain(self.unserved.iter().map(ToString::to_string))
            .collect()
    }
}
