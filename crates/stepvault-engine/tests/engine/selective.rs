//! A selective remote: what is copied to it, and what the remote that feeds it keeps for it.

use std::collections::BTreeMap;

use stepvault_core::ids::{RemoteName, StepId};
use stepvault_core::retention::{KeepRules, RetentionPlan, Selection, SelectionState};
use stepvault_core::{ErrorKind, RelativePath, RemoteSettings};
use stepvault_engine::copy::{CopyChoice, CopyContext, CopyOutcome, CopyReport, copy_steps, plan_copy};
use stepvault_engine::prune::{RemotePrune, plan_remote, prune_remote};
use stepvault_engine::tier::catalog::{committed_ids, pin, read_commit};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::selective::selection_states;
use stepvault_engine::tier::step_state::visible_and_incomplete;
use stepvault_engine::verify::{Depth, check_remote};
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name, snapshot};

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
    add_cold(&mut rig, selection).await;
    rig
}

async fn add_cold(rig: &mut Rig, selection: &Selection) {
    let cold = rig.directory.path().join("cold");
    std::fs::create_dir(&cold).unwrap();
    let select = |settings: &mut RemoteSettings| settings.selection = Some(selection.clone());
    rig.add("cold", &format!("file://{}", cold.display()), select, None).await;
}

/// Of two parts, of one, and of no byte.
const FILES: &[(&str, usize)] = &[("big.bin", (8 << 20) + 5), ("sub/small.json", 100), ("empty", 0)];

/// The same with step 3 alone, on a server.
async fn fed_by(server: &StrictS3) -> Rig {
    let mut rig = Rig::with_s3(server).await;
    rig.push_durably(&rig.write_step(3, FILES, 1, 1)).await;
    add_cold(&mut rig, &every_third()).await;
    server.faults().clear_requests();
    rig
}

/// Copies step 3, and returns how many bytes came from the vault, and how many requests the server got for data.
async fn fed_from(rig: &Rig, server: &StrictS3) -> (u64, usize) {
    let report = feed(rig).await;
    let vault_bytes = report.vault_bytes;
    assert_eq!(outcomes(report), [(3, CopyOutcome::Copied)]);
    let health = check_remote(cold(rig), id(1, 3), Depth::Deep, &rig.observer).await.unwrap();
    assert!(health.is_sound(), "{health:?}");
    let commits = [&rig.remotes[0], cold(rig)].map(|remote| read_commit(remote, id(1, 3)));
    let [source, target] = futures::future::join_all(commits).await.try_into().unwrap();
    assert_eq!(source.unwrap(), target.unwrap());
    (vault_bytes, asked(server.faults(), "GET", "/step_3/"))
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

async fn states(rig: &Rig, selection: &Selection) -> BTreeMap<StepId, SelectionState> {
    let listed = async |remote| visible_and_incomplete(remote, None).await.unwrap();
    let (from, to) = (&rig.remotes[0], cold(rig));
    let (source, target) = (listed(from).await, listed(to).await);
    selection_states((from, &source), (to, &target), selection).await.unwrap()
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
async fn the_bytes_come_from_the_vault_while_it_has_the_step() {
    let server = StrictS3::start();
    let rig = fed_by(&server).await;
    let bytes = (8 << 20) + 5 + 100;
    assert_eq!(fed_from(&rig, &server).await, (bytes, 0));

    // Without the step in the vault, they come from the other remote.
    let server = StrictS3::start();
    let rig = fed_by(&server).await;
    let steps = rig.vault.steps(&run_name()).unwrap().steps;
    std::fs::remove_dir_all(steps[0].directory()).unwrap();
    let (from_vault, requests) = fed_from(&rig, &server).await;
    assert_eq!(from_vault, 0);
    assert!(requests >= 3, "{requests}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_vault_has_of_a_damaged_step_is_not_sent() {
    for is_noticed in [false, true] {
        let server = StrictS3::start();
        let rig = fed_by(&server).await;
        let sealed = rig.vault.step(&run_name(), id(1, 3)).unwrap().unwrap();
        let path = sealed.file_path(&RelativePath::new("big.bin").unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[(8 << 20) + 2] ^= 1;
        let modified = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        if !is_noticed {
            // As a disk does that loses a bit: only the bytes differ.
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        }
        let (from_vault, _) = fed_from(&rig, &server).await;
        assert!(from_vault <= (8 << 20) + 100, "{from_vault}");
        assert!(asked(server.faults(), "GET", "/step_3/big.bin") > 0);
        assert_eq!(asked(server.faults(), "GET", "/step_3/sub/small.json"), 0);
    }
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
    assert_eq!(dropped(&plan_remote(&pruning(&rig, 1), true).await.unwrap()), [1, 2, 3, 4, 5, 6]);
    // Nobody answers under its name now.
    rig.remotes.pop();
    rig.add_one_that_is_away("cold").await;
    let mut settings = RemoteSettings::clone(&cold(&rig).settings);
    settings.selection = Some(every_third());
    let away = RunRemote::new(rig.stores[2].clone(), settings.into(), rig.remotes[0].keys.run().clone());
    let plan =
        plan_remote(&RemotePrune { selective: vec![away], ..rig.remote_prune(1) }, true).await.unwrap();
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
    let plan =
        plan_remote(&RemotePrune { selective: vec![fresh], ..rig.remote_prune(1) }, true).await.unwrap();
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
    let plan = plan_remote(&pruning(&rig, 1), true).await.unwrap();
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
    assert_eq!(dropped(&plan_remote(&pruning(&rig, 1), true).await.unwrap()), [1, 2, 3, 4, 5, 6]);
    let states = states(&rig, &every_third()).await;
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
    let states = states(&rig, cold(&rig).settings.selection.as_ref().unwrap()).await;
    let planned = states.iter().filter(|(_, state)| matches!(state, SelectionState::Planned { .. }));
    assert_eq!(planned.map(|(id, _)| *id).collect::<Vec<_>>(), [id(1, 3), id(1, 4)]);
}
