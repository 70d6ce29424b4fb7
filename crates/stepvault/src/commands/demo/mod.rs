//! `demo`: seal, upload, restore and prune on one machine, without a server.
//!
//! It runs the commands `push`, `restore` and `prune` with their arguments; only the trainer, the lost node and the damage
//! are simulated.

mod trainer;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use itertools::Itertools as _;
use serde::Serialize;
use stepvault_core::config::{FlagOverride, Sources};
use stepvault_core::{Error, ErrorKind, NodeName, Result, RunName, Sha256Digest};
use stepvault_engine::blocking::blocking;
use stepvault_local::durable;
use tempfile::TempDir;

use super::inventory::Inventory;
use super::{prune, push, restore};
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::exit_code::ExitCode;
use crate::output::{Output, Report, human, table};
use crate::session::Session;
use trainer::{WrittenFile, write_checkpoint};

/// The steps and their losses. The best is not among the last two, so that only the rule for the best keeps it.
const LOSSES: [(u64, f64); 5] = [(10, 2.91), (20, 2.35), (30, 1.98), (40, 2.05), (50, 2.01)];
/// The newest step's model on the remote.
const NEWEST_MODEL: &str = "remote/demo/000000000050.a1/step_50/model.safetensors";
const NEWEST_VALID_STEP: u64 = 40;
const REMAINING_STEPS: [u64; 3] = [50, 40, 30];

/// Run seal, upload, restore and prune once in a temporary directory: no server, under a minute
///
/// A trainer writes five safetensors checkpoints; each is sealed and uploaded to a directory that serves as the remote;
/// the node is lost; the newest remote copy is damaged; the newest valid step is restored and compared; the remote
/// is pruned. The command fails if any result is not as expected.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Run in DIR and keep all files there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// The result of the demo.
#[derive(Debug, Serialize)]
struct DemoDocument {
    /// Directory with all files; null if it was removed.
    directory: Option<PathBuf>,
    stages: Vec<Stage>,
    restored_step: u64,
    /// Steps on the remote at the end, the newest first.
    remaining_steps: [u64; 3],
    seconds: f64,
}

/// One stage of the demo.
#[derive(Debug, Serialize)]
struct Stage {
    what: String,
    outcome: String,
    seconds: f64,
}

/// The stages so far, with the start time of the current one.
#[derive(Debug)]
struct Stages {
    done: Vec<Stage>,
    began: Instant,
}

impl Stages {
    /// Records a stage that ends now.
    fn done(&mut self, what: impl Into<String>, outcome: impl Into<String>) {
        let (what, outcome) = (what.into(), outcome.into());
        let seconds = self.began.elapsed().as_secs_f64();
        tracing::info!("{what}: {outcome}");
        self.done.push(Stage { what, outcome, seconds });
        self.began = Instant::now();
    }
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DemoArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let keep = arguments.keep;
    let scene = blocking(move || Scene::set(keep.as_deref())).await?;
    let mut stages = Stages { done: Vec::new(), began };
    if let Err(error) = play(&scene.root, &mut stages).await {
        scene.temporary.map(TempDir::keep);
        let hint = format!("inspect the files of the demo in {}", scene.root.display());
        return Err(error.hint(hint));
    }
    let is_kept = scene.temporary.is_none();
    if let Some(temporary) = scene.temporary {
        let closed = temporary.close();
        closed.map_err(|error| fault("cannot remove the demo's directory", &scene.root, error))?;
    }
    session.output.result(&DemoDocument {
        directory: is_kept.then_some(scene.root),
        stages: stages.done,
        restored_step: NEWEST_VALID_STEP,
        remaining_steps: REMAINING_STEPS,
        seconds: began.elapsed().as_secs_f64(),
    })?;
    Ok(ExitCode::Done)
}

async fn play(root: &Path, stages: &mut Stages) -> Result<()> {
    let node = Node::new(root, "node-1", DefaultVault::Created).await?;
    let mut written = BTreeMap::new();
    for (step, loss) in LOSSES {
        let directory = node.checkpoints.clone();
        let checkpoint = blocking(move || write_checkpoint(&directory, step, loss)).await?;
        stages.done(
            format!("train step {step}"),
            format!(
                "{}, {}, loss {loss}",
                human::count(checkpoint.files.len() as u64, "file"),
                human::bytes(checkpoint.bytes())
            ),
        );
        let metric = format!("loss={loss}");
        let arguments = parsed([checkpoint.path.as_ref(), "--metric".as_ref(), metric.as_ref()])?;
        for remote in push::execute(&node.tiers, arguments).await?.report.remotes {
            remote.result?;
        }
        stages.done(format!("push step {step}"), "sealed, uploaded, read back, durable");
        written.insert(step, checkpoint.files);
    }
    node.lose()?;
    stages.done("lose the node", "checkpoints and vault are gone");
    let model = root.join(NEWEST_MODEL);
    let position = damage(&model).map_err(|error| fault("cannot damage the remote copy", &model, error))?;
    let damaged = format!("byte {position} of step_50/model.safetensors is flipped");
    stages.done("damage the remote", damaged);

    let node = Node::new(root, "node-2", DefaultVault::Existing).await?;
    let arguments = parsed(["--into".as_ref(), node.checkpoints.as_ref()])?;
    let restored = restore::execute(&node.tiers, arguments).await?;
    let step = restored.id.step.number();
    expect(step == NEWEST_VALID_STEP, "the newest valid step is restored", step)?;
    let skipped = restored.skipped.iter();
    let skipped = skipped.map(|step| format!("; skipped step {}: {}", step.id.step, step.reasons.join("; ")));
    let skipped = skipped.collect_vec();
    expect(
        skipped.len() == 1 && skipped[0].starts_with("; skipped step 50: "),
        "only the damaged step is skipped",
        skipped.concat(),
    )?;
    stages.done("restore", format!("step {step}{}", skipped.concat()));
    let files = written.get(&step).map(Vec::as_slice).unwrap_or_default();
    stages.done("compare", compare(&restored.path, files)?);
    stages.done("prune", prune_remote(&node.tiers).await?);

    let inventory = Inventory::gather(&node.tiers, None).await?;
    if let Some((_, error)) = inventory.failed.into_iter().next() {
        return Err(error);
    }
    let steps = inventory.steps.iter().map(|step| step.id.step.number());
    let steps = steps.collect_vec();
    let shown = steps.iter().join(", ");
    expect(steps == REMAINING_STEPS, "the last two and the best one remain", &shown)?;
    stages.done("list", format!("the remote holds steps {shown}"));
    Ok(())
}

/// Prunes the remote to the last two steps and the best one.
async fn prune_remote(tiers: &Tiers) -> Result<String> {
    let arguments = ["--keep-last", "2", "--keep-best", "loss:1:lowest"].map(OsStr::new);
    let mut removed = Vec::new();
    for (_, report) in prune::execute(tiers, &parsed(arguments)?).await? {
        let report = report?;
        if let Some(refusal) = report.plan.refusal {
            expect(false, "the prune is carried out", refusal.reason)?;
        }
        removed.extend(report.removed.iter().map(|id| id.step));
    }
    Ok(format!(
        "kept the last 2 and the best 1 by loss; removed steps {}",
        removed.iter().sorted().join(", ")
    ))
}

/// Compares the restored files with the written ones: names, bytes and times.
fn compare(restored: &Path, files: &[WrittenFile]) -> Result<String> {
    let entries = std::fs::read_dir(restored).map_err(|error| fault("cannot list", restored, error))?;
    let count = entries.count();
    expect(
        count == files.len() && count > 0,
        "all files and no others are restored",
        human::count(count as u64, "entry"),
    )?;
    let mut bytes_compared = 0;
    for file in files {
        let path = restored.join(file.name);
        let read = || -> io::Result<_> { Ok((std::fs::read(&path)?, path.metadata()?.modified()?)) };
        let (bytes, modified) = read().map_err(|error| fault("cannot read", &path, error))?;
        expect(
            Sha256Digest::of(&bytes) == file.sha256 && file.modified == modified.into(),
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

/// The directory of the demo: two nodes with local disks, and a directory that serves as the remote.
#[derive(Debug)]
struct Scene {
    root: PathBuf,
    temporary: Option<TempDir>,
}

impl Scene {
    /// Creates it as a temporary directory, or as `keep`, which must be empty.
    fn set(keep: Option<&Path>) -> Result<Self> {
        let Some(directory) = keep else {
            let temporary = tempfile::Builder::new().prefix("stepvault-demo-").tempdir();
            let temporary = temporary
                .map_err(|error| fault("cannot create a directory", &std::env::temp_dir(), error))?;
            return Ok(Self { root: temporary.path().to_owned(), temporary: Some(temporary) });
        };
        durable::create_directories(directory)?;
        let root = std::path::absolute(directory).map_err(|error| fault("invalid path", directory, error))?;
        let mut entries = std::fs::read_dir(&root).map_err(|error| fault("cannot list", &root, error))?;
        if entries.next().is_some() {
            return Err(Error::new(ErrorKind::Usage, "refusing to run the demo here")
                .on(root.display())
                .because("the directory is not empty")
                .hint("give an empty directory, or one that does not exist yet"));
        }
        Ok(Self { root, temporary: None })
    }
}

/// A node with a local disk, which trains and is lost, or replaces the lost one.
#[derive(Debug)]
struct Node {
    disk: TempDir,
    checkpoints: PathBuf,
    tiers: Tiers,
}

impl Node {
    /// Creates a node whose configuration is independent of the environment that the demo runs in.
    async fn new(root: &Path, name: &str, vault: fn(PathBuf) -> DefaultVault) -> Result<Self> {
        let disk = tempfile::Builder::new().prefix(name).tempdir_in(root);
        let disk = disk.map_err(|error| fault("cannot create a node's disk", root, error))?;
        let checkpoints = disk.path().join("checkpoints");
        let url = file_url(&root.join("remote"));
        let sources = Sources {
            flags: vec![FlagOverride::text("remote.demo.url", url, "demo")],
            run: Some(RunName::new("demo")?),
            ..Sources::default()
        };
        let settings = Settings::of(sources, NodeName::new(name)?)?;
        let vault = vault(vault_beside(&checkpoints.join("step"))?);
        // The stages are logged, so no progress is shown.
        let tiers = Tiers::open(&settings, vault, &Output::new(false, true)).await?;
        Ok(Self { disk, checkpoints, tiers })
    }

    /// Removes the node's disk, as when the node is reclaimed.
    fn lose(self) -> Result<()> {
        let path = self.disk.path().to_owned();
        let closed = self.disk.close();
        closed.map_err(|error| fault("cannot remove the node's disk", &path, error))?;
        expect(!path.exists(), "the lost node's disk is gone", path.display())
    }
}

/// Parses the arguments of a command.
fn parsed<A: Args, const N: usize>(words: [&OsStr; N]) -> Result<A> {
    let command = A::augment_args(clap::Command::new("demo").no_binary_name(true));
    let matches = command.try_get_matches_from(words);
    let arguments = matches.and_then(|matches| A::from_arg_matches(&matches));
    arguments.map_err(|error| Error::new(ErrorKind::Failed, "cannot run a command").caused_by(error))
}

/// Flips a byte in the middle of a file, and returns its position.
fn damage(path: &Path) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let middle = file.metadata()?.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle)?;
    file.write_all_at(&[!byte[0]], middle)?;
    Ok(middle)
}

/// Returns the URL of a directory.
fn file_url(directory: &Path) -> String {
    let letter = |byte: &u8| {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            char::from(*byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    let bytes = directory.as_os_str().as_encoded_bytes();
    format!("file://{}", bytes.iter().map(letter).format(""))
}

fn fault(what: &str, path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Failed, what).on(path.display()).caused_by(error)
}

/// Fails unless `holds`.
fn expect(holds: bool, what: &str, found: impl std::fmt::Display) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Failed, "the demo failed").on(what).because(format!("found {found}")))
}

impl Report for DemoDocument {
    fn fitted(&self, width: usize) -> String {
        let stages = self.stages.iter();
        let stages =
            stages.map(|stage| [stage.what.clone(), human::seconds(stage.seconds), stage.outcome.clone()]);
        let total = human::seconds(self.seconds);
        let directory = self.directory.as_ref();
        let place = directory.map(|directory| format!("; the files are in {}", directory.display()));
        format!(
            "{}\n\nall results were as expected, in {total}{}",
            table::fitted(&["stage", "time", "what happened"], &[1], stages, width),
            place.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_directory_is_a_url() {
        assert_eq!(file_url(Path::new("/tmp/a b%/ü")), "file:///tmp/a%20b%25/%C3%BC");
    }
}
