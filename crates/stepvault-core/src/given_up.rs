//! The record of steps that a vault gave up for lack of space, for later readers.

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::words;
use crate::{Error, ErrorKind, NodeName, RemoteName, Result, RunName, StepId, Timestamp};

/// Maximum number of steps, the latest ones, that a record names: an outage may be long.
pub const MAX_GIVEN_UP_STEPS: usize = 256;
/// Maximum number of steps that the summary names.
const MAX_NAMED: usize = 4;

/// The steps of a run that a node gave up: stored in its vault, and on remotes for other nodes, because the vault may
/// be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUpRecord {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The node.
    pub node: NodeName,
    /// The steps, the most recently given up first; at most [`MAX_GIVEN_UP_STEPS`].
    pub steps: Vec<GivenUpStep>,
    /// Number of steps given up earlier that exceed this limit.
    pub more: u64,
}

/// A step that was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUpStep {
    /// Step and attempt.
    pub id: StepId,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was given up, by the node's clock.
    pub given_up_at: Timestamp,
    /// Remotes that had acknowledged the step, but could not be asked again, or were not all of the required ones.
    pub durable_on: Vec<RemoteName>,
}

impl GivenUpRecord {
    /// Returns a record without steps.
    pub fn new(run: RunName, node: NodeName) -> Self {
        Self { format: FORMAT, run, node, steps: Vec::new(), more: 0 }
    }

    /// Adds a step, or moves it to the front.
    pub fn add(&mut self, step: GivenUpStep) {
        self.steps.retain(|known| known.id != step.id);
        self.steps.insert(0, step);
        let over = self.steps.len().saturating_sub(MAX_GIVEN_UP_STEPS);
        self.more = self.more.saturating_add(over as u64);
        self.steps.truncate(MAX_GIVEN_UP_STEPS);
    }

    /// Returns the same record with only the steps for which `still` is true; `None` when there are none.
    pub fn only(&self, mut still: impl FnMut(&GivenUpStep) -> bool) -> Option<Self> {
        let steps: Vec<GivenUpStep> = self.steps.iter().filter(|step| still(step)).cloned().collect();
        let is_whole = steps.len() == self.steps.len();
        (!steps.is_empty()).then(|| Self {
            steps,
            more: if is_whole { self.more } else { 0 },
            ..self.clone()
        })
    }

    /// Returns a summary: "node-0 gave up step 300 (attempt 1) of 1.2 GiB for lack of disk space (most recently at
    /// 2026-11-22T10:16:00Z)".
    pub fn summary(&self) -> String {
        let steps = self.steps.iter().map(|step| {
            let elsewhere: Vec<&str> = step.durable_on.iter().map(RemoteName::as_str).collect();
            let elsewhere = match elsewhere.as_slice() {
                [] => String::new(),
                remotes => format!(", durable on {}", remotes.join(" and ")),
            };
            format!("{} of {}{elsewhere}", step.id, words::bytes(step.bytes))
        });
        let latest = self.steps.first().map_or(0, |step| step.given_up_at.seconds);
        format!(
            "{} gave up {} for lack of disk space (most recently at {})",
            self.node,
            words::first_of(steps, MAX_NAMED, self.more),
            Timestamp::from_seconds(latest).to_rfc3339()
        )
    }
}

impl Record for GivenUpRecord {
    const WHAT: &'static str = "record of given-up steps";

    fn check(&self) -> Result<()> {
        if self.steps.len() <= MAX_GIVEN_UP_STEPS {
            return Ok(());
        }
        let what = "it names more steps than a record may contain";
        Err(Error::new(ErrorKind::Damaged, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};
    use crate::ids::{Attempt, Step};

    fn step(number: u64) -> GivenUpStep {
        GivenUpStep {
            id: StepId::new(Attempt::FIRST, Step::new(number).unwrap()),
            bytes: number << 20,
            given_up_at: Timestamp::from_seconds(0),
            durable_on: Vec::new(),
        }
    }

    fn record(steps: u64) -> GivenUpRecord {
        let mut record = GivenUpRecord::new(RunName::new("grpo").unwrap(), NodeName::new("node-0").unwrap());
        (1..=steps).for_each(|number| record.add(step(number)));
        record
    }

    #[test]
    fn it_names_the_latest_first_and_each_step_once() {
        let mut two = record(2);
        two.add(GivenUpStep { durable_on: vec![RemoteName::new("main").unwrap()], ..step(1) });
        assert_eq!(
            two.summary(),
            "node-0 gave up step 1 (attempt 1) of 1.0 MiB, durable on main, step 2 (attempt 1) of 2.0 MiB \
             for lack of disk space (most recently at 1970-01-01T00:00:00Z)"
        );
        let newer = two.only(|step| step.id.step.number() > 1).unwrap();
        assert_eq!(newer.steps.len(), 1);
        assert_eq!(two.only(|_| false), None);
    }

    #[test]
    fn it_is_bounded_and_says_so() {
        let mut record = record(300);
        assert_eq!((record.steps.len(), record.more), (MAX_GIVEN_UP_STEPS, 44));
        assert_eq!(record.steps[0].id.step.number(), 300);
        assert!(record.summary().contains(" and 296 more for lack"), "{}", record.summary());
        let bytes = encode(&record).unwrap();
        assert_eq!(decode::<GivenUpRecord>(&bytes, "here").unwrap(), record);
        record.steps.push(step(1));
        record.check().unwrap_err();
        record.more = u64::MAX;
        assert!(record.summary().contains("18446744073709551615 more"));
    }
}
