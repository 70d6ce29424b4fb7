//! The configured policy: keep rules, each of which is sufficient to keep a step, and limits on the local tier's
//! space.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Which values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefer {
    /// A loss: the lower the better.
    Lowest,
    /// An accuracy or a reward: the higher the better.
    Highest,
}

impl Prefer {
    /// Returns the word used in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lowest => "lowest",
            Self::Highest => "highest",
        }
    }
}

/// Keeps the best few steps by one metric. Steps without the metric, or with a value that is not a number, are not
/// ranked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BestRule {
    /// The metric's name.
    pub metric: String,
    /// How many steps to keep.
    pub count: u32,
    /// Which values are better.
    pub prefer: Prefer,
}

/// Rules that keep steps; a step stays if any of them names it. A rule that is `None` or 0 keeps nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct KeepRules {
    /// Number of the newest steps to keep.
    pub last: Option<u32>,
    /// Steps whose number is a multiple of this.
    pub every_steps: Option<u64>,
    /// Keeps steps that were stored on the tier at most this many seconds ago.
    pub within_seconds: Option<u64>,
    /// Number of hours (UTC): keeps the newest step of each of the most recent hours that have one.
    pub hourly: Option<u32>,
    /// The same for days.
    pub daily: Option<u32>,
    /// The same for weeks, which begin on Monday.
    pub weekly: Option<u32>,
    /// Keeps the best steps by metrics.
    pub best: Vec<BestRule>,
}

impl KeepRules {
    /// Returns whether no rule is configured: every step is then kept.
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether some rule can keep a step.
    pub fn keeps_something(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly];
        counts.into_iter().flatten().any(|count| count > 0)
            || [self.every_steps, self.within_seconds].into_iter().flatten().any(|value| value > 0)
            || self.best.iter().any(|rule| rule.count > 0)
    }

    /// Rejects rules that would delete everything.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when rules are given and every one of them is 0.
    pub fn check(&self) -> Result<()> {
        if self.is_unset() || self.keeps_something() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, "the keep rules would delete everything")
            .because("every given rule is 0")
            .hint("set at least one rule above 0, or remove all rules to keep every step"))
    }
}

/// Limits on the disk space of the local tier. They override the keep rules, but never the guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LocalLimits {
    /// Maximum number of bytes of sealed steps, over all runs.
    pub maximum_bytes: Option<u64>,
    /// When the filesystem has fewer free bytes than this, local copies are evicted …
    pub free_space_low_bytes: Option<u64>,
    /// … until it has this many; the low mark if `None`.
    pub free_space_high_bytes: Option<u64>,
    /// Whether [`make_room`](super::make_room) gives up steps that are not durable when evicting all others is not enough.
    pub give_up_undurable: bool,
}

impl LocalLimits {
    /// Returns whether nothing limits the local tier.
    pub fn is_unset(&self) -> bool {
        self.maximum_bytes.is_none() && self.free_space_low_bytes.is_none()
    }
}
