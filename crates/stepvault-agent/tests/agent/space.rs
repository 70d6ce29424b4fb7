//! A full disk: said, waited out, and gone on with.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use stepvault_agent::AgentReport;
use stepvault_agent::control::AnnounceRequest;
use stepvault_core::config::LinkPolicy;
use stepvault_core::retention::LocalLimits;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, PATIENCE, id};
use crate::metrics::{scrape, serve_metrics};
use crate::support::{committed, text};

/// A small file system; `None` where this process may not mount one.
struct Tmpfs(std::path::PathBuf);

impl Tmpfs {
    fn mount(place: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("mode=755,{options}"), "tmpfs"])
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

/// A node whose vault has a small disk of its own.
fn with_small_vault() -> Option<(Node, Tmpfs)> {
    let node = Node::new();
    let disk = Tmpfs::mount(&node.vault_directory(), "size=4m")?;
    Some((node, disk))
}

/// Fills the vault's disk to a quarter; returns what to remove.
fn fill(node: &Node) -> std::path::PathBuf {
    let ballast = node.vault_directory().join("lost+found");
    std::fs::create_dir(&ballast).unwrap();
    std::fs::write(ballast.join("ballast"), vec![1; 3 << 20]).unwrap();
    ballast
}

#[tokio::test]
async fn a_full_disk_stops_nothing_for_longer_than_it_is_full() {
    let Some((node, _disk)) = with_small_vault() else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    node.until("the vault", || node.vault_directory().join("vault.json").exists()).await;
    let ballast = fill(&node);
    node.save("step_1", &[("model.bin", 2 << 20)], 9);
    node.until_heard("a copy takes 2097152 more bytes").await;
    // Meanwhile a smaller one still goes through.
    node.save("step_2", &[("model.bin", 100)], 8);
    node.until_durable("disk", 2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let warnings = node.recorder.lines_with("a copy takes");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    std::fs::remove_dir_all(&ballast).unwrap();
    let begun = Instant::now();
    node.until_durable("disk", 1).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(service.stop().is_durable());
    assert_eq!(committed(&remote).await, [id(1, 1), id(1, 2)]);
}

#[tokio::test]
async fn a_vault_whose_file_system_is_unmounted_ends_the_service_and_leaves_nothing_below_the_mount_point() {
    let Some((node, disk)) = with_small_vault() else {
        return;
    };
    let service = node.start(node.disk_options().await);
    node.save_small(1, 5);
    node.until_durable("disk", 1).await;
    drop(disk);
    let error = text(&service.ended().unwrap_err());
    assert!(error.contains("its file system is no longer mounted"), "{error}");
    assert_eq!(std::fs::read_dir(node.vault_directory()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_announced_step_that_found_the_disk_full_is_sealed_once_there_is_space() {
    let Some((node, _disk)) = with_small_vault() else {
        return;
    };
    let mut options = node.disk_options().await;
    options.runs[0].watch = None;
    let address = serve_metrics(&mut options);
    let (service, client) = node.start_controlled(options).await;
    let ballast = fill(&node);
    let request = AnnounceRequest {
        run: None,
        path: node.save("step_1", &[("model.bin", 2 << 20)], 9),
        step: None,
        name: None,
        metrics: BTreeMap::new(),
        rank: None,
    };
    client.announce(&request).await.unwrap_err();
    let begun = Instant::now();
    loop {
        let told = client.status(PATIENCE).await.unwrap();
        if told.runs[0].seen.unsealed.first().is_some_and(|entry| entry.path == request.path) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{told:?}");
    }
    let unsealed = || scrape(address)["stepvault_unsealed_steps{run=\"grpo/checkpoints\"}"];
    assert_eq!(unsealed(), 1.0);
    std::fs::remove_dir_all(&ballast).unwrap();
    node.until_durable("disk", 1).await;
    node.until("the number", || unsealed() == 0.0).await;
    assert!(service.stop().is_durable());
}

#[tokio::test]
async fn a_round_that_could_not_seal_for_want_of_space_is_not_durable() {
    let Some((node, _disk)) = with_small_vault() else {
        return;
    };
    let path = node.save("step_1", &[("model.bin", 8 << 20)], 9);
    let options = node.disk_options().await;
    let report = node.once(options.clone());
    assert!(!report.is_durable() && report.left.not_durable.is_empty(), "{report:?}");
    assert_eq!(report.left.unsealed.len(), 1);
    assert_eq!(report.left.unsealed[0].path, path);
    assert!(report.left.unsealed[0].reason.contains("a copy takes 8388608 more bytes"), "{report:?}");
    // The same of a drain.
    let service = node.start(options);
    node.until_heard("a copy takes").await;
    let report = service.stop();
    assert!(!report.is_durable() && report.left.unsealed.len() == 1, "{report:?}");
}

#[tokio::test]
async fn durable_copies_make_room_for_a_new_step_although_no_rule_drops_them() {
    let Some((node, _disk)) = with_small_vault() else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote.clone()]));
    for step in 1..=6 {
        node.save(&format!("step_{step}"), &[("model.bin", 1 << 20)], 20 - step);
        node.until_durable("disk", step).await;
    }
    let report = service.stop();
    assert_eq!(report.sealed.total, 6);
    assert!(report.evicted.total >= 3, "{report:?}");
    assert!(report.is_durable());
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
    node.until_durable("disk", 1).await;
    assert!(node.recorder.lines_with("the next step needs").is_empty());
    node.save("step_2", &[("model.bin", 2 << 20)], 8);
    node.until_heard("the next step needs about 3.0 MiB (estimated from the last 2 steps), but only ").await;
    let warnings = node.recorder.lines_with("the trainer's next checkpoint is expected to fail");
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("the vault is on another disk"), "{warnings:#?}");
    assert!(service.stop().is_durable());
}

#[tokio::test]
async fn room_for_the_next_step_is_made_before_it_is_written() {
    let Some((node, _disk)) = with_small_vault() else {
        return;
    };
    let remote = node.directory_remote("disk").await;
    let service = node.start(node.options(vec![remote]));
    for step in 1..=3 {
        node.save(&format!("step_{step}"), &[("model.bin", 1 << 20)], 20 - step);
        node.until_durable("disk", step).await;
    }
    // Records have their share of the last MiB.
    node.until_heard("removed from local: step 1 (attempt 1)").await;
    assert!(node.recorder.lines_with("the next step needs").is_empty());
    let report = service.stop();
    assert!(report.is_durable());
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
    options.runs[0].watch = Some(outputs);
    options.local.links = LinkPolicy::Copy;
    let service = node.start(options);
    node.save("step_1", &[("model.bin", 1 << 20)], 9);
    node.until_durable("disk", 1).await;
    node.save("step_2", &[("model.bin", 1 << 20)], 8);
    // Four MiB are taken, and of the four that are free some by records: a step of one fits twice.
    node.until_durable("disk", 2).await;
    node.save("step_3", &[("model.bin", 1 << 20)], 7);
    // Less than two MiB are left: the first copy goes before the next step comes.
    node.until_heard("removed from local: step 1 (attempt 1)").await;
    assert!(node.recorder.lines_with("copy takes").is_empty());
    assert!(service.stop().is_durable());
}

/// An outage from the first save on: a trainer on a small disk that keeps its last step alone, and a vault beside it that
/// links what it saves.
async fn saves_through_an_outage(give_up_undurable: bool) -> Option<(Node, AgentReport, u64, f64)> {
    let node = Node::new();
    let disk = node.place.path().join("disk");
    let _disk = Tmpfs::mount(&disk, "size=6m")?;
    let server = StrictS3::start();
    let remote = node.s3_remote("s3", &server, 1).await;
    drop(server);
    let mut options = node.options(vec![remote]);
    options.vault_directory = disk.join("vault");
    let outputs = disk.join("outputs");
    std::fs::create_dir_all(&outputs).unwrap();
    options.runs[0].watch = Some(outputs.clone());
    options.local.limits =
        LocalLimits { free_space_low_bytes: Some(3 << 20), give_up_undurable, ..LocalLimits::default() };
    let address = serve_metrics(&mut options);
    let service = node.start(options);
    let mut saved = 0;
    for step in 1..=12_u64 {
        // As a trainer does it: written beside, renamed, and the one before removed.
        let beside = outputs.join(format!(".step_{step}"));
        std::fs::create_dir(&beside).unwrap();
        if std::fs::write(beside.join("model.bin"), vec![7; 1 << 20]).is_err() {
            std::fs::remove_dir_all(&beside).unwrap();
            break;
        }
        std::fs::rename(&beside, outputs.join(format!("step_{step}"))).unwrap();
        saved = step;
        node.until_heard(&format!("sealed: step {step} (attempt 1)")).await;
        let _ = std::fs::remove_dir_all(outputs.join(format!("step_{}", step - 1)));
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let given_up = scrape(address)["stepvault_given_up_steps_total{run=\"grpo/checkpoints\"}"];
    Some((node, service.stop(), saved, given_up))
}

#[tokio::test]
async fn an_outage_of_storage_does_not_end_in_a_save_that_fails() {
    let Some((node, report, saved, counted)) = saves_through_an_outage(true).await else {
        return;
    };
    assert_eq!(saved, 12, "every save goes through");
    assert!(report.given_up.total >= 6 && counted >= 6.0, "{report:?}");
    assert!(!report.is_durable(), "what was given up is not durable");
    let given_up: Vec<u64> = report.given_up.latest.iter().map(|step| step.id.step.number()).collect();
    assert!(given_up.is_sorted() && !given_up.contains(&12), "the oldest go first: {given_up:?}");
    let warnings = node.recorder.lines_with("gave up step 1 (attempt 1), 1.0 MiB");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[tokio::test]
async fn where_undurable_steps_are_kept_the_disk_fills_up() {
    let Some((_, report, saved, counted)) = saves_through_an_outage(false).await else {
        return;
    };
    assert!(saved < 12, "the trainer's save met the full disk");
    assert_eq!((report.given_up.total, counted), (0, 0.0));
}
