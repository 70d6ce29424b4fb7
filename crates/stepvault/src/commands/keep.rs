//! Keep rules given by hand.

use std::time::Duration;

use clap::Args;
use stepvault_core::retention::{BestRule, KeepRules};

use crate::arguments::values::{best_rule, duration};

/// Each takes the place of the configured rule of its name; a step stays if any rule names it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Keep rules (each in place of the configured one)")]
pub(crate) struct KeepArguments {
    /// The newest N steps
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
    /// Steps whose number is a multiple of N
    #[arg(long, value_name = "N")]
    keep_every_steps: Option<u64>,
    /// Steps that came to the tier at most so long ago: 36h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep_within: Option<Duration>,
    /// The newest of each of the last N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u32>,
    /// The newest of each of the last N days that have one
    #[arg(long, value_name = "N")]
    keep_daily: Option<u32>,
    /// The newest of each of the last N weeks that have one
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u32>,
    /// The best N by a metric, repeatable: eval_loss:2:lowest
    #[arg(long, value_name = "METRIC:N:lowest|highest", value_parser = best_rule)]
    keep_best: Vec<BestRule>,
}

impl KeepArguments {
    /// These rules, and the configured ones where none of these is given.
    pub(crate) fn over(&self, configured: &KeepRules) -> KeepRules {
        // Rounded up: a fraction of a second must not become a rule that keeps nothing.
        let seconds = |length: Duration| length.as_secs() + u64::from(length.subsec_nanos() > 0);
        KeepRules {
            last: self.keep_last.or(configured.last),
            every_steps: self.keep_every_steps.or(configured.every_steps),
            within_seconds: self.keep_within.map(seconds).or(configured.within_seconds),
            hourly: self.keep_hourly.or(configured.hourly),
            daily: self.keep_daily.or(configured.daily),
            weekly: self.keep_weekly.or(configured.weekly),
            best: if self.keep_best.is_empty() { configured.best.clone() } else { self.keep_best.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_rule_replaces_its_own_and_no_other() {
        let configured = KeepRules { last: Some(5), daily: Some(7), ..KeepRules::default() };
        let given = KeepArguments {
            keep_last: Some(1),
            keep_within: Some(Duration::from_millis(1500)),
            ..KeepArguments::default()
        };
        let rules = given.over(&configured);
        assert_eq!((rules.last, rules.daily, rules.within_seconds), (Some(1), Some(7), Some(2)));
        assert_eq!(KeepArguments::default().over(&configured), configured);
    }
}
