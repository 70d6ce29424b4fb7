//! Tests how gc judges each object, and which tombstones it removes again.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use stepvault_core::ids::{Attempt, NodeName, RunName, Step};
use stepvault_core::keys::{ResumePoint, RunKeys};
use stepvault_core::observe::SilentObserver;
use stepvault_core::path::RelativePath;
use stepvault_core::retired::RetiredSteps;

use super::*;
use crate::test_remote::in_directory;
use crate::tier::removed::{read_tombstone, removal_record, retired_steps, tombstones};

const SECOND: Duration = Duration::from_secs(1);

fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

fn node() -> NodeName {
    NodeName::new("node-0").unwrap()
}

fn keys() -> RunKeys {
    RunKeys::new(RunName::new("run").unwrap())
}

fn retired(ids: impl IntoIterator<Item = StepId>) -> RetiredSteps {
    let record = RetiredSteps::default().with(keys().run(), &ids.into_iter().collect());
    let mut retired = RetiredSteps::default();
    retired.extend(record);
    retired
}

/// Step 50 of the second attempt is the newest, and the store does not list all of its files; of the first attempt
/// there is step 100.
fn known() -> Known<'static> {
    Known {
        committed: BTreeSet::from([id(1, 100), id(2, 50)]),
        referenced: HashSet::from(["run/000000000100.a1/step_100/x"]),
        claimed: BTreeSet::from([id(1, 100), id(1, 200), id(1, 10), id(2, 50)]),
        refused: BTreeSet::new(),
        unlisted: BTreeSet::from([id(2, 50)]),
        removed: RemovedSteps {
            tombstoned: BTreeSet::from([id(1, 10)]),
            retired: retired([id(1, 5)]),
            retired_records: BTreeSet::from([3]),
        },
        live_leases: BTreeSet::from([keys().prune_lease("live")]),
    }
}

fn object(key: &str) -> ObjectInfo {
    ObjectInfo { key: key.to_owned(), size_bytes: 7, modified: SystemTime::UNIX_EPOCH, version: None }
}

fn tombstone(id: StepId, by_gc: bool) -> Tombstone {
    Tombstone { format: FORMAT, run: RunName::new("run").unwrap(), id, name: "step".to_owned(), by_gc }
}

fn data(name: &str, id: StepId) -> String {
    keys().data(name, id, &RelativePath::new("y").unwrap()).unwrap()
}

#[tokio::test]
async fn every_kind_of_object_is_judged_by_what_is_committed() {
    let place = tempfile::tempdir().unwrap();
    let remote = in_directory(place.path()).await;
    let (keys, known) = (&remote.keys, known());
    let resume = |attempt| keys.resume(ResumePoint { attempt: Attempt::new(attempt).unwrap(), round: 0 });
    let staged = |attempt| keys.staged(Attempt::new(attempt).unwrap(), &node());
    let cases = [
        ("referenced", "run/000000000100.a1/step_100/x".to_owned()),
        ("referenced", keys.marker()),
        ("referenced", keys.gc_record()),
        ("referenced", keys.drain(&node())),
        ("referenced", keys.starts(&node())),
        ("referenced", keys.launch(Attempt::FIRST)),
        ("referenced", keys.tombstone(id(1, 10))),
        ("referenced", keys.pin(id(1, 300))),
        ("referenced", keys.commit(id(1, 300))),
        ("referenced", keys.prune_lease("live")),
        ("orphan", keys.prune_lease("dead")),
        ("orphan", keys.lease(id(1, 100), "dead")),
        // Needed until another launch has committed something.
        ("orphan", staged(1)),
        ("referenced", staged(2)),
        ("referenced", staged(3)),
        ("orphan", resume(1)),
        ("referenced", resume(2)),
        ("referenced", resume(3)),
        ("referenced", keys.damaged(id(1, 100))),
        ("orphan", keys.damaged(id(1, 200))),
        ("referenced", keys.claim(id(1, 100))),
        ("orphan", keys.claim(id(1, 200))),
        ("orphan", keys.part(id(1, 200), &node())),
        ("orphan", keys.probe("0123456789abcdef0123456789abcdef-whole")),
        ("orphan", data("step_100", id(1, 100))),
        ("orphan", data("step_200", id(1, 200))),
        // No object of a step with unlisted files is deleted.
        ("referenced", data("step_50", id(2, 50))),
        ("referenced", keys.part(id(2, 50), &NodeName::new("node-9").unwrap())),
        // Written too late, by a writer that did not see that the identity was used up.
        ("orphan", data("step_5", id(1, 5))),
        ("referenced", keys.retired(3)),
        ("foreign", data("step_200", id(2, 200))),
        ("foreign", "run/notes.txt".to_owned()),
        ("foreign", "elsewhere/notes.txt".to_owned()),
    ];
    let judged = |known: &Known<'_>, key: &str| match known.judge(&remote, &object(key)) {
        Judgement::Foreign => "foreign",
        Judgement::Referenced => "referenced",
        Judgement::Orphan => "orphan",
    };
    for (expected, key) in cases {
        assert_eq!(judged(&known, &key), expected, "{key}");
    }
    let nothing_yet = Known { committed: BTreeSet::new(), ..known };
    assert_eq!(judged(&nothing_yet, &staged(1)), "referenced");
    assert_eq!(judged(&nothing_yet, &resume(1)), "referenced");
}

#[tokio::test]
async fn steps_without_a_commit_are_tombstoned_once_and_no_others() {
    let place = tempfile::tempdir().unwrap();
    let remote = in_directory(place.path()).await;
    let keys = &remote.keys;
    let objects = [
        object(&data("step_200", id(1, 200))),
        object(&keys.part(id(1, 300), &node())),
        object(&keys.claim(id(1, 400))),
        // Committed, already tombstoned, and unclaimed.
        object(&data("step_100", id(1, 100))),
        object(&data("step_10", id(1, 10))),
        object(&keys.prune_lease("dead")),
        object("run/notes.txt"),
    ];
    let orphans: Vec<&ObjectInfo> = objects.iter().collect();
    let tombstoned = known().tombstone(&remote, &orphans).await.unwrap();
    assert_eq!(tombstoned, BTreeSet::from([id(1, 200), id(1, 300), id(1, 400)]));
    assert_eq!(tombstones(&remote).await.unwrap(), [200, 300, 400].map(|step| id(1, step)).into());
    let name = async |id| read_tombstone(&remote, id).await.unwrap().map(|found| (found.name, found.by_gc));
    assert_eq!(name(id(1, 200)).await, Some(("step_200".to_owned(), true)));
    assert_eq!(name(id(1, 300)).await, Some((id(1, 300).label(), true)));
}

#[tokio::test]
async fn a_commit_that_is_not_younger_than_its_tombstone_takes_it_away() {
    let place = tempfile::tempdir().unwrap();
    let remote = in_directory(place.path()).await;
    let key = remote.keys.tombstone(id(1, 100));
    for (later, stays) in [(Duration::ZERO, false), (Duration::from_millis(1), true), (SECOND, true)] {
        remote.create_record(&key, &tombstone(id(1, 100), true)).await.unwrap();
        let tombstoned = remote.store.head(&key).await.unwrap().unwrap().info.modified;
        let commit = ObjectInfo { modified: tombstoned + later, ..object("commit") };
        pardon(&remote, id(1, 100), &commit).await.unwrap();
        assert_eq!(remote.store.head(&key).await.unwrap().is_some(), stays, "{later:?}");
        // Without a tombstone there is nothing to do.
        if !stays {
            pardon(&remote, id(1, 100), &commit).await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_gc_left_is_taken_away_only_where_the_commit_came_strictly_before() {
    let place = tempfile::tempdir().unwrap();
    let remote = in_directory(place.path()).await;
    let at = |key: &str| place.path().join(key);
    let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let stamp = |key: &str, time: SystemTime| {
        let file = std::fs::File::options().write(true).open(at(key)).unwrap();
        file.set_modified(time).unwrap();
    };
    // Step, writer of the tombstone, time of the commit.
    let cases = [
        (100, true, moment - SECOND),
        (200, true, moment),
        (300, true, moment + SECOND),
        (400, false, moment - SECOND),
    ];
    for (step, by_gc, committed) in cases {
        let id = id(1, step);
        let (grave, commit) = (remote.keys.tombstone(id), remote.keys.commit(id));
        remote.create_record(&grave, &tombstone(id, by_gc)).await.unwrap();
        std::fs::create_dir_all(at(&commit).parent().unwrap()).unwrap();
        std::fs::write(at(&commit), "{}").unwrap();
        stamp(&grave, moment);
        stamp(&commit, committed);
    }
    // One without a commit, and one that cannot be read.
    remote.create_record(&remote.keys.tombstone(id(1, 500)), &tombstone(id(1, 500), true)).await.unwrap();
    std::fs::write(at(&remote.keys.commit(id(1, 600))), "{}").unwrap();
    std::fs::write(at(&remote.keys.tombstone(id(1, 600))), "{").unwrap();
    remove_tombstones_of_kept(&remote).await.unwrap();
    assert_eq!(tombstones(&remote).await.unwrap(), [200, 300, 400, 500, 600].map(|step| id(1, step)).into());
}

#[tokio::test]
async fn tombstones_of_steps_of_which_nothing_is_left_become_one_record() {
    let place = tempfile::tempdir().unwrap();
    let remote = in_directory(place.path()).await;
    let keys = remote.keys.clone();
    let observer: Arc<dyn Observer> = Arc::new(SilentObserver);
    let marker = stepvault_core::records::VaultMarker::new("0123456789abcdef".repeat(2));
    remote.create_record(&keys.marker(), &marker).await.unwrap();
    let bury = |step: u64| {
        let (remote, keys) = (remote.clone(), keys.clone());
        async move {
            remote.create_record(&keys.tombstone(id(1, step)), &tombstone(id(1, step), false)).await.unwrap();
        }
    };
    for step in [100, 200, 300] {
        bury(step).await;
    }
    // An object of step 300 is left, and its claim identifies its step.
    let claim = stepvault_core::records::Claim {
        format: FORMAT,
        run: keys.run().clone(),
        id: id(1, 300),
        name: "last".to_owned(),
        nodes: stepvault_core::nodes::NodeSet::single_node(node()),
        launch: None,
    };
    remote.create_record(&keys.claim(id(1, 300)), &claim).await.unwrap();
    let day = Duration::from_hours(24);
    let young = run_gc(&remote, day, false, &observer).await.unwrap();
    assert_eq!(young.retired_steps, 0);
    let first = run_gc(&remote, Duration::ZERO, false, &observer).await.unwrap();
    assert_eq!(first.retired_steps, 2, "{first:?}");
    assert_eq!(tombstones(&remote).await.unwrap(), [id(1, 300)].into());
    // The claim of step 300 is deleted in the second gc that sees it, its tombstone in the one after that.
    let mut later = Vec::new();
    for _ in 0..3 {
        later.push(run_gc(&remote, Duration::ZERO, false, &observer).await.unwrap().retired_steps);
    }
    assert_eq!(later.iter().sum::<u64>(), 1, "{later:?}");
    assert_eq!(tombstones(&remote).await.unwrap(), [].into());
    for step in [100, 200, 300] {
        assert!(removal_record(&remote, id(1, step)).await.unwrap().is_some(), "{step}");
    }
    assert_eq!(removal_record(&remote, id(1, 150)).await.unwrap(), None);
    // Two records are kept, however many steps are retired.
    for step in [400, 500, 600] {
        bury(step).await;
        run_gc(&remote, Duration::ZERO, false, &observer).await.unwrap();
    }
    let (all, numbers) = retired_steps(&remote).await.unwrap();
    assert_eq!(numbers.len(), 2, "{numbers:?}");
    // An unreadable record loses at most the identities that were added last.
    let newest = keys.retired(*numbers.last().unwrap());
    std::fs::write(place.path().join(newest), "{").unwrap();
    let (left, _) = retired_steps(&remote).await.unwrap();
    for step in [100, 200, 300, 400, 500] {
        assert!(all.contains(id(1, step)) && left.contains(id(1, step)), "{step}");
    }
}

#[test]
fn what_is_as_old_as_the_grace_period_is_old_enough() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let grace = Duration::from_hours(1);
    assert!(is_young(now, now, grace));
    assert!(is_young(now - grace + SECOND, now, grace));
    assert!(!is_young(now - grace, now, grace));
    assert!(!is_young(now - grace - SECOND, now, grace));
    assert!(is_young(now + SECOND, now, grace), "written after the clock was read");
}

#[test]
fn an_object_is_told_from_the_one_before_by_its_version_or_else_by_its_size() {
    let object = object("key");
    assert_eq!(fingerprint(&object), "7 bytes");
    let versioned = ObjectInfo { version: Some("etag".to_owned()), ..object };
    assert_eq!(fingerprint(&versioned), "etag");
}

#[test]
fn what_the_record_of_a_gc_has_no_room_for_waits_for_another() {
    let long = "x".repeat(usize::try_from(MAX_RECORD_BYTES / 4).unwrap());
    let objects = ["marked", "changed", &long, "new", &format!("{long}y")].map(object);
    let before = [("marked", "7 bytes"), ("changed", "8 bytes")];
    let before = before.map(|(key, print)| (key.to_owned(), print.to_owned())).into();
    let mut report = GcReport::default();
    let (deleted, next) = divide(objects.iter().collect(), &before, &mut report);
    let deleted: Vec<&str> = deleted.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(deleted, ["marked"]);
    assert_eq!((report.marked, report.unmarked), (vec!["changed".to_owned(), "new".to_owned()], 2));
    let marked = ["changed", "new"].map(|key| (key.to_owned(), "7 bytes".to_owned()));
    assert_eq!(next.orphans, marked.into());
}
