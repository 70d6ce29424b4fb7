//! Parsers for argument values.

use std::str::FromStr;
use std::time::Duration;

use stepvault_agent::step_progress::Goal;
use stepvault_core::config::{parse_duration, parse_size};
use stepvault_core::retention::BestRule;
use stepvault_core::{Error, RemoteName, Tier};
use stepvault_diagnose::estimate::{Named, parse_count};
use stepvault_remote::store::ThawSpeed;

/// The tiers that a command operates on.
#[derive(Debug, Clone, PartialEq, Eq, Default, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum TierChoice {
    /// The local tier and every remote.
    #[default]
    All,
    /// The local tier alone.
    Local,
    /// Every remote.
    #[strum(serialize = "remote")]
    Remotes,
    /// One remote.
    #[strum(to_string = "{0}")]
    Remote(RemoteName),
}

impl TierChoice {
    /// Returns whether the choice includes a tier.
    pub(crate) fn takes(&self, tier: &Tier) -> bool {
        match (self, tier) {
            (Self::All, _) | (Self::Local, Tier::Local) | (Self::Remotes, Tier::Remote(_)) => true,
            (Self::Remote(wanted), Tier::Remote(name)) => wanted == name,
            _ => false,
        }
    }
}

impl FromStr for TierChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "local" => Ok(Self::Local),
            "remote" => Ok(Self::Remotes),
            name => RemoteName::new(name).map(Self::Remote).map_err(|error| error.to_string()),
        }
    }
}

/// Parses a metric, a name with a finite value: `eval_loss=0.25`.
pub(crate) fn metric(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("give name=value, such as eval_loss=0.25")?;
    let value: f64 = value.parse().map_err(|_| format!("'{value}' is not a number"))?;
    if name.is_empty() || !value.is_finite() {
        return Err("give a name and a finite number, such as eval_loss=0.25".to_owned());
    }
    Ok((name.to_owned(), value))
}

/// Parses how soon an archived object is to be readable: `standard`.
pub(crate) fn thaw_speed(text: &str) -> Result<ThawSpeed, String> {
    let speeds = [ThawSpeed::Expedited, ThawSpeed::Standard, ThawSpeed::Bulk];
    let speed = speeds.into_iter().find(|speed| speed.name() == text);
    speed.ok_or_else(|| "give expedited, standard or bulk".to_owned())
}

/// Parses a sample of one file in N, and returns N, at least 1: `1/20`.
pub(crate) fn sample(text: &str) -> Result<u32, String> {
    let one_in = text.strip_prefix("1/").and_then(|digits| digits.parse().ok());
    one_in.filter(|one_in| *one_in > 0).ok_or_else(|| "write it as 1/20: one file in twenty".to_owned())
}

/// Parses a duration with its unit: `24h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.text_with_hint())
}

/// Parses the interval at which remotes are listed, from one second to one hour: `30s`.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&interval) {
        return Ok(interval);
    }
    Err("give an interval from 1s to 1h".to_owned())
}

/// Parses a size with its unit: `500 KB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.text_with_hint())
}

/// Parses a large count: `30e9`, `7B`.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    parse_count(text).map_err(|error| error.text_with_hint())
}

/// Parses the state that a step must reach: `durable`.
pub(crate) fn goal(text: &str) -> Result<Goal, String> {
    text.parse().map_err(|_| "give staged, uploaded or durable".to_owned())
}

/// Parses a rule that keeps the best steps: `eval_loss:2:lowest`.
pub(crate) fn best_rule(text: &str) -> Result<BestRule, String> {
    // Split from the right: a metric's name may contain colons.
    let mut words = text.rsplitn(3, ':');
    let prefer = words.next().and_then(|word| word.parse().ok());
    let count = words.next().and_then(|digits| digits.parse().ok());
    let metric = words.next().filter(|metric| !metric.is_empty());
    match (metric, count, prefer) {
        (Some(metric), Some(count), Some(prefer)) => {
            Ok(BestRule { metric: metric.to_owned(), count, prefer })
        }
        _ => Err("give metric:count:lowest or metric:count:highest".to_owned()),
    }
}

/// Parses a step, an attempt or a name; the error message includes the hint.
pub(crate) fn checked<T: FromStr<Err = Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: Error| error.text_with_hint())
}

/// Parses a value by its name; the error message includes all names.
pub(crate) fn named<T: Named>(text: &str) -> Result<T, String> {
    T::from_name(text).map_err(|error| error.text_with_hint())
}

#[cfg(test)]
mod tests {
    use stepvault_core::retention::Prefer;

    use super::*;

    #[test]
    fn tiers_are_words_or_names() {
        let remote = Tier::Remote(RemoteName::new("s3-main").unwrap());
        for (text, local, takes_remote) in [
            ("all", true, true),
            ("local", true, false),
            ("remote", false, true),
            ("s3-main", false, true),
            ("gs", false, false),
        ] {
            let choice: TierChoice = text.parse().unwrap();
            assert_eq!((choice.takes(&Tier::Local), choice.takes(&remote)), (local, takes_remote), "{text}");
            assert_eq!(choice.to_string(), text);
        }
        assert!("a b".parse::<TierChoice>().is_err());
    }

    #[test]
    fn metrics_are_finite_numbers() {
        assert_eq!(metric("loss=0.25"), Ok(("loss".to_owned(), 0.25)));
        for bad in ["loss", "loss=", "=1", "loss=nan", "loss=inf", "loss=low"] {
            assert!(metric(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
        for bad in ["0s", "999ms", "61m", "5"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn goals_are_the_three_states() {
        assert_eq!(goal("uploaded"), Ok(Goal::Uploaded));
        assert_eq!(goal("safe"), Err("give staged, uploaded or durable".to_owned()));
    }

    #[test]
    fn samples_are_one_in_many() {
        assert_eq!(sample("1/20"), Ok(20));
        for bad in ["20", "2/20", "1/0", "1/", "1/x"] {
            assert!(sample(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn best_rules_are_read_from_the_right() {
        let rule = best_rule("eval:loss:2:lowest").unwrap();
        assert_eq!((rule.metric.as_str(), rule.count, rule.prefer), ("eval:loss", 2, Prefer::Lowest));
        for bad in ["loss", "loss:2", "loss:2:low", "loss:x:lowest", ":2:lowest"] {
            assert!(best_rule(bad).is_err(), "{bad}");
        }
    }
}
