//! The record of what a node has still to upload, for the process that continues the run, and the uploads under way
//! that the records of all nodes show.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record};
use crate::words;
use crate::{Error, ErrorKind, NodeName, RemoteName, Result, RunName, StepId, Timestamp};

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

/// A record that was not rewritten for this long, by the clocks of its node and of the reader, is of a node that is gone.
const GONE_AFTER_SECONDS: i64 = 120;

/// A step that nodes are uploading to a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    /// The step.
    pub id: StepId,
    /// The remote.
    pub remote: RemoteName,
    /// The nodes that are uploading it, each with the bytes that it has not sent yet.
    pub nodes: BTreeMap<NodeName, u64>,
    /// Upload time that is left at the current rates; `None` while nothing was measured.
    pub time_left: Option<Duration>,
}

impl UnderWay {
    /// Returns the bytes that no node has sent yet.
    pub fn missing_bytes(&self) -> u64 {
        self.nodes.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// The progress of uploads that are observed from another node.
#[derive(Debug, Default)]
pub struct ObservedProgress {
    least_missing_bytes: BTreeMap<(StepId, RemoteName, NodeName), u64>,
}

impl ObservedProgress {
    /// Records an observation; returns whether a node has fewer bytes of this step left than at any before. A record that
    /// was only rewritten, and a part that is sent again and again, are no progress.
    pub fn observe(&mut self, step: &UnderWay) -> bool {
        let mut is_made = false;
        for (node, bytes) in &step.nodes {
            let key = (step.id, step.remote.clone(), node.clone());
            let least = self.least_missing_bytes.entry(key).or_insert(u64::MAX);
            if bytes < least {
                *least = *bytes;
                is_made = true;
            }
        }
        is_made
    }
}

/// Returns the steps newer than `newest` that nodes are uploading, the newest first and each on the remote that is expected
/// to have it first.
pub fn uploads_under_way(records: &[DrainRecord], newest: Option<StepId>, now: Timestamp) -> Vec<UnderWay> {
    let mut found: BTreeMap<(StepId, &RemoteName), UnderWay> = BTreeMap::new();
    for record in records {
        let Some(rate) = record.bytes_per_second else {
            continue;
        };
        if now.seconds.saturating_sub(record.ended_at.seconds) > GONE_AFTER_SECONDS {
            continue;
        }
        let is_newer = |left: &&LeftStep| newest.is_none_or(|newest| left.id > newest);
        for left in record.left.iter().filter(is_newer) {
            // The newest step is sent first.
            let before = |other: &&LeftStep| other.remote == left.remote && other.id >= left.id;
            let bytes = record.left.iter().filter(before);
            let bytes = bytes.fold(0_u64, |sum, other| sum.saturating_add(other.missing_bytes));
            let time_left = bytes.checked_div(rate).map(Duration::from_secs);
            let step = found.entry((left.id, &left.remote)).or_insert_with(|| UnderWay {
                id: left.id,
                remote: left.remote.clone(),
                nodes: BTreeMap::new(),
                time_left: Some(Duration::ZERO),
            });
            step.nodes.insert(record.node.clone(), left.missing_bytes);
            // All parts have to be there.
            step.time_left = step.time_left.zip(time_left).map(|(one, other)| one.max(other));
        }
    }
    let mut steps: Vec<UnderWay> = found.into_values().collect();
    steps.sort_by_key(|step| {
        let time_left = step.time_left.unwrap_or(Duration::MAX);
        (std::cmp::Reverse(step.id), time_left, step.remote.clone())
    });
    steps.dedup_by_key(|step| step.id);
    steps
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

    fn id(step: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(step).unwrap())
    }

    fn record_of(node: &str, at: i64, rate: Option<u64>, left: &[(u64, &str, u64)]) -> DrainRecord {
        let left = left.iter().map(|(step, remote, missing_bytes)| LeftStep {
            id: id(*step),
            remote: RemoteName::new(*remote).unwrap(),
            required: true,
            missing_bytes: *missing_bytes,
        });
        let mut record = DrainRecord::new(
            RunName::new("r").unwrap(),
            NodeName::new(node).unwrap(),
            "uploads".to_owned(),
            Timestamp::from_seconds(at),
            left.collect(),
        );
        record.bytes_per_second = rate;
        record
    }

    fn found(records: &[DrainRecord], newest: Option<u64>) -> Vec<(u64, String, Option<u64>)> {
        let steps = uploads_under_way(records, newest.map(id), Timestamp::from_seconds(1000));
        let steps = steps.into_iter();
        steps
            .map(|step| {
                let seconds = step.time_left.map(|left| left.as_secs());
                (step.id.step.number(), step.remote.to_string(), seconds)
            })
            .collect()
    }

    #[test]
    fn the_newest_step_is_first_and_the_others_wait_for_it() {
        let records = [record_of("a", 990, Some(10), &[(20, "m", 100), (40, "m", 300)])];
        let expected = [(40, "m".to_owned(), Some(30)), (20, "m".to_owned(), Some(40))];
        assert_eq!(found(&records, Some(10)), expected);
        assert_eq!(found(&records, Some(20)), expected[..1]);
        assert_eq!(found(&records, Some(40)), []);
        assert_eq!(found(&records, None).len(), 2);
    }

    #[test]
    fn all_nodes_have_to_end_and_the_faster_remote_counts() {
        let records = [
            record_of("a", 990, Some(10), &[(40, "m", 300), (40, "n", 50)]),
            record_of("b", 990, Some(1), &[(40, "m", 90)]),
        ];
        assert_eq!(found(&records, None), [(40, "n".to_owned(), Some(5))]);
        let unmeasured =
            [record_of("a", 990, Some(10), &[(40, "m", 300)]), record_of("b", 990, Some(0), &[(40, "m", 9)])];
        assert_eq!(found(&unmeasured, None), [(40, "m".to_owned(), None)]);
    }

    #[test]
    fn a_drain_that_ended_and_a_node_that_is_gone_upload_nothing() {
        assert_eq!(found(&[record_of("a", 990, None, &[(40, "m", 300)])], None), []);
        assert_eq!(found(&[record_of("a", 870, Some(1), &[(40, "m", 300)])], None), []);
        // A clock that is ahead.
        assert_eq!(found(&[record_of("a", 1100, Some(1), &[(40, "m", 3)])], None).len(), 1);
    }

    #[test]
    fn only_fewer_missing_bytes_are_progress() {
        let mut progress = ObservedProgress::default();
        let mut is_made = |missing: [u64; 2]| {
            let records = [
                record_of("a", 990, Some(10), &[(40, "m", missing[0])]),
                record_of("b", 990, Some(10), &[(40, "m", missing[1])]),
            ];
            let steps = uploads_under_way(&records, None, Timestamp::from_seconds(1000));
            progress.observe(&steps[0])
        };
        for (missing, expected) in [
            ([300, 90], true),
            ([300, 90], false),
            ([300, 80], true),
            // A part failed and is sent again, as far as before.
            ([300, 90], false),
            ([300, 80], false),
            ([299, 90], true),
        ] {
            assert_eq!(is_made(missing), expected, "{missing:?}");
        }
    }
}
