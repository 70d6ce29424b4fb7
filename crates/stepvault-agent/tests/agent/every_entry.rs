//! Every entry of a watched directory is stored, excluded, known to be no checkpoint, or reported.

use std::os::unix::fs::symlink;
use std::time::Duration;

use stepvault_agent::AgentOptions;
use stepvault_core::config::Completion;
use stepvault_testkit::torch::archive;

use crate::harness::{Node, id, run_name};
use crate::support::{files_below, sealed, write_files};

async fn automatic(node: &Node) -> AgentOptions {
    let mut options = node.disk_options().await;
    options.runs[0].complete = Completion::Auto(Duration::from_secs(1));
    options.runs[0].pattern = None;
    options
}

/// The files of a step in the vault.
fn names(node: &Node, step: u64) -> Vec<String> {
    let directory = node.remote_root("disk").join(format!("grpo/checkpoints/{step:012}.a1"));
    files_below(&directory)
        .into_keys()
        .filter(|name| !name.contains(".json"))
        .map(|name| name.rsplit('/').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn all_files_of_a_number_are_one_step() {
    let node = Node::new();
    for epoch in 1..3 {
        for name in ["netG", "netD"] {
            let path = node.outputs().join(format!("{name}_epoch_{epoch}.pth"));
            std::fs::write(path, archive(b"N.")).unwrap();
        }
    }
    let report = node.once(automatic(&node).await);
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(sealed(&node), [id(1, 1), id(1, 2)]);
    assert_eq!(names(&node, 2), ["netD_epoch_2.pth", "netG_epoch_2.pth"]);
    // Another node knows them by what the remote has.
    std::fs::remove_dir_all(node.vault_directory()).unwrap();
    assert_eq!(node.once(automatic(&node).await).sealed.total, 0);
}

#[tokio::test]
async fn files_of_any_name_are_stored() {
    for (file, step) in [
        ("model_10.ubj", 10),
        ("model_epoch10.joblib", 10),
        ("rl_model_400_steps.zip.bin", 400),
        ("snapshot.cbsnapshot", 1),
        ("ppo.cleanrl_model", 1),
        ("checkpoint_final.bin", 1),
    ] {
        let node = Node::new();
        std::fs::write(node.outputs().join(file), b"\x07state").unwrap();
        std::fs::write(node.outputs().join("train.log"), "no checkpoint").unwrap();
        let report = node.once(automatic(&node).await);
        assert!(report.is_durable(), "{file}: {report:?}");
        assert_eq!(sealed(&node), [id(1, step)], "{file}");
    }
}

#[tokio::test]
async fn a_later_file_without_a_number_is_the_next_step_and_a_copy_is_none() {
    let node = Node::new();
    let at = |name: &str| node.outputs().join(name);
    std::fs::write(at("epoch_3.bin"), [7; 5000]).unwrap();
    std::fs::write(at("epoch_latest.bin"), [7; 5000]).unwrap();
    let report = node.once(automatic(&node).await);
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(sealed(&node), [id(1, 3)]);
    std::fs::write(at("epoch_latest.bin"), [8; 5000]).unwrap();
    let report = node.once(automatic(&node).await);
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(sealed(&node), [id(1, 3), id(1, 4)]);
}

#[tokio::test]
async fn what_is_not_stored_is_warned_of_and_counts_unless_it_is_ignored() {
    let node = Node::new();
    node.save("step_5", &[("model.pt.bin", 50)], 60);
    let write = |name: &str| std::fs::write(node.outputs().join(name), b"\x07state").unwrap();
    for name in ["vocabulary.bin", "embedding_1.npz", "embedding_2.npz", "config.json", "run.log"] {
        write(name);
    }
    node.save("fold_0", &[("checkpoint_final.pth", 50)], 60);
    node.save("figures", &[("curve.png", 50)], 60);
    symlink("step_5", node.outputs().join("latest")).unwrap();
    let options = automatic(&node).await;
    let report = node.once(options.clone());
    assert!(!report.is_durable());
    let mut unsealed: Vec<&str> =
        report.left.unsealed.iter().filter_map(|entry| entry.path.file_name()?.to_str()).collect();
    unsealed.sort_unstable();
    assert_eq!(unsealed, ["embedding_2.npz", "fold_0", "vocabulary.bin"]);
    let warned = node.recorder.lines_with("not sealed, and not known to be no checkpoint");
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("embedding_2.npz and 1 like it"), "{warned:?}");
    assert!(warned[0].contains("add it to 'ignore'"), "{warned:?}");

    let mut ignoring = options;
    ignoring.runs[0].ignore = vec!["*.{bin,npz}".to_owned(), "fold_*".to_owned()];
    assert!(node.once(ignoring).is_durable());
}

#[tokio::test]
async fn a_damaged_step_that_was_never_sealed_counts() {
    let node = Node::new();
    node.save("step_5", &[("model.bin", 50)], 60);
    let whole = archive(b"N.");
    std::fs::write(node.outputs().join("step_7.pt"), &whole[..whole.len() - 30]).unwrap();
    let report = node.once(automatic(&node).await);
    assert_eq!(sealed(&node), [id(1, 5)]);
    assert!(!report.is_durable());
    assert!(report.left.unsealed[0].reason.contains("it is damaged"), "{report:?}");
}

#[tokio::test]
async fn a_first_save_waits_for_a_file_that_can_hold_state() {
    let node = Node::new();
    let mut options = automatic(&node).await;
    options.runs[0].complete = Completion::Auto(Duration::from_millis(300));
    let service = node.start(options);
    let step = node.outputs().join("checkpoint-5");
    std::fs::create_dir(&step).unwrap();
    for name in ["config.json", "generation_config.json"] {
        std::fs::write(step.join(name), "{}").unwrap();
    }
    // Files of this moment are quiet when they are at least a second old.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(sealed(&node).is_empty());
    write_files(&step, &[("state.bin", 50)], 0);
    node.until_durable("disk", 5).await;
    service.stop();
    assert_eq!(sealed(&node), [id(1, 5)]);
}

#[tokio::test]
async fn a_step_waits_for_the_members_that_earlier_steps_have() {
    let node = Node::new();
    let mut options = automatic(&node).await;
    options.runs[0].complete = Completion::Auto(Duration::from_secs(1));
    let service = node.start(options);
    let write = |name: &str| std::fs::write(node.outputs().join(name), b"\x07state").unwrap();
    write("model_10.bin");
    write("optim_10.bin");
    node.until_durable("disk", 10).await;
    write("model_20.bin");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(sealed(&node), [id(1, 10)]);
    write("optim_20.bin");
    node.until_durable("disk", 20).await;
    assert!(service.stop().is_durable());
    assert_eq!(names(&node, 20), ["model_20.bin", "optim_20.bin"]);
}

#[tokio::test]
async fn the_trainers_own_link_is_recorded_with_the_step() {
    let node = Node::new();
    for step in [10, 20] {
        node.save(&format!("iter{step}"), &[("state.bin", 50)], 100 - step);
    }
    symlink("iter20", node.outputs().join("latest")).unwrap();
    symlink("iter10", node.outputs().join("best")).unwrap();
    assert!(node.once(automatic(&node).await).is_durable());
    let steps = node.vault().steps(&run_name()).unwrap().steps;
    let links = steps.iter().map(|step| {
        let links = step.record().origin.links.iter();
        links.map(|link| format!("{} -> {}", link.path, link.target)).collect()
    });
    let links: Vec<Vec<String>> = links.collect();
    assert_eq!(links, [vec!["best -> iter10"], vec!["latest -> iter20"]]);
}

#[tokio::test]
async fn what_was_sealed_stays_accounted_for_when_a_later_step_appears() {
    let node = Node::new();
    let at = |name: &str| node.outputs().join(name);
    std::fs::write(at("epoch_3.bin"), [7; 5000]).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    std::fs::write(at("latest.bin"), [8; 5000]).unwrap();
    assert!(node.once(automatic(&node).await).is_durable());
    assert_eq!(sealed(&node), [id(1, 3), id(1, 4)]);
    assert_eq!(names(&node, 4), ["epoch_3.bin", "latest.bin"], "a restore brings both");
    std::fs::write(at("epoch_5.bin"), [9; 5000]).unwrap();
    let report = node.once(automatic(&node).await);
    assert!(report.is_durable(), "{report:?}");
    assert_eq!(sealed(&node), [id(1, 3), id(1, 4), id(1, 5)]);
}
