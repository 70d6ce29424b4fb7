//! Checkpoints that real frameworks wrote, with the profile to be found out: exactly the complete steps are taken.

use std::collections::BTreeMap;
use std::time::Duration;

use stepvault_agent::{AgentOptions, AgentReport, SkippedEntry};
use stepvault_core::config::Completion;
use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::RunName;
use stepvault_local::seal_record::SnapshotMethod;
use stepvault_local::sealed::SealedStep;
use stepvault_testkit::fixture::{entry, unpack_into};

use crate::harness::{Node, run_name};
use crate::support::files_below;

/// Makes a fixture the directory that the trainer writes to.
pub(crate) fn unpack(node: &Node, name: &str) {
    let root = unpack_into(name, node.place.path());
    std::fs::remove_dir(node.outputs()).unwrap();
    std::fs::rename(root, node.outputs()).unwrap();
}

pub(crate) async fn automatic(node: &Node) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_secs(1));
    options
}

fn sealed_of(node: &Node, run: &RunName) -> Vec<SealedStep> {
    node.vault().steps(run).unwrap().steps
}

fn reasons(report: &AgentReport) -> BTreeMap<String, String> {
    let entries = report.skipped.latest.iter();
    entries
        .map(|entry| {
            let name = entry.path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, entry.reason.clone())
        })
        .collect()
}

/// Seals what is complete in a fixture, and checks that it is what its framework can load.
async fn take(name: &str) -> (Node, AgentReport) {
    let node = Node::new();
    unpack(&node, name);
    let report = node.once(automatic(&node).await);
    let known = entry(name);
    let wanted: BTreeMap<u64, String> = known["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|step| step["complete"] == true)
        .filter_map(|step| Some((step["step"].as_u64()?, step["path"].as_str()?.to_owned())))
        .collect();
    let sealed = sealed_of(&node, &run_name());
    let found: Vec<u64> = sealed.iter().map(|step| step.id().step.number()).collect();
    assert_eq!(found, wanted.keys().copied().collect::<Vec<_>>(), "{name}: {:#?}", report.skipped);
    // A step that is damaged or not complete is not sealed, and counts.
    let is_torn = |entry: &SkippedEntry| {
        entry.reason.contains("it is damaged") || entry.reason.contains("it is not complete")
    };
    assert!(report.left.unsealed.iter().all(is_torn), "{name}: {report:?}");
    assert!(report.left.not_durable.is_empty(), "{name}: {report:?}");
    for step in &sealed {
        let id = step.id();
        assert_eq!(id.attempt.number(), 1, "{name}: {id}");
        let source = node.outputs().join(&wanted[&id.step.number()]);
        let copy = format!("disk/grpo/checkpoints/{}/{}", id.label(), step.name());
        let copy = node.place.path().join(copy);
        if source.is_dir() {
            assert_eq!(files_below(&copy), files_below(&source), "{name}: {id}");
        } else {
            let bytes = std::fs::read(&source).unwrap();
            assert_eq!(std::fs::read(copy.join(step.name())).unwrap(), bytes, "{name}: {id}");
        }
    }
    (node, report)
}

#[tokio::test]
async fn every_framework_is_told_by_what_it_wrote() {
    for name in [
        "hf-trainer-2rank",
        "hf-trainer-killed",
        "accelerate-2rank",
        "lightning-last-copy",
        "lightning-last-link",
        "deepspeed-zero1",
        "deepspeed-latest-too-early",
        "megatron-torch-dist",
        "verl-fsdp",
        "prime-rl-checkpoints",
        "cycling-utils-killed",
        "cycling-utils-sync",
        "orbax-killed",
        "orbax-ocdbt",
        "dcp-killed-before-metadata",
        "dcp-2rank-zero-byte-shard",
    ] {
        take(name).await;
    }
}

#[tokio::test]
async fn what_is_not_complete_is_told_with_the_reason() {
    for (name, step, reason) in [
        ("hf-trainer-killed", "checkpoint-15", "trainer_state.json does not exist yet"),
        ("deepspeed-latest-too-early", "global_step20", "1 rank wrote it, but 2 wrote the previous step"),
        ("prime-rl-checkpoints", "step_30", "orchestrator/progress.pt does not exist yet"),
        ("dcp-killed-before-metadata", "step_30", ".metadata"),
    ] {
        let (_, report) = take(name).await;
        let reasons = reasons(&report);
        let said = reasons.get(step).map(String::as_str).unwrap_or_default();
        assert!(said.contains(reason), "{name}: {reasons:#?}");
        assert!(!report.is_durable(), "{name}: {report:?}");
    }
}

/// Complete by its name and its quiet time; only its structure shows that the save was cut off.
#[tokio::test]
async fn what_is_broken_inside_is_not_sealed_until_it_changes() {
    let (node, report) = take("sigterm-torch-save").await;
    let said = reasons(&report);
    assert_eq!(
        said["step_3.pt"],
        "its files are all there, but it is damaged: step_3.pt: data.pkl names storage 39 of 800 bytes, and the \
         archive \
         has no data/39: the save was cut off"
    );
    // The trainer saves it again, whole.
    std::fs::copy(node.outputs().join("step_2.pt"), node.outputs().join("step_3.pt")).unwrap();
    let report = node.once(automatic(&node).await);
    assert_eq!((report.sealed.total, report.skipped.total), (1, 0), "{report:?}");
    assert_eq!(sealed_of(&node, &run_name()).len(), 3);
}

#[tokio::test]
async fn files_that_a_framework_may_overwrite_are_never_linked() {
    let methods = |node: &Node| {
        let steps = sealed_of(node, &run_name());
        let files = steps.iter().flat_map(|step| step.record().files.clone());
        files.map(|file| file.method).collect::<Vec<_>>()
    };
    let (node, _) = take("hf-trainer-2rank").await;
    assert!(!methods(&node).contains(&SnapshotMethod::Copy));
    let (node, _) = take("dcp-2rank").await;
    assert!(!methods(&node).contains(&SnapshotMethod::HardLink));

    // The configuration may be stricter than the profile.
    let node = Node::new();
    unpack(&node, "hf-trainer-1rank");
    let mut options = automatic(&node).await;
    options.local.links = LinkPolicy::Copy;
    assert_eq!(node.once(options).sealed.total, 3);
    assert!(methods(&node).iter().all(|method| *method == SnapshotMethod::Copy));
}

#[tokio::test]
async fn a_directory_in_which_nothing_is_taken_is_warned_of_with_the_reason() {
    let node = Node::new();
    unpack(&node, "hf-trainer-1rank");
    let steps = node.place.path().join("steps");
    std::fs::rename(node.outputs(), &steps).unwrap();
    std::fs::create_dir(node.outputs()).unwrap();
    std::fs::rename(&steps, node.outputs().join("trial_0")).unwrap();
    let options = automatic(&node).await;
    let report = node.once(options.clone());
    assert_eq!(report.sealed.total, 0);
    assert!(!report.is_safe_here(), "its directory may be removed");
    let advice = node.recorder.lines_with("outputs/trial_0 (holds steps of hf-trainer in trial_0)");
    assert_eq!(advice.len(), 1, "{:?}", node.recorder.lines_with(""));

    // A step that is still written is no run.
    let unfinished = node.outputs().join("3.orbax-checkpoint-tmp");
    std::fs::rename(node.outputs().join("trial_0"), &unfinished).unwrap();
    assert!(node.once(options.clone()).is_safe_here());
    let lines = node.recorder.lines_with("3.orbax-checkpoint-tmp holds");
    assert!(lines.is_empty(), "{lines:?}");
    std::fs::rename(&unfinished, node.outputs().join("trial_0")).unwrap();

    std::fs::remove_dir_all(node.outputs().join("trial_0")).unwrap();
    node.save("unnamed", &[("model.dat", 20), ("notes.txt", 20)], 0);
    let report = node.once(options.clone());
    assert_eq!(report.sealed.total, 0);
    assert!(!report.is_safe_here(), "a small one too");
    let advice = node.recorder.lines_with("outputs/unnamed (may hold a checkpoint)");
    assert_eq!(advice.len(), 1, "{:?}", node.recorder.lines_with(""));
    let mut ignoring = options;
    ignoring.runs[0].ignore = vec!["unnamed".to_owned()];
    assert!(node.once(ignoring).is_safe_here());
}

/// Weights that the trainer cannot go on from are a series of their own, taken when they are asked for.
#[tokio::test]
async fn a_series_is_taken_when_it_is_named() {
    let node = Node::new();
    unpack(&node, "prime-rl-weights-old");
    let mut options = automatic(&node).await;
    let report = node.once(options.clone());
    assert_eq!(report.sealed.total, 0);
    let advice = node.recorder.lines_with("to keep it, set series = [\"weights\"]");
    assert_eq!(advice.len(), 1, "{:?}", node.recorder.lines_with(""));

    options.runs[0].profile = Some("prime-rl".to_owned());
    options.runs[0].series = Some(vec!["weights".to_owned()]);
    let report = node.once(options);
    assert_eq!(report.sealed.total, 2, "{report:?}");
    let names: Vec<String> =
        sealed_of(&node, &run_name()).iter().map(|step| step.name().to_owned()).collect();
    assert_eq!(names, ["step_10", "step_20"]);
}
