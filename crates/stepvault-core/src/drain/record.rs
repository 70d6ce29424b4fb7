//! The record of what a node has still to upload, for the process that continues the run.

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NodeName, RemoteName, RunName, StepId};
use crate::timestamp::Timestamp;
use crate::words;

/// Maximum number of steps that a record names: a vault may contain many that no remote has.
pub const MAX_LEFT_STEPS: usize = 256;

/// What a node has still to upload of a run: on remotes while it uploads, so that the start of another node can wait for
/// it, and after its last drain, because the vault may be lost. What a drain left is in the vault too, for the node's next
/// start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRecord {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// The node.
    pub node: NodeName,
    /// Why it was drained: "an EC2 spot notice".
    pub reason: String,
    /// When the drain ended, or the record was written, by the node's clock.
    pub ended_at: Timestamp,
    /// The rate of the uploads that are under way, 0 while it was not measured; `None` if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// The steps that are not durable, by remote, the newest first; at most [`MAX_LEFT_STEPS`].
    pub left: Vec<LeftStep>,
    /// Number of steps that exceed this limit and are not named.
    pub more: u64,
}

/// A step that was not durable on a remote when the drain ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftStep {
    /// Step and attempt.
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
    /// Whether the remote is required.
    pub required: bool,
    /// Bytes that the remote lacks; 0 if only its records were missing.
    pub missing_bytes: u64,
}

impl DrainRecord {
    /// Returns a record of `left`, in any order; the newest steps are named first.
    pub fn new(
        run: RunName,
        node: NodeName,
        reason: String,
        ended_at: Timestamp,
        mut left: Vec<LeftStep>,
    ) -> Self {
        left.sort_by(|one, other| (other.id, &one.remote).cmp(&(one.id, &other.remote)));
        let more = left.len().saturating_sub(MAX_LEFT_STEPS) as u64;
        left.truncate(MAX_LEFT_STEPS);
        Self { format: FORMAT, run, node, reason, ended_at, bytes_per_second: None, left, more }
    }

    /// Returns a summary of the steps for which `still` is true: "the drain of node-0 after an EC2 spot notice
    /// (2026-11-21T10:16:00Z) left step 300 (attempt 1) with 1.2 GiB missing on s3-main". Returns `None` when there
    /// are none.
    pub fn summary(&self, mut still: impl FnMut(&LeftStep) -> bool) -> Option<String> {
        let left: Vec<&LeftStep> = self.left.iter().filter(|step| still(step)).collect();
        if left.is_empty() {
            return None;
        }
        let steps = left.iter().map(|step| {
            let missing = match step.missing_bytes {
                0 => "only its records".to_owned(),
                bytes => words::bytes(bytes),
            };
            format!("{} with {missing} missing on {}", step.id, step.remote)
        });
        let (node, steps) = (&self.node, words::first_of(steps, MAX_NAMED, self.more));
        let written = Timestamp::from_seconds(self.ended_at.seconds).to_rfc3339();
        Some(if let Some(rate) = self.bytes_per_second {
            let rate = words::rate(rate);
            format!("{node} was uploading {steps} at {rate} ({written})")
        } else {
            let reason = &self.reason;
            format!("the drain of {node} after {reason} ({written}) left {steps}")
        })
    }
}

/// Maximum number of steps that the summary names.
const MAX_NAMED: usize = 4;

impl Record for DrainRecord {
    const WHAT: &'static str = "drain record";

    fn check(&self) -> Result<()> {
        if self.left.len() <= MAX_LEFT_STEPS {
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

    fn record(steps: u64) -> DrainRecord {
        let left = (1..=steps)
            .map(|step| LeftStep {
                id: StepId::new(Attempt::FIRST, Step::new(step).unwrap()),
                remote: RemoteName::new("main").unwrap(),
                required: true,
                missing_bytes: (step - 1) << 20,
            })
            .collect();
        DrainRecord::new(
            RunName::new("grpo").unwrap(),
            NodeName::new("node-0").unwrap(),
            "an EC2 spot notice".to_owned(),
            Timestamp::from_seconds(0),
            left,
        )
    }

    #[test]
    fn it_names_what_is_still_left_and_nothing_else() {
        let record = record(2);
        assert_eq!(
            record.summary(|_| true).unwrap(),
            "the drain of node-0 after an EC2 spot notice (1970-01-01T00:00:00Z) left step 2 (attempt 1) with 1.0 MiB \
             missing on main, step 1 (attempt 1) with only its records missing on main"
        );
        let newest = |step: &LeftStep| step.id.step.number() == 2;
        assert!(record.summary(newest).unwrap().ends_with("missing on main"));
        assert_eq!(record.summary(|_| false), None);
    }

    #[test]
    fn a_record_of_any_numbers_is_told() {
        let hostile =
            DrainRecord { more: u64::MAX, ended_at: Timestamp::from_seconds(i64::MIN), ..record(9) };
        let text = hostile.summary(|_| true).unwrap();
        assert!(text.ends_with(" and 18446744073709551615 more"), "{text}");
    }

    #[test]
    fn it_is_bounded_and_says_so() {
        let record = record(300);
        assert_eq!((record.left.len(), record.more), (MAX_LEFT_STEPS, 44));
        assert_eq!(record.left[0].id.step.number(), 300);
        let text = record.summary(|_| true).unwrap();
        assert!(text.ends_with(" and 296 more"), "{text}");
        let bytes = encode(&record).unwrap();
        assert_eq!(decode::<DrainRecord>(&bytes, "here").unwrap(), record);
        let mut longer = record;
        longer.left.push(longer.left[0].clone());
        longer.check().unwrap_err();
    }
}
