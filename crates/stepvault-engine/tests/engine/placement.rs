use stepvault_core::ErrorKind;
use stepvault_core::ids::Attempt;
use stepvault_engine::push::push;

use crate::harness::{Rig, id, text};

#[tokio::test(flavor = "multi_thread")]
async fn going_back_starts_a_new_attempt_and_newest_follows_it() {
    let mut rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000))
        .await;
    rig.push_durably(&rig.write_step(200, &[("a", 10)], 2, 2_000))
        .await;
    let report = rig
        .push_durably(&rig.write_step(150, &[("a", 10)], 3, 3_000))
        .await;
    assert_eq!(report.id, id(2, 150));
    rig.lose_node();
    assert_eq!(rig.restore().await.unwrap().plan.id, id(2, 150));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_find_joins_its_attempt() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(200, &[("a", 10)], 2, 2_000))
        .await;
    let report = rig
        .push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000))
        .await;
    assert_eq!(report.id, id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_step_is_recognised_after_the_node_was_lost() {
    let mut rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000))
        .await;
    rig.lose_node();
    let restored = rig.restore().await.unwrap();
    let report = rig.push_durably(&restored.plan.path).await;
    assert_eq!((report.id, report.newly_sealed), (id(1, 100), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_under_the_same_step_are_another_attempt_and_an_explicit_one_is_a_conflict() {
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(100, &[("a", 10)], 1, 1_000))
        .await;
    let again = rig.write_step(100, &[("a", 10)], 5, 1_500);
    let mut request = rig.request(&again);
    request.attempt = Some(Attempt::FIRST);
    let (error, _) = text(
        push(
            &rig.vault,
            &rig.remotes,
            request,
            &rig.budget,
            std::time::Duration::ZERO,
            &rig.observer,
        )
        .await,
    );
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(rig.push_durably(&again).await.id, id(2, 100));
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
    assert!(
        error.hint_text().is_some_and(|hint| hint.contains("--step")),
        "{message}"
    );
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
        request.origin.profile = Some("lightning".to_owned());
        request
    };
    let first = rig.push_as(save(3, "epoch=0-step=3", 1, 1_000)).await.unwrap();
    assert_eq!((first.id, first.newly_sealed), (id(1, 3), true));
    let best = save(3, "best-epoch=0-step=3", 2, 1_002);
    let best = rig.push_as(best).await.unwrap();
    assert_eq!((best.id, best.newly_sealed), (id(1, 3), false));
    rig.push_as(save(6, "epoch=1-step=6", 3, 1_010)).await.unwrap();
    let later = rig
        .push_as(save(3, "best-epoch=0-step=3", 2, 1_002))
        .await
        .unwrap();
    assert_eq!(later.id, id(1, 3), "it was found late");

    // The run went back.
    let again = rig
        .push_as(save(3, "best-epoch=0-step=3", 4, 1_020))
        .await
        .unwrap();
    assert_eq!((again.id, again.newly_sealed), (id(2, 3), true));
    // Two files of an unknown trainer may be halves of one step.
    let rig = Rig::with_directory().await;
    rig.push_durably(&rig.write_step(3, &[("a", 10)], 1, 1_000)).await;
    let other = rig.write_step(3, &[("a", 10)], 2, 1_002);
    std::fs::rename(&other, other.with_file_name("optimizer_3")).unwrap();
    let other = rig.push_durably(&other.with_file_name("optimizer_3")).await;
    assert_eq!(other.id, id(2, 3));
}
