//! The invariants S4, S6, S8 and L1 for random tiers, and that additional rules never delete more.

mod invariants;

use std::collections::BTreeSet;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::ids::{Attempt, RemoteName, Step, StepId};
use crate::observe::Tier;
use crate::timestamp::Timestamp;

fn remotes() -> [RemoteName; 2] {
    ["gcs", "s3-main"].map(|name| RemoteName::new(name).unwrap())
}

fn some_remotes() -> impl Strategy<Value = Vec<RemoteName>> {
    proptest::sample::subsequence(remotes().to_vec(), 0..=2)
}

fn verified() -> impl Strategy<Value = Verified> {
    prop_oneof![
        6 => Just(Verified::Yes),
        2 => Just(Verified::Damaged("flipped".to_owned())),
    ]
}

prop_compose! {
    fn facts()(
        seconds in 0..2_000_000_i64,
        bytes in 0..100_u64,
        loss in option::of(prop_oneof![9 => -3..3_i32, 1 => Just(99)]),
        reclaimable in prop_oneof![3 => Just(4_u64), 1 => 0..5_u64],
        unproven in prop_oneof![
            8 => Just(None),
            1 => Just(Some(Unproven::Unanswered("away".to_owned()))),
            1 => Just(Some(Unproven::Lost("gone".to_owned()))),
        ],
        (pinned, leased, uploading) in (prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        (amends, verified) in (any::<bool>(), verified()),
        needs_other_nodes in prop::bool::weighted(0.2),
        durable_on in some_remotes(),
        retired_on in some_remotes(),
    ) -> StepFacts {
        StepFacts {
            amends,
            // Set when the step is placed.
            id: StepId::new(Attempt::FIRST, Step::MAX),
            name: "step".to_owned(),
            created: Timestamp::from_seconds(seconds),
            bytes,
            reclaimable_bytes: bytes * reclaimable / 4,
            best: Vec::new(),
            metrics: loss
                .map(|loss| ("loss".to_owned(), if loss == 99 { f64::NAN } else { f64::from(loss) }))
                .into_iter()
                .collect(),
            verified,
            needed: Needed { pinned, leased, uploading },
            elsewhere: Elsewhere { durable_on, retired_on, unproven, needs_other_nodes },
            abandoned: false,
        }
    }
}

fn revision() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(1_u32), 1 => Just(2), 1 => Just(3)]
}

prop_compose! {
    fn views()(
        steps in btree_map((1..4_u32, 0..40_u64, revision()), facts(), 0..30),
        local in any::<bool>(),
        free_bytes in option::of(0..2_000_u64),
    ) -> TierView {
        let mut steps: Vec<StepFacts> = steps
            .into_iter()
            .map(|((attempt, step, revision), facts)| {
                let id = StepId::new(Attempt::new(attempt).unwrap(), Step::new(step * 100).unwrap());
                let id = (1..revision).fold(id, |id, _| id.next_revision().unwrap());
                StepFacts { id, ..facts }
            })
            .collect();
        let abandoned = abandoned_steps(steps.iter().map(|step| step.id));
        for step in &mut steps {
            step.abandoned = abandoned.contains(&step.id);
        }
        let tier = if local { Tier::Local } else { Tier::Remote(remotes()[0].clone()) };
        let now = Timestamp::from_seconds(2_000_000);
        TierView { tier, steps, unreadable: Vec::new(), now, free_bytes }
    }
}

prop_compose! {
    fn any_rules()(
        last in option::of(0..6_u32),
        every_steps in option::of(0..9_u64),
        within_seconds in option::of(0..1_000_000_u64),
        hourly in option::of(0..4_u32),
        daily in option::of(0..4_u32),
        weekly in option::of(0..4_u32),
        best in vec((0..4_u32, any::<bool>()), 0..3),
    ) -> KeepRules {
        let best = best.into_iter().map(|(count, lowest)| BestRule {
            metric: "loss".to_owned(),
            count,
            prefer: if lowest { Prefer::Lowest } else { Prefer::Highest },
        });
        let every_steps = every_steps.map(|every| every * 100);
        KeepRules { last, every_steps, within_seconds, hourly, daily, weekly, best: best.collect() }
    }
}

fn rules() -> impl Strategy<Value = KeepRules> {
    any_rules().prop_filter("refused", |rules| rules.check().is_ok())
}

fn limits() -> impl Strategy<Value = LocalLimits> {
    (option::of(0..1_000_u64), option::of(0..1_000_u64), option::of(0..2_000_u64), any::<bool>()).prop_map(
        |(maximum_bytes, free_space_low_bytes, free_space_high_bytes, give_up_undurable)| LocalLimits {
            maximum_bytes,
            free_space_low_bytes,
            free_space_high_bytes,
            give_up_undurable,
        },
    )
}

fn guards() -> impl Strategy<Value = Guards> {
    (some_remotes(), option::of(0..6_u32)).prop_map(|(required_remotes, maximum_deletions)| Guards {
        required_remotes,
        maximum_deletions,
        ..Guards::default()
    })
}

fn dropped(plan: &RetentionPlan) -> BTreeSet<StepId> {
    plan.deletions().into_iter().map(|decision| decision.id).collect()
}

/// Returns what the rules alone drop, without space limit and cap.
fn by_rules(view: &TierView, rules: &KeepRules) -> BTreeSet<StepId> {
    dropped(&plan(view, rules, &LocalLimits::default(), &Guards::default()).unwrap())
}
