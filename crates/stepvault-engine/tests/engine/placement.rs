use std::path::Path;

use stepvault_core::ErrorKind;
use stepvault_core::ids::{Attempt, StepId};
use stepvault_core::placement::LiveSave;
use stepvault_engine::push::{PushReport, push};
use stepvault_engine::tier::catalog::read_commit;

use crate::harness::{Rig, id, run_name, text};

/// Pushes a checkpoint that an agent saw appear, `after` another one at or below the highest number.
async fn push_live(rig: &Rig, source: &Path, after: Option<u64>) -> PushReport {
    let mut request = rig.request(source);
    request.origin.live = Some(LiveSave { after: after.map(|step| id(1, step).step) });
    rig.push_as(request).await.unwrap()
}

fn second(id: StepId) -> StepId {
    id.next_revision().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_number_that_was_written_later_moves_nothing_until_two_saves_were_seen() {
    let mut rig = Rig::with_directory().await;
    for step in [100, 200, 300] {
        rig.push_durably(&rig.write_step(step, &[("a", 10)], step, 1_000 + step as i64)).await;
    }
    let late = rig.write_step(150, &[("a", 10)], 3, 3_000);
    assert_eq!(rig.push_durably(&late).await.id, id(1, 150));
    let warned = rig.recorder.warnings.lock().unwrap().join("\n");
    assert!(warned.contains("step 150 was written after step 300 (attempt 1)"), "{warned}");
    let first = push_live(&rig, &rig.write_step(100, &[("a", 11)], 4, 4_000), None).await;
    assert_eq!(first.id, second(id(1, 100)));
    let again = push_live(&rig, &rig.write_step(200, &[("a", 11)], 5, 5_000), Some(100)).await;
    assert_eq!(again.id, id(2, 200));
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(2, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_added_to_an_old_step_becomes_its_revision_and_moves_nothing() {
    let mut rig = Rig::with_directory().await;
    for step in [100, 200] {
        rig.push_durably(&rig.write_step(step, &[("a.pt", 10), ("b.pt", 20)], step, 1_000)).await;
    }
    let old = rig.outputs().join("step_100");
    std::fs::write(old.join("README.md"), "# model card").unwrap();
    let report = rig.push_durably(&old).await;
    assert_eq!((report.id, report.newly_sealed), (second(id(1, 100)), true));
    let commit = read_commit(&rig.remotes[0], report.id).await.unwrap();
    assert!(commit.amends);
    // Files that are gone locally stay stored.
    std::fs::remove_file(old.join("b.pt")).unwrap();
    let unchanged = rig.push_durably(&old).await;
    assert_eq!((unchanged.id, unchanged.newly_sealed), (second(id(1, 100)), false));
    std::fs::write(old.join("eval.json"), "{}").unwrap();
    let completed = rig.push_durably(&old).await;
    assert_eq!(completed.id, second(second(id(1, 100))));
    let record = rig.vault.steps(&run_name()).unwrap().steps;
    let record = record.iter().find(|step| step.id() == completed.id).unwrap().record();
    let names: Vec<&str> = record.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["README.md", "a.pt", "b.pt", "eval.json"]);
    // Without the files that are gone nothing more is stored.
    rig.lose_node();
    let old = rig.write_step(100, &[("a.pt", 10)], 100, 1_000);
    std::fs::write(old.join("more.json"), "{}").unwrap();
    let (error, message) = text(rig.push(&old).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(message.contains("others of step 100 (attempt 1, revision 3) are gone"), "{message}");
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_without_its_times_is_the_same_step() {
    let mut rig = Rig::with_directory().await;
    for (step, written) in [(300, 1_000), (200, 1_002), (100, 1_004)] {
        let found = rig.push_durably(&rig.write_step(step, &[("a", 10)], step, written)).await;
        assert_eq!(found.id, id(1, step));
    }
    let copied = rig.push_durably(&rig.write_step(100, &[("a", 10)], 100, 9_000)).await;
    assert_eq!((copied.id, copied.newly_sealed), (id(1, 100), false));
    rig.lose_node();
    let copied = rig.push_durably(&rig.write_step(200, &[("a", 10)], 200, 9_001)).await;
    assert_eq!(copied.id, id(1, 200));
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_find_joins_its_attempt() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(200, &[("a", 10)], 2, 2_000)).await;
    let report = rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000)).await;
    assert_eq!(report.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_step_is_recognised_after_the_node_was_lost() {
    let mut rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000)).await;
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    let report = rig.push_durably(&restored.plan.path).await;
    assert_eq!((report.id, report.newly_sealed), (id(1, 100), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_under_the_same_step_stay_beside_it_and_in_a_given_attempt_are_a_conflict() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000)).await;
    let again = rig.write_step(100, &[("a", 10)], 5, 1_500);
    let mut request = rig.request(&again);
    request.attempt = Some(Attempt::FIRST);
    let (error, _) = text(
        push(&rig.vault, &rig.remotes, request, &rig.budget, std::time::Duration::ZERO, &rig.observer).await,
    );
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(rig.push_durably(&again).await.id, second(id(1, 100)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_pushed_is_named() {
    let rig = Rig::with_directory().await;
    let (error, message) = text(rig.push(&rig.outputs().join("step_1")).await);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(message.contains("step_1"), "{message}");
    let nameless = rig.outputs().join("final");
    std::fs::create_dir_all(&nameless).unwrap();
    let (error, message) = text(rig.push(&nameless).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.hint_text().is_some_and(|hint| hint.contains("--step")), "{message}");
    let empty = rig.outputs().join("step_2");
    std::fs::create_dir_all(&empty).unwrap();
    let (_, message) = text(rig.push(&empty).await);
    assert!(message.contains("holds no file"), "{message}");
}

/// The names of two callbacks for one step, the second written a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_name_of_a_step_begins_no_attempt() {
    let rig = Rig::with_directory().await;
    let save = |step: u64, name: &str, seed: u64, written_seconds: i64| {
        let path = rig.write_step(step, &[("a", 10)], seed, written_seconds);
        let named = path.with_file_name(name);
        let _ = std::fs::remove_dir_all(&named);
        std::fs::rename(path, &named).unwrap();
        let mut request = rig.request(&named);
        request.checkpoint.origin.profile = Some("lightning".to_owned());
        request
    };
    let first = rig.push_as(save(3, "epoch=0-step=3", 1, 1_000)).await.unwrap();
    assert_eq!((first.id, first.newly_sealed), (id(1, 3), true));
    let best = save(3, "best-epoch=0-step=3", 2, 1_002);
    let best = rig.push_as(best).await.unwrap();
    assert_eq!((best.id, best.newly_sealed), (id(1, 3), false));
    rig.push_as(save(6, "epoch=1-step=6", 3, 1_010)).await.unwrap();
    let later = rig.push_as(save(3, "best-epoch=0-step=3", 2, 1_002)).await.unwrap();
    assert_eq!(later.id, id(1, 3), "it was found late");

    // The run went back.
    let mut again = save(3, "best-epoch=0-step=3", 4, 1_020);
    again.origin.live = Some(LiveSave { after: Some(id(1, 2).step) });
    let again = rig.push_as(again).await.unwrap();
    assert_eq!((again.id, again.newly_sealed), (id(2, 3), true));
    // Two files of an unknown trainer may be halves of one step.
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(3, &[("a", 10)], 1, 1_000)).await;
    let other = rig.write_step(3, &[("a", 10)], 2, 1_002);
    std::fs::rename(&other, other.with_file_name("optimizer_3")).unwrap();
    let (error, message) = text(rig.push(&other.with_file_name("optimizer_3")).await);
    assert_eq!(error.kind(), ErrorKind::Usage, "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_without_a_number_have_the_next_one_and_prove_nothing() {
    let mut rig = Rig::with_directory().await;
    let numbered = async |rig: &Rig, step: u64, after: Option<u64>| {
        let path = rig.write_step(step, &[("a.pt", 10)], step, 1_000 + step as i64 * 10);
        push_live(rig, &path, after).await.id
    };
    let latest = async |rig: &Rig, seed: u64, written: i64| {
        let path = rig.write_step(999, &[("a.pt", 10)], seed, written);
        let named = path.with_file_name("latest");
        let _ = std::fs::remove_dir_all(&named);
        std::fs::rename(path, &named).unwrap();
        let mut request = rig.request(&named);
        request.checkpoint.origin.rewritten = true;
        let pushed = rig.push_as(request).await.unwrap();
        let commit = read_commit(&rig.remotes[0], pushed.id).await.unwrap();
        assert!(commit.unnumbered);
        (pushed.id, commit.amends)
    };
    assert_eq!(numbered(&rig, 1, None).await, id(1, 1));
    assert_eq!(latest(&rig, 11, 1_011).await, (id(1, 2), false));
    assert_eq!(latest(&rig, 12, 1_012).await, (second(id(1, 2)), true));
    // Another vault knows it from the remote.
    rig.lose_node();
    assert_eq!(latest(&rig, 12, 1_012).await, (second(id(1, 2)), true));
    let third = second(second(id(1, 2)));
    assert_eq!(numbered(&rig, 2, Some(1)).await, third, "the run did not go back");
    assert_eq!(latest(&rig, 13, 1_021).await, (id(1, 3), false));
    assert_eq!(numbered(&rig, 3, Some(2)).await, second(id(1, 3)));
    assert_eq!(rig.restore().await.unwrap().plan.id, second(id(1, 3)));
}
