//! The extent of the tests, from the environment.

use crate::faults::tally::say;
use crate::faults::tracer::can_trace;
use crate::{is_set, number};

/// The extent of the tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    /// Whether it is the full tier.
    pub(crate) full: bool,
    /// The number of runs of each row, if given.
    runs: Option<usize>,
    /// The number of changing calls of each command that are struck; all in the full tier.
    pub(crate) sites: usize,
    /// The number of kills at calls of any kind, for each command.
    pub(crate) random_kills: usize,
    /// The number of power cuts, for each filesystem and tier.
    pub(crate) power_cuts: usize,
    /// The number of runs of the control, for each filesystem and tier.
    pub(crate) controls: usize,
}

impl Settings {
    /// Returns the number of repetitions: the given one, else `small` in the small tier and `full` in the full one.
    pub(crate) fn times(&self, small: usize, full: usize) -> usize {
        self.runs.unwrap_or(if self.full { full } else { small })
    }
}

const SEED: u64 = 1;

/// Returns the settings, or `None`, with a message on standard error, if processes cannot be traced.
pub(crate) fn settings(what: &str) -> Option<Settings> {
    if let Err(why) = can_trace() {
        not_run(what, &why);
        return None;
    }
    Some(of_environment())
}

/// Returns the settings for tests without tracing.
pub(crate) fn of_environment() -> Settings {
    let full = is_set("FAULTS_FULL");
    let runs = number("FAULTS_RUNS").map(|runs| usize::try_from(runs).unwrap());
    let pick = |short, long| if full { long } else { short };
    Settings {
        full,
        runs,
        seed: number("FAULTS_SEED").unwrap_or(SEED),
        sites: if full { usize::MAX } else { runs.unwrap_or(2) },
        random_kills: pick(runs.unwrap_or(1), runs.unwrap_or(90)),
        power_cuts: pick(runs.unwrap_or(2), runs.unwrap_or(250)),
        controls: pick(runs.unwrap_or(1), runs.unwrap_or(50).min(50)),
    }
}

/// Reports that something was not run; fails if everything is required.
pub(crate) fn not_run(what: &str, why: &str) {
    let required = is_set("FAULTS_REQUIRED");
    assert!(!required, "{what} cannot be had, and FAULTS_REQUIRED=1: {why}");
    say(&format!("NOT RUN, as {what} cannot be had here: {why}"));
}
