//! Many steps at once: what a prune and a listing of them cost, and the order in which the objects of many steps go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::commit::Commit;
use stepvault_core::ids::StepId;
use stepvault_core::keys::{KeyKind, RunKeys};
use stepvault_core::records::Claim;
use stepvault_engine::RunRemote;
use stepvault_engine::prune::plan_remote;
use stepvault_engine::push::identify_and_seal;
use stepvault_engine::tier::catalog::{self, read_commit};
use stepvault_engine::tier::leases::HeldLease;
use stepvault_engine::tier::step_state::{visible_and_incomplete, visible_commits};
use stepvault_testkit::faults::{FaultAction, FaultRule, Faults};
use stepvault_testkit::objects::StoredObject;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Rig, asked, id, run_name, text};

/// Steps 1 to `count`, of one small file each, on a server.
async fn with_small_steps(server: &StrictS3, count: u64) -> Rig {
    let rig = Rig::with_s3(server).await;
    for step in 1..=count {
        let source = rig.write_step(step, &[("x", 10)], step, step as i64 * 1_000);
        rig.push_durably(&source).await;
    }
    rig
}

fn ids(steps: std::ops::RangeInclusive<u64>) -> Vec<StepId> {
    steps.map(|step| id(1, step)).collect()
}

/// The objects of each kind, by step.
#[derive(Debug, Default)]
struct Present {
    tombstones: BTreeSet<StepId>,
    commits: BTreeSet<StepId>,
    data: BTreeMap<StepId, usize>,
    parts: BTreeSet<StepId>,
}

impl Present {
    fn of<'a>(keys: impl IntoIterator<Item = &'a String>) -> Self {
        let layout = RunKeys::new(run_name());
        let mut present = Self::default();
        for key in keys {
            let key = &key[key.find(run_name().as_str()).unwrap()..];
            match layout.classify(key) {
                Some(KeyKind::Tombstone(id)) => drop(present.tombstones.insert(id)),
                Some(KeyKind::Commit(id)) => drop(present.commits.insert(id)),
                Some(KeyKind::Part(id, _)) => drop(present.parts.insert(id)),
                Some(KeyKind::Data { id, .. }) => *present.data.entry(id).or_default() += 1,
                _ => {}
            }
        }
        present
    }

    fn on(server: &StrictS3) -> Self {
        Self::of(&server.objects().keys())
    }
}

/// Checks every state of the server's objects from now on: a step without a commit has a tombstone, and no data of a
/// step is missing while it has a commit. Returns the steps for which that was not so.
fn watch_order(server: &StrictS3) -> Arc<Mutex<BTreeSet<StepId>>> {
    let wrong = Arc::<Mutex<BTreeSet<StepId>>>::default();
    let (found, complete) = (Arc::clone(&wrong), Present::on(server));
    server.objects().watch(move |objects: &BTreeMap<String, StoredObject>| {
        let now = Present::of(objects.keys());
        for (id, files) in &complete.data {
            let is_committed = now.commits.contains(id);
            let is_whole = now.data.get(id) == Some(files) && now.parts.contains(id);
            if (!is_committed && !now.tombstones.contains(id)) || (is_committed && !is_whole) {
                found.lock().unwrap().insert(*id);
            }
        }
    });
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_many_steps_takes_two_requests_a_step_and_deletes_each_kind_after_the_one_before() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 60).await;
    visible_commits(&rig.remotes[0]).await.unwrap();
    let wrong = watch_order(&server);
    server.faults().clear_requests();
    let report = rig.prune(5).await.unwrap();
    let requests = server.faults().requests();
    assert_eq!(report.removed, ids(1..=55), "the plan's order");
    assert!(report.spared.is_empty());
    assert_eq!(*wrong.lock().unwrap(), BTreeSet::new());
    assert_eq!(rig.committed().await, ids(56..=60));
    let present = Present::on(&server);
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), ids(56..=60));
    assert_eq!(present.parts.into_iter().collect::<Vec<_>>(), ids(56..=60));
    assert_eq!(present.tombstones.len(), 55);
    assert!(requests.len() <= 2 * 55 + 60, "{} requests", requests.len());
}

fn refuse(faults: &Faults, method: &str, path: &str, skip: u64) {
    faults.add(FaultRule {
        method: Some(method.to_owned()),
        path_contains: path.to_owned(),
        skip,
        times: u64::MAX,
        action: FaultAction::refuse(403, "AccessDenied"),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_may_not_delete_commits_deletes_no_data_and_the_next_one_resumes_it() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 20).await;
    // The first step goes alone, and one batch of its records.
    refuse(server.faults(), "POST", "delete", 1);
    refuse(server.faults(), "DELETE", "/commits/", 1);
    let (error, message) = text(rig.prune(5).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
    let present = Present::on(&server);
    assert_eq!(present.tombstones.into_iter().collect::<Vec<_>>(), ids(1..=15));
    assert_eq!(present.commits.into_iter().collect::<Vec<_>>(), ids(2..=20));
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), ids(2..=20));
    server.faults().clear();
    let report = rig.prune(5).await.unwrap();
    assert_eq!(report.removed, ids(2..=15));
    let present = Present::on(&server);
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), ids(16..=20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_without_the_right_to_delete_hides_one_step_alone() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 10).await;
    refuse(server.faults(), "DELETE", "/commits/", 0);
    let (error, message) = text(rig.prune(2).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
    let visible = visible_commits(&rig.remotes[0]).await.unwrap();
    assert_eq!(visible.into_keys().collect::<Vec<_>>(), ids(2..=10));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_commits_says_what_to_do_with_what_is_left() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 20).await;
    refuse(server.faults(), "POST", "delete", 2);
    refuse(server.faults(), "DELETE", "/step_", 1);
    let (error, message) = text(rig.prune(5).await);
    assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
    let hint = error.hint_text().unwrap();
    assert!(hint.contains("stepvault gc"), "{hint}");
    let present = Present::on(&server);
    assert_eq!(present.commits.into_iter().collect::<Vec<_>>(), ids(16..=20));
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), ids(2..=20));
    assert_eq!(present.parts.into_iter().collect::<Vec<_>>(), ids(2..=20));
    // It is as the hint says.
    server.faults().clear();
    // Stores tell times in whole seconds: what is younger than that is never old enough.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    rig.gc_now().await;
    rig.gc_now().await;
    let present = Present::on(&server);
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), ids(16..=20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_and_a_lease_that_come_before_the_tombstone_hold_in_the_middle_of_many_steps() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 20).await;
    let remote = &rig.remotes[0];
    for step in [10, 11] {
        let delayed = FaultAction::Delay(Duration::from_secs(1));
        let tombstone = format!("tombstones/{step:012}");
        server.faults().inject("PUT", &tombstone, 1, delayed);
    }
    let others = async {
        for step in [10, 11] {
            while asked(server.faults(), "PUT", &format!("tombstones/{step:012}")) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert!(catalog::pin(remote, id(1, 10), "paper").await.unwrap());
        HeldLease::on_step(remote, id(1, 11)).await.unwrap()
    };
    let (report, lease) = tokio::join!(rig.prune(5), others);
    let report = report.unwrap();
    let spared: Vec<StepId> = report.spared.iter().map(|(id, _)| *id).collect();
    assert_eq!(spared, [id(1, 10), id(1, 11)], "{:?}", report.spared);
    assert_eq!(report.removed.len(), 13);
    let present = Present::on(&server);
    let left: Vec<StepId> = ids(10..=11).into_iter().chain(ids(16..=20)).collect();
    assert_eq!(present.data.into_keys().collect::<Vec<_>>(), left);
    assert!(!present.tombstones.contains(&id(1, 10)));
    assert!(present.tombstones.contains(&id(1, 11)));
    lease.release().await.unwrap();
    let report = rig.prune(5).await.unwrap();
    assert_eq!(report.removed, [id(1, 11)], "the pin still holds");
}

/// What was asked of the server, in order of arrival: the method, and the kind of the object or listing.
fn kinds(faults: &Faults) -> Vec<String> {
    let layout = RunKeys::new(run_name());
    let requests = faults.requests().into_iter();
    let kind = |path: &str| {
        if path.contains("list-type=2") {
            return if path.contains("retired") { "retired" } else { "files" };
        }
        let key = path.split('?').next().unwrap();
        match layout.classify(&key[key.find(run_name().as_str()).unwrap()..]) {
            Some(KeyKind::Tombstone(_)) => "tombstone",
            Some(KeyKind::Claim(_)) => "claim",
            Some(KeyKind::Commit(_)) => "commit",
            Some(KeyKind::Part(..)) => "part",
            Some(KeyKind::Data { .. }) => "data",
            Some(KeyKind::Retired(_)) => "retired record",
            Some(KeyKind::Marker) => "marker",
            _ => "other",
        }
    };
    requests.map(|request| format!("{} {}", request.method, kind(&request.path))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_step_takes_nine_requests_after_another_one_also_when_steps_were_retired() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 3).await;
    rig.prune(1).await.unwrap();
    // Stores tell times in whole seconds: what is younger than that is never old enough.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(rig.gc_now().await.retired_steps, 2);
    let session = rig.upload_session().await;
    let mut asked = Vec::new();
    for step in [4, 5] {
        let source = rig.write_step(step, &[("x", 10)], step, step as i64 * 1_000);
        identify_and_seal(&rig.vault, &[], rig.request(&source), &rig.observer).await.unwrap();
        let sealed = rig.vault.step(&run_name(), id(1, step)).unwrap().unwrap();
        server.faults().clear_requests();
        assert!(session.upload(&sealed).await.unwrap().is_durable());
        asked = kinds(server.faults());
        // The two at the start are sent at once, and so are the two after the commit.
        asked[..2].sort();
        asked[6..8].sort();
    }
    let expected = [
        "HEAD tombstone",
        "PUT claim",
        "PUT data",
        "GET files",
        "PUT part",
        "PUT commit",
        "GET commit",
        "HEAD tombstone",
        "GET retired",
    ];
    assert_eq!(asked, expected);
}

/// The requests that read an object, other than the marker.
fn reads(faults: &Faults) -> Vec<String> {
    let requests = faults.requests().into_iter();
    requests
        .filter(|request| request.method != "GET" || !request.path.contains("list-type=2"))
        .map(|request| format!("{} {}", request.method, request.path))
        .filter(|request| !request.contains("vault.json"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_listing_reads_no_commit_and_one_that_was_replaced_is_read_again() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 3).await;
    let remote = &rig.remotes[0];
    visible_commits(remote).await.unwrap();
    server.faults().clear_requests();
    let found = visible_commits(remote).await.unwrap();
    assert_eq!(reads(server.faults()), Vec::<String>::new());
    for (id, found) in &found {
        let read = read_commit(remote, *id).await.unwrap();
        assert_eq!(found.commit.as_deref().unwrap(), &read);
    }
    // Somebody replaces a commit, by one of the same length.
    let replaced = Commit { name: "step_9".to_owned(), ..read_commit(remote, id(1, 2)).await.unwrap() };
    let key = remote.keys.commit(id(1, 2));
    remote.replace_record(&key, &replaced).await.unwrap();
    server.faults().clear_requests();
    let found = visible_commits(remote).await.unwrap();
    assert_eq!(reads(server.faults()).len(), 1);
    assert_eq!(found[&id(1, 2)].commit.as_ref().unwrap().name, "step_9");
    // What is no longer listed is dropped.
    remote.store.delete(&[key]).await.unwrap();
    assert_eq!(visible_commits(remote).await.unwrap().len(), 2);
    let note = rig.vault.read_note(&run_name(), "commits-aws-0").unwrap().unwrap();
    let note = String::from_utf8(note).unwrap();
    assert!(note.contains("000000000003.a1") && !note.contains("000000000002.a1"), "{note}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_of_commits_that_is_damaged_or_of_another_url_is_none() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 3).await;
    let remote = &rig.remotes[0];
    visible_commits(remote).await.unwrap();
    let note = rig.vault.read_note(&run_name(), "commits-aws-0").unwrap().unwrap();
    let note = String::from_utf8(note).unwrap();
    let elsewhere = note.replace(remote.store.url(), "s3://elsewhere");
    assert_ne!(note, elsewhere);
    for damaged in ["", "{", &note[..note.len() / 2], &note.replace("\\\"run\\\"", "\\\"nur\\\""), &elsewhere]
    {
        rig.vault.write_note(&run_name(), "commits-aws-0", damaged.as_bytes()).unwrap();
        let found = visible_commits(remote).await.unwrap();
        assert!(found.values().all(|found| found.commit.is_ok()), "{damaged}");
        let names = found.values().map(|found| found.commit.as_ref().unwrap().name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["step_1", "step_2", "step_3"], "{damaged}");
        server.faults().clear_requests();
        visible_commits(remote).await.unwrap();
        assert_eq!(reads(server.faults()), Vec::<String>::new(), "it is kept again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_reads_the_commits_that_it_relies_on_and_trusts_no_cache() {
    for kept in [4, 5] {
        let server = StrictS3::start();
        let rig = with_small_steps(&server, 5).await;
        visible_commits(&rig.remotes[0]).await.unwrap();
        // The commit is damaged, and the store does not say that it is another version.
        let suffix = format!("commits/{kept:012}.a1.json");
        let keys = server.objects().keys();
        let key = keys.iter().find(|key| key.ends_with(&suffix)).unwrap();
        assert!(server.objects().flip_bit(key, 0));
        let report = rig.prune(2).await.unwrap();
        assert!(report.plan.refusal.is_some(), "{report:?}");
        assert_eq!(report.removed, [], "step {kept}");
        assert_eq!(rig.committed().await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_a_vault_reads_each_commit_once_if_it_remembers_them_and_no_more_than_fit() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 3).await;
    let place = &rig.remotes[0];
    let bare = RunRemote::new(place.store.clone(), Arc::clone(&place.settings), run_name());
    for (max_parts, unknown) in [(0, 3), (1, 2), (3, 0)] {
        let remote = bare.clone().remembering_commits(max_parts);
        visible_commits(&remote).await.unwrap();
        server.faults().clear_requests();
        let found = visible_commits(&remote).await.unwrap();
        assert_eq!(reads(server.faults()).len(), unknown, "{max_parts}");
        let steps = found.values().map(|found| found.commit.as_deref().unwrap().id);
        assert_eq!(steps.collect::<Vec<_>>(), ids(1..=3));
    }
    // One that was replaced is read again.
    let remote = bare.remembering_commits(3);
    visible_commits(&remote).await.unwrap();
    let replaced = Commit { name: "step_9".to_owned(), ..read_commit(&remote, id(1, 2)).await.unwrap() };
    remote.replace_record(&remote.keys.commit(id(1, 2)), &replaced).await.unwrap();
    let found = visible_commits(&remote).await.unwrap();
    assert_eq!(found[&id(1, 2)].commit.as_deref().unwrap().name, "step_9");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_takes_every_step_for_sound_reads_nothing_of_a_step() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 5).await;
    server.objects().remove(server.objects().keys().iter().find(|key| key.contains("/step_5/")).unwrap());
    visible_commits(&rig.remotes[0]).await.unwrap();
    server.faults().clear_requests();
    let plan = plan_remote(&rig.remote_prune(2), false).await.unwrap();
    assert_eq!(plan.deletions().len(), 3);
    assert_eq!(reads(server.faults()), Vec::<String>::new());
    // The step that lacks a file does not count, if it is looked at.
    let plan = plan_remote(&rig.remote_prune(2), true).await.unwrap();
    assert_eq!(plan.deletions().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_uploads_that_nobody_finished_the_newest_are_looked_at() {
    let server = StrictS3::start();
    let rig = with_small_steps(&server, 1).await;
    let remote = &rig.remotes[0];
    let (claim, _) = remote.read_record::<Claim>(&remote.keys.claim(id(1, 1))).await.unwrap().unwrap();
    for step in 2..=301 {
        let claim = Claim { id: id(1, step), ..claim.clone() };
        remote.create_record(&remote.keys.claim(id(1, step)), &claim).await.unwrap();
    }
    server.faults().clear_requests();
    let listed = visible_and_incomplete(remote, None).await.unwrap();
    assert_eq!((listed.ids.len(), listed.incomplete.len(), listed.more_incomplete), (301, 256, 44));
    assert_eq!(listed.incomplete[0].id, id(1, 46));
    let asked = server.faults().requests();
    let claims = asked.iter().filter(|request| request.path.contains("/attempts/")).count();
    assert_eq!(claims, 256);
}
