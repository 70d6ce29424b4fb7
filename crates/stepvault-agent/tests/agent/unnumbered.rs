//! One path that holds one step after another, beside a running service.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use stepvault_agent::AgentOptions;
use stepvault_agent::control::{AnnounceRequest, AnnouncementState};
use stepvault_core::config::Completion;
use stepvault_core::ids::Step;
use stepvault_testkit::torch::{archive, state};

use crate::harness::{Node, id, run_name};
use crate::support::sealed;

async fn automatic(node: &Node, quiet: Duration) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(quiet);
    options
}

fn of_epoch(epoch: i64) -> Vec<u8> {
    state(&[("epoch", epoch)], &format!("weights of {epoch}"))
}

/// The bytes that the vault holds of a step's file.
fn in_vault(node: &Node, step: u64, file: &str) -> Vec<u8> {
    let sealed = node.vault().step(&run_name(), id(1, step)).unwrap().unwrap();
    std::fs::read(sealed.data_root().join(file)).unwrap()
}

fn set_age(path: &Path, age_seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(age_seconds);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// The format proves each content whole: the quiet time of a minute is not waited for.
#[tokio::test]
async fn each_content_is_sealed_as_it_was_overwritten_or_renamed_over() {
    let node = Node::new();
    let service = node.start(automatic(&node, Duration::from_mins(1)).await);
    let weights = node.outputs().join("weights");
    std::fs::create_dir(&weights).unwrap();
    std::fs::write(node.outputs().join("args.yaml"), "model: yolo").unwrap();
    for epoch in 0..3 {
        std::fs::write(weights.join("last.pt"), of_epoch(epoch)).unwrap();
        if epoch == 0 {
            std::fs::write(weights.join("best.pt"), of_epoch(epoch)).unwrap();
        }
        node.until_durable("disk", epoch.unsigned_abs()).await;
    }
    // Written before the one that it replaces.
    let other = node.place.path().join("other.pt");
    std::fs::write(&other, of_epoch(7)).unwrap();
    set_age(&other, 3600);
    std::fs::rename(&other, weights.join("last.pt")).unwrap();
    node.until_durable("disk", 7).await;
    // The end of the training.
    std::fs::write(weights.join("last.pt"), of_epoch(-1)).unwrap();
    node.until_durable("disk", 8).await;
    node.until_heard("states no step number any more").await;
    let report = service.stop();
    assert!(report.is_durable() && report.skipped.total == 0, "{report:?}");
    let steps = [0, 1, 2, 7, 8].map(|step| id(1, step));
    assert_eq!(sealed(&node), steps);
    for (step, epoch) in [(0, 0), (1, 1), (2, 2), (7, 7), (8, -1)] {
        assert_eq!(in_vault(&node, step, "weights/last.pt"), of_epoch(epoch));
        assert_eq!(in_vault(&node, step, "weights/best.pt"), of_epoch(0));
    }
    // Another service over the same directory seals nothing twice.
    let again = node.once(automatic(&node, Duration::from_secs(1)).await);
    assert_eq!((again.sealed.total, again.skipped.total), (0, 0), "{again:?}");
}

#[tokio::test]
async fn an_announced_path_gets_the_number_that_its_content_states_or_the_next_one() {
    let node = Node::new();
    let options = automatic(&node, Duration::from_mins(10)).await;
    let (service, client) = node.start_controlled(options).await;
    let announce = async |name: &str, bytes: Vec<u8>| {
        let path = node.outputs().join(name);
        std::fs::write(&path, bytes).unwrap();
        let request =
            AnnounceRequest { run: None, path, step: None, name: None, metrics: BTreeMap::new(), rank: None };
        let mut answer = client.announce(&request).await.unwrap();
        while answer.announced.state == AnnouncementState::Queued {
            answer = client.announcement(answer.announcement_id).await.unwrap();
        }
        answer.announced.step.map(Step::number)
    };
    let numbered = state(&[("global_step", 30)], "weights");
    assert_eq!(announce("checkpoint.pt", numbered).await, Some(30));
    let unnumbered = archive(b"Vweights\n.");
    assert_eq!(announce("checkpoint.pt", unnumbered.clone()).await, Some(31));
    assert_eq!(announce("checkpoint.pt", unnumbered).await, Some(31));
    service.stop();
    assert_eq!(sealed(&node), [id(1, 30), id(1, 31)]);
}
