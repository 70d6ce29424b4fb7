//! A step that has to be copied into the vault is sent while it is copied.

use stepvault_core::config::LinkPolicy;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, files_below};

const PART_BYTES: usize = 8 << 20;
/// The last part of a file may be short.
const SIZE_BYTES: usize = 6 * PART_BYTES + 1;
/// Whether a part is sent before the last one is copied depends on the machine, but not twenty times in a row.
const MAX_STEPS: u64 = 20;

#[tokio::test]
async fn parts_are_sent_while_their_step_is_copied_and_none_is_sent_twice() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 30).await;
    let mut options = node.options(vec![remote.clone()]);
    options.local.links = LinkPolicy::Copy;
    let service = node.start(options);
    let mut steps = 0;
    // The upload of the sealed step finds parts that are there already.
    while node.recorder.lines_with("reused on s3").is_empty() {
        steps += 1;
        assert!(steps <= MAX_STEPS, "no part was sent before its step was sealed");
        // Each differs from the one before, or the store would copy it.
        let size_bytes = SIZE_BYTES + usize::try_from(steps).unwrap();
        node.save(&format!("step_{steps}"), &[("model.safetensors", size_bytes)], 5);
        node.until_durable("s3", steps).await;
    }
    let report = service.stop();
    assert!(report.is_durable(), "{report:?}");
    let ids: Vec<_> = (1..=steps).map(|step| id(1, step)).collect();
    assert_eq!(committed(&remote).await, ids);
    let requests = server.faults().requests();
    // The probe sends parts as well.
    let sent = requests.iter().filter(|request| request.method == "PUT" && request.path.contains("model"));
    let parts = sent.filter(|request| request.path.contains("partNumber"));
    assert_eq!(parts.count() as u64, steps * 7);
    assert_eq!(server.pending_uploads(), []);
    for step in 1..=steps {
        let name = format!("step_{step}");
        let saved = files_below(&node.outputs().join(&name));
        let key = format!("bucket/prefix/grpo/checkpoints/{}/{name}/model.safetensors", id(1, step).label());
        assert_eq!(server.objects().body(&key).as_deref(), saved.values().next().map(|bytes| &bytes[..]));
    }
}

#[tokio::test]
async fn a_remote_that_is_away_holds_up_no_copy() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remotes = node.disk_and_s3(&server, 2).await;
    let mut options = node.options(remotes);
    options.local.links = LinkPolicy::Copy;
    let service = node.start(options.clone());
    node.save("step_1", &[("model.safetensors", SIZE_BYTES)], 9);
    node.until_durable("s3", 1).await;
    server.faults().inject("PUT", "", u64::MAX, FaultAction::Hang);
    server.faults().inject("POST", "", u64::MAX, FaultAction::Hang);
    for step in 2..=3 {
        node.save(&format!("step_{step}"), &[("model.safetensors", SIZE_BYTES + step)], 5);
        node.until_durable("disk", step as u64).await;
    }
    let report = service.stop();
    assert_eq!(report.left.not_durable.len(), 2, "{report:?}");
    server.faults().clear();
    let report = node.once(options);
    assert!(report.is_durable(), "{report:?}");
}
