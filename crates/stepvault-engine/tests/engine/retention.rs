use std::collections::BTreeSet;

use stepvault_core::ErrorKind;
use stepvault_core::ids::StepId;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_engine::leases::HeldLease;
use stepvault_engine::prune::{LocalPrune, PruneReport, RemotePrune, plan_remote, prune_local, prune_remote};
use stepvault_engine::{catalog, pins};
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, id, run_name, text};

fn last(count: u32) -> KeepRules {
    KeepRules {
        last: Some(count),
        ..KeepRules::default()
    }
}

fn remote_prune(rig: &Rig, rules: KeepRules) -> RemotePrune {
    RemotePrune {
        remote: rig.remotes[0].clone(),
        rules,
        maximum_deletions: None,
        pinned_elsewhere: BTreeSet::new(),
        observer: rig.observer.clone(),
    }
}

async fn evict(rig: &Rig, rules: KeepRules) -> PruneReport {
    let prune = LocalPrune {
        vault: rig.vault.clone(),
        run: run_name(),
        remotes: rig.remotes.clone(),
        rules,
        limits: LocalLimits::default(),
        maximum_deletions: None,
        uploading: BTreeSet::new(),
        observer: rig.observer.clone(),
    };
    prune_local(&prune).await.unwrap()
}

async fn five_steps() -> Rig {
    let rig = Rig::with_directory().await;
    for step in 1..=5_u64 {
        rig.push_durably(&rig.write_step(step, &[("a/b.bin", 1000)], step, step as i64 * 1_000))
            .await;
    }
    rig
}

async fn committed(rig: &Rig) -> Vec<StepId> {
    catalog::committed_ids(&rig.remotes[0])
        .await
        .unwrap()
        .into_keys()
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_decides_the_same_and_deletes_nothing() {
    let rig = five_steps().await;
    let before = crate::harness::snapshot(&rig.remote_root());
    let plan = plan_remote(&remote_prune(&rig, last(2))).await.unwrap();
    assert_eq!(plan.deletions().len(), 3);
    assert_eq!(crate::harness::snapshot(&rig.remote_root()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_removes_commit_data_and_records_and_spends_the_name() {
    let rig = five_steps().await;
    let report = prune_remote(&remote_prune(&rig, last(2))).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2), id(1, 3)]);
    assert_eq!(committed(&rig).await, [id(1, 4), id(1, 5)]);
    let left: Vec<String> = crate::harness::snapshot(&rig.remote_root())
        .into_iter()
        .filter(|(path, (body, ..))| body.is_some() && path.to_string_lossy().contains("000000000001.a1"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_eq!(
        left,
        ["grpo/checkpoints/.stepvault/tombstones/000000000001.a1.json"]
    );
    assert!(
        !rig.remote_root()
            .join("grpo/checkpoints/000000000001.a1")
            .exists()
    );
    // The trainer's old directory is still there: it is not taken over again, and never becomes the newest.
    let (error, message) = text(push_fresh(&rig, 1).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{message}");
}

async fn push_fresh(rig: &Rig, step: u64) -> stepvault_core::Result<stepvault_engine::push::PushReport> {
    rig.vault.evict(&run_name(), id(1, step)).unwrap();
    rig.push(&rig.outputs().join(format!("step_{step}"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_and_leases_hold() {
    let rig = five_steps().await;
    assert!(pins::pin(&rig.remotes[0], id(1, 1), "paper").await.unwrap());
    let lease = HeldLease::on_step(&rig.remotes[0], id(1, 2)).await.unwrap();
    let report = prune_remote(&remote_prune(&rig, last(1))).await.unwrap();
    assert_eq!(report.removed, [id(1, 3), id(1, 4)]);
    lease.release().await.unwrap();
    assert!(pins::unpin(&rig.remotes[0], id(1, 1)).await.unwrap());
    let report = prune_remote(&remote_prune(&rig, last(1))).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
    assert_eq!(committed(&rig).await, [id(1, 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_would_delete_everything_is_refused() {
    let rig = five_steps().await;
    let (error, _) = text(prune_remote(&remote_prune(&rig, last(0))).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(committed(&rig).await.len(), 5);
}

/// A pin and a removal that do not see each other until one of them looks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_beside_a_tombstone_holds_whichever_came_first_and_the_late_one_is_told() {
    let rig = five_steps().await;
    let remote = &rig.remotes[0];
    let tombstone = async |step: u64| {
        let tombstone = stepvault_core::records::Tombstone {
            format: 1,
            run: run_name(),
            id: id(1, step),
            name: format!("step_{step}"),
            by_sweep: false,
        };
        remote
            .create_record(&remote.keys.tombstone(id(1, step)), &tombstone)
            .await
            .unwrap();
    };
    assert!(pins::pin(remote, id(1, 2), "paper").await.unwrap());
    tombstone(2).await;
    tombstone(3).await;
    let (error, message) = text(pins::pin(remote, id(1, 3), "").await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(message.ends_with("retention is removing it"), "{message}");
    let report = prune_remote(&remote_prune(&rig, last(2))).await.unwrap();
    // Which of the two pins was in time nobody can tell who reads them later.
    assert_eq!(report.removed, [id(1, 1)], "{report:?}");
    assert_eq!(committed(&rig).await, [id(1, 2), id(1, 3), id(1, 4), id(1, 5)]);
    assert_eq!(catalog::tombstones(remote).await.unwrap(), [id(1, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_was_cut_off_is_finished_by_the_next_prune() {
    let rig = five_steps().await;
    let tombstone = stepvault_core::records::Tombstone {
        format: 1,
        run: run_name(),
        id: id(1, 2),
        name: "step_2".to_owned(),
        by_sweep: false,
    };
    let remote = &rig.remotes[0];
    remote
        .create_record(&remote.keys.tombstone(id(1, 2)), &tombstone)
        .await
        .unwrap();
    let report = prune_remote(&remote_prune(&rig, last(4))).await.unwrap();
    assert!(report.removed.contains(&id(1, 2)), "{report:?}");
    assert!(
        !rig.remote_root()
            .join("grpo/checkpoints/000000000002.a1")
            .exists()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn local_copies_go_only_while_the_remote_confirms_them() {
    let rig = five_steps().await;
    std::fs::remove_file(
        rig.remote_root()
            .join("grpo/checkpoints/.stepvault/commits/000000000002.a1.json"),
    )
    .unwrap();
    let report = evict(&rig, last(2)).await;
    assert_eq!(report.removed, [id(1, 1), id(1, 3)]);
    assert_eq!(report.spared.len(), 1);
    assert!(report.spared[0].1.contains("missing"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_only_staged_is_never_evicted() {
    let server = StrictS3::start();
    let mut rig = Rig::new();
    rig.add_s3("aws", &server).await;
    rig.push_durably(&rig.write_step(1, &[("a", 10)], 1, 1_000)).await;
    let remotes = std::mem::take(&mut rig.remotes);
    rig.push(&rig.write_step(2, &[("a", 10)], 2, 2_000))
        .await
        .unwrap();
    rig.push(&rig.write_step(3, &[("a", 10)], 3, 3_000))
        .await
        .unwrap();
    rig.remotes = remotes;
    let report = evict(&rig, last(1)).await;
    assert_eq!(report.removed, [id(1, 1)]);
    drop(server);
    let report = evict(&rig, last(1)).await;
    assert_eq!(report.removed, []);
}
