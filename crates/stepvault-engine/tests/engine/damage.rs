//! Delete, truncate, flip × data, part manifest, commit, marker × restore, verify, prune, push.

use std::path::{Path, PathBuf};

use stepvault_core::ErrorKind;
use stepvault_core::ids::Attempt;
use stepvault_core::retention::Verdict;
use stepvault_engine::verify::{Depth, check_remote};

use crate::harness::{Rig, id, snapshot, text};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Delete,
    Truncate,
    Flip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    Data,
    Manifest,
    Commit,
    Marker,
}

const DAMAGES: [Damage; 3] = [Damage::Delete, Damage::Truncate, Damage::Flip];
const FILES: &[(&str, usize)] = &[("model.safetensors", 9 << 20), ("trainer_state.json", 400)];

/// Steps 100 and 200 on a directory remote, the node lost; the objects of step 200 are the victims.
async fn rig() -> (Rig, std::collections::BTreeMap<PathBuf, (Option<Vec<u8>>, u32, i64, i64)>) {
    let mut rig = Rig::with_directory().await;
    let older = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&older);
    rig.push_durably(&older).await;
    rig.push_durably(&rig.write_step(200, FILES, 2, 2_000)).await;
    rig.lose_node();
    (rig, written)
}

fn path_of(rig: &Rig, object: Object) -> PathBuf {
    let run = rig.remote_root().join("grpo/checkpoints");
    match object {
        Object::Data => run.join("000000000200.a1/step_200/model.safetensors"),
        Object::Manifest => run.join(".stepvault/parts/000000000200.a1/node-0.json"),
        Object::Commit => run.join(".stepvault/commits/000000000200.a1.json"),
        Object::Marker => run.join(".stepvault/vault.json"),
    }
}

fn hurt(path: &Path, damage: Damage) {
    match damage {
        Damage::Delete => std::fs::remove_file(path).unwrap(),
        Damage::Truncate => {
            let size = std::fs::metadata(path).unwrap().len();
            std::fs::File::options().write(true).open(path).unwrap().set_len(size - 1).unwrap();
        }
        Damage::Flip => {
            let mut bytes = std::fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_falls_back_past_every_kind_of_damage_and_says_why() {
    for object in [Object::Data, Object::Manifest, Object::Commit] {
        for damage in DAMAGES {
            let (rig, written) = rig().await;
            hurt(&path_of(&rig, object), damage);
            let restored =
                rig.restore().await.unwrap_or_else(|error| panic!("{object:?} {damage:?}: {error}"));
            assert_eq!(restored.plan.id, id(1, 100), "{object:?} {damage:?}");
            assert_eq!(snapshot(&restored.plan.path), written);
            // A deleted commit is a step that was never there: nothing to say of it.
            let silent = object == Object::Commit && damage == Damage::Delete;
            assert_eq!(restored.plan.skipped.len(), usize::from(!silent), "{object:?} {damage:?}");
            assert!(!rig.directory.path().join("restored/step_200").exists());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_marker_does_not_keep_anyone_from_restoring() {
    for damage in DAMAGES {
        let (rig, _) = rig().await;
        hurt(&path_of(&rig, Object::Marker), damage);
        assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 200), "{damage:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_every_kind_of_damage() {
    for object in [Object::Data, Object::Manifest, Object::Commit] {
        for damage in DAMAGES {
            let (rig, _) = rig().await;
            hurt(&path_of(&rig, object), damage);
            let hurt_step =
                check_remote(&rig.remotes[0], id(1, 200), Depth::Deep, &rig.observer).await.unwrap();
            assert!(!hurt_step.is_sound(), "{object:?} {damage:?}");
            let whole = check_remote(&rig.remotes[0], id(1, 100), Depth::Deep, &rig.observer).await.unwrap();
            assert!(whole.is_sound(), "{object:?} {damage:?}: {whole:?}");
        }
    }
}

/// No digest covers the times and metrics of a commit, by which retention goes: they follow from its manifests.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_says_another_time_than_its_manifests_is_named() {
    let (rig, _) = rig().await;
    let path = path_of(&rig, Object::Commit);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = text.replacen("\"seconds\":2", "\"seconds\":3", 1);
    assert_ne!(text, other);
    std::fs::write(&path, other).unwrap();
    let health = check_remote(&rig.remotes[0], id(1, 200), Depth::Deep, &rig.observer).await.unwrap();
    assert_eq!(health.faults, ["the commit does not match its part manifests"]);
    // Its bytes are right all the same.
    assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotating_sample_reads_every_file_once_in_as_many_turns() {
    let (rig, _) = rig().await;
    hurt(&path_of(&rig, Object::Data), Damage::Flip);
    let mut found = 0;
    for turn in 0..3 {
        let depth = Depth::Sample { one_in: 3, turn };
        let health = check_remote(&rig.remotes[0], id(1, 200), depth, &rig.observer).await.unwrap();
        found += usize::from(!health.is_sound());
    }
    assert_eq!(found, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_keeps_the_newest_valid_step_whatever_is_damaged() {
    for object in [Object::Data, Object::Manifest, Object::Commit, Object::Marker] {
        for damage in DAMAGES {
            let (rig, written) = rig().await;
            hurt(&path_of(&rig, object), damage);
            let outcome = rig.prune(1).await;
            // A marker says nothing of the steps: step 200 is sound then, and may stand alone.
            if let Ok(report) = &outcome {
                let older = report.plan.decision(id(1, 100)).map(|decision| decision.verdict);
                let may_go = object == Object::Marker;
                assert!(may_go || older != Some(Verdict::Drop), "{object:?} {damage:?}: {report:?}");
            }
            let restored =
                rig.restore().await.unwrap_or_else(|error| panic!("{object:?} {damage:?}: {error}"));
            assert!(restored.plan.id == id(1, 200) || snapshot(&restored.plan.path) == written);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_goes_on_beside_damage_and_never_writes_over_it() {
    for object in [Object::Data, Object::Manifest, Object::Commit] {
        for damage in DAMAGES {
            let (rig, _) = rig().await;
            let victim = path_of(&rig, object);
            hurt(&victim, damage);
            let left = std::fs::read(&victim).ok();
            rig.push_durably(&rig.write_step(300, FILES, 3, 3_000)).await;
            assert_eq!(std::fs::read(&victim).ok(), left, "{object:?} {damage:?}");
            assert_eq!(rig.restore().await.unwrap().plan.id, id(1, 300));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_does_not_call_durable_what_was_damaged_since() {
    for vault_is_lost in [false, true] {
        for damage in DAMAGES {
            let mut rig = Rig::with_directory().await;
            let source = rig.write_step(200, FILES, 2, 2_000);
            rig.push_durably(&source).await;
            rig.push_durably(&source).await;
            hurt(&path_of(&rig, Object::Data), damage);
            if vault_is_lost {
                rig.lose_node();
                rig.write_step(200, FILES, 2, 2_000);
            }
            let report = rig.push(&source).await.unwrap();
            let error = report.remotes[0].result.as_ref().expect_err("it is damaged");
            assert_eq!(error.kind(), ErrorKind::Damaged, "{damage:?} {vault_is_lost}");
            let text = error.to_string();
            assert!(
                text.contains("step 200 (attempt 1) is damaged on this remote")
                    && text.contains("model.safetensors"),
                "{text}"
            );
            let mut request = rig.request(&source);
            request.attempt = Attempt::new(2).ok();
            let report = rig.push_as(request).await.unwrap();
            report.remotes[0].result.as_ref().unwrap();
            assert_eq!(rig.restore().await.unwrap().plan.id, id(2, 200));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_goes_nowhere_where_the_marker_is_lost_or_broken() {
    let (rig, _) = rig().await;
    rig.push_durably(&rig.write_step(300, FILES, 3, 3_000)).await;
    hurt(&path_of(&rig, Object::Marker), Damage::Truncate);
    let source = rig.write_step(400, FILES, 4, 4_000);
    let report = rig.push(&source).await.unwrap();
    let error = report.remotes[0].result.as_ref().expect_err("a broken marker");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    hurt(&path_of(&rig, Object::Marker), Damage::Delete);
    let report = rig.push(&source).await.unwrap();
    let error = report.remotes[0].result.as_ref().expect_err("no marker");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!path_of(&rig, Object::Marker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_valid_left_is_told_apart_from_nothing_there() {
    let (rig, _) = rig().await;
    hurt(&path_of(&rig, Object::Commit), Damage::Flip);
    let first = rig.remote_root().join("grpo/checkpoints/000000000100.a1/step_100/model.safetensors");
    hurt(&first, Damage::Truncate);
    let (error, message) = text(rig.restore().await);
    assert_eq!(error.kind(), ErrorKind::NoneValid);
    assert!(message.contains("step 200") && message.contains("step 100"), "{message}");
    let empty = Rig::with_directory().await;
    let (error, _) = text(empty.restore().await);
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Two nodes of one name that do not see each other: the one must not take from the other what it is about to commit.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_another_upload_wrote_are_never_deleted() {
    let rig = Rig::with_directory().await;
    let source = rig.write_step(100, &[("a", 100), ("b", 100)], 1, 1_000);
    let theirs = rig.remote_root().join("grpo/checkpoints/000000000100.a1/step_100/a");
    std::fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    std::fs::write(&theirs, "proved and not committed yet").unwrap();
    let given =
        stepvault_engine::push::CheckpointToSeal { attempt: Some(id(1, 0).attempt), ..rig.request(&source) };
    let report = rig.push_as(given).await.unwrap();
    let error = report.remotes[0].result.as_ref().expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().starts_with("cannot upload a file: its key is taken: "), "{error}");
    assert_eq!(error.hint_text(), Some("push it as a new attempt with --attempt"));
    assert_eq!(std::fs::read(&theirs).unwrap(), b"proved and not committed yet");
    // Where nobody gave the attempt, the step gets another identity.
    std::fs::remove_dir_all(rig.vault.root().join("runs")).unwrap();
    std::fs::remove_file(rig.remote_root().join("grpo/checkpoints/.stepvault/attempts/000000000100.a1.json"))
        .unwrap();
    assert_eq!(rig.push_durably(&source).await.id, id(1, 100).next_revision().unwrap());
    assert_eq!(std::fs::read(&theirs).unwrap(), b"proved and not committed yet");
}
