//! Uploads of other nodes that are under way when a trainer is about to start: it may be better to wait for them than to
//! resume from an older step.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{DrainRecord, LeftStep};
use crate::ids::{NodeName, RemoteName, StepId};
use crate::timestamp::Timestamp;

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
    use crate::ids::{Attempt, RunName, Step};

    fn id(step: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(step).unwrap())
    }

    fn record(node: &str, at: i64, rate: Option<u64>, left: &[(u64, &str, u64)]) -> DrainRecord {
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
        let records = [record("a", 990, Some(10), &[(20, "m", 100), (40, "m", 300)])];
        let expected = [(40, "m".to_owned(), Some(30)), (20, "m".to_owned(), Some(40))];
        assert_eq!(found(&records, Some(10)), expected);
        assert_eq!(found(&records, Some(20)), expected[..1]);
        assert_eq!(found(&records, Some(40)), []);
        assert_eq!(found(&records, None).len(), 2);
    }

    #[test]
    fn all_nodes_have_to_end_and_the_faster_remote_counts() {
        let records = [
            record("a", 990, Some(10), &[(40, "m", 300), (40, "n", 50)]),
            record("b", 990, Some(1), &[(40, "m", 90)]),
        ];
        assert_eq!(found(&records, None), [(40, "n".to_owned(), Some(5))]);
        let unmeasured =
            [record("a", 990, Some(10), &[(40, "m", 300)]), record("b", 990, Some(0), &[(40, "m", 9)])];
        assert_eq!(found(&unmeasured, None), [(40, "m".to_owned(), None)]);
    }

    #[test]
    fn a_drain_that_ended_and_a_node_that_is_gone_upload_nothing() {
        assert_eq!(found(&[record("a", 990, None, &[(40, "m", 300)])], None), []);
        assert_eq!(found(&[record("a", 870, Some(1), &[(40, "m", 300)])], None), []);
        // A clock that is ahead.
        assert_eq!(found(&[record("a", 1100, Some(1), &[(40, "m", 3)])], None).len(), 1);
    }

    #[test]
    fn only_fewer_missing_bytes_are_progress() {
        let mut progress = ObservedProgress::default();
        let mut is_made = |missing: [u64; 2]| {
            let records = [
                record("a", 990, Some(10), &[(40, "m", missing[0])]),
                record("b", 990, Some(10), &[(40, "m", missing[1])]),
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
