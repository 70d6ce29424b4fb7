//! `clean-source`: the trainer's own steps go once they are durable, and only those that it can do without.

use std::path::Path;
use std::time::Duration;

use stepvault_agent::AgentOptions;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::fixtures::{automatic, unpack};
use crate::harness::{Node, id, run_name};
use crate::support::{files_below, keep_last, on_remote};

/// Steps 5, 10 and 15, of a framework that keeps all of them.
async fn hugging_face() -> (Node, AgentOptions) {
    let node = Node::new();
    unpack(&node, "hf-trainer-1rank");
    let mut options = automatic(&node).await;
    options.runs[0].clean_source = true;
    options.runs[0].keep_local = keep_last(1);
    // Once at each start.
    options.agent.retention_interval = Duration::from_hours(1);
    (node, options)
}

fn steps_there(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(node.outputs()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("checkpoint-")).collect();
    names.sort();
    names
}

/// Saves a step once more, with something new in it.
fn save_again(step: &Path) {
    for (path, mut bytes) in files_below(step) {
        if path == "trainer_state.json" {
            bytes.push(b'\n');
        }
        std::fs::write(step.join(path), bytes).unwrap();
    }
}

#[tokio::test]
async fn what_is_durable_goes_and_the_newest_stays() {
    let (node, mut options) = hugging_face().await;
    options.agent.retention_interval = Duration::from_millis(300);
    let before = files_below(&node.outputs());
    let service = node.start(options);
    node.until("the old steps to go", || steps_there(&node) == ["checkpoint-15"]).await;
    let report = service.stop();
    assert_eq!((report.sealed.total, report.cleaned.total), (3, 2), "{report:?}");
    assert!(report.is_durable(), "{report:?}");
    for step in [5, 10, 15] {
        let name = format!("checkpoint-{step}");
        let copy = node.on_disk(&format!("{step:012}.a1/{name}"));
        for (path, bytes) in files_below(&copy) {
            assert_eq!(before[&format!("{name}/{path}")], bytes, "{name}/{path}");
        }
    }
    // What is left of the trainer's is as it was.
    assert!(files_below(&node.outputs()).iter().all(|(path, bytes)| before[path] == *bytes));
}

/// The trainer's directory is under the local tier's rules.
#[tokio::test]
async fn what_the_local_tier_keeps_stays() {
    let (node, mut options) = hugging_face().await;
    options.runs[0].keep_local = keep_last(2);
    for round in 0..2 {
        let report = node.once(options.clone());
        assert_eq!(report.cleaned.total, u64::from(round == 0), "{report:?}");
    }
    assert_eq!(steps_there(&node), ["checkpoint-10", "checkpoint-15"]);
}

/// More steps than one round looks at, of which the oldest can never be proved.
#[tokio::test]
async fn steps_that_cannot_go_do_not_keep_others_from_it() {
    let (node, mut options) = hugging_face().await;
    let first = node.outputs().join("checkpoint-5");
    for step in 16..=28 {
        let copy = node.outputs().join(format!("checkpoint-{step}"));
        std::fs::create_dir(&copy).unwrap();
        for (path, bytes) in files_below(&first) {
            std::fs::write(copy.join(path), bytes).unwrap();
        }
    }
    options.runs[0].clean_source = false;
    options.runs[0].keep_remote = keep_last(3);
    node.once(options.clone());
    options.runs[0].clean_source = true;
    options.agent.retention_interval = Duration::from_millis(300);
    let service = node.start(options);
    let is_gone = |name: &str| !node.outputs().join(name).exists();
    node.until("the last but one to go", || is_gone("checkpoint-26") && is_gone("checkpoint-27")).await;
    service.stop();
    assert!(!is_gone("checkpoint-5") && !is_gone("checkpoint-25") && !is_gone("checkpoint-28"));
}

#[tokio::test]
async fn a_step_that_a_remote_holds_damaged_stays() {
    let (node, mut options) = hugging_face().await;
    options.runs[0].clean_source = false;
    node.once(options.clone());
    options.runs[0].clean_source = true;
    let copy = node.on_disk("000000000005.a1/checkpoint-5/trainer_state.json");
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&copy, bytes).unwrap();
    let report = node.once(options);
    assert_eq!(report.cleaned.total, 1, "{report:?}");
    assert_eq!(steps_there(&node), ["checkpoint-15", "checkpoint-5"]);
}

#[tokio::test]
async fn without_being_asked_nothing_is_removed() {
    let (node, mut options) = hugging_face().await;
    options.runs[0].clean_source = false;
    for _ in 0..2 {
        let report = node.once(options.clone());
        assert_eq!(report.cleaned.total, 0);
    }
    assert_eq!(steps_there(&node).len(), 3);
}

#[tokio::test]
async fn a_required_remote_without_the_step_holds_it_back() {
    let (node, mut options) = hugging_face().await;
    let server = StrictS3::start();
    let remote = node.s3_remote("s3", &server, 2).await;
    let names = options.runs[0].remotes.as_mut().unwrap();
    names.push(remote.settings.name.clone());
    options.remotes.push(remote);
    let down = FaultAction::refuse(503, "SlowDown");
    for method in ["PUT", "POST"] {
        server.faults().inject(method, "", u64::MAX, down.clone());
    }
    for _ in 0..2 {
        let report = node.once(options.clone());
        assert!(report.cleaned.total == 0 && !report.is_durable(), "{report:?}");
        assert_eq!(steps_there(&node).len(), 3);
    }
    // It cannot even be asked: nothing is known.
    server.faults().inject("GET", "", u64::MAX, down);
    let report = node.once(options.clone());
    assert_eq!((report.cleaned.total, steps_there(&node).len()), (0, 3));

    // It is back, for a service that does not remember how it was.
    server.faults().clear();
    options.remotes.pop();
    options.remotes.push(node.s3_remote("s3", &server, 30).await);
    let report = node.once(options);
    assert!(report.is_durable() && report.cleaned.total == 2, "{report:?}");
    assert_eq!(steps_there(&node), ["checkpoint-15"]);
}

#[tokio::test]
async fn what_is_pinned_or_the_best_stays() {
    let (node, mut options) = hugging_face().await;
    let state = node.outputs().join("checkpoint-15/trainer_state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    let unset = "\"best_model_checkpoint\": null";
    assert!(text.contains(unset));
    let best = "\"best_model_checkpoint\": \"/somewhere/else/checkpoint-10\"";
    std::fs::write(&state, text.replace(unset, best)).unwrap();
    options.runs[0].clean_source = false;
    node.once(options.clone());
    options.runs[0].clean_source = true;
    node.vault().pin(&run_name(), id(1, 5), "for the paper").unwrap();
    let report = node.once(options.clone());
    assert_eq!((report.cleaned.total, steps_there(&node).len()), (0, 3), "{report:?}");
    node.vault().unpin(&run_name(), id(1, 5)).unwrap();
    // A pin that only the remote knows of holds as well.
    let remote = on_remote(&options.remotes[0]);
    assert!(stepvault_engine::tier::catalog::pin(&remote, id(1, 5), "").await.unwrap());
    assert_eq!(node.once(options.clone()).cleaned.total, 0);
    assert!(stepvault_engine::tier::catalog::unpin(&remote, id(1, 5)).await.unwrap());
    assert_eq!(node.once(options).cleaned.total, 1);
    assert_eq!(steps_there(&node), ["checkpoint-10", "checkpoint-15"]);
}

/// A run that went back to step 5 goes on from there, whatever the numbers say.
#[tokio::test]
async fn the_step_that_was_written_last_stays() {
    let (node, mut options) = hugging_face().await;
    options.runs[0].clean_source = false;
    node.once(options.clone());
    save_again(&node.outputs().join("checkpoint-5"));
    options.runs[0].clean_source = true;
    node.once(options);
    assert_eq!(steps_there(&node), ["checkpoint-15", "checkpoint-5"]);
    assert!(node.on_disk("000000000005.a1r2/checkpoint-5").is_dir());
}

/// Of a directory that no profile knows nobody knows what its trainer needs.
#[tokio::test]
async fn what_an_unknown_trainer_wrote_stays() {
    let node = Node::new();
    let mut options = automatic(&node).await;
    options.runs[0].clean_source = true;
    for step in 1..=3 {
        node.save(&format!("step_{step}"), &[("state.raw", 500)], 10 - step);
    }
    for _ in 0..2 {
        let report = node.once(options.clone());
        assert_eq!(report.cleaned.total, 0);
    }
    assert_eq!(node.vault().steps(&run_name()).unwrap().steps.len(), 3);
    assert!((1..=3).all(|step| node.outputs().join(format!("step_{step}/state.raw")).exists()));
}
