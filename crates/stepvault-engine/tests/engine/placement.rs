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
