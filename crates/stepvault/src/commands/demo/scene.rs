//! Where the demo plays: two nodes with local disks, and a directory that is the remote.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use stepvault_core::config::{FlagOverride, Sources};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::keys::RunKeys;
use stepvault_core::path::RelativePath;
use stepvault_core::retention::{BestRule, KeepRules, Prefer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::push::StageRequest;
use stepvault_engine::restore::{RestoreRequest, SkippedStep, Target, restore};
use stepvault_local::durable;
use stepvault_local::staging::Existing;
use tempfile::TempDir;

use super::expect;
use super::trainer::{WrittenCheckpoint, write_checkpoint};
use crate::commands::Session;
use crate::commands::inventory::Inventory;
use crate::commands::prune::{Limit, prune_remote_tier};
use crate::commands::push::{metrics_source, push_one};
use crate::commands::restore::restore_context;
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::output::{Output, human};

const RUN: &str = "demo";
/// The steps and their losses. The best is not among the last two, so that keeping it is a rule of its own.
pub(super) const LOSSES: [(u64, f64); 5] = [(10, 2.91), (20, 2.35), (30, 1.98), (40, 2.05), (50, 2.01)];
const NEWEST: &str = "000000000050.a1";
const NEWEST_NAME: &str = "step_50";
const NEWEST_VALID_STEP: u64 = 40;
const REMAINING_STEPS: [u64; 3] = [50, 40, 30];

/// The place.
#[derive(Debug)]
pub(super) struct Scene {
    root: PathBuf,
    temporary: Option<TempDir>,
}

/// A node at work.
#[derive(Debug)]
pub(super) struct Node {
    disk: Option<TempDir>,
    checkpoints: PathBuf,
    tiers: Tiers,
    written: BTreeMap<u64, WrittenCheckpoint>,
}

/// What was restored.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) step: u64,
    pub(super) path: PathBuf,
    pub(super) skipped: Vec<SkippedStep>,
}

fn fault(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Failed, what).on(path.display()).caused_by(error)
}

impl Scene {
    /// In a directory of its own, or in `keep`, which has to be empty.
    pub(super) async fn set(keep: Option<PathBuf>) -> Result<Self> {
        blocking(move || {
            let Some(directory) = keep else {
                let temporary = tempfile::Builder::new().prefix("stepvault-demo-").tempdir();
                let temporary =
                    temporary.map_err(|error| fault("cannot make a directory", &std::env::temp_dir(), error))?;
                return Ok(Self { root: temporary.path().to_owned(), temporary: Some(temporary) });
            };
            durable::create_directories(&directory)?;
            let root = std::path::absolute(&directory).map_err(|error| fault("not a path", &directory, error))?;
            let mut entries = std::fs::read_dir(&root).map_err(|error| fault("cannot list", &root, error))?;
            if entries.next().is_some() {
                return Err(Error::new(ErrorKind::Usage, "will not play here")
                    .on(root.display())
                    .because("the directory is not empty")
                    .hint("name an empty directory, or one that does not exist yet"));
            }
            Ok(Self { root, temporary: None })
        })
        .await
    }

    /// Leaves everything where it is.
    pub(super) fn leave(self) -> PathBuf {
        self.temporary.map_or(self.root, TempDir::keep)
    }

    /// Removes everything, unless it was to be kept.
    pub(super) fn clear(self) -> Result<Option<PathBuf>> {
        match self.temporary {
            Some(temporary) => temporary
                .close()
                .map(|()| None)
                .map_err(|error| fault("cannot remove the demo's directory", &self.root, error)),
            None => Ok(Some(self.root)),
        }
    }

    fn remote(&self) -> PathBuf {
        self.root.join("remote")
    }

    /// The node that trains, with a vault.
    pub(super) async fn first_node(&self, session: &Session) -> Result<Node> {
        self.node("node-1-", session, DefaultVault::Created).await
    }

    /// The node that takes over, with nothing on its disk.
    pub(super) async fn second_node(&self, session: &Session) -> Result<Node> {
        self.node("node-2-", session, DefaultVault::Existing).await
    }

    async fn node(&self, name: &str, session: &Session, vault: fn(PathBuf) -> DefaultVault) -> Result<Node> {
        let disk = tempfile::Builder::new().prefix(name).tempdir_in(&self.root);
        let disk = disk.map_err(|error| fault("cannot make a node's disk", &self.root, error))?;
        let checkpoints = disk.path().join("checkpoints");
        let settings = Settings::of(&self.sources(), RunName::new(RUN)?)?;
        let vault = vault(vault_beside(&checkpoints.join("step"))?);
        // The stages tell what happens; bars between them would not help.
        let silent = Output::new(session.output.is_json(), true);
        let tiers = Tiers::open(&settings, vault, &silent).await?;
        Ok(Node { disk: Some(disk), checkpoints, tiers, written: BTreeMap::new() })
    }

    /// The configuration, as a file would give it.
    fn sources(&self) -> Sources {
        let keys = [
            ("remote.demo.url", file_url(&self.remote())),
            ("run.demo.metrics-file", "trainer_state.json".to_owned()),
        ];
        let text = |(key, value): (&str, String)| (key.to_owned(), toml::Value::String(value));
        let mut metrics = toml::Table::new();
        metrics.insert("loss".to_owned(), toml::Value::String("/loss".to_owned()));
        let metrics = ("run.demo.metrics".to_owned(), toml::Value::Table(metrics));
        let flags = keys.into_iter().map(text).chain([metrics]);
        let flags = flags.map(|(key, value)| FlagOverride { key, value, flag: "demo".to_owned() });
        Sources { file: None, environment: Vec::new(), flags: flags.collect() }
    }

    /// Flips a byte in the middle of the newest step's model, on the remote.
    pub(super) fn damage_newest(&self) -> Result<String> {
        let id = StepId::from_label(NEWEST).ok_or_else(|| Error::new(ErrorKind::Failed, "not a label").on(NEWEST))?;
        let keys = RunKeys::new(RunName::new(RUN)?);
        let path = self.remote().join(keys.data(NEWEST_NAME, id, &RelativePath::new("model.safetensors")?)?);
        let flip = || -> std::io::Result<u64> {
            let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
            let middle = file.metadata()?.len() / 2;
            let mut byte = [0];
            file.seek(SeekFrom::Start(middle))?;
            file.read_exact(&mut byte)?;
            file.seek(SeekFrom::Start(middle))?;
            file.write_all(&[!byte[0]])?;
            Ok(middle)
        };
        let position = flip().map_err(|error| fault("cannot damage the remote copy", &path, error))?;
        Ok(format!("byte {position} of {NEWEST_NAME}/model.safetensors is flipped"))
    }
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
        let request = StageRequest {
            run: self.tiers.run_name().clone(),
            source: written.path.clone(),
            step: None,
            attempt: None,
            node: self.tiers.node.clone(),
            metrics: BTreeMap::new(),
            metrics_source: metrics_source(&self.tiers),
            links: self.tiers.links,
            expected: None,
        };
        let report = push_one(&self.tiers, request).await?;
        for outcome in report.remotes {
            outcome.result?;
        }
        Ok("sealed, uploaded, read back, durable".to_owned())
    }

    /// The node is reclaimed: its whole disk is gone. What it had written is known only to the audience.
    pub(super) fn lose(mut self) -> Result<BTreeMap<u64, WrittenCheckpoint>> {
        if let Some(disk) = self.disk.take() {
            let path = disk.path().to_owned();
            disk.close().map_err(|error| fault("cannot remove the node's disk", &path, error))?;
            expect(!path.exists(), "the lost node's disk is gone", path.display())?;
        }
        Ok(std::mem::take(&mut self.written))
    }

    /// Restores the newest valid step.
    pub(super) async fn restore(&self) -> Result<Restored> {
        let request = RestoreRequest {
            run: self.tiers.run_name().clone(),
            target: Target::Into(self.checkpoints.clone()),
            step: None,
            attempt: None,
            include: Vec::new(),
            existing: Existing::Refuse,
        };
        let decision = restore(&restore_context(&self.tiers), &request).await?.decision;
        let step = decision.id.step.number();
        expect(step == NEWEST_VALID_STEP, "the newest valid step is restored", format!("step {step}"))?;
        let skipped: Vec<u64> = decision.skipped.iter().map(|step| step.step).collect();
        expect(skipped == [REMAINING_STEPS[0]], "only the damaged step is passed over", format!("{skipped:?}"))?;
        Ok(Restored { step, path: decision.path, skipped: decision.skipped })
    }

    /// Keeps the last two and the best one.
    pub(super) async fn prune(&self, session: &Session) -> Result<String> {
        let best = BestRule { metric: "loss".to_owned(), count: 1, prefer: Prefer::Lowest };
        let rules = KeepRules { last: Some(2), best: vec![best], ..KeepRules::default() };
        let limit = Limit { maximum_deletions: None, dry_run: false };
        let mut removed = Vec::new();
        for remote in &self.tiers.remotes {
            let report =
                prune_remote_tier(&self.tiers, &self.tiers.remotes, remote, rules.clone(), limit, session).await?;
            if let Some(refusal) = report.plan.refusal {
                expect(false, "the prune is carried out", refusal.reason)?;
            }
            removed.extend(report.removed.iter().map(|id| id.step.number()));
        }
        removed.sort_unstable();
        let shown: Vec<String> = removed.iter().map(ToString::to_string).collect();
        Ok(format!("kept the last 2 and the best 1 by loss; removed steps {}", shown.join(", ")))
    }

    /// What the remote holds in the end.
    pub(super) async fn list(&self) -> Result<Vec<u64>> {
        let inventory = Inventory::gather(&self.tiers).await?;
        if let Some((_, error)) = inventory.failed.into_iter().next() {
            return Err(error);
        }
        let steps: Vec<u64> = inventory.steps.iter().map(|step| step.step).collect();
        expect(steps == REMAINING_STEPS, "the last two and the best one remain", format!("{steps:?}"))?;
        Ok(steps)
    }
}

/// Compares what was restored with what had been written: names, bytes and times.
pub(super) fn compare(restored: &Restored, written: &BTreeMap<u64, WrittenCheckpoint>) -> Result<String> {
    let original = written.get(&restored.step);
    let files = original.map(|original| original.files.as_slice()).unwrap_or_default();
    expect(!files.is_empty(), "the restored step is one that was written", restored.step)?;
    let entries = std::fs::read_dir(&restored.path).map_err(|error| fault("cannot list", &restored.path, error))?;
    let count = entries.count();
    expect(count == files.len(), "all files and no others are restored", human::count(count as u64, "entry"))?;
    let mut bytes_compared = 0;
    for file in files {
        let path = restored.path.join(file.name);
        let read = || -> std::io::Result<_> { Ok((std::fs::read(&path)?, path.metadata()?.modified()?)) };
        let (bytes, modified) = read().map_err(|error| fault("cannot read", &path, error))?;
        let same = stepvault_core::digest::Sha256Digest::of(&bytes) == file.sha256 && file.modified == modified.into();
        expect(same, "the restored file has the bytes and the time that it was written with", path.display())?;
        bytes_compared += bytes.len() as u64;
    }
    Ok(format!("{}, {}: every byte and every time is the trainer's", human::count(files.len() as u64, "file"), human::bytes(bytes_compared)))
}

/// A directory as a URL.
fn file_url(directory: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in directory.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            url.push(char::from(*byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_directory_is_a_url() {
        assert_eq!(file_url(Path::new("/tmp/a b%/ü")), "file:///tmp/a%20b%25/%C3%BC");
    }
}
