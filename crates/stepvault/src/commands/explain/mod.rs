//! `explain`: reports why a run failed, and from which step it can resume.

pub(super) mod document;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use document::{CauseDocument, ExplainDocument};
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::read_status_file;
use stepvault_core::document::StepIdMembers;
use stepvault_core::words::shell_word;
use stepvault_core::{Error, ErrorKind, Result, Revision, RunName, StepId};
use stepvault_diagnose::explain::explanations;
use stepvault_engine::blocking::blocking;
use stepvault_engine::explain::{ExplainRequest, Log, LogSource, NotLookedAt, ResumeOnDisk, gather, quoted};
use stepvault_engine::restore::{RestorePlan, RestoreRequest, SkippedStep, Target, plan};
use stepvault_local::{SystemClock, Vault};

use crate::commands::restore::restore_context;
use crate::commands::starts::demoted_steps;
use crate::context::{DefaultVault, Settings, Tiers, absolute, check_presence, vault_beside};
use crate::exit_code::ExitCode;
use crate::session::Session;

/// The argument that selects standard input.
const STANDARD_INPUT: &str = "-";
/// Maximum number of a vault's runs whose records are read if no run is named.
const MAXIMUM_RUNS: usize = 32;
/// Directories for temporary files if TMPDIR is not set.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Explain why a run failed, from its directories, records and logs, and which step to resume from
///
/// Examines each DIR and TMPDIR (space, inodes, mount, permissions), the steps (truncated files, interrupted saves),
/// the vault (starts and how they ended, stalled uploads, the agent's last state), the cgroup's count of killed
/// processes and, if readable, the kernel log; and recognises the error messages of frameworks, kernels and stores in
/// the logs. Prints the causes in order of likelihood, each with its evidence and a remedy, then the newest valid step
/// with the commands to resume from it. It writes nothing.
#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Directories that the trainer writes steps to; by default the run's 'watch'
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Log of the run, of any size; repeatable; - reads standard input
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// The trainer's TMPDIR, if it differs from this shell's [env: TMPDIR]
    #[arg(long, value_name = "DIR")]
    tmpdir: Option<PathBuf>,
    /// The run failed on another machine: examine its logs and directories, but not this machine
    #[arg(long)]
    elsewhere: bool,
    /// Framework that wrote the checkpoints; detected by default
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: ExplainArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let directories = directories(&settings, &arguments)?;
    let logs = logs(&arguments.log)?;
    let mut not_looked_at = Vec::new();
    let vault = match find_vault(&settings, &directories).await {
        Ok(vault) => vault,
        Err(error) => {
            not_looked_at.push(NotLookedAt::named("the vault", error.to_string()));
            None
        }
    };
    let runs = runs(&settings, &directories, vault.as_ref());
    let records = records(vault.as_ref(), &runs, &mut not_looked_at).await;
    let run = runs.first().filter(|_| runs.len() == 1).cloned();
    let configured_profile = run.as_ref().and_then(|run| settings.config.run(run).profile);
    let mut gathered = gather(ExplainRequest {
        directories: directories.clone(),
        logs,
        temporary: temporary(arguments.tmpdir.as_deref())?,
        is_here: !arguments.elsewhere,
        vault: vault.clone(),
        runs: runs.clone(),
        records,
        profiles: settings.profiles()?,
        profile: arguments.profile.or(configured_profile),
        restart_loop: settings.config.restart.restart_loop,
        clock: Arc::new(SystemClock),
    })
    .await;
    not_looked_at.append(&mut gathered.not_looked_at);
    let resume = resume_from(Resume {
        session,
        settings: &settings,
        run: run.as_ref(),
        vault: vault.as_ref(),
        directories: &directories,
        on_disk: gathered.on_disk,
        not_looked_at: &mut not_looked_at,
    })
    .await;
    let is_partly = not_looked_at.iter().any(|missed| missed.named);
    let causes = explanations(gathered.evidence).into_iter();
    let document = ExplainDocument {
        run: run.as_ref().map(ToString::to_string),
        directories,
        causes: causes.map(CauseDocument::of).collect(),
        resume,
        not_looked_at,
    };
    session.output.result(&document)?;
    Ok(if is_partly { ExitCode::Partly } else { ExitCode::Done })
}

/// Returns the given directories, else the run's own.
fn directories(settings: &Settings, arguments: &ExplainArguments) -> Result<Vec<PathBuf>> {
    let mut directories = arguments.directories.clone();
    if directories.is_empty() {
        directories.extend(settings.run().ok().and_then(|run| run.watch));
    }
    if directories.is_empty() && arguments.log.is_empty() && settings.local_directory().is_none() {
        return Err(Error::new(ErrorKind::Usage, "nothing to explain")
            .because("no directory or log is given, and none is configured")
            .hint("give the directory that the trainer writes to, and its logs: stepvault explain DIR --log FILE"));
    }
    directories.iter().map(|path| absolute(path).map(PathBuf::from)).collect()
}

fn logs(paths: &[PathBuf]) -> Result<Vec<Log>> {
    let log = |path: &PathBuf| {
        if path == Path::new(STANDARD_INPUT) {
            return Ok(Log {
                name: "standard input".to_owned(),
                source: LogSource::Input(Box::new(std::io::stdin())),
            });
        }
        check_presence("cannot read the log", path)?;
        Ok(Log { name: path.display().to_string(), source: LogSource::File(path.clone()) })
    };
    paths.iter().map(log).collect()
}

/// Returns the directories of the trainer's temporary files: the given one, else this shell's.
fn temporary(given: Option<&Path>) -> Result<Vec<PathBuf>> {
    let own = std::env::var_os("TMPDIR").filter(|path| !path.is_empty());
    match given.or(own.as_deref().map(Path::new)) {
        Some(path) => Ok(vec![PathBuf::from(absolute(path)?)]),
        None => Ok(TEMPORARY.iter().map(PathBuf::from).filter(|path| path.is_dir()).collect()),
    }
}

/// Opens the configured vault, else the one beside the first directory that has one.
async fn find_vault(settings: &Settings, directories: &[PathBuf]) -> Result<Option<Vault>> {
    let places: Vec<PathBuf> = match settings.local_directory() {
        Some(directory) => vec![directory],
        // The steps are in the directory itself or in a subdirectory.
        None => directories
            .iter()
            .flat_map(|directory| [directory.join("step"), directory.join("steps/step")])
            .filter_map(|step| vault_beside(&step).ok())
            .collect(),
    };
    let parents = settings.vault_parents();
    blocking(move || {
        for place in &places {
            if let Some(vault) = Vault::open_below(place, parents)? {
                return Ok(Some(vault));
            }
        }
        Ok(None)
    })
    .await
}

/// Returns the named or configured run, else the runs that watch these directories, else all runs in the vault.
fn runs(settings: &Settings, directories: &[PathBuf], vault: Option<&Vault>) -> Vec<RunName> {
    if let Ok(run) = settings.run() {
        return vec![run.name];
    }
    let watches = |watch: &PathBuf| {
        directories.iter().any(|directory| directory.starts_with(watch) || watch.starts_with(directory))
    };
    let configured = settings.config.runs.iter();
    let watching = configured.filter(|run| run.watch.as_ref().is_some_and(watches));
    let watching: Vec<RunName> = watching.map(|run| run.name.clone()).collect();
    if !watching.is_empty() {
        return watching;
    }
    let mut known = vault.and_then(|vault| vault.runs().ok()).unwrap_or_default();
    known.truncate(MAXIMUM_RUNS);
    known
}

/// Returns the agent's last records of each run: why it waited for remotes, and why uploads failed.
async fn records(
    vault: Option<&Vault>,
    runs: &[RunName],
    not_looked_at: &mut Vec<NotLookedAt>,
) -> Vec<(String, String)> {
    let Some(vault) = vault else { return Vec::new() };
    let mut records = Vec::new();
    for run in runs {
        let (vault, name) = (vault.clone(), run.clone());
        let note = match blocking(move || read_status_file(&vault, &name)).await {
            Ok(note) => note,
            Err(error) => {
                not_looked_at.push(NotLookedAt::named("the agent's records", error.to_string()));
                continue;
            }
        };
        for remote in note.into_iter().flat_map(|note| note.remotes) {
            let name = &remote.remote;
            if let Some(error) = remote.last_error {
                records.push((format!("why the agent last waited for {name}, for '{run}'"), error));
            }
            for failed in remote.failed {
                let step = failed.id;
                let what = format!("why the agent could not upload {step} of '{run}' on {name}");
                records.push((what, failed.reason));
            }
        }
    }
    records
}

/// Timeout for listing the tiers.
const TIERS_DEADLINE: Duration = Duration::from_mins(1);

/// The inputs of the choice.
struct Resume<'a> {
    session: &'a Session,
    settings: &'a Settings,
    run: Option<&'a RunName>,
    vault: Option<&'a Vault>,
    directories: &'a [PathBuf],
    on_disk: Vec<ResumeOnDisk>,
    not_looked_at: &'a mut Vec<NotLookedAt>,
}

/// A step to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct ResumeDocument {
    /// The step's number; null if it has none.
    step: Option<u64>,
    /// Its attempt; null if only the trainer's directory has the step.
    attempt: Option<u32>,
    /// Its revision; omitted when it is the first.
    #[serde(skip_serializing_if = "Revision::is_first")]
    revision: Revision,
    /// Its path, after the commands have run.
    path: PathBuf,
    /// The tiers that it would be restored from, in order; empty if only the trainer's directory has the
    /// step.
    tiers: Vec<String>,
    /// Shell commands to run in this order; empty if the trainer finds the step by itself.
    commands: Vec<String>,
    /// How to start the trainer; null if the commands print it.
    trainer: Option<String>,
    /// Newer steps of the tiers that are not valid, the newest first.
    skipped: Vec<SkippedNewer>,
}

/// A newer step that no tier has completely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct SkippedNewer {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// The reasons, as text; never empty.
    reasons: Vec<String>,
}

/// Returns the newest valid step of the tiers, or of the trainer's directories if they have a newer one.
async fn resume_from(resume: Resume<'_>) -> Option<ResumeDocument> {
    let found = resume.on_disk.iter();
    let newest = found.max_by_key(|found| (found.resumable, found.step)).cloned();
    let planned = tokio::time::timeout(TIERS_DEADLINE, on_tiers(&resume, newest.as_ref())).await;
    let planned = planned.unwrap_or_else(|_| {
        let why = format!("they did not answer within {} s", TIERS_DEADLINE.as_secs());
        Err(Error::new(ErrorKind::Unreachable, why))
    });
    let planned = planned.unwrap_or_else(|error| {
        resume.not_looked_at.push(NotLookedAt::named("the tiers", error.to_string()));
        None
    });
    let step_on_disk = newest.as_ref().and_then(|found| found.step);
    match planned {
        Some((plan, into)) if step_on_disk.is_none_or(|step| step <= plan.id.step.number()) => {
            for (tier, why) in &plan.unreachable {
                resume.not_looked_at.push(NotLookedAt::named(&tier.to_string(), why.clone()));
            }
            Some(from_tiers(&resume, resume.run?, &into, plan))
        }
        _ => newest.map(from_disk),
    }
}

/// Returns what a restore would choose, if there is a run with a tier. Fetches no data.
async fn on_tiers(
    resume: &Resume<'_>,
    on_disk: Option<&ResumeOnDisk>,
) -> Result<Option<(RestorePlan, PathBuf)>> {
    let (Some(run), Some(first)) = (resume.run, resume.directories.first()) else {
        return Ok(None);
    };
    let parent = on_disk.and_then(|found| found.path.parent());
    let into = parent.unwrap_or(first).to_path_buf();
    let settings = resume.settings.clone().with_run(run.clone());
    let vault = resume.vault.map(|vault| vault.root().to_path_buf());
    let default = vault.map_or(DefaultVault::None, DefaultVault::Existing);
    let tiers = Tiers::open(&settings, default, &resume.session.output).await?;
    tiers.progress.finish();
    if tiers.require_any().is_err() {
        return Ok(None);
    }
    let request = RestoreRequest {
        demoted: demoted_steps(&tiers).await,
        ..RestoreRequest::newest(run.clone(), Target::Into(into.clone()))
    };
    match plan(&restore_context(&tiers), &request).await {
        Ok(plan) => Ok(Some((plan, into))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn from_disk(found: ResumeOnDisk) -> ResumeDocument {
    ResumeDocument {
        step: found.step,
        attempt: None,
        revision: Revision::FIRST,
        path: found.path,
        tiers: Vec::new(),
        commands: found.commands,
        trainer: Some(found.resume).filter(|text| !text.is_empty()),
        skipped: Vec::new(),
    }
}

fn from_tiers(resume: &Resume<'_>, run: &RunName, into: &Path, plan: RestorePlan) -> ResumeDocument {
    let global = &resume.session.global;
    // The command must name a vault that was found without being configured.
    let is_configured = resume.settings.local_directory().is_some();
    let found = resume.vault.filter(|_| !is_configured).map(|vault| vault.root().to_path_buf());
    let local = global.local.clone().or(found);
    let (step, attempt) = (plan.id.step.number(), plan.id.attempt.number());
    let mut words = vec!["stepvault restore --into".to_owned(), quoted(into)];
    let revision = plan.id.revision;
    words.push(format!("--step {step} --attempt {attempt}"));
    words.extend((!revision.is_first()).then(|| format!("--revision {revision}")));
    words.push(format!("--run {}", shell_word(run.as_str())));
    let path =
        |flag: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("--{flag} {}", quoted(path)));
    words.extend(path("config", &global.config));
    words.extend(path("local", &local));
    let remotes = global.remote.iter();
    words.extend(remotes.map(|remote| format!("--remote {}", shell_word(remote))));
    words.extend(global.node.as_ref().map(|node| format!("--node {node}")));
    let skipped = |SkippedStep { id, reasons, .. }: SkippedStep| SkippedNewer { id, reasons };
    ResumeDocument {
        step: Some(step),
        attempt: Some(attempt),
        revision,
        path: plan.path,
        tiers: plan.sources.iter().map(ToString::to_string).collect(),
        commands: vec![words.join(" ")],
        trainer: None,
        skipped: plan.skipped.into_iter().map(skipped).collect(),
    }
}
