//! A full disk: said, waited out, and gone on with.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use stepvault_local::seal::LinkPolicy;

use crate::harness::{Node, id};
use crate::support::committed;

/// A small file system; `None` where this process may not mount one.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(place: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(place)
            .status();
        if status.is_ok_and(|status| status.success()) {
            return Some(Self(place.to_owned()));
        }
        eprintln!("skipped: this process may not mount a tmpfs");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_stops_nothing_for_longer_than_it_is_full() {
    let node = Node::new();
    let Some(_disk) = Tmpfs::mount(&node.vault_directory(), "size=4m") else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    node.until("the vault", || node.vault_directory().join("vault.json").exists())
        .await;
    let ballast = node.vault_directory().join("lost+found");
    std::fs::create_dir(&ballast).unwrap();
    std::fs::write(ballast.join("ballast"), vec![1; 3 << 20]).unwrap();
    node.save("step_1", &[("model.bin", 2 << 20)], 9);
    node.until_heard("a copy takes 2097152 more bytes").await;
    // Meanwhile a smaller one still goes through.
    node.save("step_2", &[("model.bin", 100)], 8);
    node.until_heard("durable on disk: step 2 (attempt 1)").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let warnings = node.recorder.lines_with("a copy takes");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    std::fs::remove_dir_all(&ballast).unwrap();
    let begun = Instant::now();
    node.until_heard("durable on disk: step 1 (attempt 1)").await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(service.stop().is_safe());
    assert_eq!(committed(&remote).await, [id(1, 1), id(1, 2)]);
}

#[tokio::test]
async fn durable_copies_make_room_for_a_new_step_although_no_rule_drops_them() {
    let node = Node::new();
    let Some(_disk) = Tmpfs::mount(&node.vault_directory(), "size=4m") else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    for step in 1..=6 {
        node.save(&format!("step_{step}"), &[("model.bin", 1 << 20)], 20 - step);
        node.until_heard(&format!("durable on disk: step {step} (attempt 1)"))
            .await;
    }
    let report = service.stop();
    assert_eq!(report.sealed.total, 6);
    assert!(report.evicted.total >= 3, "{report:?}");
    assert!(report.is_safe());
    assert_eq!(committed(&remote).await.len(), 6);
}

#[tokio::test]
async fn the_next_step_is_said_not_to_fit_before_it_is_written() {
    let node = Node::new();
    let Some(_disk) = Tmpfs::mount(&node.outputs(), "size=4m") else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote]));
    node.save("step_1", &[("model.bin", 1 << 20)], 9);
    node.until_heard("durable on disk: step 1 (attempt 1)").await;
    assert!(node.recorder.lines_with("the next step takes").is_empty());
    node.save("step_2", &[("model.bin", 2 << 20)], 8);
    node.until_heard("the next step takes about 3.0 MiB by the last 2 steps, and ")
        .await;
    let warnings = node
        .recorder
        .lines_with("the trainer's next save is expected to fail there");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(
        warnings[0].contains("the vault is on another disk"),
        "{warnings:#?}"
    );
    assert!(service.stop().is_safe());
}

#[tokio::test]
async fn room_for_the_next_step_is_made_before_it_is_written() {
    let node = Node::new();
    let Some(_disk) = Tmpfs::mount(&node.vault_directory(), "size=4m") else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote]));
    for step in 1..=3 {
        node.save(&format!("step_{step}"), &[("model.bin", 1 << 20)], 20 - step);
        node.until_heard(&format!("durable on disk: step {step} (attempt 1)"))
            .await;
    }
    // Records have their share of the last MiB.
    node.until_heard("removed from local: step 1 (attempt 1)").await;
    assert!(node.recorder.lines_with("the next step takes").is_empty());
    let report = service.stop();
    assert!(report.is_safe());
    assert_eq!(report.evicted.total, 1, "{report:?}");
}

#[tokio::test]
async fn where_steps_are_copied_the_copy_needs_its_room_too() {
    let node = Node::new();
    // One small disk for the trainer and the vault.
    let Some(_disk) = Tmpfs::mount(&node.place.path().join("ssd"), "size=8m") else {
        return;
    };
    let outputs = node.place.path().join("ssd/outputs");
    std::fs::create_dir(&outputs).unwrap();
    std::fs::remove_dir(node.outputs()).unwrap();
    std::os::unix::fs::symlink(&outputs, node.outputs()).unwrap();
    let remote = node.directory_remote("disk").await;
    let mut options = node.options(vec![remote]);
    options.vault_directory = node.place.path().join("ssd/vault");
    options.runs[0].watch_directory = Some(outputs);
    options.links = LinkPolicy::Copy;
    let service = node.start(options);
    node.save("step_1", &[("model.bin", 1 << 20)], 9);
    node.until_heard("durable on disk: step 1 (attempt 1)").await;
    node.save("step_2", &[("model.bin", 1 << 20)], 8);
    // Four MiB are taken, and of the four that are free some by records: a step of one fits twice.
    node.until_heard("durable on disk: step 2 (attempt 1)").await;
    node.save("step_3", &[("model.bin", 1 << 20)], 7);
    // Less than two MiB are left: the first copy goes before the next step comes.
    node.until_heard("removed from local: step 1 (attempt 1)").await;
    assert!(node.recorder.lines_with("copy takes").is_empty());
    assert!(service.stop().is_safe());
}
