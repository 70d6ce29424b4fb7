//! A run that goes back writes over files that the vault holds hard links to.

use std::io::{Seek as _, Write as _};
use std::path::Path;

use stepvault_local::seal_record::SnapshotMethod;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id, run_name};
use crate::support::{bytes, committed, files_below};

const SIZE_BYTES: usize = 1000;

/// Saves the step again, as a run that has gone back: one file is written over in place, as `torch.save` does, to the
/// same length, and one is replaced.
fn save_again(step: &Path, content: &[u8]) {
    let mut file = std::fs::File::options().write(true).open(step.join("model.pt")).unwrap();
    file.rewind().unwrap();
    file.write_all(content).unwrap();
    let temporary = step.with_extension("tmp");
    std::fs::write(&temporary, "{}").unwrap();
    std::fs::rename(temporary, step.join("state.json")).unwrap();
}

/// The new bytes are never uploaded as the old step: that one is given up, in words, and they become a step of a new
/// attempt.
#[tokio::test]
async fn a_sealed_file_that_is_written_over_in_place_is_not_uploaded_as_the_old_step() {
    let (node, server) = (Node::new(), StrictS3::start());
    let remote = node.s3_remote("s3", &server, 5).await;
    let down = FaultAction::refuse(503, "SlowDown");
    server.faults().inject("PUT", "", u64::MAX, down.clone());
    server.faults().inject("POST", "", u64::MAX, down);
    let service = node.start(node.options(vec![remote.clone()]));
    let step = node.save("step_100", &[("model.pt", SIZE_BYTES), ("state.json", 10)], 60);
    node.until_heard("sealed: step 100 (attempt 1)").await;
    let vault = node.vault();
    let sealed = vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    if sealed.record().files[0].method != SnapshotMethod::HardLink {
        eprintln!("skipped: this filesystem makes reflinks, which no writing reaches");
        service.kill();
        return;
    }
    let after = bytes(SIZE_BYTES, 7);
    save_again(&step, &after);
    node.until_heard("sealed: step 100 (attempt 1, revision 2)").await;
    server.faults().clear();
    node.until_heard("durable on s3: step 100 (attempt 1, revision 2)").await;
    node.until_heard(
        "step 100 (attempt 1) of grpo/checkpoints is not durable on s3: cannot read the sealed file",
    )
    .await;

    let report = service.stop();
    let lost: Vec<_> = report.left.not_durable.iter().map(|step| (step.id, step.failed)).collect();
    assert_eq!(lost, [(id(1, 100), true)]);
    let reason = &report.left.not_durable[0].reason;
    assert!(reason.ends_with("it was written again after it was sealed"), "{reason}");
    assert_eq!(committed(&remote).await, [id(1, 100).next_revision().unwrap()]);
    let object = server.objects().body("bucket/prefix/grpo/checkpoints/000000000100.a1r2/step_100/model.pt");
    assert_eq!(object.as_deref(), Some(&after[..]));
}

/// What is durable stays what it was, whatever becomes of the files afterwards.
#[tokio::test]
async fn writing_over_a_durable_step_makes_a_revision_beside_it() {
    let node = Node::new();
    let service = node.start(node.disk_options().await);
    let step = node.save("step_100", &[("model.pt", SIZE_BYTES), ("state.json", 10)], 60);
    let before = files_below(&step);
    node.until_durable("disk", 100).await;
    save_again(&step, &bytes(SIZE_BYTES, 7));
    node.until_heard("durable on disk: step 100 (attempt 1, revision 2)").await;
    service.stop();
    let copy = |label: &str| {
        let run = node.remote_root("disk").join("grpo/checkpoints");
        files_below(&run.join(label).join("step_100"))
    };
    assert_eq!(copy("000000000100.a1"), before);
    assert_eq!(copy("000000000100.a1r2"), files_below(&step));
}
