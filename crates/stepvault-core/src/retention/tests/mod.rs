//! Tests with example steps.

mod branches;
mod guards;
mod properties;
mod revisions;
mod rules;
mod selection;
mod space;

use super::*;
use crate::ErrorKind;
use crate::ids::{Attempt, RemoteName, Step, StepId};
use crate::observe::Tier;
use crate::timestamp::Timestamp;

const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

fn remote(name: &str) -> RemoteName {
    RemoteName::new(name).unwrap()
}

/// A verified, durable step; its hour is its number.
fn step(attempt: u32, number: u64) -> StepFacts {
    let created = Timestamp::from_seconds(i64::try_from(number).unwrap() * HOUR);
    StepFacts {
        amends: false,
        id: id(attempt, number),
        name: format!("step_{number}"),
        created,
        bytes: 10,
        reclaimable_bytes: 10,
        best: Vec::new(),
        metrics: [("loss".to_owned(), f64::from(u32::try_from(number).unwrap()))].into(),
        verified: Verified::Yes,
        needed: Needed::default(),
        elsewhere: Elsewhere { durable_on: vec![remote("s3-main")], ..Elsewhere::default() },
        abandoned: false,
    }
}

fn view(tier: Tier, mut steps: Vec<StepFacts>) -> TierView {
    let abandoned = abandoned_steps(steps.iter().map(|step| step.id));
    for step in &mut steps {
        step.abandoned = abandoned.contains(&step.id);
    }
    let now = steps.iter().map(|step| step.created).max().unwrap_or_default();
    TierView { tier, steps, unreadable: Vec::new(), now, free_bytes: None }
}

fn steps(numbers: impl IntoIterator<Item = u64>) -> TierView {
    view(Tier::Remote(remote("s3-main")), numbers.into_iter().map(|number| step(1, number)).collect())
}

fn local(numbers: impl IntoIterator<Item = u64>) -> TierView {
    TierView { tier: Tier::Local, ..steps(numbers) }
}

fn last(count: u32) -> KeepRules {
    KeepRules { last: Some(count), ..KeepRules::default() }
}

fn planned(view: &TierView, rules: &KeepRules) -> RetentionPlan {
    plan(view, rules, &LocalLimits::default(), &Guards::default()).unwrap()
}

fn dropped(plan: &RetentionPlan) -> Vec<u64> {
    plan.deletions().iter().map(|decision| decision.id.step.number()).collect()
}

/// Each step with its verdict's reasons, oldest first: `100 last 3`.
fn told(plan: &RetentionPlan) -> Vec<String> {
    let tell = |decision: &Decision| {
        let sign = if decision.verdict == Verdict::Keep { '+' } else { '-' };
        format!("{sign}{} {}", decision.id.step, decision.reasons.join(", "))
    };
    plan.decisions.iter().map(tell).collect()
}
