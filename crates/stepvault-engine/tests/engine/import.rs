//! Steps that another program has written to a remote become steps of a run, where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use stepvault_core::digest::{DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::observe::Event;
use stepvault_core::retention::{KeepRules, Selection};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Observer, RemoteSettings, Result};
use stepvault_engine::copy::{CopyChoice, CopyContext, copy_steps, plan_copy};
use stepvault_engine::gc::run_gc;
use stepvault_engine::import::{
    ImportOutcome, ImportPlan, ImportRequest, Imports, StepToImport, import_steps, plan_import,
};
use stepvault_engine::prune::{RemotePrune, prune_remote};
use stepvault_engine::restore::{RestoreRequest, Target, restore};
use stepvault_engine::tier::catalog::{committed_ids, pin, read_commit};
use stepvault_engine::verify::{Depth, check_remote};
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;
use stepvault_testkit::faults::{FaultAction, FaultRule};
use stepvault_testkit::fixture::Fixture;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{files_below, read_tree};

use crate::harness::{Rig, id, run_name, text};
use crate::selective::feed;

pub const OLD: &str = "old/run";

/// Writes the files below `root` as a copying tool does: by name, with the times of the upload.
async fn fill(rig: &Rig, root: &Path, prefix: &str) {
    for path in files_below(root) {
        let key = format!("{prefix}/{}", path.strip_prefix(root).unwrap().to_str().unwrap());
        let body = std::fs::read(&path).unwrap();
        let digest = PartDigest::of(&body);
        rig.stores[0].create(&key, bytes::Bytes::from(body).into(), &digest).await.unwrap();
    }
}

pub fn request(rig: &Rig, prefix: &str) -> ImportRequest {
    let remote = rig.remotes[0].clone();
    let url = format!("{}/{prefix}", remote.settings.url).parse().unwrap();
    ImportRequest {
        remote,
        others: rig.remotes[1..].to_vec(),
        vault: Some(rig.vault.clone()),
        url,
        profiles: Arc::new(ProfileSet::default()),
        profile: None,
        options: FindOptions { quiet_seconds: 30, ..FindOptions::default() },
        attempt: None,
        trusts_store: false,
    }
}

/// Later than every file by more than the quiet time.
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_seconds(i64::try_from(since.as_secs()).unwrap() + 3600)
}

async fn planned(rig: &Rig) -> ImportPlan {
    plan_import(&request(rig, OLD), now()).await.unwrap()
}

async fn carried_out(
    rig: &Rig,
    steps: &[StepToImport],
    observer: &Arc<dyn Observer>,
) -> Vec<(StepId, Result<ImportOutcome>)> {
    let imports =
        Imports { remote: &rig.remotes[0], vault: Some(&rig.vault), digest: Some(rig.digest), observer };
    import_steps(&imports, steps).await.unwrap()
}

/// Imports all that can be, and returns the plan.
async fn imported(rig: &Rig) -> ImportPlan {
    let plan = planned(rig).await;
    for (id, outcome) in carried_out(rig, &plan.steps, &rig.observer).await {
        assert_eq!(outcome.unwrap(), ImportOutcome::Imported, "{id}");
    }
    plan
}

fn ids(plan: &ImportPlan) -> Vec<StepId> {
    plan.steps.iter().map(|step| step.id).collect()
}

/// The objects outside the run, with their bytes.
async fn objects(rig: &Rig, prefix: &str) -> BTreeSet<String> {
    rig.remotes[0].list(prefix).await.unwrap().into_iter().map(|object| object.key).collect()
}

pub async fn restored(rig: &Rig, step: u64, into: &Path) -> PathBuf {
    let mut request = RestoreRequest::newest(run_name(), Target::Into(into.to_owned()));
    request.wanted.step = Some(Step::new(step).unwrap());
    restore(&rig.context(), &request).await.unwrap().plan.path
}

/// The bytes of all files below a directory.
pub fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    read_tree(root).into_iter().map(|(path, (_, bytes))| (path, bytes)).collect()
}

/// Imports a fixture, restores each of its steps, and compares the bytes.
async fn round_trip(rig: &Rig, fixture: &str, left: &[&str]) {
    let fixture = Fixture::unpack(fixture);
    fill(rig, &fixture.root, OLD).await;
    let before = objects(rig, "old/").await;
    let plan = imported(rig).await;
    assert!(!plan.steps.is_empty());
    for path in left {
        let left = plan
            .left
            .iter()
            .find(|left| left.path == *path)
            .unwrap_or_else(|| panic!("{path}: {:?}", plan.left));
        assert!(!left.reasons.is_empty(), "{path}");
    }
    let original = contents(&fixture.root);
    for step in &plan.steps {
        let health = check_remote(&rig.remotes[0], step.id, Depth::Deep, &rig.observer).await.unwrap();
        assert_eq!((health.faults.as_slice(), health.proved_files), (&[][..], step.files), "{}", step.path);
        let into = rig.directory.path().join(format!("restored-{}", step.id.step));
        restored(rig, step.id.step.number(), &into).await;
        let found = contents(&into);
        assert_eq!(found.len() as u64, step.files, "{}", step.path);
        for (path, bytes) in found {
            assert!(original.get(&path) == Some(&bytes), "{}", path.display());
        }
    }
    assert_eq!(objects(rig, "old/").await, before, "nothing was written there");
    let again = planned(rig).await;
    assert_eq!((ids(&again), again.known.len()), (Vec::new(), plan.steps.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_of_a_trainer_are_restored_byte_for_byte_from_a_directory() {
    round_trip(&Rig::with_directory().await, "hf-trainer-killed", &["checkpoint-15"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_trainer_are_restored_byte_for_byte_from_s3() {
    let server = StrictS3::start();
    round_trip(&Rig::with_s3(&server).await, "lightning-last-copy", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_save_in_gcs_is_left_alone() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs("google", &server).await;
    round_trip(&rig, "dcp-killed-before-metadata", &["step_30"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_several_paths_is_restored_to_each_of_them() {
    let mut rig = Rig::with_directory().await;
    rig.digest = DigestAlgorithm::Blake3;
    round_trip(&rig, "prime-rl-checkpoints", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_and_its_step_left_alone() {
    let rig = Rig::with_directory().await;
    let fixture = Fixture::unpack("killed-torch-save-small");
    fill(&rig, &fixture.root, OLD).await;
    let plan = imported(&rig).await;
    assert_eq!(ids(&plan), [id(1, 1), id(1, 2)]);
    let left = plan.left.iter().find(|left| left.path == "step_3.pt").unwrap();
    assert!(!left.reasons.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_over_other_parts_proves_no_damage() {
    let server = StrictS3::start();
    let rig = Rig::with_s3(&server).await;
    // Parts of 5 MiB, where stepvault has 8.
    let whole = bytes::Bytes::from(stepvault_testkit::random::bytes(7, 9 << 20));
    let pieces = [whole.slice(..5 << 20), whole.slice(5 << 20..)];
    let digests: Vec<PartDigest> = pieces.iter().map(|piece| PartDigest::of(piece)).collect();
    let (store, key) = (&rig.stores[0], "old/run/step_5/weights.dat");
    let digest = FileDigest::from_parts(&digests);
    let upload = store.start_upload(key, digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let mut receipts = Vec::new();
    for (index, (piece, digest)) in (0..).zip(pieces.into_iter().zip(&digests)) {
        receipts.push(store.upload_part(key, &upload, index, piece.into(), digest).await.unwrap());
    }
    store.complete_upload(key, &upload, &receipts, &digest).await.unwrap();
    imported(&rig).await;
    let checked = |depth| check_remote(&rig.remotes[0], id(1, 5), depth, &rig.observer);
    let health = checked(Depth::Checksums).await.unwrap();
    assert_eq!((health.faults.len(), health.unproved_files), (0, 1), "{health:?}");
    let health = checked(Depth::Deep).await.unwrap();
    assert_eq!((health.faults.len(), health.proved_files), (0, 1), "{health:?}");
}

/// A remote with small steps that a tool has written, each of `files` files.
async fn with_steps(steps: &[u64]) -> Rig {
    let rig = Rig::with_directory().await;
    write_steps(&rig, steps).await;
    rig
}

async fn write_steps(rig: &Rig, steps: &[u64]) {
    for step in steps {
        let source = rig.write_step(*step, &[("weights.dat", 70_000), ("sub/state.dat", 7)], *step, 1_000);
        fill(rig, &source, &format!("{OLD}/step_{step}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_import_adds_what_is_new() {
    let rig = with_steps(&[10, 20]).await;
    assert_eq!(ids(&imported(&rig).await), [id(1, 10), id(1, 20)]);
    write_steps(&rig, &[30]).await;
    let second = imported(&rig).await;
    assert_eq!(ids(&second), [id(1, 30)]);
    assert_eq!(second.known, [(id(1, 10), "step_10".to_owned()), (id(1, 20), "step_20".to_owned())]);
    assert_eq!(rig.committed().await, [id(1, 10), id(1, 20), id(1, 30)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_step_of_a_prefix_can_be_imported() {
    let rig = with_steps(&[10, 20]).await;
    let plan = plan_import(&request(&rig, "old/run/step_20"), now()).await.unwrap();
    assert_eq!(ids(&plan), [id(1, 20)]);
    carried_out(&rig, &plan.steps, &rig.observer).await.pop().unwrap().1.unwrap();
    // The same objects, seen from above.
    let all = planned(&rig).await;
    assert_eq!((ids(&all), all.known.len()), (vec![id(1, 10)], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_below_the_remote_or_holds_no_step_says_what_to_do() {
    let rig = with_steps(&[10]).await;
    let mut elsewhere = request(&rig, OLD);
    elsewhere.url = "s3://bucket/old/run".parse().unwrap();
    let (error, message) = text(plan_import(&elsewhere, now()).await);
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(message.contains("it is not below file://"), "{message}");
    assert_eq!(error.hint_text().unwrap(), "give a remote that has it, such as --remote s3://bucket");
    let (error, message) = text(plan_import(&request(&rig, "old/nothing"), now()).await);
    assert_eq!(error.kind(), ErrorKind::Usage, "{message}");
    assert!(message.ends_with("no object lies there"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_import_is_newer_than_the_runs_own_steps() {
    let rig = with_steps(&[1, 5, 300]).await;
    rig.push_steps(2).await;
    let plan = imported(&rig).await;
    assert_eq!(ids(&plan), Vec::new());
    let why = |path: &str| {
        let left = plan.left.iter().find(|left| left.path == path).unwrap();
        left.reasons.join("; ")
    };
    assert!(why("step_1").contains("of the run is another one"), "{}", why("step_1"));
    assert!(why("step_300").contains("newer than step 2 (attempt 1)"), "{}", why("step_300"));
    let mut given = request(&rig, OLD);
    given.attempt = Some(Attempt::new(2).unwrap());
    let plan = plan_import(&given, now()).await.unwrap();
    assert_eq!(ids(&plan), [id(2, 1), id(2, 5), id(2, 300)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_another_tier_has_counts_too() {
    let mut rig = with_steps(&[300]).await;
    let other = rig.directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    rig.add("other", &format!("file://{}", other.display()), |_| {}, None).await;
    rig.remotes.swap(0, 1);
    rig.stores.swap(0, 1);
    let all = rig.remotes.clone();
    rig.remotes.truncate(1);
    rig.push_steps(2).await;
    rig.lose_node();
    rig.remotes = vec![all[1].clone(), all[0].clone()];
    rig.stores.swap(0, 1);
    assert_eq!(ids(&planned(&rig).await), Vec::new());
}

/// Changes a step's directory when the first bytes of an import were read.
#[derive(Debug)]
struct AtFirstBytes(Mutex<Option<(PathBuf, Change)>>);

#[derive(Debug)]
enum Change {
    Bytes,
    NewFile,
    Gone,
}

impl Observer for AtFirstBytes {
    fn on_event(&self, event: &Event<'_>) {
        if !matches!(event, Event::BytesMoved { .. }) {
            return;
        }
        let Some((step, change)) = self.0.lock().unwrap().take() else { return };
        match change {
            // Replaced, as every store does: the object has another version.
            Change::Bytes => {
                std::fs::write(step.with_extension("new"), vec![1; 70_000]).unwrap();
                std::fs::rename(step.with_extension("new"), step.join("weights.dat")).unwrap();
            }
            Change::NewFile => std::fs::write(step.join("more.bin"), b"more").unwrap(),
            Change::Gone => std::fs::remove_file(step.join("weights.dat")).unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_changes_while_it_is_read_fails_its_step_alone() {
    for change in [Change::Bytes, Change::NewFile, Change::Gone] {
        let rig = with_steps(&[10, 20]).await;
        let plan = planned(&rig).await;
        let step = rig.remote_root().join("old/run/step_10");
        let observer: Arc<dyn Observer> = Arc::new(AtFirstBytes(Mutex::new(Some((step, change)))));
        let outcomes = carried_out(&rig, &plan.steps, &observer).await;
        let (error, message) = text(outcomes[0].1.clone());
        assert_eq!(error.kind(), ErrorKind::Conflict, "{message}");
        assert!(message.contains("its objects changed while it was read"), "{message}");
        assert_eq!(outcomes[1].1.as_ref().unwrap(), &ImportOutcome::Imported);
        assert_eq!(rig.committed().await, [id(1, 20)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_since_the_plan_is_left_alone() {
    let rig = with_steps(&[10]).await;
    let plan = planned(&rig).await;
    rig.write_object("old/run/step_10/more.bin", b"more");
    let (_, message) = text(carried_out(&rig, &plan.steps, &rig.observer).await.pop().unwrap().1);
    assert!(message.contains("its objects changed since they were checked"), "{message}");
    assert_eq!(rig.committed().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_is_cut_off_at_any_write_leaves_whole_steps_and_goes_on() {
    let server = StrictS3::start();
    let mut cuts = 0;
    for attempt in 1_u32.. {
        let skip = u64::from(attempt - 1);
        let rig = Rig::with_s3(&server).await;
        let run = format!("{OLD}-{skip}");
        for step in [10, 20] {
            let source = rig.write_step(step, &[("model.bin", 9_000)], step, 1_000);
            fill(&rig, &source, &format!("{run}/step_{step}")).await;
        }
        let request = ImportRequest { attempt: Attempt::new(attempt).ok(), ..request(&rig, &run) };
        let refuse = FaultAction::refuse(403, "AccessDenied");
        let rule = FaultRule {
            method: Some("PUT".to_owned()),
            path_contains: ".stepvault".to_owned(),
            skip,
            times: u64::MAX,
            action: refuse,
        };
        server.faults().add(rule);
        let plan = plan_import(&request, now()).await.unwrap();
        let imports = Imports {
            remote: &rig.remotes[0],
            vault: None,
            digest: Some(rig.digest),
            observer: &rig.observer,
        };
        let outcomes = import_steps(&imports, &plan.steps).await;
        server.faults().clear();
        let is_cut = outcomes.as_ref().map_or(true, |all| all.iter().any(|(_, outcome)| outcome.is_err()));
        let of_attempt = |found: Vec<StepId>| {
            found.into_iter().filter(|id| id.attempt.number() == attempt).collect::<Vec<_>>()
        };
        for id in of_attempt(rig.committed().await) {
            let health = check_remote(&rig.remotes[0], id, Depth::Deep, &rig.observer).await.unwrap();
            assert!(health.is_sound(), "{skip}: {health:?}");
        }
        let rest = plan_import(&request, now()).await.unwrap();
        for (id, outcome) in import_steps(&imports, &rest.steps).await.unwrap() {
            assert_eq!(outcome.unwrap(), ImportOutcome::Imported, "{skip}: {id}");
        }
        assert_eq!(of_attempt(rig.committed().await).len(), 2, "{skip}");
        if !is_cut {
            break;
        }
        cuts += 1;
    }
    // Two steps of three records each; the marker was written once.
    assert!(cuts >= 6, "{cuts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_imports_at_once_one_commits_and_the_other_confirms() {
    let rig = with_steps(&[10, 20, 30]).await;
    let (one, other) = (planned(&rig).await, planned(&rig).await);
    let both = tokio::join!(
        carried_out(&rig, &one.steps, &rig.observer),
        carried_out(&rig, &other.steps, &rig.observer)
    );
    for ((id, first), (_, second)) in both.0.into_iter().zip(both.1) {
        let outcomes = [first.unwrap(), second.unwrap()];
        let new = outcomes.iter().filter(|outcome| **outcome == ImportOutcome::Imported).count();
        assert_eq!(new, 1, "{id}");
    }
    assert_eq!(rig.committed().await, [id(1, 10), id(1, 20), id(1, 30)]);
}

fn prune(rig: &Rig, manages_imported: bool) -> RemotePrune {
    RemotePrune { manages_imported, ..rig.remote_prune(1) }
}

/// The records of the copy are others than those of the original, so they prove nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_prune_keeps_an_imported_step_that_a_selective_remote_seems_to_have() {
    let mut rig = with_steps(&[10, 20, 30]).await;
    imported(&rig).await;
    let selection = Selection {
        from: rig.remotes[0].name().clone(),
        rules: KeepRules { every_steps: Some(20), ..KeepRules::default() },
        includes_newest: false,
        after_seconds: 0,
    };
    let place = rig.directory.path().join("cold");
    std::fs::create_dir(&place).unwrap();
    let select = |settings: &mut RemoteSettings| settings.selection = Some(selection.clone());
    rig.add("cold", &format!("file://{}", place.display()), select, None).await;
    let report = feed(&rig).await;
    assert_eq!(report.steps.len(), 3, "{report:?}");
    let cold = rig.remotes[1].clone();
    assert_eq!(committed_ids(&cold).await.unwrap().into_keys().collect::<Vec<_>>(), [id(1, 20)]);
    let with_cold = RemotePrune { selective: vec![cold], ..prune(&rig, true) };
    let report = prune_remote(&with_cold).await.unwrap();
    assert_eq!(report.removed, [id(1, 10)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_leaves_the_objects_of_another_program() {
    let rig = with_steps(&[10, 20, 30]).await;
    imported(&rig).await;
    pin(&rig.remotes[0], id(1, 10), "").await.unwrap();
    let before = objects(&rig, "old/").await;
    let report = prune_remote(&prune(&rig, false)).await.unwrap();
    assert_eq!(report.removed, [id(1, 20)]);
    assert_eq!(report.plan.freed_bytes, 0);
    assert!(
        report.plan.warnings[0].contains("1 imported step of another program"),
        "{:?}",
        report.plan.warnings
    );
    assert_eq!(objects(&rig, "old/").await, before);
    assert_eq!(rig.committed().await, [id(1, 10), id(1, 30)]);
    // The identity is used up, and the objects can be imported under another attempt.
    let plan = planned(&rig).await;
    assert_eq!(ids(&plan), Vec::new());
    assert!(plan.left.iter().any(|left| left.path == "step_20" && left.reasons[0].contains("was removed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_a_run_that_manages_imports_deletes_exactly_what_the_manifest_names() {
    let rig = with_steps(&[10, 20]).await;
    let mut kept = objects(&rig, "old/").await;
    imported(&rig).await;
    // Written after the import: no manifest names it.
    rig.write_object("old/run/step_10/later.txt", b"later");
    let report = prune_remote(&prune(&rig, true)).await.unwrap();
    assert_eq!(report.removed, [id(1, 10)]);
    assert_eq!(report.plan.warnings, Vec::<String>::new());
    kept.retain(|key| !key.contains("step_10/"));
    kept.insert("old/run/step_10/later.txt".to_owned());
    assert_eq!(objects(&rig, "old/").await, kept);
    assert!(check_remote(&rig.remotes[0], id(1, 20), Depth::Deep, &rig.observer).await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_touches_no_imported_object() {
    // The objects are below the run's own prefix, where gc looks.
    let rig = Rig::with_directory().await;
    let run = run_name();
    for step in [10, 20] {
        let source = rig.write_step(step, &[("model.bin", 9_000)], step, 1_000);
        fill(&rig, &source, &format!("{run}/step_{step}")).await;
    }
    let plan = plan_import(&request(&rig, run.as_str()), now()).await.unwrap();
    assert_eq!(ids(&plan), [id(1, 10), id(1, 20)]);
    // One is imported, and the import of the other is cut off before its commit.
    carried_out(&rig, &plan.steps[..1], &rig.observer).await.pop().unwrap().1.unwrap();
    let remote = &rig.remotes[0];
    let (label, other) = (id(1, 20).label(), plan.steps[1].clone());
    carried_out(&rig, &[other], &rig.observer).await.pop().unwrap().1.unwrap();
    remote.store.delete(&[remote.keys.commit(id(1, 20))]).await.unwrap();
    let data = || async { objects(&rig, &format!("{run}/step_")).await };
    let before = data().await;
    for _ in 0..3 {
        run_gc(remote, Duration::ZERO, false, &rig.observer).await.unwrap();
    }
    assert_eq!(data().await, before);
    let claims = objects(&rig, &format!("{run}/.stepvault/attempts/{label}")).await;
    assert!(claims.is_empty(), "the records of the cut off import are gone: {claims:?}");
    assert!(check_remote(remote, id(1, 10), Depth::Deep, &rig.observer).await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_program_is_told_that_the_records_are_newer() {
    let rig = with_steps(&[10]).await;
    imported(&rig).await;
    let remote = &rig.remotes[0];
    let commit = read_commit(remote, id(1, 10)).await.unwrap();
    assert!(commit.is_imported());
    // It reads the member `format` first, and knows 1.
    let node = &commit.parts[0].node;
    for key in [remote.keys.commit(id(1, 10)), remote.keys.part(id(1, 10), node)] {
        let bytes = remote.read_small(&key).await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(record["format"], 2, "{key}");
    }
    assert!(committed_ids(remote).await.unwrap().contains_key(&id(1, 10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_step_is_like_any_other_where_it_is_copied_to() {
    let rig = with_steps(&[10, 20]).await;
    imported(&rig).await;
    let target = Rig::with_directory().await;
    let context = CopyContext {
        from: rig.remotes[0].clone(),
        to: target.remotes[0].clone(),
        common: None,
        budget: target.budget.clone(),
        observer: target.observer.clone(),
        choice: CopyChoice::All,
    };
    for _ in 0..2 {
        let plan = plan_copy(&context).await.unwrap();
        let report = copy_steps(&context, &target.vault, plan).await.unwrap();
        assert!(report.steps.iter().all(|step| step.result.is_ok()), "{report:?}");
        assert_eq!(target.committed().await, [id(1, 10), id(1, 20)]);
    }
    let remote = &target.remotes[0];
    assert!(!read_commit(remote, id(1, 20)).await.unwrap().is_imported());
    assert!(remote.list("old/").await.unwrap().is_empty());
    let health = check_remote(remote, id(1, 20), Depth::Deep, &target.observer).await.unwrap();
    assert_eq!((health.faults.len(), health.proved_files), (0, 2), "{health:?}");
    let (one, other) = (rig.directory.path().join("one"), rig.directory.path().join("other"));
    restored(&rig, 20, &one).await;
    restored(&target, 20, &other).await;
    assert_eq!(contents(&one), contents(&other));
}
