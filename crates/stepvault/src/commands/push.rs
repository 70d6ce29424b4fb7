//! `push`: seals one checkpoint and uploads it to every remote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::config::LinkPolicy;
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::nodes::listed;
use stepvault_core::{Attempt, Clock as _, Error, ErrorKind, RelativePath, Result, Step, StepId};
use stepvault_engine::blocking;
use stepvault_engine::exclusive::{ExclusiveRun, Purpose};
use stepvault_engine::inspect::{SourceCheck, check_source};
use stepvault_engine::placement::CurrentWriter;
use stepvault_engine::push::{CheckpointToSeal, MetricsSource, PushReport, SealPlan, plan_push, push};
use stepvault_engine::upload::{RemoteOutcome, Uploaded};
use stepvault_formats::find::Extent;
use stepvault_local::seal_record::AttemptOrigin;
use stepvault_local::vault::ScratchVault;
use stepvault_local::{Checkpoint, SystemClock};
use tokio::time::sleep;

use crate::arguments::values::{checked, duration, metric};
use crate::context::{DefaultVault, Settings, Tiers, check_presence, vault_beside};
use crate::exit_code::ExitCode;
use crate::output::{Report, human};
use crate::session::Session;

#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
/// Seal one checkpoint and upload it until it is durable on every required remote
///
/// SRC is not changed. A damaged checkpoint causes a warning and is uploaded unchanged. Without --local or a configured
/// vault, the vault is .stepvault beside the directory that holds SRC.
#[derive(Debug, Args)]
pub(crate) struct PushArguments {
    /// Checkpoint: a directory or a single file
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Step number; by default read from the name, or from the content if the name has none
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Attempt; determined automatically by default [env: STEPVAULT_ATTEMPT]
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Metric for rules that keep the best steps; repeatable, overrides the checkpoint's own metrics
    #[arg(long, value_name = "NAME=VALUE", value_parser = metric)]
    metric: Vec<(String, f64)>,
    /// Copy the files into the vault, for a trainer that goes on and may change them during the upload
    ///
    /// By default they are linked, or read where they are, and are compared afterwards with what was sent.
    #[arg(long)]
    copy: bool,
    /// Print as which step SRC would be sealed and which remotes lack it, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the parts of other nodes; "0s" to exit as soon as this node's part is uploaded
    ///
    /// By default upload.incomplete-after, which is 30m. The step still becomes durable if the parts arrive later.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait_for_nodes: Option<Duration>,
}

/// Maximum number of damaged files to report.
const MAX_FAULTS_TOLD: usize = 5;

/// The result of a push.
#[derive(Serialize, JsonSchema)]
pub(super) struct PushDocument {
    /// The run.
    run: String,
    /// Whether this is only a plan: the step was neither sealed nor sent.
    dry_run: bool,
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Whether the attempt may still change, because no remote has answered.
    provisional: bool,
    /// Name of the step's directory or file.
    name: String,
    /// SRC.
    source: PathBuf,
    /// Number of files of the step.
    files: u64,
    /// Bytes of all files of the step.
    bytes: u64,
    /// Whether this push sealed the step; false if it was already sealed or durable.
    newly_sealed: bool,
    /// Damage in its files by the rules of their formats, each with its path; the step is uploaded unchanged.
    faults: Vec<String>,
    /// One entry for each remote.
    remotes: Vec<RemoteDocument>,
    /// Duration in seconds.
    seconds: f64,
}

#[derive(Serialize, JsonSchema)]
struct RemoteDocument {
    /// The remote's name.
    remote: String,
    /// Whether a step must be durable on this remote to count as durable.
    required: bool,
    /// Whether the step is durable on the remote now.
    durable: bool,
    /// Whether it was already durable on the remote.
    already_durable: bool,
    /// Bytes that the store copied from an earlier step in this command, instead of being sent.
    copied_bytes: u64,
    /// The nodes whose parts are missing; this node's part is uploaded.
    missing_nodes: Vec<String>,
    /// Why it failed; null if it did not.
    error: Option<ErrorInfo>,
}

/// A finished push.
pub(super) struct Pushed {
    pub(super) report: PushReport,
    /// Damage in the files of the checkpoint.
    faults: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: PushArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?.patient();
    let vault = match settings.local_directory() {
        Some(directory) => directory,
        None => vault_beside(&arguments.source)?,
    };
    // Before a vault is created for it.
    check_presence("cannot push the step", &arguments.source)?;
    settings.require_upload_remote(&settings.run()?)?;
    if arguments.dry_run {
        let tiers = Tiers::open(&settings, DefaultVault::Existing(vault), &session.output).await?;
        return plan(session, &tiers, arguments).await;
    }
    let tiers = Tiers::open(&settings, DefaultVault::Created(vault), &session.output).await?;
    let pushed = execute(&tiers, arguments).await?;
    tiers.progress.finish();
    let code = exit_code(&pushed.report.remotes);
    for outcome in &pushed.report.remotes {
        if let Err(error) = &outcome.result {
            let text = error.clone().hint(
                error
                    .hint_text()
                    .unwrap_or("the step is sealed in the vault; run the same command again to continue"),
            );
            session.output.error_beside_report(&text);
        }
    }
    session.output.result(&document(&tiers, pushed, began.elapsed().as_secs_f64()))?;
    Ok(code)
}

/// Prints what a push would do.
async fn plan(session: &Session, tiers: &Tiers, arguments: PushArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let checked = check(tiers, &arguments.source).await?;
    let (source, faults) = (arguments.source.clone(), checked.faults.clone());
    let request = request(tiers, arguments, checked)?;
    let scratch = match &tiers.vault {
        Some(_) => None,
        None => Some(blocking(ScratchVault::create).await?),
    };
    let vault = tiers.vault.as_ref().or(scratch.as_ref().map(ScratchVault::vault));
    let vault = vault.ok_or_else(|| Error::new(ErrorKind::Usage, "no local vault"))?;
    let remotes = tiers.upload_remotes();
    let (planned, durable) = plan_push(vault, &remotes, request, &tiers.observer()).await?;
    tiers.progress.finish();
    session.output.errors_beside_report(&durable);
    let remotes = remotes.iter().zip(&durable).map(|(remote, durable)| {
        let is_durable = matches!(durable, Ok(true));
        RemoteDocument {
            remote: remote.name().to_string(),
            required: remote.settings.required,
            durable: is_durable,
            already_durable: is_durable,
            copied_bytes: 0,
            missing_nodes: Vec::new(),
            error: durable.as_ref().err().map(ErrorInfo::from),
        }
    });
    let SealPlan { step, provisional, .. } = planned;
    session.output.result(&PushDocument {
        run: tiers.run_name().to_string(),
        dry_run: true,
        id: step.id,
        provisional,
        name: step.name,
        source,
        files: step.file_count,
        bytes: step.data_bytes,
        newly_sealed: !planned.is_sealed,
        faults,
        remotes: remotes.collect(),
        seconds: began.elapsed().as_secs_f64(),
    })?;
    Ok(ExitCode::of_tiers(durable.iter().map(Result::as_ref)))
}

/// Seals the checkpoint under the vault's lock, and uploads it.
pub(super) async fn execute(tiers: &Tiers, arguments: PushArguments) -> Result<Pushed> {
    let checked = check(tiers, &arguments.source).await?;
    let (patience, faults) = (arguments.wait_for_nodes, checked.faults.clone());
    let request = request(tiers, arguments, checked)?;
    let patience = patience.unwrap_or(tiers.settings.config.upload.incomplete_after);
    let vault = tiers.vault.clone();
    let vault = vault.ok_or_else(|| Error::new(ErrorKind::Usage, "no local vault"))?;
    let locked = vault.clone();
    let _lock = blocking(move || {
        let lock = locked.lock()?;
        locked.clean_leftovers(&lock)?;
        Ok(lock)
    })
    .await?;
    let held = hold_exclusive(tiers, Purpose::Upload, Duration::ZERO).await?;
    let report =
        push(&vault, &tiers.upload_remotes(), request, &tiers.budget, patience, &tiers.observer()).await;
    for held in held {
        held.release().await;
    }
    Ok(Pushed { report: report?, faults })
}

fn request(tiers: &Tiers, arguments: PushArguments, checked: SourceCheck) -> Result<CheckpointToSeal> {
    let config = &tiers.settings.config;
    let mut checkpoint = Checkpoint::at(&arguments.source)?;
    checkpoint.links = if arguments.copy { LinkPolicy::Copy } else { config.local.links };
    // This command waits for the upload, so that nothing has to be copied unless that is asked for.
    checkpoint.in_place = checkpoint.links == LinkPolicy::Auto;
    let links_for_later = (!arguments.copy).then(|| checked.links(config.local.links));
    checkpoint.metrics = arguments.metric.into_iter().collect();
    checkpoint.origin = checked.origin;
    if let Some((watched, directory)) = place_below(tiers.run.watch.as_deref(), &arguments.source) {
        let origin = &mut checkpoint.origin;
        (origin.watched, origin.directory) = (Some(watched), Some(directory));
    }
    Ok(CheckpointToSeal {
        run: tiers.run_name().clone(),
        checkpoint,
        tree: None,
        step: arguments.step.or(checked.stated_step),
        attempt: tiers.settings.attempt(arguments.attempt)?,
        // A manual push during a launch belongs to that launch.
        origin: AttemptOrigin { in_launch: true, ..AttemptOrigin::default() },
        current: CurrentWriter { writer: tiers.writer.clone(), launch_since: SystemClock.now() },
        links_for_later,
        is_overwritten: checked.is_overwritten,
        metrics_source: MetricsSource::of(&tiers.run),
        digest: tiers.run.digest,
        shown_in: None,
    })
}

/// Returns the name of the watched directory, and the directory below it that holds the checkpoint; `None` when that is
/// the watched directory itself, or none that contains it is watched.
fn place_below(watched: Option<&Path>, source: &Path) -> Option<(String, RelativePath)> {
    let source = std::path::absolute(source).ok()?;
    let watched = std::path::absolute(watched?).ok()?;
    let below = source.parent()?.strip_prefix(&watched).ok()?;
    let directory = RelativePath::new(below.to_str()?).ok()?;
    Some((watched.file_name()?.to_str()?.to_owned(), directory))
}

/// Checks the checkpoint by profile and by the structure of its files, and warns of damage.
async fn check(tiers: &Tiers, source: &Path) -> Result<SourceCheck> {
    let (profiles, source) = (tiers.settings.profiles()?, source.to_owned());
    let (profile, extent) = (tiers.run.profile.clone(), Extent::of(&tiers.writer));
    let check = move || check_source(&source, &profiles, profile.as_deref(), extent, SystemClock.now());
    let checked = blocking(move || Ok(check())).await?;
    for fault in checked.faults.iter().take(MAX_FAULTS_TOLD) {
        tiers.output.warn(&format!("the checkpoint is damaged and is uploaded unchanged: {fault}"));
    }
    Ok(checked)
}

/// Returns the exit code. Only required remotes count, unless none is required.
fn exit_code(outcomes: &[RemoteOutcome]) -> ExitCode {
    let some_required = outcomes.iter().any(|outcome| outcome.required);
    let counted = outcomes.iter();
    let counted = counted.filter(|outcome| outcome.required || !some_required);
    let results = counted.map(|outcome| outcome.result.as_ref()).collect_vec();
    let mut uploads = results.iter().filter_map(|result| result.ok());
    let waits = uploads.any(|upload| matches!(upload, Uploaded::Incomplete { .. }));
    match ExitCode::of_tiers(results) {
        ExitCode::Done if waits => ExitCode::Partly,
        code => code,
    }
}

fn document(tiers: &Tiers, pushed: Pushed, seconds: f64) -> PushDocument {
    let Pushed { report, faults } = pushed;
    let remotes = report.remotes.iter().map(|outcome| RemoteDocument {
        remote: outcome.remote.to_string(),
        required: outcome.required,
        durable: outcome.result.as_ref().is_ok_and(Uploaded::is_durable),
        already_durable: matches!(outcome.result, Ok(Uploaded::AlreadyDurable)),
        copied_bytes: outcome.copied_bytes,
        missing_nodes: match &outcome.result {
            Ok(Uploaded::Incomplete { missing }) => missing.iter().map(ToString::to_string).collect(),
            _ => Vec::new(),
        },
        error: outcome.result.as_ref().err().map(ErrorInfo::from),
    });
    PushDocument {
        run: tiers.run_name().to_string(),
        dry_run: false,
        id: report.id,
        provisional: report.provisional,
        name: report.name,
        source: report.source,
        files: report.file_count,
        bytes: report.data_bytes,
        newly_sealed: report.newly_sealed,
        faults,
        remotes: remotes.collect(),
        seconds,
    }
}

impl Report for PushDocument {
    fn human(&self) -> String {
        let mut by_state: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for remote in &self.remotes {
            let state = match (remote.durable, remote.already_durable) {
                (true, true) if self.dry_run => "is already durable on".to_owned(),
                (true, true) => "was already durable on".to_owned(),
                (true, false) => "is durable on".to_owned(),
                (false, _) if !remote.missing_nodes.is_empty() => {
                    format!("waits for {} on", listed(&remote.missing_nodes))
                }
                (false, _) if self.dry_run && remote.error.is_some() => {
                    "could not be looked for on".to_owned()
                }
                (false, _) if self.dry_run => "would be uploaded to".to_owned(),
                (false, _) => "is not durable on".to_owned(),
            };
            let place = match remote.copied_bytes {
                0 => remote.remote.clone(),
                copied => format!("{} ({} copied in the store)", remote.remote, human::bytes(copied)),
            };
            by_state.entry(state).or_default().push(place);
        }
        let states = by_state.iter();
        let states = states.map(|(state, remotes)| format!("{state} {}", remotes.join(", ")));
        format!(
            "{} of '{}' ({}, {}) {}",
            self.id,
            self.run,
            human::count(self.files, "file"),
            human::bytes(self.bytes),
            states.format("; ")
        )
    }
}

const INTERVAL: Duration = Duration::from_secs(5);

/// Takes the exclusive right, on every remote that answers, if the run is exclusive. It is held until dropped. While
/// another job has it, waits for as long as `patience`.
///
/// # Errors
/// [`ErrorKind::Held`] if another job with this purpose still has it then.
pub(super) async fn hold_exclusive(
    tiers: &Tiers,
    purpose: Purpose,
    patience: Duration,
) -> Result<Vec<ExclusiveRun>> {
    let mut held = Vec::new();
    let Some(vault) = tiers.vault.as_ref().filter(|_| tiers.run.exclusive) else {
        return Ok(held);
    };
    let does = match purpose {
        Purpose::Train => "trains",
        Purpose::Upload => "writes",
    };
    let began = Instant::now();
    for remote in &tiers.upload_remotes() {
        let mut is_said = false;
        loop {
            match ExclusiveRun::take(remote, vault, &tiers.writer, purpose).await {
                Ok(right) => held.push(right),
                Err(error) if error.kind() == ErrorKind::Held => {
                    if began.elapsed() >= patience {
                        for held in held {
                            held.release().await;
                        }
                        return Err(error);
                    }
                    if !std::mem::replace(&mut is_said, true) {
                        let seconds = patience.as_secs();
                        let text = format!("{error}; waiting {seconds} s at most, in case it was killed");
                        tiers.output.warn(&text);
                    }
                    sleep(INTERVAL).await;
                    continue;
                }
                Err(error) => tracing::debug!(%error, "cannot determine whether another job {does} the run"),
            }
            break;
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, required: bool, error: Option<ErrorKind>) -> RemoteOutcome {
        let result = error.map_or(Ok(Uploaded::Durable), |kind| Err(Error::new(kind, "cannot")));
        RemoteOutcome { remote: name.parse().unwrap(), required, result, copied_bytes: 0 }
    }

    #[test]
    fn only_required_remotes_decide() {
        let unreachable = Some(ErrorKind::Unreachable);
        let denied = Some(ErrorKind::Denied);
        assert_eq!(exit_code(&[outcome("a", true, None), outcome("b", false, denied)]), ExitCode::Done);
        assert_eq!(exit_code(&[outcome("a", true, None), outcome("b", true, denied)]), ExitCode::Partly);
        assert_eq!(exit_code(&[outcome("a", true, None), outcome("b", true, unreachable)]), ExitCode::Partly);
        assert_eq!(exit_code(&[outcome("a", true, denied)]), ExitCode::Failed);
        assert_eq!(exit_code(&[outcome("a", false, denied)]), ExitCode::Failed);
    }

    #[test]
    fn the_line_says_which_remotes_have_it() {
        let remote = |name: &str, durable, already_durable, copied_bytes| RemoteDocument {
            remote: name.to_owned(),
            required: true,
            durable,
            already_durable,
            copied_bytes,
            missing_nodes: Vec::new(),
            error: None,
        };
        let document = PushDocument {
            run: "demo".to_owned(),
            dry_run: false,
            id: StepId::from_label("000000000010.a1").unwrap(),
            provisional: false,
            name: "step_10".to_owned(),
            source: PathBuf::from("step_10"),
            files: 2,
            bytes: 2048,
            newly_sealed: true,
            faults: Vec::new(),
            remotes: vec![
                remote("a", true, false, 0),
                remote("b", false, false, 0),
                remote("c", true, false, 1536),
            ],
            seconds: 0.1,
        };
        assert_eq!(
            document.human(),
            "step 10 (attempt 1) of 'demo' (2 files, 2.0 KiB) is durable on a, c (1.5 KiB copied in the store); \
             is not durable on b"
        );
    }
}
