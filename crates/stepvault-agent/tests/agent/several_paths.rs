//! Steps that a framework makes of several paths.

use std::os::unix::fs::symlink;

use crate::fixtures::{automatic, unpack};
use crate::harness::{Node, run_name};
use crate::support::files_below;

/// Composer writes one file a rank and one link a rank.
#[tokio::test]
async fn the_files_of_all_ranks_are_one_step() {
    let (node, real) = (Node::new(), Node::new());
    unpack(&real, "killed-torch-save-small");
    for rank in 0..2 {
        let name = format!("ep1-ba100-rank{rank}.pt");
        std::fs::copy(real.outputs().join(format!("step_{}.pt", rank + 1)), node.outputs().join(&name))
            .unwrap();
        symlink(&name, node.outputs().join(format!("latest-rank{rank}.pt"))).unwrap();
    }
    // The save that is under way: rank 1 has not written yet.
    std::fs::copy(real.outputs().join("step_1.pt"), node.outputs().join("ep1-ba200-rank0.pt")).unwrap();

    let report = node.once(automatic(&node).await);
    assert_eq!((report.sealed.total, report.uploaded.total), (1, 1), "{report:?}");
    let copy = node.on_disk("000000000100.a1/composer-files-100");
    let copied = files_below(&copy);
    let written = files_below(&node.outputs());
    let names: Vec<&str> = copied.keys().map(String::as_str).collect();
    assert_eq!(names, ["ep1-ba100-rank0.pt", "ep1-ba100-rank1.pt"]);
    assert!(copied.iter().all(|(name, bytes)| written[name] == *bytes));

    // A new node knows it by what the remote has.
    std::fs::remove_dir_all(node.vault_directory()).unwrap();
    let again = node.once(automatic(&node).await);
    assert_eq!((again.sealed.total, again.uploaded.total), (0, 0), "{again:?}");
}

/// `AReaL` overwrites two directories at each save; the number of the step stands in one of them.
#[tokio::test]
async fn a_pair_of_directories_that_is_overwritten_is_a_new_step_each_time() {
    let (node, real) = (Node::new(), Node::new());
    unpack(&real, "dcp-1rank");
    let trial = node.outputs().join("experiment/trial");
    let save = |step: u64| {
        let weights = trial.join("actor/recover_checkpoint");
        std::fs::create_dir_all(&weights).unwrap();
        let mut files: Vec<_> = files_below(&real.outputs().join("step_5")).into_iter().collect();
        // `.metadata` comes last.
        files.sort_by_key(|(name, _)| name == ".metadata");
        for (name, bytes) in files {
            std::fs::write(weights.join(name), bytes).unwrap();
        }
        let info = trial.join("recover_info");
        std::fs::create_dir_all(&info).unwrap();
        std::fs::write(info.join("step_info.json"), format!("{{\"global_step\": {step}}}")).unwrap();
        for name in ["saver_info", "evaluator_info", "stats_logger_info", "checkpoint_info"] {
            std::fs::write(info.join(format!("{name}.json")), "{}").unwrap();
        }
        std::fs::write(info.join("dataloader_info.pkl"), b"\x80\x04N.").unwrap();
    };
    for step in [10, 20] {
        save(step);
        let report = node.once(automatic(&node).await);
        assert_eq!((report.sealed.total, report.uploaded.total), (1, 1), "{report:?}");
        let copy = format!("grpo/checkpoints/{step:012}.a1/areal-recover-{step}");
        let copy = node.remote_root("disk").join(copy);
        assert_eq!(files_below(&copy), files_below(&node.outputs()));
    }
    let sealed = node.vault().steps(&run_name()).unwrap().steps;
    assert_eq!(sealed.iter().map(|step| step.id().step.number()).collect::<Vec<_>>(), [10, 20]);
}
