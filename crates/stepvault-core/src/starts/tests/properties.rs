//! Properties of every history.

use proptest::prelude::*;

use super::*;
use crate::codec::{decode, encode};
use crate::ids::RunName;

fn endings() -> impl Strategy<Value = Option<(u64, Ending)>> {
    let how = prop_oneof![
        (0..4).prop_map(Ending::Exited),
        prop_oneof![Just(9), Just(11), Just(15)].prop_map(Ending::Killed),
        Just(Ending::stopped("a signal")),
        Just(Ending::failed("no such command")),
    ];
    proptest::option::weighted(0.9, (0_u64..500, how))
}

fn histories() -> impl Strategy<Value = Vec<Start>> {
    let one = (0..3_u8, 0..3_u64, proptest::option::of(0..4_u8), endings(), 0..900_i64);
    proptest::collection::vec(one, 0..40).prop_map(|entries| {
        let build = |(position, (node, number, launch, end, at)): (usize, (u8, u64, Option<u8>, _, i64))| {
            let mut start = start(&position.to_string(), &format!("n{node}"), at, None);
            start.restored = (number > 0).then(|| step(number));
            start.launch = launch.map(|launch| launch.to_string());
            match end {
                Some((lasted, how)) => ended(start, lasted, how),
                None => start,
            }
        };
        entries.into_iter().enumerate().map(build).collect()
    })
}

const RULE: DemotionRule = DemotionRule { crashes: 3, within_seconds: 300 };

/// Returns whether the trainer crashed by itself within the time limit.
fn is_crash(start: &Start) -> bool {
    start.end.as_ref().is_some_and(|end| {
        end.lasted_seconds <= 300 && matches!(end.how, Ending::Exited(1..) | Ending::Killed(9 | 11))
    })
}

proptest! {
    #[test]
    fn nothing_is_demoted_without_so_many_crashes_of_its_own(history in histories()) {
        for (id, why) in demoted(&history, RULE) {
            let crashes = history.iter().filter(|start| start.restored == Some(id) && is_crash(start));
            prop_assert!(crashes.count() >= RULE.crashes, "{why}");
        }
    }

    #[test]
    fn clocks_decide_nothing_about_steps(history in histories(), shift in -5000_i64..5000) {
        let before = demoted(&history, RULE);
        let mut shifted = history;
        for start in shifted.iter_mut().filter(|start| start.node.as_str() == "n1") {
            start.started_at = Timestamp::from_seconds(start.started_at.seconds + shift);
        }
        prop_assert_eq!(demoted(&shifted, RULE), before);
    }

    #[test]
    fn a_start_that_ran_well_clears_its_step(history in histories(), node in 0..3_u8) {
        let mut history = history;
        let well = start("well", &format!("n{node}"), 0, Some(step(1)));
        history.push(ended(well, 301, Ending::Killed(11)));
        prop_assert!(!demoted(&history, RULE).contains_key(&step(1)));
    }

    #[test]
    fn nodes_that_crash_together_count_once(history in histories(), launch in proptest::option::of("one")) {
        let mut history = history;
        let mut seen = std::collections::BTreeMap::new();
        history.retain(|start| {
            let count: &mut u32 = seen.entry(start.node.clone()).or_default();
            *count += 1;
            *count <= 2
        });
        for start in &mut history {
            start.launch.clone_from(&launch);
        }
        prop_assert!(demoted(&history, RULE).is_empty());
    }

    #[test]
    fn a_loop_has_as_many_starts_as_it_says(history in histories(), now in 0..2000_i64) {
        let node = NodeName::new("n0").unwrap();
        let rule = RestartLoopRule { starts: 4, within_seconds: 200 };
        let now = Timestamp::from_seconds(now);
        let recent = history.iter().filter(|start| {
            let was_requested = start.end.as_ref().is_some_and(|end| end.how.was_requested());
            !was_requested
                && start.node == node
                && (0..=200).contains(&(now.seconds - start.started_at.seconds))
        });
        let count = recent.count();
        let run = RunName::new("grpo").unwrap();
        let found = restart_loop(&history, &run, &node, StartedProgram::Trainer, rule, now);
        prop_assert!(found.is_none() || count >= 4);
        let is_open = history.iter().any(|start| start.end.is_none());
        prop_assert!(is_open || found.is_some() == (count >= 4));
        prop_assert!(found.is_none_or(|found| found.starts == count && found.endings.len() <= 5));
    }

    #[test]
    fn a_history_survives_its_record_and_merging_with_itself(history in histories()) {
        let record = StartHistory::of(history);
        let bytes = encode(&record).unwrap();
        prop_assert_eq!(&decode::<StartHistory>(&bytes, "starts").unwrap(), &record);
        prop_assert_eq!(&merged(record.starts.clone(), record.starts.clone()), &record.starts);
    }
}
