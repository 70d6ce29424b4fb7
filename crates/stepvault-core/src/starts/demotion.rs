//! Steps whose bytes are valid, but after which the trainer crashes.

use std::collections::BTreeMap;

use super::{Ending, Start, StartedProgram, span};
use crate::ids::{NodeName, StepId};

/// Maximum number of crashes whose reasons are listed.
const MAXIMUM_REASONS: usize = 8;

/// When a step is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemotionRule {
    /// Number of consecutive crashes; 0 for never.
    pub crashes: usize,
    /// Seconds after the trainer's start within which each crash must occur.
    pub within_seconds: u64,
}

/// What a start says about the step from which it resumed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Crashed,
    RanWell,
    /// Nothing: it was stopped early, or its end was not recorded.
    Nothing,
}

/// Returns the steps to skip, and why.
///
/// A step is demoted when the last starts that resumed from it all crashed. The starts of one node are in order, but
/// those of different nodes are not: a step that last ran well on any node is not demoted. The nodes of one launch
/// crash together, so only the crashes of the node with the most crashes count for a launch. Starts without a launch
/// count as one launch.
pub fn demoted(history: &[Start], rule: DemotionRule) -> BTreeMap<StepId, String> {
    let mut by_step: BTreeMap<StepId, BTreeMap<&NodeName, Vec<&Start>>> = BTreeMap::new();
    for start in history.iter().filter(|start| start.who == StartedProgram::Trainer) {
        if let Some(step) = start.restored {
            let nodes = by_step.entry(step).or_default();
            nodes.entry(&start.node).or_default().push(start);
        }
    }
    let reason = |nodes: BTreeMap<&NodeName, Vec<&Start>>| reason_to_demote(nodes.into_values(), rule);
    by_step.into_iter().filter_map(|(step, nodes)| Some((step, reason(nodes)?))).collect()
}

fn reason_to_demote<'a>(nodes: impl Iterator<Item = Vec<&'a Start>>, rule: DemotionRule) -> Option<String> {
    if rule.crashes == 0 {
        return None;
    }
    // For each launch, the crashes of the node with the most crashes, because its nodes crash together.
    let mut by_launch: BTreeMap<Option<&str>, Vec<&Start>> = BTreeMap::new();
    for starts in nodes {
        let mut telling: Vec<(&Start, Verdict)> = starts
            .into_iter()
            .map(|start| (start, verdict(start, rule)))
            .filter(|(_, verdict)| *verdict != Verdict::Nothing)
            .collect();
        if telling.last().is_some_and(|(_, verdict)| *verdict == Verdict::RanWell) {
            return None;
        }
        let ran_well = telling.iter().rposition(|(_, verdict)| *verdict == Verdict::RanWell);
        let mut here: BTreeMap<Option<&str>, Vec<&Start>> = BTreeMap::new();
        for (start, _) in telling.split_off(ran_well.map_or(0, |position| position + 1)) {
            here.entry(start.launch.as_deref()).or_default().push(start);
        }
        for (launch, crashes) in here {
            let most = by_launch.entry(launch).or_default();
            if crashes.len() > most.len() {
                *most = crashes;
            }
        }
    }
    let crashes: Vec<&Start> = by_launch.into_values().flatten().collect();
    (crashes.len() >= rule.crashes).then(|| {
        let untold = crashes.len().saturating_sub(MAXIMUM_REASONS);
        let endings: Vec<String> = crashes.iter().skip(untold).map(|start| start.ending()).collect();
        format!(
            "restored {}, and the trainer crashed within {} {} ({})",
            times(crashes.len()),
            span(rule.within_seconds),
            if crashes.len() == 1 { "of it" } else { "each time" },
            endings.join(", ")
        )
    })
}

fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{count} times"),
    }
}

fn verdict(start: &Start, rule: DemotionRule) -> Verdict {
    let Some(end) = &start.end else {
        return Verdict::Nothing;
    };
    let early = end.lasted_seconds <= rule.within_seconds;
    match &end.how {
        // The trainer was never started.
        Ending::Failed(_) => Verdict::Nothing,
        _ if !early => Verdict::RanWell,
        Ending::Exited(0) => Verdict::RanWell,
        how if how.was_requested() => Verdict::Nothing,
        _ => Verdict::Crashed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ended, start, step};
    use super::*;

    const RULE: DemotionRule = DemotionRule { crashes: 3, within_seconds: 300 };

    /// Starts on one node, each from step 10, with how long it lasted and how it ended.
    fn starts(node: &str, ends: &[(u64, Ending)]) -> Vec<Start> {
        let one = |(position, (lasted, how)): (usize, &(u64, Ending))| {
            let id = format!("{node} {position}");
            ended(start(&id, node, 0, Some(step(10))), *lasted, how.clone())
        };
        ends.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_step_that_the_trainer_never_survives_is_demoted_with_the_reasons() {
        let mut ends = vec![(20, Ending::Exited(1)), (300, Ending::Exited(1)), (3, Ending::Killed(11))];
        assert_eq!(
            demoted(&starts("n", &ends), RULE),
            BTreeMap::from([(
                step(10),
                "restored 3 times, and the trainer crashed within 5 min each time (exit 1, exit 1, signal 11)"
                    .to_owned()
            )])
        );
        assert!(demoted(&starts("n", &ends[..2]), RULE).is_empty());
        let never = DemotionRule { crashes: 0, ..RULE };
        assert!(demoted(&starts("n", &ends), never).is_empty());
        ends.push((301, Ending::Exited(1)));
        assert!(demoted(&starts("n", &ends), RULE).is_empty(), "it ran well at last");
        ends.extend([(1, Ending::Exited(1)), (1, Ending::Exited(1))]);
        assert!(demoted(&starts("n", &ends), RULE).is_empty(), "twice since then");
    }

    #[test]
    fn requests_and_silence_are_neither_crash_nor_proof() {
        let crash = (1, Ending::Exited(1));
        for silent in [
            (1, Ending::Killed(15)),
            (1, Ending::Exited(143)),
            (1, Ending::Exited(130)),
            (1, Ending::stopped("a signal")),
            (9000, Ending::failed("no command")),
        ] {
            let mut ends = vec![crash.clone(), crash.clone(), silent.clone(), silent.clone()];
            assert!(demoted(&starts("n", &ends), RULE).is_empty(), "{silent:?}");
            ends.push(crash.clone());
            assert_eq!(demoted(&starts("n", &ends), RULE).len(), 1, "{silent:?}");
        }
        let mut unsaid = starts("n", &[crash.clone(), crash.clone(), crash.clone()]);
        unsaid[2].end = None;
        assert!(demoted(&unsaid, RULE).is_empty());
        let killed_hard = [crash.clone(), crash, (1, Ending::Killed(9))];
        assert_eq!(demoted(&starts("n", &killed_hard), RULE).len(), 1);
    }

    #[test]
    fn the_nodes_of_a_launch_count_once() {
        let crash = [(1, Ending::Exited(1))];
        let mut history = Vec::new();
        for node in ["a", "b", "c", "d"] {
            history.extend(starts(node, &crash));
        }
        assert!(demoted(&history, RULE).is_empty(), "no launch is named");
        let name = |history: &mut [Start], launch: &str| {
            for start in history {
                start.launch = Some(launch.to_owned());
            }
        };
        name(&mut history, "one");
        assert!(demoted(&history, RULE).is_empty());
        name(&mut history[2..], "two");
        name(&mut history[3..], "three");
        assert_eq!(demoted(&history, RULE).len(), 1);
        history.extend(starts("e", &[(1, Ending::Exited(1)), (301, Ending::Exited(1))]));
        assert!(demoted(&history, RULE).is_empty(), "it ran well on another node");
    }
}
