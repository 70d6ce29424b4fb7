//! The work that an agent left unfinished when it exited, as the commands show it.

use stepvault_agent::{LeftUndone, SkippedEntry};

use crate::output::human;

/// Returns one line for each entry.
pub(super) fn lines(left: &LeftUndone) -> Vec<String> {
    let not_durable = left.not_durable.iter().map(|step| {
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
        of.iter().map(|entry| format!("{} {entries}: {}", entry.path.display(), entry.reason)).collect()
    };
    not_durable
        .chain(entries("is not sealed", &left.unsealed))
        .chain(entries("cannot be uploaded", &left.unreadable))
        .chain(left.unserved.iter().map(ToString::to_string))
        .collect()
}
