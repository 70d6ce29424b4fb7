//! Which version of a step a restore chooses: of several attempts, and of remotes that disagree.

use std::path::{Path, PathBuf};

use stepvault_core::ErrorKind;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::path::RelativePath;
use stepvault_engine::push::CheckpointToSeal;
use stepvault_engine::restore::{RestorePlan, RestoreRequest, Target, WantedSteps, plan, restore};

use crate::harness::{Rig, id, snapshot, text};

const FILES: &[(&str, usize)] = &[("x", 100)];

/// The data of a step's only file on a node's remote.
fn data(rig: &Rig, id: StepId) -> PathBuf {
    let path = RelativePath::new("x").unwrap();
    let name = format!("step_{}", id.step);
    rig.remote_root().join(rig.remotes[0].keys.data(&name, id, &path).unwrap())
}

fn request(rig: &Rig, step: Option<u64>, attempt: Option<u32>) -> RestoreRequest {
    RestoreRequest {
        wanted: WantedSteps {
            step: step.map(|step| Step::new(step).unwrap()),
            attempt: attempt.map(|attempt| Attempt::new(attempt).unwrap()),
            revision: None,
        },
        ..rig.restore_request()
    }
}

async fn planned(rig: &Rig, step: Option<u64>, attempt: Option<u32>) -> StepId {
    plan(&rig.context(), &request(rig, step, attempt)).await.unwrap().id
}

#[tokio::test]
async fn a_requested_step_is_restored_from_its_newest_valid_attempt_and_no_other_step_is() {
    let mut rig = Rig::with_directory().await;
    for (attempt, step) in [(1, 5), (2, 5), (3, 9)] {
        let source = rig.write_step(step, FILES, u64::from(attempt), i64::from(attempt) * 1_000);
        let attempt = Some(Attempt::new(attempt).unwrap());
        let request = CheckpointToSeal { attempt, ..rig.request(&source) };
        rig.push_as(request).await.unwrap();
    }
    rig.lose_node();
    assert_eq!(planned(&rig, None, None).await, id(3, 9));
    assert_eq!(planned(&rig, Some(5), None).await, id(2, 5));
    assert_eq!(planned(&rig, None, Some(1)).await, id(1, 5));
    let context = rig.context();
    for (step, attempt, wanted) in [
        (Some(7), None, "step 7 of run 'grpo/checkpoints'"),
        (Some(5), Some(3), "step 5 (attempt 3) of run 'grpo/checkpoints'"),
        (None, Some(4), "any step of attempt 4 of run 'grpo/checkpoints'"),
    ] {
        let (error, message) = text(plan(&context, &request(&rig, step, attempt)).await);
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(message, format!("no such checkpoint: {wanted}: no tier has it"));
    }
    std::fs::write(data(&rig, id(2, 5)), [0; 100]).unwrap();
    let restored = restore(&context, &request(&rig, Some(5), None)).await.unwrap();
    assert_eq!(restored.plan.id, id(1, 5));
    assert_eq!(restored.plan.skipped[0].id, id(2, 5));
    // What was restored would differ from the next version, which is a conflict of its own.
    std::fs::remove_dir_all(&restored.plan.path).unwrap();
    std::fs::write(data(&rig, id(1, 5)), [0; 100]).unwrap();
    let (error, message) = text(restore(&context, &request(&rig, Some(5), None)).await);
    assert_eq!(error.kind(), ErrorKind::NoneValid, "{message}");
    assert!(
        message.contains("step 5 (attempt 2): ") && message.contains(" | step 5 (attempt 1): "),
        "{message}"
    );
}

/// Two remotes that hold different steps under one identity; the vault has the second one's.
async fn two_that_disagree() -> (Rig, Rig, [PathBuf; 2]) {
    let (mut one, mut other) = (Rig::new(), Rig::with_directory().await);
    let url = format!("file://{}", one.remote_root().display());
    std::fs::create_dir(one.remote_root()).unwrap();
    one.add("aside", &url, |_| {}, None).await;
    let sources = [(&one, 1), (&other, 2)].map(|(rig, seed)| (rig.write_step(100, FILES, seed, 1_000), rig));
    let mut paths = Vec::new();
    for (source, rig) in sources {
        rig.push_durably(&source).await;
        paths.push(source);
    }
    other.remotes.insert(0, one.remotes[0].clone());
    (one, other, paths.try_into().unwrap())
}

async fn restored_as(rig: &Rig, name: &str) -> (RestorePlan, PathBuf) {
    let target = rig.directory.path().join(name);
    let request = RestoreRequest { target: Target::As(target.clone()), ..rig.restore_request() };
    (restore(&rig.context(), &request).await.unwrap().plan, target)
}

fn weights(path: &Path) -> Vec<u8> {
    std::fs::read(path.join("x")).unwrap()
}

#[tokio::test]
async fn remotes_that_disagree_are_tried_one_after_the_other_and_never_mixed() {
    let (one, rig, sources) = two_that_disagree().await;
    let (first, target) = restored_as(&rig, "first").await;
    assert_eq!(first.sources, [one.remotes[0].tier.clone()]);
    assert_eq!(snapshot(&target), snapshot(&sources[0]));
    std::fs::write(data(&one, id(1, 100)), [0; 100]).unwrap();
    let (second, target) = restored_as(&rig, "second").await;
    assert_eq!((second.id, second.skipped.len()), (id(1, 100), 0));
    assert_eq!(second.sources, [stepvault_core::observe::Tier::Local, rig.remotes[1].tier.clone()]);
    assert_eq!(weights(&target), weights(&sources[1]));
    assert!(rig.vault.step(&crate::harness::run_name(), id(1, 100)).unwrap().is_some());
}
