//! Properties of plans for random tiers.

use proptest::prelude::*;

use super::*;

fn tiers() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::btree_map(0..4_usize, 0..5_usize, 1..4).prop_map(|tiers| tiers.into_iter().collect())
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let ids = (1..4_u32, 0..6_u64);
    prop::collection::btree_map(ids, tiers(), 0..12)
        .prop_map(|steps| {
            let build = |((attempt, step), tiers): ((u32, u64), Vec<(usize, usize)>)| {
                let id = id(attempt, step);
                let tier = |which: usize| match which {
                    0 => Tier::Local,
                    1 => remote("s3"),
                    2 => remote("gcs"),
                    _ => remote("aside"),
                };
                let state = |which: usize| match which {
                    0 => committed(id, "one"),
                    1 => committed(id, "other"),
                    2 => CandidateState::Sealed,
                    3 => CandidateState::Unreadable("cut short".to_owned()),
                    _ => quarantined(),
                };
                candidate(
                    id,
                    tiers
                        .into_iter()
                        .map(|(which, how)| (tier(which), state(how)))
                        .collect(),
                )
            };
            steps.into_iter().map(build).collect::<Vec<_>>()
        })
        .prop_shuffle()
}

fn usable(candidate: &Candidate) -> Vec<&Tier> {
    let usable =
        |state: &CandidateState| matches!(state, CandidateState::Committed(_) | CandidateState::Sealed);
    candidate
        .tiers
        .iter()
        .filter(|entry| usable(&entry.state))
        .map(|entry| &entry.tier)
        .collect()
}

proptest! {
    /// L4: whenever some tier has a usable copy, the newest such step is tried first, and every one is tried.
    #[test]
    fn the_newest_usable_step_is_chosen(candidates in candidates()) {
        let newest_usable = candidates.iter().filter(|one| !usable(one).is_empty()).map(|one| one.id).max();
        match plan(candidates.clone(), &newest(), &remotes()) {
            Ok(plan) => {
                prop_assert_eq!(plan.chosen, newest_usable);
                prop_assert_eq!(plan.to_try().next().map(|planned| planned.id), newest_usable);
                for one in &candidates {
                    let tried: Vec<&Tier> =
                        plan.to_try().filter(|planned| planned.id == one.id).flat_map(|planned| &planned.sources).collect();
                    let mut expected = usable(one);
                    let mut sorted = tried.clone();
                    expected.sort();
                    sorted.sort();
                    prop_assert_eq!(sorted, expected, "each usable copy once, and no other");
                }
            }
            Err(error) => {
                prop_assert_eq!(newest_usable, None);
                let kind = if candidates.is_empty() { ErrorKind::NotFound } else { ErrorKind::NoneValid };
                prop_assert_eq!(error.kind(), kind);
            }
        }
    }

    /// Newest first, local before remotes, remotes as configured; no step mixes two commits.
    #[test]
    fn steps_and_sources_are_in_order(candidates in candidates()) {
        let Ok(plan) = plan(candidates.clone(), &newest(), &remotes()) else { return Ok(()) };
        prop_assert!(plan.attempts.iter().map(|planned| std::cmp::Reverse(planned.id)).is_sorted());
        let rank = |tier: &Tier| [Tier::Local, remote("s3"), remote("gcs"), remote("aside")].iter().position(|known| known == tier);
        for planned in &plan.attempts {
            prop_assert!(planned.sources.iter().map(rank).is_sorted());
            prop_assert_eq!(planned.sources.is_empty(), planned.skipped.is_some());
            let one = candidates.iter().find(|one| one.id == planned.id).unwrap();
            let mut commits: Vec<&CandidateState> = one
                .tiers
                .iter()
                .filter(|entry| planned.sources.contains(&entry.tier))
                .map(|entry| &entry.state)
                .filter(|state| matches!(state, CandidateState::Committed(_)))
                .collect();
            commits.dedup();
            prop_assert!(commits.len() <= 1);
        }
    }

    /// The order in which tiers were listed does not matter.
    #[test]
    fn the_plan_does_not_depend_on_the_listing(
        (one, other) in candidates().prop_flat_map(|one| (Just(one.clone()), Just(one).prop_shuffle())),
    ) {
        let text = |result: crate::Result<RestorePlan>| result.map_err(|error| error.to_string());
        prop_assert_eq!(text(plan(one, &newest(), &remotes())), text(plan(other, &newest(), &remotes())));
    }
}
