//! Keep rules from the command line.

use std::time::Duration;

use clap::Args;
use stepvault_core::retention::{BestRule, KeepRules};

use crate::arguments::values::{best_rule, duration};

/// Keep rules. Each replaces the configured rule of the same name; a step is kept if any rule selects it.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Keep rules (each replaces the configured one)")]
pub(crate) struct KeepArguments {
    /// Keep the newest N steps
    #[arg(long = "keep-last", value_name = "N")]
    last: Option<u32>,
    /// Keep steps whose number is a multiple of N
    #[arg(long = "keep-every-steps", value_name = "N")]
    every_steps: Option<u64>,
    /// Keep steps that reached the tier within this time, such as 36h
    #[arg(long = "keep-within", value_name = "DURATION", value_parser = duration)]
    within: Option<Duration>,
    /// Keep the newest step of each of the last N hours that have one
    #[arg(long = "keep-hourly", value_name = "N")]
    hourly: Option<u32>,
    /// Keep the newest step of each of the last N days that have one
    #[arg(long = "keep-daily", value_name = "N")]
    daily: Option<u32>,
    /// Keep the newest step of each of the last N weeks that have one
    #[arg(long = "keep-weekly", value_name = "N")]
    weekly: Option<u32>,
    /// Keep the best N steps by a metric; repeatable: `eval_loss:2:lowest`
    #[arg(long = "keep-best", value_name = "METRIC:N:lowest|highest", value_parser = best_rule)]
    best: Vec<BestRule>,
}

impl KeepArguments {
    /// Returns these rules, completed with the configured ones.
    pub(crate) fn over(&self, configured: &KeepRules) -> KeepRules {
        // Round up: a fraction of a second must not become a rule that keeps nothing.
        let seconds = |length: Duration| length.as_secs() + u64::from(length.subsec_nanos() > 0);
        KeepRules {
            last: self.last.or(configured.last),
            every_steps: self.every_steps.or(configured.every_steps),
            within_seconds: self.within.map(seconds).or(configured.within_seconds),
            hourly: self.hourly.or(configured.hourly),
            daily: self.daily.or(configured.daily),
            weekly: self.weekly.or(configured.weekly),
            best: if self.best.is_empty() { configured.best.clone() } else { self.best.clone() },
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
            last: Some(1),
            within: Some(Duration::from_millis(1500)),
            ..KeepArguments::default()
        };
        let rules = given.over(&configured);
        assert_eq!((rules.last, rules.daily, rules.within_seconds), (Some(1), Some(7), Some(2)));
        assert_eq!(KeepArguments::default().over(&configured), configured);
    }
}
