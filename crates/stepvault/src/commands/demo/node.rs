//! A node with a local disk, which trains and is lost, or replaces the lost one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::nodes::Writer;
use stepvault_core::retention::{BestRule, KeepRules, Prefer};
use stepvault_core::timestamp::Timestamp;
use stepvault_engine::blocking::blocking;
use stepvault_engine::push::CheckpointToSeal;
use stepvault_engine::restore::{RestoreRequest, SkippedStep, Target, restore};
use tempfile::TempDir;

use super::expect;
use super::scene::{NEWEST_VALID_STEP, REMAINING_STEPS, fault};
use super::trainer::{WrittenCheckpoint, write_checkpoint};
use crate::commands::inventory::Inventory;
use crate::commands::prune::{Limit, prune_remote_tier};
use crate::commands::push::{metrics_source, push_one};
use crate::commands::restore::restore_context;
use crate::context::Tiers;
use crate::output::human;
use crate::session::Session;

/// A node of the demo.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) disk: Option<TempDir>,
    pub(super) checkpoints: PathBuf,
    pub(super) tiers: Tiers,
    pub(super) written: BTreeMap<u64, WrittenCheckpoint>,
}

/// A restored step.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) step: u64,
    pub(super) path: PathBuf,
    pub(super) skipped: Vec<SkippedStep>,
}

impl Node {
    /// Trains until the next checkpoint.
    pub(super) async fn train(&mut self, step: u64, loss: f64) -> Result<WrittenCheckpoint> {
        let directory = self.checkpoints.clone();
        let written = blocking(move || write_checkpoint(&directory, step, loss)).await?;
        self.written.insert(step, written.clone());
        Ok(written)
    }

    /// Seals and uploads a checkpoint.
    pub(super) async fn push(&self, written: &WrittenCheckpoint) -> Result<String> {
        let request = CheckpointToSeal {
            run: self.tiers.run_name().clone(),
            source: written.path.clone(),
            members: Vec::new(),
            origin: stepvault_core::step_origin::StepOrigin::default(),
            name: None,
            step: None,
            attempt: None,
            // Independent of the launcher that the demo runs under.
            writer: Writer::alone(self.tiers.writer.place.node().clone()),
            launch_since: Timestamp::default(),
            in_launch: true,
            not_before: None,
            live: None,
            metrics: BTreeMap::new(),
            metrics_source: metrics_source(&self.tiers),
            links: self.tiers.links,
            digest: self.tiers.run.digest,
            expected: None,
        };
        let report = push_one(&self.tiers, request, Duration::ZERO).await?;
        for outcome in report.remotes {
            outcome.result?;
        }
        Ok("sealed, uploaded, read back, durable".to_owned())
    }

    /// Removes the node's disk, as when the node is reclaimed. Returns what it had written, for the later comparison.
    pub(super) fn lose(mut self) -> Result<BTreeMap<u64, WrittenCheckpoint>> {
        if let Some(disk) = self.disk.take() {
            let path = disk.path().to_owned();
            disk.close()
                .map_err(|error| fault("cannot remove the node's disk", &path, error))?;
            expect(!path.exists(), "the lost node's disk is gone", path.display())?;
        }
        Ok(std::mem::take(&mut self.written))
    }

    /// Restores the newest valid step.
    pub(super) async fn restore(&self) -> Result<Restored> {
        let target = Target::Into(self.checkpoints.clone());
        let request = RestoreRequest::newest(self.tiers.run_name().clone(), target);
        let plan = restore(&restore_context(&self.tiers), &request).await?.plan;
        let step = plan.id.step.number();
        expect(
            step == NEWEST_VALID_STEP,
            "the newest valid step is restored",
            format!("step {step}"),
        )?;
        let skipped: Vec<u64> = plan.skipped.iter().map(|step| step.id.step.number()).collect();
        expect(
            skipped == [REMAINING_STEPS[0]],
            "only the damaged step is skipped",
            format!("{skipped:?}"),
        )?;
        Ok(Restored {
            step,
            path: plan.path,
            skipped: plan.skipped,
        })
    }

    /// Prunes the remote to the last two steps and the best one.
    pub(super) async fn prune(&self, session: &Session) -> Result<String> {
        let best = BestRule {
            metric: "loss".to_owned(),
            count: 1,
            prefer: Prefer::Lowest,
        };
        let rules = KeepRules {
            last: Some(2),
            best: vec![best],
            ..KeepRules::default()
        };
        let limit = Limit {
            maximum_deletions: None,
            dry_run: false,
        };
        let mut removed = Vec::new();
        for remote in &self.tiers.remotes {
            let report = prune_remote_tier(
                &self.tiers,
                &self.tiers.remotes,
                remote,
                rules.clone(),
                limit,
                session,
            )
            .await?;
            if let Some(refusal) = report.plan.refusal {
                expect(false, "the prune is carried out", refusal.reason)?;
            }
            removed.extend(report.removed.iter().map(|id| id.step.number()));
        }
        removed.sort_unstable();
        let shown: Vec<String> = removed.iter().map(ToString::to_string).collect();
        Ok(format!(
            "kept the last 2 and the best 1 by loss; removed steps {}",
            shown.join(", ")
        ))
    }

    /// Returns the steps that the remote holds at the end.
    pub(super) async fn list(&self) -> Result<Vec<u64>> {
        let inventory = Inventory::gather(&self.tiers).await?;
        if let Some((_, error)) = inventory.failed.into_iter().next() {
            return Err(error);
        }
        let steps: Vec<u64> = inventory.steps.iter().map(|step| step.id.step.number()).collect();
        expect(
            steps == REMAINING_STEPS,
            "the last two and the best one remain",
            format!("{steps:?}"),
        )?;
        Ok(steps)
    }
}

/// Compares the restored files with the written ones: names, bytes and times.
pub(super) fn compare(restored: &Restored, written: &BTreeMap<u64, WrittenCheckpoint>) -> Result<String> {
    let original = written.get(&restored.step);
    let files = original
        .map(|original| original.files.as_slice())
        .unwrap_or_default();
    expect(
        !files.is_empty(),
        "the restored step is one that was written",
        restored.step,
    )?;
    let entries =
        std::fs::read_dir(&restored.path).map_err(|error| fault("cannot list", &restored.path, error))?;
    let count = entries.count();
    expect(
        count == files.len(),
        "all files and no others are restored",
        human::count(count as u64, "entry"),
    )?;
    let mut bytes_compared = 0;
    for file in files {
        let path = restored.path.join(file.name);
        let read = || -> std::io::Result<_> { Ok((std::fs::read(&path)?, path.metadata()?.modified()?)) };
        let (bytes, modified) = read().map_err(|error| fault("cannot read", &path, error))?;
        let same = Sha256Digest::of(&bytes) == file.sha256 && file.modified == modified.into();
        expect(
            same,
            "the restored file has its original bytes and time",
            path.display(),
        )?;
        bytes_compared += bytes.len() as u64;
    }
    Ok(format!(
        "{}, {}: all bytes and times match the trainer's",
        human::count(files.len() as u64, "file"),
        human::bytes(bytes_compared)
    ))
}
