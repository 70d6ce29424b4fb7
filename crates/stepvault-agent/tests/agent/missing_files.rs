//! Steps that lack a file which all earlier ones have, and that nothing else proves whole.

use std::time::Duration;

use stepvault_agent::AgentOptions;
use stepvault_core::config::Completion;

use crate::harness::{Node, id};
use crate::support::write_files;

/// The files have old times, so that only the time counts for which they are watched.
const QUIET: Duration = Duration::from_millis(400);
const FILES: [(&str, usize); 2] = [("model.dat", 100_000), ("optimizer.dat", 50_000)];

async fn quiet_options(node: &Node, quiet: Duration) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(quiet);
    options
}

fn save(node: &Node, step: u64, files: usize) -> std::path::PathBuf {
    let path = node.outputs().join(format!("step_{step}"));
    write_files(&path, &FILES[..files], 100 - step);
    path
}

#[tokio::test]
async fn a_step_that_lacks_a_file_of_all_earlier_ones_waits_and_is_sealed_in_the_end() {
    let node = Node::new();
    save(&node, 10, 2);
    save(&node, 20, 2);
    let service = node.start(quiet_options(&node, QUIET).await);
    node.until_durable("disk", 20).await;
    save(&node, 30, 1);
    node.until_heard("step_30 is not sealed yet: it lacks optimizer.dat, which all earlier steps have").await;
    assert!(node.recorder.lines_with("sealed: step 30").is_empty());
    // Ten quiet times later.
    node.until_durable("disk", 30).await;
    let taken = node.recorder.lines_with("step_30 is sealed although it lacks optimizer.dat");
    assert_eq!(taken.len(), 1, "{taken:?}");
    // From now on the file is missed no more.
    save(&node, 40, 1);
    node.until_durable("disk", 40).await;
    assert!(node.recorder.lines_with("step_40 is").is_empty());
    service.stop();
}

#[tokio::test]
async fn a_step_that_gets_its_file_late_is_sealed_with_it() {
    let node = Node::new();
    save(&node, 10, 2);
    let service = node.start(quiet_options(&node, 2 * QUIET).await);
    node.until_durable("disk", 10).await;
    save(&node, 20, 1);
    node.until_heard("step_20 is not sealed yet: it lacks optimizer.dat").await;
    save(&node, 20, 2);
    node.until_durable("disk", 20).await;
    assert!(node.on_disk("000000000020.a1/step_20/optimizer.dat").exists());
    service.stop();
}

/// The trainer keeps one step, and the agent starts anew: the vault knows which files a step has.
#[tokio::test]
async fn the_vault_knows_what_a_step_has_and_a_stop_seals_what_lacks_it() {
    let node = Node::new();
    let first = save(&node, 10, 2);
    let options = quiet_options(&node, QUIET).await;
    let service = node.start(options.clone());
    node.until_durable("disk", 10).await;
    service.stop();
    std::fs::remove_dir_all(first).unwrap();
    save(&node, 20, 1);
    let mut patient = options;
    patient.runs[0].complete = Completion::Auto(3 * QUIET);
    let service = node.start(patient);
    node.until_heard("step_20 is not sealed yet: it lacks optimizer.dat").await;
    let report = service.stop();
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(report.sealed.latest[0].id, id(1, 20));
    assert_eq!(node.recorder.lines_with("step_20 is sealed although it lacks optimizer.dat").len(), 1);
}

#[tokio::test]
async fn a_single_round_seals_what_lacks_a_file_with_a_warning() {
    let node = Node::new();
    save(&node, 10, 2);
    save(&node, 20, 2);
    save(&node, 30, 1);
    let report = node.once(quiet_options(&node, QUIET).await);
    assert!(report.is_durable() && report.sealed.total == 3, "{report:?}");
    let taken = node.recorder.lines_with("step_30 is sealed although it lacks optimizer.dat");
    assert_eq!(taken.len(), 1, "{taken:?}");
}
