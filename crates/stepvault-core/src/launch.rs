//! One start of a job on all its nodes, and the attempt that its steps belong to.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::ids::text_name;
use crate::{Attempt, Error, ErrorKind, NodeSet, Result, RunName, StepId};

/// Longest launch name in bytes.
pub const MAX_LAUNCH_NAME_BYTES: usize = 200;

/// The launcher's name for one start of a job: the same on all nodes, and different after a restart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct LaunchName(String);

impl LaunchName {
    /// Checks the name: 1 to 200 printable ASCII characters, with no space at either end.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let plain = name.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if plain && !name.is_empty() && name.len() <= MAX_LAUNCH_NAME_BYTES && name.trim() == name {
            return Ok(Self(name));
        }
        Err(Error::new(ErrorKind::Usage, "not a launch's name")
            .on(format!("{name:?}"))
            .because("use 1 to 200 printable ASCII characters, without a space at either end"))
    }

    /// Returns the name of launches without a launcher: all their starts count as one.
    pub fn unnamed() -> Self {
        Self("unnamed".to_owned())
    }
}

text_name!(LaunchName);

/// Assigns an attempt to a launch. The first node to come creates it once, under the attempt's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchRecord {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The attempt.
    pub attempt: Attempt,
    /// The launch that has the attempt.
    pub launch: LaunchName,
    /// The step that was saved again when the launch went back without a restart; `None` for its first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub went_back_over: Option<StepId>,
    /// The nodes that begin it together, before their trainers start; `None` if a node needed it for a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_by: Option<NodeSet>,
}

impl Record for LaunchRecord {
    const WHAT: &'static str = "launch record";

    fn check(&self) -> Result<()> {
        if self.went_back_over.is_none_or(|id| id.attempt < self.attempt) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, "the launch record is inconsistent")
            .because("it goes back past a step of a later attempt"))
    }
}

/// Returns the current attempt of a launch according to the records; `after` requests one later than that attempt.
pub fn attempt_of(records: &[LaunchRecord], launch: &LaunchName, after: Option<Attempt>) -> Option<Attempt> {
    records
        .iter()
        .filter(|record| record.launch == *launch && after.is_none_or(|attempt| record.attempt > attempt))
        .map(|record| record.attempt)
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::FORMAT;

    fn record(attempt: u32, launch: &str) -> LaunchRecord {
        LaunchRecord {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            attempt: Attempt::new(attempt).unwrap(),
            launch: LaunchName::new(launch).unwrap(),
            went_back_over: None,
            begun_by: None,
        }
    }

    #[test]
    fn a_launch_is_at_the_last_attempt_it_was_given() {
        let records = [record(1, "a"), record(2, "b"), record(4, "a")];
        let a = LaunchName::new("a").unwrap();
        assert_eq!(attempt_of(&records, &a, None), Some(Attempt::new(4).unwrap()));
        assert_eq!(attempt_of(&records, &a, Some(Attempt::new(4).unwrap())), None);
        assert_eq!(attempt_of(&records, &LaunchName::unnamed(), None), None);
    }

    #[test]
    fn names_are_plain_text() {
        for good in ["slurm:123:0", "a b", "x"] {
            LaunchName::new(good).unwrap();
        }
        for bad in ["", " a", "a\n", "\u{e9}", &"x".repeat(201)] {
            LaunchName::new(bad).unwrap_err();
        }
    }
}
