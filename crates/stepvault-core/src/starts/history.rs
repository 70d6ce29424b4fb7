//! The record of recent starts.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{End, Ending, Start, StartedProgram};
use crate::codec::{FORMAT, Record};
use crate::error::{Error, ErrorKind, Result};

/// Maximum number of recorded starts, of agents and of trainers each.
pub const MAXIMUM_STARTS: usize = 64;
/// Maximum length of an identity, boot or launch, in bytes.
const MAXIMUM_WORD_BYTES: usize = 200;

/// The latest starts of a run, in the order in which they were recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartHistory {
    /// Format version.
    pub format: u32,
    /// The starts, the latest last.
    pub starts: Vec<Start>,
}

impl StartHistory {
    /// Returns a history of the latest of these starts.
    pub fn of(starts: Vec<Start>) -> Self {
        Self { format: FORMAT, starts: latest(starts) }
    }
}

impl Default for StartHistory {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl Record for StartHistory {
    const WHAT: &'static str = "start history";

    fn check(&self) -> Result<()> {
        let fault = |why: &str| Err(Error::new(ErrorKind::Damaged, why));
        if self.starts.len() > 2 * MAXIMUM_STARTS {
            return fault("it has too many starts");
        }
        let mut identities = BTreeSet::new();
        for start in &self.starts {
            if !identities.insert(&start.id) {
                return fault("two starts have the same identity");
            }
            if !start.started_at.is_canonical() {
                return fault("the nanoseconds of a time are not below one second");
            }
            let reason = start.end.as_ref().map(reason_of);
            let processes = [&start.process, &start.trainer].into_iter().flatten();
            let mut words = processes
                .map(|process| process.boot.as_str())
                .chain(start.launch.as_deref())
                .chain([start.id.as_str()]);
            if reason.is_some_and(|reason| reason.len() > super::MAXIMUM_REASON_BYTES)
                || words.any(|word| word.len() > MAXIMUM_WORD_BYTES)
            {
                return fault("a text is too long");
            }
        }
        Ok(())
    }
}

fn reason_of(end: &End) -> &str {
    match &end.how {
        Ending::Stopped(text) | Ending::Failed(text) => text,
        Ending::Exited(_) | Ending::Killed(_) => "",
    }
}

/// Merges both lists, each start once; starts that only `earlier` contains come first. If both contain a start, the
/// one with an end counts: a copy may have been made before the end.
pub fn merged(earlier: Vec<Start>, later: Vec<Start>) -> Vec<Start> {
    let mut later = later;
    let mut all = Vec::with_capacity(earlier.len() + later.len());
    for start in earlier {
        match later.iter_mut().find(|other| other.id == start.id) {
            Some(other) if other.end.is_none() => other.end = start.end,
            Some(_) => {}
            None => all.push(start),
        }
    }
    all.extend(later);
    all
}

/// Returns the latest starts of each kind, in order.
fn latest(starts: Vec<Start>) -> Vec<Start> {
    let mut left = [StartedProgram::Agent, StartedProgram::Trainer].map(|who| {
        let all = starts.iter().filter(|start| start.who == who).count();
        (who, all.saturating_sub(MAXIMUM_STARTS))
    });
    let mut kept = starts;
    kept.retain(|start| {
        let surplus = left.iter_mut().find(|(who, surplus)| *who == start.who && *surplus > 0);
        match surplus {
            Some((_, surplus)) => {
                *surplus -= 1;
                false
            }
            None => true,
        }
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, start, step};
    use super::*;
    use crate::codec::{decode, encode};

    #[test]
    fn a_history_comes_back_and_damage_is_told() {
        let starts = vec![
            ended(start("a", "node-0", 5, Some(step(10))), 7, Ending::Exited(1)),
            ended(start("b", "node-0", 6, None), 7, Ending::stopped("a signal")),
            start("c", "node-1", 6, None),
        ];
        let history = StartHistory::of(starts);
        let bytes = encode(&history).unwrap();
        assert_eq!(decode::<StartHistory>(&bytes, "starts.json").unwrap(), history);
        let mut twice = history.clone();
        twice.starts[1].id = "a".to_owned();
        let error = decode::<StartHistory>(&encode(&twice).unwrap(), "starts.json").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the start history: starts.json: two starts have the same identity"
        );
        assert!(decode::<StartHistory>(&bytes[..bytes.len() - 3], "x").is_err());
    }

    #[test]
    fn the_latest_of_each_kind_are_kept() {
        let mut starts = vec![start("trainer", "n", 0, None)];
        for number in 0..MAXIMUM_STARTS + 3 {
            starts.push(Start { who: StartedProgram::Agent, ..start(&format!("{number}"), "n", 0, None) });
        }
        let kept = StartHistory::of(starts).starts;
        assert_eq!(kept.len(), MAXIMUM_STARTS + 1);
        assert_eq!((kept[0].id.as_str(), kept[1].id.as_str()), ("trainer", "3"));
    }

    #[test]
    fn what_two_places_remember_is_put_together() {
        let old = vec![start("a", "n", 1, None), ended(start("b", "n", 2, None), 1, Ending::Exited(1))];
        let new = vec![start("b", "n", 2, None), start("c", "n", 3, None)];
        let all = merged(old, new);
        let ids: Vec<&str> = all.iter().map(|start| start.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(all[1].ending(), "exit 1");
    }
}
