//! Retention: what a prune looks at before it removes anything, what it removes, and what holds it back.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use stepvault_core::ErrorKind;
use stepvault_core::codec::encode;
use stepvault_core::given_up::GivenUpStep;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::records::Lease;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::{KeepRules, LocalLimits, Verdict};
use stepvault_engine::node_records::{read_given_up, read_given_up_on, write_given_up};
use stepvault_engine::prune::{
    LocalPrune, PruneReport, plan_local, plan_remote, prune_local, prune_local_runs,
};
use stepvault_engine::push::PushReport;
use stepvault_engine::tier::leases::HeldLease;
use stepvault_engine::tier::{catalog, removed, step_state};
use stepvault_local::sealed::UploadState;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name, snapshot, text};

/// Somebody's lease, last renewed so long ago.
fn leave_lease(rig: &Rig, key: &str, time_to_live_seconds: u64, ago: Duration) {
    let lease =
        Lease { format: 1, holder: "somebody".to_owned(), purpose: "prune".to_owned(), time_to_live_seconds };
    let path = rig.remote_root().join(key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, encode(&lease).unwrap()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - ago).unwrap();
}

#[tokio::test]
async fn of_two_pruners_the_one_with_the_lower_key_goes_on() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let rig = Rig::with_steps(2).await;
    let keys = &rig.remotes[0].keys;
    let (lower, higher) = (keys.prune_lease(&"0".repeat(32)), keys.prune_lease(&"f".repeat(32)));
    leave_lease(&rig, &lower, 120, Duration::ZERO);
    let (error, message) = text(rig.prune(1).await);
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(message.ends_with(&format!("holder {}", "0".repeat(32))), "{message}");
    assert_eq!(rig.committed().await.len(), 2);

    // A killed one's runs out.
    leave_lease(&rig, &lower, 120, HOUR);
    leave_lease(&rig, &higher, 120, Duration::ZERO);
    // A reader is no pruner.
    leave_lease(&rig, &keys.lease(id(1, 2), &"0".repeat(32)), 900, Duration::ZERO);
    // The other one has looked before this one was there, and works: S7.
    let (error, message) = text(rig.prune(1).await);
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(message.ends_with(&format!("holder {}", "f".repeat(32))), "{message}");
    assert_eq!(rig.committed().await.len(), 2);
    // Or it sees this one, and gives way.
    let path = rig.remote_root().join(&higher);
    let gives_way = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        std::fs::remove_file(path).unwrap();
    };
    let (report, ()) = tokio::join!(rig.prune(1), gives_way);
    assert_eq!(report.unwrap().removed, [id(1, 1)]);
}

#[tokio::test]
async fn a_tombstoned_step_that_is_being_restored_goes_at_the_next_prune() {
    let rig = Rig::with_steps(4).await;
    let keys = rig.remotes[0].keys.clone();
    rig.tombstone(1).await;
    rig.tombstone(2).await;
    // Somebody stopped reading step 1 long ago, and somebody reads step 3.
    leave_lease(&rig, &keys.lease(id(1, 1), "gone"), 900, Duration::from_secs(1_000));
    let readers = [
        HeldLease::on_step(&rig.remotes[0], id(1, 2)).await.unwrap(),
        HeldLease::on_step(&rig.remotes[0], id(1, 3)).await.unwrap(),
    ];
    let report = rig.prune(4).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert_eq!(report.spared, [(id(1, 2), "it is being restored; the next prune deletes it".to_owned())]);
    assert!(rig.data_of(2).join("step_2/x").exists());
    for reader in readers {
        reader.release().await.unwrap();
    }
    let report = rig.prune(4).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
    assert!(!rig.data_of(2).exists());
}

#[tokio::test]
async fn a_prune_removes_the_files_of_what_it_drops_and_no_others() {
    let rig = Rig::with_steps(4).await;
    let run = rig.remote_root().join("grpo/checkpoints");
    let files = || [2, 3, 4].map(|step| snapshot(&run.join(format!("{step:012}.a1/step_{step}"))));
    let before = files();
    let report = rig.prune(3).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert!(!run.join("000000000001.a1/step_1").exists());
    assert_eq!(files(), before);
}

#[tokio::test]
async fn a_kept_step_that_lacks_a_file_takes_no_place() {
    let rig = Rig::with_steps(5).await;
    std::fs::remove_file(rig.data_of(4).join("step_4/y")).unwrap();
    let report = rig.prune(2).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
    assert_eq!(rig.committed().await, [id(1, 3), id(1, 4), id(1, 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_looks_at_what_it_relies_on_and_at_nothing_else() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    let looked_at = |step: u64| {
        let manifest = format!("parts/{step:012}.a1/node-0.json");
        asked(server.faults(), "GET", &manifest)
    };
    server.faults().clear_requests();
    // Nothing would go: there is nothing to rely on.
    let report = rig.prune(3).await.unwrap();
    assert!(report.removed.is_empty());
    assert_eq!([1, 2, 3].map(looked_at), [0, 0, 0]);
    let report = rig.prune(2).await.unwrap();
    assert_eq!(report.removed, [id(1, 1)]);
    assert_eq!(looked_at(1), 1, "it goes anyway: what it names is deleted");
    assert!(looked_at(2) > 0 && looked_at(3) > 0, "they are relied on");
}

#[tokio::test]
async fn a_local_copy_stays_where_the_commit_is_not_the_acknowledged_one() {
    let rig = Rig::with_steps(3).await;
    let remote = &rig.remotes[0];
    let commit = rig.remote_root().join(remote.keys.commit(id(1, 1)));
    let bytes = std::fs::read(&commit).unwrap();
    std::fs::write(&commit, [bytes.as_slice(), b" "].concat()).unwrap();
    let report = rig.evict(1).await;
    assert_eq!(report.removed, [id(1, 2)]);
    assert_eq!(
        report.spared,
        [(id(1, 1), "its commit on disk is not the one that was acknowledged".to_owned())]
    );
}

#[tokio::test]
async fn a_local_copy_goes_once_retention_removed_the_step_everywhere_else() {
    let rig = Rig::with_steps(3).await;
    let removed = rig.prune(1).await.unwrap().removed;
    assert_eq!(removed, [id(1, 1), id(1, 2)]);
    let report = rig.evict(1).await;
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
}

#[tokio::test]
async fn what_was_durable_at_another_place_is_not_durable_here() {
    let rig = Rig::with_steps(3).await;
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
    let plan = plan_local(&rig.local_prune(1)).await.unwrap();
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
    let keys =
        StaticKeys { access_key: server.access_key().to_owned(), secret_key: server.secret_key().to_owned() };
    let endpoint = server.endpoint();
    let adjust = |settings: &mut RemoteSettings| {
        settings.endpoint = Some(endpoint);
        settings.required = required;
        settings.retry_deadline_seconds = 1;
    };
    rig.add("aws", "s3://bucket/prefix", adjust, Some(keys)).await;
    rig.push_steps(3).await;
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
    let report = rig.evict(2).await;
    assert_eq!((report.removed, report.spared), (vec![id(1, 1)], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_that_is_required_or_refuses_to_answer_holds_the_local_copy() {
    for (required, status, code) in [(true, 503, "SlowDown"), (false, 403, "AccessDenied")] {
        let server = StrictS3::start();
        let rig = with_a_second_remote(&server, required, status, code).await;
        let report = rig.evict(2).await;
        assert!(report.removed.is_empty(), "{code}");
        assert_eq!(report.spared[0].0, id(1, 1));
        let reason = &report.spared[0].1;
        assert!(reason.starts_with("aws is unreachable: "), "{reason}");
    }
}

/// Damages what the remote holds of step 1 of three, and prunes the vault to one step.
async fn evicted_over(damage: impl FnOnce(&std::path::Path)) -> (Vec<StepId>, Vec<(StepId, String)>) {
    let rig = Rig::with_steps(3).await;
    damage(&rig.data_of(1).join("step_1"));
    let report = rig.evict(1).await;
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
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(2).await;
    server.faults().clear_requests();
    let report = rig.evict(1).await;
    assert_eq!((report.removed, report.spared), (vec![id(1, 1)], vec![]));
    let of_data =
        |method: &str, name: &str| asked(server.faults(), method, &format!("000000000001.a1/step_1/{name}"));
    assert_eq!([of_data("GET", "x"), of_data("GET", "y")], [0, 0], "nothing is read back");
    assert_eq!([of_data("HEAD", "x"), of_data("HEAD", "y")], [1, 1]);
    let listings = asked(server.faults(), "GET", "checkpoints%2F000000000001.a1%2F");
    assert_eq!(listings, 1, "the data is listed once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_checksum_is_another_holds_the_local_copy() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    rig.push_steps(3).await;
    // Somebody put other bytes of the same length there, with their own checksum.
    server.objects().with(|objects| {
        let other =
            objects.iter().find(|(key, _)| key.ends_with("000000000002.a1/step_2/x")).unwrap().1.clone();
        let key = objects.keys().find(|key| key.ends_with("000000000001.a1/step_1/x")).unwrap().clone();
        objects.insert(key, other);
    });
    let report = rig.evict(1).await;
    assert_eq!(report.removed, [id(1, 2)]);
    assert!(
        report.spared[0].1.ends_with("x: the store's checksum differs from the recorded one"),
        "{:?}",
        report.spared
    );
}

#[tokio::test]
async fn a_step_that_is_spared_makes_no_room_and_others_go_in_its_place() {
    let rig = Rig::with_steps(5).await;
    let commit = rig.remote_root().join(rig.remotes[0].keys.commit(id(1, 1)));
    std::fs::remove_file(commit).unwrap();
    let prune = LocalPrune {
        rules: KeepRules::default(),
        limits: LocalLimits { maximum_bytes: Some(3 * 107), ..LocalLimits::default() },
        ..rig.local_prune(1)
    };
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 2), id(1, 3)]);
    assert_eq!(report.spared, [(id(1, 1), "its commit is missing on disk".to_owned())]);
    // The plan tells what came of it in the end.
    let verdicts = report.plan.decisions.iter();
    let kept = verdicts.filter(|decision| decision.verdict == Verdict::Keep);
    assert_eq!(kept.map(|decision| decision.id).collect::<Vec<_>>(), [id(1, 1), id(1, 4), id(1, 5)]);
    assert_eq!(report.plan.freed_bytes, 2 * 107);
}

/// Evicts what is durable, then gives up what is not, for a disk that never has enough room. The trainer has deleted its
/// own files, which may be hard links to those of the vault.
async fn pruned_for_space(rig: &Rig) -> PruneReport {
    std::fs::remove_dir_all(rig.outputs()).unwrap();
    let prune = LocalPrune { rules: KeepRules::default(), ..rig.local_prune(1) };
    let limits = LocalLimits {
        free_space_low_bytes: Some(u64::MAX),
        give_up_undurable: true,
        ..LocalLimits::default()
    };
    let claim = async |_: &RunName, _: StepId, _: Verdict| Some(());
    let mut reports = prune_local_runs(&[prune], &limits, 0, claim).await.unwrap();
    reports.pop().unwrap().unwrap()
}

fn recorded_as_given_up(rig: &Rig) -> Vec<(StepId, Vec<String>)> {
    let record = read_given_up(&rig.vault, &run_name()).unwrap();
    let steps = record.map(|record| record.steps).unwrap_or_default();
    let durable_on = |step: &GivenUpStep| step.durable_on.iter().map(ToString::to_string).collect();
    steps.iter().map(|step| (step.id, durable_on(step))).collect()
}

#[tokio::test]
async fn what_a_full_disk_gives_up_is_recorded_without_the_remote_that_lost_it() {
    let rig = Rig::with_steps(4).await;
    let commit = rig.remote_root().join(rig.remotes[0].keys.commit(id(1, 1)));
    std::fs::remove_file(commit).unwrap();
    let report = pruned_for_space(&rig).await;
    assert_eq!(report.removed, [id(1, 2), id(1, 3)]);
    assert_eq!((report.given_up, report.spared), (vec![id(1, 1)], vec![]));
    assert!(rig.vault.step(&run_name(), id(1, 1)).unwrap().is_none());
    assert!(rig.vault.step(&run_name(), id(1, 4)).unwrap().is_some(), "the newest one stays");
    assert_eq!(recorded_as_given_up(&rig), [(id(1, 1), vec![])]);
    let warnings = rig.recorder.warnings.lock().unwrap().join("\n");
    assert!(warnings.contains("gave up step 1 (attempt 1), "), "{warnings}");
    let record = read_given_up(&rig.vault, &run_name()).unwrap().unwrap();
    write_given_up(&rig.remotes[0], &record).await.unwrap();
    assert_eq!(read_given_up_on(&rig.remotes).await, [record]);
}

#[tokio::test]
async fn what_a_full_disk_gives_up_is_recorded_with_the_remotes_that_have_it() {
    let mut rig = Rig::with_steps(3).await;
    rig.add_one_that_is_away("away").await;
    let report = pruned_for_space(&rig).await;
    assert_eq!(report.removed, []);
    assert_eq!(report.given_up, [id(1, 1), id(1, 2)]);
    let on_disk = || vec!["disk".to_owned()];
    assert_eq!(recorded_as_given_up(&rig), [(id(1, 2), on_disk()), (id(1, 1), on_disk())]);
}

#[tokio::test]
async fn a_step_in_quarantine_is_durable_on_the_remote_where_it_was_before() {
    let [rig, other] = [Rig::with_steps(1).await, Rig::with_directory().await];
    let quarantined = rig.vault.quarantine(&run_name(), id(1, 1), "damaged").unwrap();
    let is_durable_on = |rig: &Rig| step_state::is_quarantined_durable_on(&quarantined, &rig.remotes[0]);
    assert!(is_durable_on(&rig).unwrap());
    assert!(!is_durable_on(&other).unwrap(), "of the same name, and another one");
}

/// Somebody copied an old commit back, after gc had moved the tombstone into the record of retired steps.
#[tokio::test]
async fn the_commit_of_a_retired_step_is_removed_again() {
    let rig = Rig::with_steps(3).await;
    let key = rig.remotes[0].keys.commit(id(1, 1));
    let commit = std::fs::read(rig.remote_root().join(&key)).unwrap();
    assert_eq!(rig.prune(2).await.unwrap().removed, [id(1, 1)]);
    assert_eq!(rig.gc_now().await.retired_steps, 1);
    assert!(!rig.remote_root().join(rig.remotes[0].keys.tombstone(id(1, 1))).exists());
    rig.write_object(&key, &commit);
    assert_eq!(rig.committed().await, [id(1, 1), id(1, 2), id(1, 3)]);
    assert_eq!(rig.prune(3).await.unwrap().removed, [id(1, 1)]);
    assert_eq!(rig.committed().await, [id(1, 2), id(1, 3)]);
}

#[tokio::test]
async fn spared_steps_do_not_count_towards_the_most_that_may_be_deleted() {
    let rig = Rig::with_steps(4).await;
    std::fs::remove_file(rig.data_of(1).join("step_1/x")).unwrap();
    let prune = LocalPrune { maximum_deletions: Some(1), ..rig.local_prune(1) };
    let report = prune_local(&prune).await.unwrap();
    assert_eq!(report.removed, [id(1, 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_decides_the_same_and_deletes_nothing() {
    let rig = Rig::with_steps(5).await;
    let before = snapshot(&rig.remote_root());
    let plan = plan_remote(&rig.remote_prune(2), true).await.unwrap();
    assert_eq!(plan.deletions().len(), 3);
    assert_eq!(snapshot(&rig.remote_root()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_removes_commit_data_and_records_and_spends_the_name() {
    let rig = Rig::with_steps(5).await;
    let report = rig.prune(2).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2), id(1, 3)]);
    assert_eq!(rig.committed().await, [id(1, 4), id(1, 5)]);
    let left: Vec<String> = snapshot(&rig.remote_root())
        .into_iter()
        .filter(|(path, (body, ..))| body.is_some() && path.to_string_lossy().contains("000000000001.a1"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_eq!(left, ["grpo/checkpoints/.stepvault/tombstones/000000000001.a1.json"]);
    assert!(!rig.data_of(1).exists());
    // The trainer's old directory is still there: it is not taken over again, and never becomes the newest.
    let (error, message) = text(push_fresh(&rig, 1).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{message}");
}

async fn push_fresh(rig: &Rig, step: u64) -> stepvault_core::Result<PushReport> {
    rig.vault.evict(&run_name(), id(1, step)).unwrap();
    rig.push(&rig.outputs().join(format!("step_{step}"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_and_leases_hold() {
    let rig = Rig::with_steps(5).await;
    assert!(catalog::pin(&rig.remotes[0], id(1, 1), "paper").await.unwrap());
    let lease = HeldLease::on_step(&rig.remotes[0], id(1, 2)).await.unwrap();
    let report = rig.prune(1).await.unwrap();
    assert_eq!(report.removed, [id(1, 3), id(1, 4)]);
    lease.release().await.unwrap();
    assert!(catalog::unpin(&rig.remotes[0], id(1, 1)).await.unwrap());
    let report = rig.prune(1).await.unwrap();
    assert_eq!(report.removed, [id(1, 1), id(1, 2)]);
    assert_eq!(rig.committed().await, [id(1, 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_would_delete_everything_is_refused() {
    let rig = Rig::with_steps(5).await;
    let (error, _) = text(rig.prune(0).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(rig.committed().await.len(), 5);
}

/// A pin and a removal that do not see each other until one of them looks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_beside_a_tombstone_holds_whichever_came_first_and_the_late_one_is_told() {
    let rig = Rig::with_steps(5).await;
    let remote = &rig.remotes[0];
    assert!(catalog::pin(remote, id(1, 2), "paper").await.unwrap());
    rig.tombstone(2).await;
    rig.tombstone(3).await;
    let (error, message) = text(catalog::pin(remote, id(1, 3), "").await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(message.ends_with("retention is removing it"), "{message}");
    let report = rig.prune(2).await.unwrap();
    // Which of the two pins was in time nobody can tell who reads them later.
    assert_eq!(report.removed, [id(1, 1)], "{report:?}");
    assert_eq!(rig.committed().await, [id(1, 2), id(1, 3), id(1, 4), id(1, 5)]);
    let removed = removed::removed_steps(remote).await.unwrap();
    assert_eq!(removed.tombstoned, BTreeSet::from([id(1, 1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_was_cut_off_is_finished_by_the_next_prune() {
    let rig = Rig::with_steps(5).await;
    rig.tombstone(2).await;
    let report = rig.prune(4).await.unwrap();
    assert!(report.removed.contains(&id(1, 2)), "{report:?}");
    assert!(!rig.data_of(2).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn local_copies_go_only_while_the_remote_confirms_them() {
    let rig = Rig::with_steps(5).await;
    std::fs::remove_file(rig.remote_root().join("grpo/checkpoints/.stepvault/commits/000000000002.a1.json"))
        .unwrap();
    let report = rig.evict(2).await;
    assert_eq!(report.removed, [id(1, 1), id(1, 3)]);
    assert_eq!(report.spared.len(), 1);
    assert!(report.spared[0].1.contains("missing"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_only_staged_is_never_evicted() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    rig.push_durably(&rig.write_step(1, &[("a", 10)], 1, 1_000)).await;
    let remotes = std::mem::take(&mut rig.remotes);
    rig.push(&rig.write_step(2, &[("a", 10)], 2, 2_000)).await.unwrap();
    rig.push(&rig.write_step(3, &[("a", 10)], 3, 3_000)).await.unwrap();
    rig.remotes = remotes;
    let report = rig.evict(1).await;
    assert_eq!(report.removed, [id(1, 1)]);
    drop(server);
    let report = rig.evict(1).await;
    assert_eq!(report.removed, []);
}

/// The commit of a step is deleted only after its tombstone exists: in between, the step is gone all the same.
#[tokio::test]
async fn a_tombstoned_step_with_a_commit_is_not_visible_and_no_push_calls_it_durable() {
    let rig = Rig::with_steps(3).await;
    rig.tombstone(2).await;
    let remote = &rig.remotes[0];
    let visible = step_state::visible_steps(remote).await.unwrap();
    assert_eq!(visible.into_keys().collect::<Vec<_>>(), [id(1, 1), id(1, 3)]);
    let commits = step_state::visible_commits(remote).await.unwrap();
    assert_eq!(commits.into_keys().collect::<Vec<_>>(), [id(1, 1), id(1, 3)]);
    assert_eq!(rig.committed().await.len(), 3);
    // With a copy in the vault, the upload is refused; without one, the checkpoint is an old one.
    let source = rig.outputs().join("step_2");
    let sealed = rig.push(&source).await.unwrap();
    let error = sealed.remotes[0].result.as_ref().expect_err("tombstoned");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let (error, message) = text(push_fresh(&rig, 2).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{message}");
}
