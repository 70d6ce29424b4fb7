//! Which steps are tried, in which order and from which tiers, and the error when there is none.

mod include;
mod properties;

use std::collections::BTreeMap;

use super::*;
use crate::codec::FORMAT;
use crate::commit::{Commit, CommittedPart};
use crate::digest::Sha256Digest;
use crate::error::ErrorKind;
use crate::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use crate::manifest::Shape;
use crate::observe::Tier;
use crate::timestamp::Timestamp;

fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

fn remote(name: &str) -> Tier {
    Tier::Remote(RemoteName::new(name).unwrap())
}

fn remotes() -> Vec<RemoteName> {
    ["s3", "gcs"].map(|name| RemoteName::new(name).unwrap()).to_vec()
}

/// Returns a commit with the content `content`.
fn committed(id: StepId, content: &str) -> CandidateState {
    CandidateState::Committed(Box::new(Commit {
        format: FORMAT,
        run: RunName::new("r").unwrap(),
        id,
        name: "step".to_owned(),
        shape: Shape::Directory,
        parts: vec![CommittedPart {
            node: NodeName::new("n").unwrap(),
            manifest_sha256: Sha256Digest::of(content.as_bytes()),
            manifest_bytes: 1,
            data_bytes: 1,
            file_count: 1,
        }],
        written_at: Timestamp::default(),
        metrics: BTreeMap::new(),
    }))
}

fn candidate(id: StepId, tiers: Vec<(Tier, CandidateState)>) -> Candidate {
    let tiers = tiers
        .into_iter()
        .map(|(tier, state)| CandidateTier { tier, state })
        .collect();
    Candidate {
        id,
        name: format!("step_{}", id.step),
        tiers,
    }
}

fn quarantined() -> CandidateState {
    CandidateState::Quarantined("a part is missing".to_owned())
}

fn newest() -> RestoreRequest {
    RestoreRequest::default()
}

fn of_step(step: u64) -> RestoreRequest {
    RestoreRequest {
        step: Some(Step::new(step).unwrap()),
        ..newest()
    }
}

/// Returns `2/300 from local, s3`, or the reason why the step is skipped.
fn told(plan: &RestorePlan) -> Vec<String> {
    let tell = |planned: &PlannedStep| {
        let sources: Vec<String> = planned.sources.iter().map(ToString::to_string).collect();
        let end = planned
            .skipped
            .clone()
            .unwrap_or_else(|| format!("from {}", sources.join(", ")));
        format!("{}/{} {end}", planned.id.attempt, planned.id.step)
    };
    plan.attempts.iter().map(tell).collect()
}

#[test]
fn newest_first_local_first_then_remotes_as_configured() {
    let new = id(2, 100);
    let old = id(1, 900);
    let candidates = vec![
        candidate(old, vec![(remote("gcs"), committed(old, "x"))]),
        candidate(
            new,
            vec![
                (remote("gcs"), committed(new, "x")),
                (remote("aside"), committed(new, "x")),
            ],
        ),
        candidate(
            new,
            vec![
                (remote("s3"), committed(new, "x")),
                (Tier::Local, CandidateState::Sealed),
            ],
        ),
    ];
    let plan = plan(candidates, &newest(), &remotes()).unwrap();
    assert_eq!(
        told(&plan),
        ["2/100 from local, s3, gcs, aside", "1/900 from gcs"]
    );
    assert_eq!(plan.chosen, Some(new));
}

#[test]
fn damaged_steps_are_passed_over_with_the_reason() {
    let candidates = vec![
        candidate(
            id(1, 1),
            vec![
                (remote("s3"), committed(id(1, 1), "x")),
                (remote("gcs"), quarantined()),
            ],
        ),
        candidate(
            id(1, 2),
            vec![
                (Tier::Local, quarantined()),
                (remote("s3"), CandidateState::Unreadable("cut short".to_owned())),
            ],
        ),
    ];
    let plan = plan(candidates, &newest(), &remotes()).unwrap();
    let reason = "local: quarantined: a part is missing; s3: unreadable: cut short";
    assert_eq!(told(&plan), [format!("1/2 {reason}"), "1/1 from s3".to_owned()]);
    assert_eq!(plan.chosen, Some(id(1, 1)));
    assert_eq!(plan.skipped().collect::<Vec<_>>(), [(id(1, 2), reason)]);
    assert_eq!(plan.attempts[1].unusable, ["gcs: quarantined: a part is missing"]);
    assert_eq!(plan.to_try().count(), 1);
}

#[test]
fn tiers_that_disagree_are_never_mixed() {
    let step = id(1, 1);
    let tiers = vec![
        (remote("gcs"), committed(step, "other")),
        (remote("s3"), committed(step, "one")),
        (Tier::Local, CandidateState::Sealed),
    ];
    let plan = plan(vec![candidate(step, tiers)], &newest(), &remotes()).unwrap();
    assert_eq!(told(&plan), ["1/1 from local, s3", "1/1 from gcs"]);
}

#[test]
fn a_step_that_is_asked_for_is_taken_from_its_newest_attempt_and_no_other_step_is() {
    let all = || {
        [id(1, 5), id(2, 5), id(3, 9)]
            .map(|step| candidate(step, vec![(remote("s3"), committed(step, "x"))]))
            .to_vec()
    };
    assert_eq!(
        told(&plan(all(), &of_step(5), &remotes()).unwrap()),
        ["2/5 from s3", "1/5 from s3"]
    );
    let first = RestoreRequest {
        attempt: Some(Attempt::FIRST),
        ..of_step(5)
    };
    assert_eq!(told(&plan(all(), &first, &remotes()).unwrap()), ["1/5 from s3"]);
    let error = plan(all(), &of_step(7), &remotes()).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (
            ErrorKind::NotFound,
            "no such checkpoint: step 7: no tier holds it".to_owned()
        )
    );
    assert_eq!(
        error.hint_text(),
        Some("available: step 9 (attempt 3), step 5 (attempt 2), step 5 (attempt 1)")
    );
}

#[test]
fn none_exists_and_none_valid_are_told_apart() {
    let error = plan(Vec::new(), &newest(), &remotes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        error.to_string(),
        "no checkpoint to restore: no tier holds a step of this run"
    );
    let damaged = (1..=7)
        .map(|step| candidate(id(1, step), vec![(Tier::Local, quarantined())]))
        .collect();
    let error = plan(damaged, &newest(), &remotes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoneValid);
    let text = error.to_string();
    let start =
        "no valid checkpoint to restore: step 7 (attempt 1): local: quarantined: a part is missing; step 6";
    assert!(
        text.starts_with(start) && text.ends_with("; and 2 more"),
        "{text}"
    );
}

#[test]
fn a_plan_is_written_as_json() {
    let all = vec![candidate(
        id(1, 5),
        vec![(remote("s3"), committed(id(1, 5), "x"))],
    )];
    let json = serde_json::to_value(plan(all, &newest(), &remotes()).unwrap()).unwrap();
    assert_eq!(json["attempts"][0]["sources"], serde_json::json!(["s3"]));
    assert_eq!(json["chosen"], serde_json::json!({"attempt": 1, "step": 5}));
}

#[test]
fn messages_list_five_and_count_the_rest() {
    let all = |count: u64| {
        (1..=count)
            .map(|step| candidate(id(1, step), vec![(remote("s3"), committed(id(1, step), "x"))]))
            .collect::<Vec<_>>()
    };
    let hint = |count| {
        let error = plan(all(count), &of_step(99), &remotes()).unwrap_err();
        error.hint_text().unwrap_or_default().to_owned()
    };
    assert!(hint(5).ends_with(", step 1 (attempt 1)"), "{}", hint(5));
    assert!(
        hint(7).ends_with("step 3 (attempt 1), and 2 older"),
        "{}",
        hint(7)
    );
    let reasons = |count: u64| none_valid((1..=count).map(|step| (id(1, step), "torn"))).to_string();
    assert!(
        reasons(5).ends_with("; step 5 (attempt 1): torn"),
        "{}",
        reasons(5)
    );
    assert!(
        reasons(6).ends_with("step 5 (attempt 1): torn; and 1 more"),
        "{}",
        reasons(6)
    );
}

#[test]
fn what_was_asked_for_is_named() {
    let text =
        |request: RestoreRequest, candidates| plan(candidates, &request, &remotes()).unwrap_err().to_string();
    let one = || {
        vec![candidate(
            id(1, 5),
            vec![(remote("s3"), committed(id(1, 5), "x"))],
        )]
    };
    let second = RestoreRequest {
        attempt: Some(Attempt::new(2).unwrap()),
        ..newest()
    };
    assert_eq!(
        text(second.clone(), one()),
        "no such checkpoint: attempt 2: no tier holds it"
    );
    let both = RestoreRequest {
        step: Some(Step::new(5).unwrap()),
        ..second.clone()
    };
    assert_eq!(
        text(both, one()),
        "no such checkpoint: step 5 (attempt 2): no tier holds it"
    );
    assert_eq!(
        text(second, Vec::new()),
        "no such checkpoint: attempt 2: no tier holds a step of this run"
    );
}

#[test]
fn a_step_without_any_tier_is_passed_over() {
    let error = plan(vec![candidate(id(1, 5), Vec::new())], &newest(), &remotes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no valid checkpoint to restore: step 5 (attempt 1): no tier holds it"
    );
}
