//! What a person configures: keep rules, of which any one suffices, and limits on the local tier's space.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Which end of a metric is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefer {
    /// A loss: the lower the better.
    Lowest,
    /// An accuracy or a reward: the higher the better.
    Highest,
}

impl Prefer {
    /// The word as it stands in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lowest => "lowest",
            Self::Highest => "highest",
        }
    }
}

/// Keeps the best few steps by one metric. Steps without the metric, or with a value that is no number, do not rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BestRule {
    /// The metric's name.
    pub metric: String,
    /// How many steps to keep.
    pub count: u32,
    /// Which end is good.
    pub prefer: Prefer,
}

/// Rules that keep steps; a step stays if any of them names it. A rule that is `None` or 0 keeps nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct KeepRules {
    /// The newest so many steps.
    pub last: Option<u32>,
    /// Steps whose number is a multiple of this.
    pub every_steps: Option<u64>,
    /// Steps that came to the tier at most so many seconds ago.
    pub within_seconds: Option<u64>,
    /// The newest step of each of the most recent so many hours that have one (UTC).
    pub hourly: Option<u32>,
    /// The same by days.
    pub daily: Option<u32>,
    /// The same by weeks, which begin on Monday.
    pub weekly: Option<u32>,
    /// The best steps by metrics.
    pub best: Vec<BestRule>,
}

impl KeepRules {
    /// True when nothing is configured at all: then every step stays.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// True when some rule can keep a step.
    pub fn keeps_something(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly];
        counts.into_iter().flatten().any(|count| count > 0)
            || [self.every_steps, self.within_seconds]
                .into_iter()
                .flatten()
                .any(|value| value > 0)
            || self.best.iter().any(|rule| rule.count > 0)
    }

    /// Refuses rules that would delete everything.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when rules are given and every one of them is 0.
    pub fn check(&self) -> Result<()> {
        if self.is_unset() || self.keeps_something() {
            return Ok(());
        }
        Err(
            Error::new(ErrorKind::Refused, "the keep rules would delete everything")
                .because("every rule that is given is 0")
                .hint("give at least one rule a value above 0, or leave all of them out to keep every step"),
        )
    }
}

/// Limits on what the local tier may take of the disk. They go beyond the keep rules, never beyond the guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LocalLimits {
    /// Most bytes that sealed steps may take, over all runs.
    pub maximum_bytes: Option<u64>,
    /// When the file system has fewer free bytes than this, local copies are evicted …
    pub free_space_low_bytes: Option<u64>,
    /// … until it has this many; the low mark when not given.
    pub free_space_high_bytes: Option<u64>,
}
