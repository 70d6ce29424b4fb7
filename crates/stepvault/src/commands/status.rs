//! `status`: summarizes the local vault, without contacting any remote.

mod steps;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::control::{AgentProcess, RemoteRate, SeenOfRun, Skipped};
use stepvault_agent::{FailedStep, RemoteUploads, UnservedRun};
use stepvault_core::drain::LeftStep;
use stepvault_core::retention::LocalLimits;
use stepvault_core::{Clock as _, Error, ErrorKind, Result, RunName};
use stepvault_engine::node_records::read_given_up;
use stepvault_engine::tier::step_state::{Durability, is_durable_on, recorded_state, still_given_up};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{SealedStep, SystemClock, Vault, space};

use super::inventory::time_warnings;
use super::node_records::{GivenUpDocument, LeftByDrain};
use super::starts::StartsStatus;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::table::{fit, width_of};
use crate::output::{Report, human, table};
use crate::session::Session;
use steps::StepStatus;

/// Timeout for the agent's answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of unfinished entries to show.
const MAX_UNFINISHED_SHOWN: usize = 4;
const MAX_FAILED_SHOWN: usize = 4;

/// Show the local vault: staged steps, where steps are durable, and free disk space
///
/// It contacts no remote, and shows what this node has recorded. With --quiet, the exit code is 12 if no agent answers,
/// for probes of services.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Refresh every two seconds until interrupted
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StatusDocument {
    /// The run.
    run: String,
    /// The vault's directory.
    vault: PathBuf,
    /// Whether a process, such as an agent or a push, holds the vault's lock.
    locked: bool,
    /// The state of this vault's agent; null if none answers.
    agent: Option<AgentDocument>,
    /// Number of sealed steps.
    steps: u64,
    /// Bytes of the sealed steps.
    bytes: u64,
    /// Number of quarantined steps.
    quarantined_steps: u64,
    /// Number of directories in the vault that are not readable steps.
    unreadable_steps: u64,
    /// The newest sealed step; null if there is none.
    newest_step: Option<u64>,
    /// One entry for each remote, from this node's records.
    remotes: Vec<RemoteStatus>,
    /// The newest steps in the vault, at most 8, the newest first.
    newest_steps: Vec<StepStatus>,
    /// Times that contradict the order of the steps, as text; omitted when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Runs that are not configured, but have steps in the vault that are not durable.
    unserved: Vec<UnservedRun>,
    /// Steps that this node's last drain did not finish and are not durable yet; null if there are none.
    last_drain: Option<LeftByDrain>,
    /// Steps that the vault gave up before they were durable, to free disk space; null if there are none.
    given_up: Option<GivenUpDocument>,
    /// Free bytes of the vault's filesystem.
    pub(super) disk_free_bytes: u64,
    /// Size of the vault's filesystem.
    disk_total_bytes: u64,
    /// Low mark: with fewer free bytes, local copies are evicted; null if not configured.
    free_space_low_bytes: Option<u64>,
    /// High mark: eviction stops when so many bytes are free; null if not configured.
    free_space_high_bytes: Option<u64>,
    #[serde(flatten)]
    starts: StartsStatus,
}

/// A running agent and its state for this run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct AgentDocument {
    /// The agent's version.
    version: String,
    #[serde(flatten)]
    process: AgentProcess,
    /// Whether the agent serves this run.
    serves_run: bool,
    /// Its state with each remote of the run, in the configured order.
    pub(super) remotes: Vec<RemoteUploads>,
    /// The agent's upload rate and next retention for each remote.
    rates: Vec<RemoteRate>,
    #[serde(flatten)]
    seen: SeenOfRun,
}

/// The vault's steps on one remote, as recorded on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
struct RemoteStatus {
    /// The remote's name.
    remote: String,
    /// Its URL, without options.
    url: String,
    /// Whether a step must be durable on this remote to count as durable.
    required: bool,
    /// Number of sealed steps that are not fully uploaded.
    staged_steps: u64,
    /// Number of steps that are uploaded and verified, but not committed.
    uploaded_steps: u64,
    /// Number of steps that are recorded as durable on the remote.
    durable_steps: u64,
    /// Bytes of the sealed steps that are not durable on the remote.
    not_durable_bytes: u64,
    /// The newest durable step; null if there is none.
    newest_durable_step: Option<u64>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &StatusArguments) -> Result<ExitCode> {
    if arguments.watch && session.output.json {
        return Err(Error::new(ErrorKind::Usage, "cannot use --watch with --json")
            .because("--json prints a single document")
            .hint("run 'stepvault status --json' repeatedly instead"));
    }
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::here(), &session.output).await?;
    tiers.progress.finish();
    let vault = tiers.vault.clone().ok_or_else(|| {
        let error = Error::new(ErrorKind::Usage, "no local vault");
        match settings.local_directory() {
            Some(directory) => error
                .on(directory.display())
                .because("nothing has been sealed there yet")
                .hint("run 'stepvault push' or 'stepvault agent' to create it, or 'stepvault list' to list the remotes"),
            None => {
                error.because("none is configured, and there is no .stepvault in the working directory").hint(
                    "give its directory with --local DIR, or set local.directory in the configuration",
                )
            }
        }
    })?;
    let is_configured = settings.config.runs.iter().any(|run| run.name == *tiers.run_name());
    let mut is_known = is_configured || vault.runs()?.contains(tiers.run_name());
    loop {
        let (document, fault) = document(&tiers, &vault).await?;
        is_known |= document.agent.as_ref().is_some_and(|agent| agent.serves_run);
        if !is_known {
            return Err(Error::new(ErrorKind::NotFound, "no such run")
                .on(tiers.run_name())
                .because(format!("neither the vault {} nor its agent has it", vault.root().display())));
        }
        if let Some(fault) = fault {
            session.output.warn(&format!("cannot read earlier starts: {fault}"));
        }
        if arguments.watch && crate::output::draws_on_terminal() {
            // Move the cursor home and clear the screen.
            let text = document.fitted(width_of(std::io::stdout()));
            session.output.text(&format!("\x1b[H\x1b[2J{}", human::printable(&text)))?;
        } else if session.output.json || !session.output.quiet {
            session.output.result(&document)?;
        }
        if !arguments.watch {
            let lacks_agent = session.output.quiet && document.agent.is_none();
            return Ok(if lacks_agent { ExitCode::Unreachable } else { ExitCode::Done });
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Returns the state of a run in the vault, and why its earlier starts could not be read. Asks the agent.
pub(super) async fn document(tiers: &Tiers, vault: &Vault) -> Result<(StatusDocument, Option<Error>)> {
    let config = &tiers.settings.config;
    let agent = ask_agent(&tiers.settings, vault, tiers.run_name()).await;
    let (vault, run, remotes) = (vault.clone(), tiers.run_name().clone(), tiers.upload_remotes());
    let (node, rules, limits) = (tiers.writer.place.node().clone(), config.restart, config.local.limits);
    let configured = config.runs.iter().map(|run| run.name.clone());
    let known: Vec<RunName> = configured.chain([run.clone()]).collect();
    blocking(move || {
        let mut document = collect(&vault, &run, &remotes, agent, &limits)?;
        document.unserved = unserved(&vault, &known, &remotes)?;
        let starts = StartsStatus::read(&vault, &run, &node, rules);
        let fault = starts.map(|starts| document.starts = starts).err();
        Ok((document, fault))
    })
    .await
}

/// Queries the agent; returns `None` if none answers in time.
pub(super) async fn ask_agent(settings: &Settings, vault: &Vault, run: &RunName) -> Option<AgentDocument> {
    let asked = settings.control_in(Some(vault.root()))?.status(ANSWERED_WITHIN).await;
    let answer = asked.inspect_err(|error| tracing::debug!(%error, "no agent answers")).ok()?;
    let served = answer.runs.into_iter().find(|served| served.run == *run);
    let serves_run = served.is_some();
    let (remotes, seen) = served.map(|run| (run.remotes, run.seen)).unwrap_or_default();
    Some(AgentDocument {
        version: answer.version,
        process: answer.process,
        serves_run,
        remotes,
        rates: answer.rates,
        seen,
    })
}

fn collect(
    vault: &Vault,
    run: &RunName,
    remotes: &[RunRemote],
    agent: Option<AgentDocument>,
    limits: &LocalLimits,
) -> Result<StatusDocument> {
    let scan = vault.steps(run)?;
    let disk = space::free(vault.root())?;
    let mut statuses = Vec::new();
    for remote in remotes {
        statuses.push(remote_status(&scan.steps, remote)?);
    }
    let drain = stepvault_agent::read_drain(vault, run)?;
    let last_drain =
        drain.and_then(|record| LeftByDrain::of(&record, |left| waits(left, &scan.steps, remotes)));
    let (notes, rates) = agent.as_ref().map_or((&[][..], &[][..]), |agent| (&agent.remotes, &agent.rates));
    let newest_steps = steps::newest(vault, &scan.steps, remotes, notes, rates)?;
    let own = scan.steps.iter().map(SealedStep::record);
    let own = own.filter(|record| !record.origin.amends);
    let warnings = time_warnings(own.map(|record| (record.id, record.written_at)), SystemClock.now());
    let sealed = scan.steps.iter().map(SealedStep::id).collect();
    let given_up = read_given_up(vault, run)?
        .and_then(|record| still_given_up(&record, &sealed))
        .map(GivenUpDocument::from);
    Ok(StatusDocument {
        unserved: Vec::new(),
        last_drain,
        given_up,
        newest_steps,
        warnings,
        run: run.to_string(),
        vault: vault.root().to_owned(),
        locked: is_locked(vault),
        agent,
        steps: scan.steps.len() as u64,
        bytes: scan.steps.iter().map(|step| step.record().data_bytes()).sum(),
        quarantined_steps: vault.quarantined(run)?.len() as u64,
        unreadable_steps: scan.faults.len() as u64,
        newest_step: scan.steps.last().map(|step| step.id().step.number()),
        remotes: statuses,
        disk_free_bytes: disk.free_bytes,
        disk_total_bytes: disk.total_bytes,
        free_space_low_bytes: limits.free_space_low_bytes,
        free_space_high_bytes: limits.free_space_high_bytes,
        starts: StartsStatus::default(),
    })
}

/// Returns the suffix for an error that only an operator can resolve.
fn for_operator(needs_operator: bool) -> &'static str {
    if needs_operator { "; an operator must resolve this; retried every few minutes" } else { "" }
}

fn rate_text(remote: &RemoteRate) -> Option<String> {
    let rate = remote.bytes_per_second.map(|rate| format!("recently {}", human::per_second(rate)));
    let prune = remote.next_prune_at.as_ref().map(|time| format!("next retention at {time}"));
    let known = rate.into_iter().chain(prune).join(", ");
    (!known.is_empty()).then(|| format!("{}: {known}", remote.remote))
}

/// Returns the runs in the vault that are not in `known` and have steps that are not durable on every required remote;
/// with none required, on any remote.
fn unserved(vault: &Vault, known: &[RunName], remotes: &[RunRemote]) -> Result<Vec<UnservedRun>> {
    let mut found = Vec::new();
    for run in vault.runs()?.into_iter().filter(|run| !known.contains(run)) {
        let scan = vault.steps(&run)?;
        let mut steps = scan.faults.len() as u64;
        for step in &scan.steps {
            let durability = Durability::of(remotes, |remote| is_durable_on(step, remote))?;
            steps += u64::from(!durability.is_durable());
        }
        if steps > 0 {
            found.push(UnservedRun { run, steps });
        }
    }
    Ok(found)
}

/// Returns whether a step that a drain did not finish is in the vault and still not durable on that remote.
fn waits(left: &LeftStep, steps: &[SealedStep], remotes: &[RunRemote]) -> bool {
    let step = steps.iter().find(|step| step.id() == left.id);
    let remote = remotes.iter().find(|remote| *remote.name() == left.remote);
    match (step, remote) {
        (Some(step), Some(remote)) => !is_durable_on(step, remote).unwrap_or(false),
        _ => false,
    }
}

/// Returns whether a process holds the vault's lock. The test takes a shared lock and releases it at once, so that
/// concurrent tests succeed and the holder's name in the file is kept.
fn is_locked(vault: &Vault) -> bool {
    let file = std::fs::File::open(vault.root().join("lock"));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
}

fn remote_status(steps: &[SealedStep], remote: &RunRemote) -> Result<RemoteStatus> {
    let mut status = RemoteStatus {
        remote: remote.name().to_string(),
        url: remote.store.url().to_owned(),
        required: remote.settings.required,
        staged_steps: 0,
        uploaded_steps: 0,
        durable_steps: 0,
        not_durable_bytes: 0,
        newest_durable_step: None,
    };
    for step in steps {
        if is_durable_on(step, remote)? {
            status.durable_steps += 1;
            status.newest_durable_step = Some(step.id().step.number());
            continue;
        }
        status.not_durable_bytes += step.record().data_bytes();
        if recorded_state(step, remote)?.is_some() {
            status.uploaded_steps += 1;
        } else {
            status.staged_steps += 1;
        }
    }
    Ok(status)
}

impl StatusDocument {
    fn disk_line(&self) -> String {
        let mut line = format!(
            "disk   {} of {} free",
            human::bytes(self.disk_free_bytes),
            human::bytes(self.disk_total_bytes)
        );
        if let Some(low) = self.free_space_low_bytes {
            let _ = write!(line, ", eviction starts below {}", human::bytes(low));
        }
        if let Some(high) = self.free_space_high_bytes {
            let _ = write!(line, " and stops at {}", human::bytes(high));
        }
        line
    }

    fn agent_line(&self) -> String {
        let Some(agent) = &self.agent else {
            return "agent  no answer".to_owned();
        };
        let (process, seen) = (&agent.process, &agent.seen);
        let mut first = format!("agent  process {}, since {}", process.process_id, process.started_at);
        if !agent.serves_run {
            first.push_str(", does not serve this run");
        }
        if let Some(reason) = &process.stopping {
            let _ = write!(first, ", stopping on {reason}");
        }
        let mut lines = vec![first];
        lines.extend(seen.other_writers.iter().map(|other| format!("{other}, seen at {}", other.seen_at)));
        let on = |step: &FailedStep, remote: &RemoteUploads| {
            format!("{} on {}: {}", step.id, remote.remote, step.reason)
        };
        for remote in &agent.remotes {
            lines.extend(remote.lacking_parts.iter().map(|step| on(step, remote)));
        }
        for remote in &agent.remotes {
            if let Some(error) = &remote.last_error {
                let operator = for_operator(remote.needs_operator);
                lines.push(format!("{}: {error}{operator}", remote.remote));
            }
            let failed = remote.failed.iter().take(MAX_FAILED_SHOWN);
            lines.extend(failed.map(|step| on(step, remote) + for_operator(step.needs_operator)));
            let more = remote.failed.len().saturating_sub(MAX_FAILED_SHOWN);
            if more > 0 {
                let steps = human::count(more as u64, "step");
                lines.push(format!("and {steps} more on {}", remote.remote));
            }
        }
        lines.extend(agent.rates.iter().filter_map(rate_text));
        let entry =
            |entry: &Skipped, what: &str| format!("{} {what}: {}", entry.path.display(), entry.reason);
        let unsealed = seen.unsealed.iter().take(MAX_UNFINISHED_SHOWN);
        lines.extend(unsealed.map(|unsealed| entry(unsealed, "is finished but not sealed")));
        let is_unsealed = |entry: &&Skipped| seen.unsealed.iter().any(|other| other.path == entry.path);
        let unfinished =
            seen.unfinished.iter().filter(|entry| !is_unsealed(entry)).take(MAX_UNFINISHED_SHOWN);
        lines.extend(unfinished.map(|unfinished| entry(unfinished, "is not sealed yet")));
        let more = seen.unfinished.len().saturating_sub(MAX_UNFINISHED_SHOWN);
        if more > 0 {
            lines.push(format!("and {} more", human::count(more as u64, "entry")));
        }
        lines.extend(process.problems.iter().cloned());
        lines.join("\n       ")
    }
}

impl Report for StatusDocument {
    fn fitted(&self, width: usize) -> String {
        let mut lines = vec![
            format!("run    {}", self.run),
            format!("vault  {}{}", self.vault.display(), if self.locked { " (in use)" } else { "" }),
            self.agent_line(),
            format!("steps  {}, {}", self.steps, human::bytes(self.bytes)),
        ];
        if self.quarantined_steps + self.unreadable_steps > 0 {
            lines.push(format!(
                "bad    {} in quarantine, {} unreadable",
                self.quarantined_steps, self.unreadable_steps
            ));
        }
        if let Some(drain) = &self.last_drain {
            lines.push(format!("drain  {}", drain.text));
        }
        if let Some(given_up) = &self.given_up {
            lines.push(format!("lost   {}", given_up.text));
        }
        lines.extend(self.unserved.iter().map(|run| format!("other  {run}")));
        lines.push(self.disk_line());
        lines.extend(self.starts.lines());
        lines = lines.iter().map(|line| fit(line, width)).collect();
        if !self.remotes.is_empty() {
            let headings =
                ["remote", "staged", "uploaded", "durable", "not durable", "newest durable", "url"];
            let rows = self.remotes.iter().map(|remote| {
                [
                    format!("{}{}", remote.remote, if remote.required { "" } else { " (optional)" }),
                    remote.staged_steps.to_string(),
                    remote.uploaded_steps.to_string(),
                    remote.durable_steps.to_string(),
                    human::bytes(remote.not_durable_bytes),
                    remote.newest_durable_step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
                    remote.url.clone(),
                ]
            });
            lines.push(String::new());
            lines.push(table::fitted(&headings, &[1, 2, 3, 4, 5], rows, width));
        }
        if let Some(steps) = steps::text(&self.newest_steps) {
            lines.push(String::new());
            lines.push(steps);
        }
        lines.extend(self.warnings.iter().map(|warning| fit(&format!("warning: {warning}"), width)));
        lines.join("\n")
    }
}
