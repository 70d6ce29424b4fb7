//! A selective remote: what is copied to it, and what the remote that feeds it keeps for it.

use std::collections::BTreeMap;

use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::retention::{KeepRules, RetentionPlan, Selection, SelectionState};
use stepvault_core::{ErrorKind, RemoteSettings};
use stepvault_engine::copy::{CopyChoice, CopyContext, CopyOutcome, CopyReport, copy_steps, plan_copy};
use stepvault_engine::prune::{RemotePrune, plan_remote, prune_remote};
use stepvault_engine::tier::catalog::{committed_ids, pin};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::selective::selection_states;

use crate::harness::{Rig, id, snapshot};

fn every_third() -> Selection {
    Selection {
        from: RemoteName::new("disk").unwrap(),
        rules: KeepRules { every_steps: Some(3), ..KeepRules::default() },
        includes_newest: false,
        after_seconds: 0,
    }
}

/// A rig with steps 1 to `count` on the remote `disk`, and the selective remote `cold` that has nothing yet.
async fn fed(count: u64, selection: &Selection) -> Rig {
    let mut rig = Rig::with_steps(count).await;
    let cold = rig.directory.path().join("cold");
    std::fs::create_dir(&cold).unwrap();
    let select = |settings: &mut RemoteSettings| settings.selection = Some(selection.clone());
    rig.add("cold", &format!("file://{}", cold.display()), select, None).await;
    rig
}

fn cold(rig: &Rig) -> &RunRemote {
    &rig.remotes[1]
}

pub(crate) async fn feed(rig: &Rig) -> CopyReport {
    let context = CopyContext {
        from: rig.remotes[0].clone(),
        to: cold(rig).clone(),
        common: None,
        budget: rig.budget.clone(),
        observer: rig.observer.clone(),
        choice: CopyChoice::Selected(cold(rig).settings.selection.clone().unwrap()),
    };
    copy_steps(&context, &rig.vault, plan_copy(&context).await.unwrap()).await.unwrap()
}

/// What became of each step, the oldest first.
fn outcomes(report: CopyReport) -> Vec<(u64, CopyOutcome)> {
    let steps = report.steps.into_iter().rev();
    steps.map(|step| (u64::from(step.step.id.step), step.result.unwrap())).collect()
}

async fn committed(remote: &RunRemote) -> Vec<StepId> {
    committed_ids(remote).await.unwrap().into_keys().collect()
}

fn pruning(rig: &Rig, last: u32) -> RemotePrune {
    RemotePrune { selective: vec![cold(rig).clone()], ..rig.remote_prune(last) }
}

fn dropped(plan: &RetentionPlan) -> Vec<u64> {
    plan.deletions().iter().map(|decision| decision.id.step.number()).collect()
}

fn skipped(reason: &str) -> CopyOutcome {
    CopyOutcome::Skipped(reason.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_selected_steps_are_copied_and_each_of_them_once() {
    let rig = fed(6, &every_third()).await;
    let expected = |of_selected: &CopyOutcome| -> Vec<(u64, CopyOutcome)> {
        let outcome =
            |step: u64| if step.is_multiple_of(3) { of_selected.clone() } else { skipped("not selected") };
        (1..=6).map(|step| (step, outcome(step))).collect()
    };
    assert_eq!(outcomes(feed(&rig).await), expected(&CopyOutcome::Copied));
    assert_eq!(committed(cold(&rig)).await, [id(1, 3), id(1, 6)]);
    assert_eq!(outcomes(feed(&rig).await), expected(&CopyOutcome::Present));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_waits_for_its_age_and_is_not_removed_meanwhile() {
    let rig = fed(4, &Selection { after_seconds: 3_600, ..every_third() }).await;
    let report = outcomes(feed(&rig).await);
    assert!(matches!(report[2], (3, CopyOutcome::Planned(_))), "{report:?}");
    assert_eq!(committed(cold(&rig)).await, []);
    prune_remote(&pruning(&rig, 1)).await.unwrap();
    assert_eq!(rig.committed().await, [id(1, 3), id(1, 4)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_stays_until_it_is_copied_and_a_restore_finds_it_there() {
    let mut rig = fed(5, &every_third()).await;
    let saved = snapshot(&rig.outputs().join("step_3"));
    let report = prune_remote(&pruning(&rig, 1)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2), id(1, 4)]);
    assert_eq!(report.plan.decision(id(1, 3)).unwrap().reasons, ["waits to be copied to cold"]);
    feed(&rig).await;
    let report = prune_remote(&pruning(&rig, 1)).await.unwrap();
    assert_eq!(report.removed, [id(1, 3)]);
    assert_eq!(committed(cold(&rig)).await, [id(1, 3)]);
    rig.remotes.remove(0);
    rig.stores.remove(0);
    rig.assert_restores(3, &saved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_answer_every_selected_step_stays() {
    let mut rig = fed(7, &every_third()).await;
    feed(&rig).await;
    assert_eq!(dropped(&plan_remote(&pruning(&rig, 1)).await.unwrap()), [1, 2, 3, 4, 5, 6]);
    // Nobody answers under its name now.
    rig.remotes.pop();
    rig.add_one_that_is_away("cold").await;
    let mut settings = RemoteSettings::clone(&cold(&rig).settings);
    settings.selection = Some(every_third());
    let away = RunRemote::new(rig.stores[2].clone(), settings.into(), rig.remotes[0].keys.run().clone());
    let plan = plan_remote(&RemotePrune { selective: vec![away], ..rig.remote_prune(1) }).await.unwrap();
    assert_eq!(dropped(&plan), [1, 2, 4, 5]);
    assert!(
        plan.warnings[0]
            .starts_with("cannot list cold, which gets steps of disk: every step that it selects is kept"),
        "{:?}",
        plan.warnings
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_without_the_runs_marker_do_not_count_as_copied() {
    let rig = fed(4, &every_third()).await;
    feed(&rig).await;
    let marker = cold(&rig).keys.marker();
    std::fs::remove_file(rig.directory.path().join("cold").join(marker)).unwrap();
    let fresh =
        RunRemote::new(rig.stores[1].clone(), cold(&rig).settings.clone(), cold(&rig).keys.run().clone());
    let plan = plan_remote(&RemotePrune { selective: vec![fresh], ..rig.remote_prune(1) }).await.unwrap();
    assert_eq!(dropped(&plan), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_step_of_that_name_is_no_copy() {
    let rig = fed(4, &every_third()).await;
    feed(&rig).await;
    // The same run, in which step 3 was saved with other bytes.
    let other = Rig::with_directory().await;
    other.push_durably(&other.write_step(3, &[("x", 100), ("y", 7)], 99, 3_000)).await;
    let key = cold(&rig).keys.commit(id(1, 3));
    let commit = other.remotes[0].read_small(&key).await.unwrap().unwrap();
    std::fs::write(rig.directory.path().join("cold").join(&key), commit).unwrap();
    let plan = plan_remote(&pruning(&rig, 1)).await.unwrap();
    assert_eq!(dropped(&plan), [1, 2], "{plan:?}");
    let report = feed(&rig).await;
    let failed = report.steps.iter().find_map(|step| step.result.as_ref().err()).unwrap();
    assert_eq!(failed.kind(), ErrorKind::Conflict, "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_was_removed_from_the_selective_remote_is_not_copied_again() {
    let rig = fed(7, &every_third()).await;
    feed(&rig).await;
    let removal = RemotePrune { remote: cold(&rig).clone(), ..rig.remote_prune(1) };
    assert_eq!(prune_remote(&removal).await.unwrap().removed, [id(1, 3)]);
    let report = outcomes(feed(&rig).await);
    assert_eq!(report[2], (3, skipped("it was removed from cold, and its identity is never reused there")));
    assert_eq!(committed(cold(&rig)).await, [id(1, 6)]);
    // Nothing waits for it any more.
    assert_eq!(dropped(&plan_remote(&pruning(&rig, 1)).await.unwrap()), [1, 2, 3, 4, 5, 6]);
    let states = selection_states(&rig.remotes[0], cold(&rig), &every_third()).await.unwrap();
    let of = |step| states[&id(1, step)];
    assert_eq!(
        (of(1), of(3), of(6)),
        (SelectionState::NotSelected, SelectionState::Removed, SelectionState::Copied)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_is_no_selection_and_goes_with_a_selected_step() {
    let rig = fed(4, &every_third()).await;
    pin(&rig.remotes[0], id(1, 2), "").await.unwrap();
    pin(&rig.remotes[0], id(1, 3), "the paper's").await.unwrap();
    feed(&rig).await;
    assert_eq!(committed(cold(&rig)).await, [id(1, 3)]);
    let pins = stepvault_engine::tier::catalog::pins(cold(&rig)).await.unwrap();
    assert_eq!(pins, [id(1, 3)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_told_before_anything_is_copied() {
    let rig = fed(4, &Selection { includes_newest: true, ..every_third() }).await;
    let states =
        selection_states(&rig.remotes[0], cold(&rig), cold(&rig).settings.selection.as_ref().unwrap());
    let states: BTreeMap<StepId, SelectionState> = states.await.unwrap();
    let planned = states.iter().filter(|(_, state)| matches!(state, SelectionState::Planned { .. }));
    assert_eq!(planned.map(|(id, _)| *id).collect::<Vec<_>>(), [id(1, 3), id(1, 4)]);
}
