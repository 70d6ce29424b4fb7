//! Steps that are sealed while no remote answers: their attempts are determined later, and are right.

use std::path::Path;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::ids::{NodeName, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::Writer;
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::push::{CheckpointToSeal, PushReport};
use stepvault_engine::restore::{RestoreRequest, Target, Together, WantedSteps, plan, restore};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::vault::Vault;

use crate::harness::{Rig, bytes, id, in_launch, in_launch_since, run_name};

const FILES: [(&str, usize); 2] = [("model.bin", 3000), ("rank_0/optim.bin", 700)];
/// When the node of a test was put in the place of the one before, by its own clock.
const RESTORED_AT: i64 = 5_000;

/// A remote that answers nobody, in the place of the one that there is.
async fn away(rig: &mut Rig) -> RunRemote {
    let there = rig.remotes.pop().unwrap();
    rig.add_one_that_is_away("disk").await;
    there
}

fn back(rig: &mut Rig, there: RunRemote) {
    rig.remotes = vec![there];
}

async fn pushed_as(rig: &Rig, source: &Path, attempt: u32) -> StepId {
    let request = CheckpointToSeal { attempt: Some(id(attempt, 0).attempt), ..rig.request(source) };
    let report = rig.push_as(request).await.unwrap();
    report.remotes[0].result.as_ref().unwrap();
    report.id
}

async fn go_on_from(rig: &Rig, step: Option<u64>) -> StepId {
    let request = RestoreRequest {
        wanted: WantedSteps { step: step.map(|step| id(1, step).step), ..WantedSteps::default() },
        resumes: true,
        together: Some(Together {
            writer: rig.request(Path::new("")).current.writer,
            since: Timestamp::from_seconds(RESTORED_AT),
            patience: Duration::ZERO,
        }),
        ..RestoreRequest::newest(run_name(), Target::As(rig.directory.path().join("resumed")))
    };
    restore(&rig.context(), &request).await.unwrap().plan.id
}

fn is_unreachable(report: &PushReport) -> bool {
    let result = &report.remotes[0].result;
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable)
}

fn sealed(vault: &Vault) -> Vec<(StepId, bool)> {
    let steps = vault.steps(&run_name()).unwrap().steps;
    let told = steps.iter().map(|step| (step.id(), step.record().is_provisional()));
    told.collect()
}

async fn newest(rig: &Rig) -> (StepId, Vec<u8>) {
    let target = rig.directory.path().join("newest");
    let _ = std::fs::remove_dir_all(&target);
    let request = RestoreRequest::newest(run_name(), Target::As(target.clone()));
    let report = restore(&rig.context(), &request).await.unwrap();
    (report.plan.id, std::fs::read(target.join("model.bin")).unwrap())
}

fn weights(seed: u64) -> Vec<u8> {
    bytes(seed ^ FILES[0].1 as u64, FILES[0].1)
}

#[tokio::test]
async fn a_new_node_seals_during_an_outage_and_its_step_is_the_newest_afterwards() {
    let mut rig = Rig::with_directory().await;
    pushed_as(&rig, &rig.write_step(100, &FILES, 1, 1_000), 1).await;
    pushed_as(&rig, &rig.write_step(300, &FILES, 3, 2_000), 2).await;
    rig.lose_node();
    assert_eq!(go_on_from(&rig, None).await, id(2, 300));
    let there = away(&mut rig).await;
    let source = rig.write_step(400, &FILES, 4, 6_000);
    assert!(is_unreachable(&rig.push(&source).await.unwrap()));
    // By what it restored, until a remote has answered.
    assert_eq!(sealed(&rig.vault), [(id(2, 400), true)]);
    back(&mut rig, there);
    assert_eq!(rig.push_durably(&source).await.id, id(2, 400));
    assert_eq!(sealed(&rig.vault), [(id(2, 400), false)]);
    rig.lose_node();
    assert_eq!(newest(&rig).await, (id(2, 400), weights(4)));
}

/// A user who restores by other means leaves no trace in the vault.
#[tokio::test]
async fn without_a_memory_of_a_restore_the_remote_tells_the_attempt() {
    let mut rig = Rig::with_directory().await;
    pushed_as(&rig, &rig.write_step(100, &FILES, 1, 1_000), 1).await;
    pushed_as(&rig, &rig.write_step(300, &FILES, 3, 2_000), 2).await;
    rig.lose_node();
    let there = away(&mut rig).await;
    let source = rig.write_step(400, &FILES, 4, 6_000);
    rig.push(&source).await.unwrap();
    assert_eq!(sealed(&rig.vault), [(id(1, 400), true)]);
    back(&mut rig, there);
    assert_eq!(rig.push_durably(&source).await.id, id(2, 400));
    rig.lose_node();
    assert_eq!(newest(&rig).await, (id(2, 400), weights(4)));
}

#[tokio::test]
async fn a_step_that_others_have_under_its_attempt_is_saved_under_another_and_not_given_up() {
    let mut rig = Rig::with_directory().await;
    for (step, seed) in [(100, 1), (300, 3)] {
        pushed_as(&rig, &rig.write_step(step, &FILES, seed, 1_000 + step as i64), 1).await;
    }
    rig.lose_node();
    // The clock of the node before was far ahead.
    assert_eq!(go_on_from(&rig, Some(100)).await, id(1, 100));
    let there = away(&mut rig).await;
    let sources =
        [(300, 33), (400, 44)].map(|(step, seed)| rig.write_step(step, &FILES, seed, 5_000 + step as i64));
    for source in &sources {
        assert!(is_unreachable(&rig.push(source).await.unwrap()));
    }
    assert_eq!(sealed(&rig.vault), [(id(1, 300), true), (id(1, 400), true)]);
    back(&mut rig, there);
    // All are placed together, in the order in which they were written.
    assert_eq!(rig.push_durably(&sources[1]).await.id, id(2, 400));
    assert_eq!(sealed(&rig.vault), [(id(2, 300), false), (id(2, 400), false)]);
    assert_eq!(rig.push_durably(&sources[0]).await.id, id(2, 300));
    rig.lose_node();
    assert_eq!(newest(&rig).await, (id(2, 400), weights(44)));
}

#[tokio::test]
async fn a_restore_after_the_outage_finds_the_step_that_was_sealed_in_it() {
    let mut rig = Rig::with_directory().await;
    pushed_as(&rig, &rig.write_step(300, &FILES, 3, 2_000), 2).await;
    rig.lose_node();
    let there = away(&mut rig).await;
    rig.push(&rig.write_step(400, &FILES, 4, 6_000)).await.unwrap();
    assert_eq!(sealed(&rig.vault), [(id(1, 400), true)]);
    back(&mut rig, there);
    // A plan changes nothing, and says that the restore may choose another step.
    assert_eq!(plan(&rig.context(), &rig.restore_request()).await.unwrap().id, id(2, 300));
    assert_eq!(sealed(&rig.vault), [(id(1, 400), true)]);
    let warnings = rig.recorder.warnings.lock().unwrap().join("\n");
    assert!(
        warnings.contains("still provisional: step 400 (attempt 1); a restore determines them first"),
        "{warnings}"
    );
    assert_eq!(go_on_from(&rig, None).await, id(2, 400));
    assert_eq!(sealed(&rig.vault), [(id(2, 400), false)]);
}

#[tokio::test]
async fn what_was_restored_and_is_found_again_during_an_outage_is_the_step_it_was() {
    let mut rig = Rig::with_directory().await;
    let source = rig.write_step(300, &FILES, 3, 2_000);
    pushed_as(&rig, &source, 2).await;
    std::fs::remove_dir_all(rig.vault.root()).unwrap();
    rig.vault = Vault::open_or_create(&rig.directory.path().join("vault")).unwrap();
    let there = away(&mut rig).await;
    rig.push(&source).await.unwrap();
    assert_eq!(sealed(&rig.vault), [(id(1, 300), true)]);
    back(&mut rig, there);
    assert_eq!(rig.push_durably(&source).await.id, id(2, 300));
    assert_eq!(sealed(&rig.vault), [(id(2, 300), false)]);
}

#[tokio::test]
async fn a_launch_that_sealed_during_an_outage_gets_an_attempt_of_its_own() {
    let mut rig = Rig::with_directory().await;
    let in_launch = |rig: &Rig, source: &Path, launch: &str| {
        let writer = Writer {
            launch: Some(LaunchName::new(launch).unwrap()),
            ..Writer::single_node(NodeName::new("node-0").unwrap())
        };
        in_launch(rig.request_of(writer, source))
    };
    let first = rig.write_step(100, &FILES, 1, 1_000);
    rig.push_as(in_launch(&rig, &first, "job:0")).await.unwrap();
    rig.lose_node();
    let there = away(&mut rig).await;
    // Its clock is behind that of the launch before.
    let second = rig.write_step(100, &FILES, 2, 500);
    let report = rig.push_as(in_launch(&rig, &second, "job:1")).await.unwrap();
    assert!(is_unreachable(&report));
    back(&mut rig, there);
    let report = rig.push_as(in_launch(&rig, &second, "job:1")).await.unwrap();
    assert_eq!(report.id, id(2, 100));
    rig.lose_node();
    assert_eq!(newest(&rig).await, (id(2, 100), weights(2)));
}

#[tokio::test]
async fn an_attempt_that_was_given_is_kept_and_its_conflict_stands() {
    let mut rig = Rig::with_directory().await;
    pushed_as(&rig, &rig.write_step(300, &FILES, 3, 2_000), 1).await;
    rig.lose_node();
    let there = away(&mut rig).await;
    let source = rig.write_step(300, &FILES, 33, 6_000);
    let given = || CheckpointToSeal { attempt: Some(id(1, 0).attempt), ..rig.request(&source) };
    let request = given();
    rig.push_as(request).await.unwrap();
    assert_eq!(sealed(&rig.vault), [(id(1, 300), false)]);
    back(&mut rig, there);
    let sealed_step = rig.vault.step(&run_name(), id(1, 300)).unwrap().unwrap();
    let session = rig.upload_session().await;
    let error = session.upload(&sealed_step).await.unwrap_err();
    assert!(error.is_name_taken(), "{error}");
    let reopened =
        stepvault_engine::placement::make_provisional_again(&rig.vault, &sealed_step, &error).await;
    assert!(!reopened.unwrap());
    assert_eq!(sealed(&rig.vault), [(id(1, 300), false)]);
}

/// Two nodes that did not see each other: both sealed under what the remote said, and one came first.
#[tokio::test]
async fn a_conflict_that_an_upload_finds_gives_the_step_another_revision() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &FILES, 1, 1_000)).await;
    let source = rig.write_step(200, &FILES, 2, 3_000);
    let staged = stepvault_engine::push::identify_and_seal(
        &rig.vault,
        &rig.remotes,
        rig.request(&source),
        &rig.observer,
    );
    assert_eq!(staged.await.unwrap().summary().id, id(1, 200));
    let mut other = Rig::new();
    other.remotes.clone_from(&rig.remotes);
    other.push_durably(&other.write_step(200, &FILES, 22, 2_000)).await;
    let beside = id(1, 200).next_revision().unwrap();
    assert_eq!(rig.push_durably(&source).await.id, beside);
    assert_eq!(newest(&rig).await, (beside, weights(2)));
    let warned = rig.recorder.warnings.lock().unwrap().join("\n");
    assert!(warned.contains("is sealed under another identity"), "{warned}");
}

/// Two saves of one step, and the first of them turns out to be what the second is called for now.
#[tokio::test]
async fn provisional_steps_make_way_for_each_other() {
    let mut rig = Rig::with_directory().await;
    pushed_as(&rig, &rig.write_step(100, &FILES, 1, 1_000), 1).await;
    pushed_as(&rig, &rig.write_step(50, &FILES, 5, 1_500), 2).await;
    rig.lose_node();
    let there = away(&mut rig).await;
    for (seed, written) in [(7, 2_000), (8, 3_000)] {
        let source = rig.write_step(100, &FILES, seed, written);
        assert!(is_unreachable(&rig.push(&source).await.unwrap()));
    }
    let second = |id: StepId| id.next_revision().unwrap();
    assert_eq!(sealed(&rig.vault), [(id(1, 100), true), (second(id(1, 100)), true)]);
    back(&mut rig, there);
    let source = rig.write_step(100, &FILES, 8, 3_000);
    assert_eq!(rig.push_durably(&source).await.id, second(id(2, 100)));
    assert_eq!(sealed(&rig.vault), [(id(2, 100), false), (second(id(2, 100)), false)]);
    rig.lose_node();
    assert_eq!(newest(&rig).await, (second(id(2, 100)), weights(8)));
}

/// The launch before was never recorded in the vault, as when the node was killed meanwhile.
#[tokio::test]
async fn what_is_older_than_the_launch_never_becomes_newer_than_its_steps() {
    let rig = Rig::with_directory().await;
    for step in [100, 200] {
        pushed_as(&rig, &rig.write_step(step, &FILES, step, 1_000), 1).await;
    }
    assert_eq!(go_on_from(&rig, Some(100)).await, id(1, 100));
    pushed_as(&rig, &rig.write_step(300, &FILES, 3, 5_010), 2).await;
    let of_launch = |source: &Path, in_launch| {
        let writer = Writer {
            launch: Some(LaunchName::new("job-3").unwrap()),
            ..Writer::single_node(NodeName::new("node-0").unwrap())
        };
        let mut request = in_launch_since(Timestamp::from_seconds(5_100), rig.request_of(writer, source));
        request.origin.in_launch = in_launch;
        request
    };
    let saved = rig.write_step(200, &FILES, 22, 5_110);
    let saved = rig.push_as(of_launch(&saved, true)).await.unwrap().id;
    assert_eq!(saved, id(3, 200));
    let older = rig.write_step(400, &FILES, 4, 5_020);
    let older = rig.push_as(of_launch(&older, false)).await.unwrap().id;
    assert_eq!(older, id(2, 400));
    assert_eq!(newest(&rig).await, (saved, weights(22)));
}
