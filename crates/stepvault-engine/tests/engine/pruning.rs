//! What a prune looks at before it removes anything, and what holds it back at the last moment.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use stepvault_core::ErrorKind;
use stepvault_core::codec::encode;
use stepvault_core::ids::StepId;
use stepvault_core::records::{Lease, Tombstone};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::{KeepRules, LocalLimits, Verdict};
use stepvault_engine::catalog;
use stepvault_engine::leases::HeldLease;
use stepvault_engine::prune::{LocalPrune, RemotePrune, plan_local, prune_local, prune_remote};
use stepvault_local::sealed::UploadState;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name, snapshot, text};

fn prune(rig: &Rig, last: u32) -> RemotePrune {
    RemotePrune {
        remote: rig.remotes[0].clone(),
        rules: KeepRules {
            last: Some(last),
            ..KeepRules::default()
        },
        maximum_deletions: None,
        pinned_elsewhere: BTreeSet::new(),
        observer: rig.observer.clone(),
    }
}

fn evict(rig: &Rig, last: u32) -> LocalPrune {
    LocalPrune {
        vault: rig.vault.clone(),
        run: run_name(),
        remotes: rig.remotes.clone(),
        rules: prune(rig, last).rules,
        limits: LocalLimits::default(),
        maximum_deletions: None,
        uploading: BTreeSet::new(),
        observer: rig.observer.clone(),
    }
}

async fn push_steps(rig: &Rig, count: u64) {
    for step in 1..=count {
        rig.push_durably(&rig.write_step(step, &[("x", 100), ("y", 7)], step, step as i64 * 1_000))
            .await;
    }
}

async fn steps(count: u64) -> Rig {
    let rig = Rig::with_directory().await;
    push_steps(&rig, count).await;
    rig
}

async fn committed(rig: &Rig) -> Vec<StepId> {
    catalog::committed_ids(&rig.remotes[0])
        .await
        .unwrap()
        .into_keys()
        .collect()
}

/// Somebody's lease, last renewed so long ago.
fn leave_lease(rig: &Rig, key: &str, time_to_live_seconds: u64, ago: Duration) {
    let lease = Lease {
        format: 1,
        holder: "somebody".to_owned(),
        purpose: "prune".to_owned(),
        time_to_live_seconds,
    };
    let path = rig.remote_root().join(key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, encode(&lease).unwrap()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - ago).unwrap();
}

async fn tombstone(rig: &Rig, step: u64) {
    let tombstone = Tombstone {
        format: 1,
        run: run_name(),
        id: id(1, step),
        name: format!("step_{step}"),
        by_sweep: false,
    };
    let remote = &rig.remotes[0];
    remote
        .create_record(&remote.keys.tombstone(id(1, step)), &tombstone)
        .await
        .unwrap();
}

#[tokio::test]
async fn of_two_pruners_the_one_with_the_lower_key_goes_on() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let rig = steps(2).await;
    let keys = &rig.remotes[0].keys;
    let (lower, higher) = (
        keys.prune_lease(&"0".repeat(32)),
        keys.prune_lease(&"f".repeat(32)),
    );
    leave_lease(&rig, &lower, 120, Duration::ZERO);
    let (error, message) = text(prune_remote(&prune(&rig, 1)).await);
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(
        message.ends_with(&format!("holder {}", "0".repeat(32))),
        "{message}"
    );
    assert_eq!(committed(&rig).await.len(), 2);

    // A killed one's runs out.
    leave_lease(&rig, &lower, 120, HOUR);
    leave_lease(&rig, &higher, 120, Duration::ZERO);
    // A reader is no pruner.
    leave_lease(&rig, &keys.lease(id(1, 2), &"0".repeat(32)), 900, Duration::ZERO);
    let report = prune_remote(&prune(&rig, 1)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
}

#[tokio::test]
async fn a_tombstoned_step_that_is_being_restored_goes_at_the_next_prune() {
    let rig = steps(4).await;
    let keys = rig.remotes[0].keys.clone();
    tombstone(&rig, 1).await;
    tombstone(&rig, 2).await;
    // Somebody stopped reading step 1 long ago, and somebody reads step 3.
    leave_lease(
        &rig,
        &keys.lease(id(1, 1), "gone"),
        900,
        Duration::from_secs(1_000),
    );
    let readers = [
        HeldLease::on_step(&rig.remotes[0], id(1, 2)).await.unwrap(),
        HeldLease::on_step(&rig.remotes[0], id(1, 3)).await.unwrap(),
    ];
    let report = prune_remote(&prune(&rig, 4)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert_eq!(
        report.spared,
        [(
            id(1, 2),
            "it is being restored; the next prune deletes it".to_owned()
        )]
    );
    assert!(
        rig.remote_root()
            .join("grpo/checkpoints/000000000002.a1/step_2/x")
            .exists()
    );
    for reader in readers {
        reader.release().await.unwrap();
    }
    let report = prune_remote(&prune(&rig, 4)).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
    assert!(
        !rig.remote_root()
            .join("grpo/checkpoints/000000000002.a1")
            .exists()
    );
}

#[tokio::test]
async fn a_prune_removes_the_files_of_what_it_drops_and_no_others() {
    let rig = steps(4).await;
    let run = rig.remote_root().join("grpo/checkpoints");
    let files = || [2, 3, 4].map(|step| snapshot(&run.join(format!("{step:012}.a1/step_{step}"))));
    let before = files();
    let report = prune_remote(&prune(&rig, 3)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert!(!run.join("000000000001.a1/step_1").exists());
    assert_eq!(files(), before);
}

#[tokio::test]
async fn a_kept_step_that_lacks_a_file_takes_no_place() {
    let rig = steps(5).await;
    std::fs::remove_file(
        rig.remote_root()
            .join("grpo/checkpoints/000000000004.a1/step_4/y"),
    )
    .unwrap();
    let report = prune_remote(&prune(&rig, 2)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
    assert_eq!(committed(&rig).await, [id(1, 3), id(1, 4), id(1, 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_looks_at_what_it_relies_on_and_at_nothing_else() {
    let server = StrictS3::start();
    let mut rig = Rig::new();
    rig.add_s3("aws", &server).await;
    push_steps(&rig, 3).await;
    let looked_at = |step: u64| {
        let manifest = format!("parts/{step:012}.a1/node-0.json");
        asked(server.faults(), "GET", &manifest)
    };
    server.faults().clear_requests();
    // Nothing would go: there is nothing to rely on.
    let report = prune_remote(&prune(&rig, 3)).await.unwrap();
    assert!(report.removed.is_empty());
    assert_eq!([1, 2, 3].map(looked_at), [0, 0, 0]);
    let report = prune_remote(&prune(&rig, 2)).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert_eq!(looked_at(1), 1, "it goes anyway: what it names is deleted");
    assert!(looked_at(2) > 0 && looked_at(3) > 0, "they are relied on");
}

#[tokio::test]
async fn a_local_copy_stays_where_the_commit_is_not_the_acknowledged_one() {
    let rig = steps(3).await;
    let remote = &rig.remotes[0];
    let commit = rig.remote_root().join(remote.keys.commit(id(1, 1)));
    let bytes = std::fs::read(&commit).unwrap();
    std::fs::write(&commit, [bytes.as_slice(), b" "].concat()).unwrap();
    let prune = evict(&rig, 1);
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
    assert_eq!(
        report.spared,
        [(
            id(1, 1),
            "its commit on disk is not the one that was acknowledged".to_owned()
        )]
    );
}

#[tokio::test]
async fn a_local_copy_goes_once_retention_removed_the_step_everywhere_else() {
    let rig = steps(3).await;
    let removed = prune_remote(&prune(&rig, 1)).await.unwrap().removed;
    assert_eq!(removed, [id(1, 1), id(1, 2)]);
    let prune = evict(&rig, 1);
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
}

#[tokio::test]
async fn what_was_durable_at_another_place_is_not_durable_here() {
    let rig = steps(3).await;
    let name = rig.remotes[0].name();
    let step = rig.vault.step(&run_name(), id(1, 1)).unwrap().unwrap();
    let mut state = step.remote_state(name).unwrap().unwrap();
    state.url = "file:///elsewhere".to_owned();
    step.save_remote_state(&state).unwrap();
    // And one that has only come half-way.
    let step = rig.vault.step(&run_name(), id(1, 2)).unwrap().unwrap();
    let mut state = step.remote_state(name).unwrap().unwrap();
    state.state = UploadState::Uploaded;
    step.save_remote_state(&state).unwrap();
    let plan = plan_local(&evict(&rig, 1)).await.unwrap();
    assert!(plan.deletions().is_empty(), "{plan:?}");
    for step in [1, 2] {
        assert_eq!(
            plan.decision(id(1, step)).unwrap().reasons,
            ["not durable on disk", "last verified copy"]
        );
    }
}

/// Three steps on a directory and on a server that then answers nothing but `status`.
async fn with_a_second_remote(server: &StrictS3, required: bool, status: u16, code: &str) -> Rig {
    let mut rig = Rig::with_directory().await;
    server.create_bucket("bucket");
    let keys = StaticKeys {
        access_key: server.access_key().to_owned(),
        secret_key: server.secret_key().to_owned(),
    };
    let endpoint = server.endpoint();
    let adjust = |settings: &mut RemoteSettings| {
        settings.endpoint = Some(endpoint);
        settings.required = required;
        settings.retry_deadline_seconds = 1;
    };
    rig.add("aws", "s3://bucket/prefix", adjust, Some(keys)).await;
    push_steps(&rig, 3).await;
    let action = FaultAction::refuse(status, code);
    for method in ["GET", "HEAD"] {
        server.faults().inject(method, "", u64::MAX, action.clone());
    }
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_that_nobody_requires_may_be_away_when_another_confirms() {
    let server = StrictS3::start();
    let rig = with_a_second_remote(&server, false, 503, "SlowDown").await;
    let prune = evict(&rig, 2);
    let report = prune_local(&prune).await.unwrap();
    assert_eq!((report.removed, report.spared), (vec![id(1, 1)], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_that_is_required_or_refuses_to_answer_holds_the_local_copy() {
    for (required, status, code) in [(true, 503, "SlowDown"), (false, 403, "AccessDenied")] {
        let server = StrictS3::start();
        let rig = with_a_second_remote(&server, required, status, code).await;
        let prune = evict(&rig, 2);
        let report = prune_local(&prune).await.unwrap();
        assert!(report.removed.is_empty(), "{code}");
        assert_eq!(report.spared[0].0, id(1, 1));
        let reason = &report.spared[0].1;
        assert!(reason.starts_with("aws is unreachable: "), "{reason}");
    }
}

/// Damages what the remote holds of step 1 of three, and prunes the vault to one step.
async fn evicted_over(damage: impl FnOnce(&std::path::Path)) -> (Vec<StepId>, Vec<(StepId, String)>) {
    let rig = steps(3).await;
    damage(&rig.remote_root().join("grpo/checkpoints/000000000001.a1/step_1"));
    let report = prune_local(&evict(&rig, 1)).await.unwrap();
    assert!(rig.vault.step(&run_name(), id(1, 1)).unwrap().is_some());
    (report.removed, report.spared)
}

#[tokio::test]
async fn a_local_copy_stays_where_the_remote_has_its_commit_and_not_its_data() {
    let missing = evicted_over(|data| std::fs::remove_file(data.join("x")).unwrap()).await;
    let shorter = evicted_over(|data| std::fs::write(data.join("y"), "cut").unwrap()).await;
    for ((removed, spared), fault) in [(missing, "x is missing"), (shorter, "y has 3 bytes instead of 7")] {
        assert_eq!(removed, [id(1, 2)]);
        let reason = format!("its data on disk is not what was uploaded: {fault}");
        assert_eq!(spared, [(id(1, 1), reason)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_lists_and_compares_checksums_and_reads_no_data_back() {
    let server = StrictS3::start();
    let mut rig = Rig::new();
    rig.add_s3("aws", &server).await;
    push_steps(&rig, 2).await;
    server.faults().clear_requests();
    let report = prune_local(&evict(&rig, 1)).await.unwrap();
    assert_eq!((report.removed, report.spared), (vec![id(1, 1)], vec![]));
    let of_data =
        |method: &str, name: &str| asked(server.faults(), method, &format!("000000000001.a1/step_1/{name}"));
    assert_eq!(
        [of_data("GET", "x"), of_data("GET", "y")],
        [0, 0],
        "nothing is read back"
    );
    assert_eq!([of_data("HEAD", "x"), of_data("HEAD", "y")], [1, 1]);
    let listings = asked(server.faults(), "GET", "checkpoints%2F000000000001.a1%2F");
    assert_eq!(listings, 1, "the data is listed once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_checksum_is_another_holds_the_local_copy() {
    let server = StrictS3::start();
    let mut rig = Rig::new();
    rig.add_s3("aws", &server).await;
    push_steps(&rig, 3).await;
    // Somebody put other bytes of the same length there, with their own checksum.
    server.objects().with(|objects| {
        let other = objects
            .iter()
            .find(|(key, _)| key.ends_with("000000000002.a1/step_2/x"))
            .unwrap()
            .1
            .clone();
        let key = objects
            .keys()
            .find(|key| key.ends_with("000000000001.a1/step_1/x"))
            .unwrap()
            .clone();
        objects.insert(key, other);
    });
    let report = prune_local(&evict(&rig, 1)).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
    assert!(
        report.spared[0]
            .1
            .ends_with("x: the store's checksum differs from the recorded one"),
        "{:?}",
        report.spared
    );
}

#[tokio::test]
async fn a_step_that_is_spared_makes_no_room_and_others_go_in_its_place() {
    let rig = steps(5).await;
    let commit = rig.remote_root().join(rig.remotes[0].keys.commit(id(1, 1)));
    std::fs::remove_file(commit).unwrap();
    let prune = LocalPrune {
        rules: KeepRules::default(),
        limits: LocalLimits {
            maximum_bytes: Some(3 * 107),
            ..LocalLimits::default()
        },
        ..evict(&rig, 1)
    };
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 2), id(1, 3)]);
    assert_eq!(
        report.spared,
        [(id(1, 1), "its commit is missing on disk".to_owned())]
    );
    // The plan tells what came of it in the end.
    let verdicts = report.plan.decisions.iter();
    let kept = verdicts.filter(|decision| decision.verdict == Verdict::Keep);
    assert_eq!(
        kept.map(|decision| decision.id).collect::<Vec<_>>(),
        [id(1, 1), id(1, 4), id(1, 5)]
    );
    assert_eq!(report.plan.freed_bytes, 2 * 107);
}

#[tokio::test]
async fn spared_steps_do_not_count_towards_the_most_that_may_be_deleted() {
    let rig = steps(4).await;
    std::fs::remove_file(
        rig.remote_root()
            .join("grpo/checkpoints/000000000001.a1/step_1/x"),
    )
    .unwrap();
    let prune = LocalPrune {
        maximum_deletions: Some(1),
        ..evict(&rig, 1)
    };
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
}
