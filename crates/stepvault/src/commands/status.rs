//! `status`: the local vault at a glance, without asking any remote.

mod steps;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stepvault_agent::RemoteNote;
use stepvault_agent::control::{RemotePace, Skipped};
use stepvault_core::drain::LeftStep;
use stepvault_core::ids::RunName;
use stepvault_core::retention::LocalLimits;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::sealed::{SealedStep, UploadState};
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::Session;
use super::inventory::is_durable_on;
use super::left_by_drain::LeftByDrain;
use super::starts::status::StartsStatus;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use steps::StepStatus;

/// An agent that does not answer by then is as good as none, for this.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Of a long list the first ones say what the others are about.
const MOST_UNFINISHED_SHOWN: usize = 4;

/// Show the local vault: what is staged, what is durable where, and how much disk is left
///
/// It asks no remote: what is shown is what this node knows.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Show it again every two seconds, until interrupted
    #[arg(long)]
    watch: bool,
}

#[derive(Serialize)]
struct StatusDocument {
    run: String,
    vault: PathBuf,
    /// Whether a process holds the vault's lock: an agent, or a push.
    locked: bool,
    /// What the running agent says of itself; null when none answers.
    agent: Option<AgentDocument>,
    steps: u64,
    bytes: u64,
    quarantined_steps: u64,
    unreadable_steps: u64,
    newest_step: Option<u64>,
    remotes: Vec<RemoteStatus>,
    /// The newest steps, at most 8, the newest first.
    newest_steps: Vec<StepStatus>,
    /// What the last drain left that is not durable yet.
    last_drain: Option<LeftByDrain>,
    disk_free_bytes: u64,
    disk_total_bytes: u64,
    /// Below so many free bytes local copies are evicted; null where no mark is configured.
    free_space_low_bytes: Option<u64>,
    /// Until so many are free.
    free_space_high_bytes: Option<u64>,
    #[serde(flatten)]
    starts: StartsStatus,
}

/// A running agent, and what it says of this run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct AgentDocument {
    version: String,
    process_id: u32,
    started_at: String,
    /// Why it was asked to stop; null while it was not.
    stopping: Option<String>,
    healthy: bool,
    complaints: Vec<String>,
    /// Whether it serves this run.
    serves_run: bool,
    remotes: Vec<RemoteNote>,
    /// How fast uploads go, and when retention is applied next.
    paces: Vec<RemotePace>,
    skipped: Vec<Skipped>,
    /// What stands in the watched directory and is not taken over yet.
    unfinished: Vec<Skipped>,
}

/// The vault's steps on one remote, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RemoteStatus {
    remote: String,
    url: String,
    required: bool,
    /// Steps that are sealed and not wholly there yet.
    staged_steps: u64,
    /// Steps whose bytes are there and whose commit is not.
    uploaded_steps: u64,
    durable_steps: u64,
    /// Bytes of the steps that are not durable there.
    not_durable_bytes: u64,
    newest_durable_step: Option<u64>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &StatusArguments) -> Result<ExitCode> {
    if arguments.watch && session.output.is_json() {
        return Err(Error::new(ErrorKind::Usage, "--watch does not go with --json")
            .because("the output is to be one document")
            .hint("call 'stepvault status --json' as often as needed"));
    }
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.progress.finish();
    let vault = tiers.vault.clone().ok_or_else(|| {
        let error = Error::new(ErrorKind::Usage, "there is no local vault to look at");
        match settings.local_directory() {
            Some(directory) => error
                .on(directory.display())
                .because("nothing was sealed there yet")
                .hint("'stepvault push' and 'stepvault agent' make it; 'stepvault list' asks the remotes"),
            None => {
                error.hint("give its directory with --local DIR, or in the configuration as local.directory")
            }
        }
    })?;
    loop {
        let agent = ask_agent(&settings, tiers.run_name()).await;
        let (vault, run, remotes) = (vault.clone(), tiers.run_name().clone(), tiers.remotes.clone());
        let (node, rules) = (tiers.writer.place.node().clone(), settings.config.restart);
        let limits = settings.config.local.limits;
        let (document, fault) = blocking(move || {
            let mut document = look(&vault, &run, &remotes, agent, &limits)?;
            let starts = StartsStatus::look(&vault, &run, &node, rules);
            let fault = starts.map(|starts| document.starts = starts).err();
            Ok((document, fault))
        })
        .await?;
        if let Some(fault) = fault {
            session
                .output
                .warn(&format!("earlier starts are not known: {fault}"));
        }
        if arguments.watch && crate::output::draws_on_terminal() {
            // Home, and clear what is below.
            let text = document.human();
            session
                .output
                .text(&format!("\x1b[H\x1b[2J{}", human::printable(&text)));
        } else {
            session.output.result(&document)?;
        }
        if !arguments.watch {
            return Ok(ExitCode::Done);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// The agent, if one answers soon.
async fn ask_agent(settings: &Settings, run: &RunName) -> Option<AgentDocument> {
    let asked = settings.control()?.status(ANSWERED_WITHIN).await;
    let answer = asked
        .inspect_err(|error| tracing::debug!(%error, "no agent answers"))
        .ok()?;
    let serves = answer.runs.into_iter().find(|served| served.run == *run);
    Some(AgentDocument {
        version: answer.version,
        process_id: answer.process_id,
        started_at: answer.started_at,
        stopping: answer.stopping,
        healthy: answer.healthy,
        complaints: answer.complaints,
        serves_run: serves.is_some(),
        remotes: serves.as_ref().map(|run| run.remotes.clone()).unwrap_or_default(),
        paces: answer.paces,
        skipped: serves.as_ref().map(|run| run.skipped.clone()).unwrap_or_default(),
        unfinished: serves.map(|run| run.unfinished).unwrap_or_default(),
    })
}

fn look(
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
    let (notes, paces) = agent
        .as_ref()
        .map_or((&[][..], &[][..]), |agent| (&agent.remotes, &agent.paces));
    let newest_steps = steps::look(vault, &scan.steps, remotes, notes, paces)?;
    Ok(StatusDocument {
        last_drain,
        newest_steps,
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

fn pace_text(pace: &RemotePace) -> String {
    let rate = pace
        .bytes_per_second
        .map(|rate| format!("{}/s lately", human::bytes(rate)));
    let prune = pace
        .next_prune_at
        .as_ref()
        .map(|time| format!("retention next at {time}"));
    let known: Vec<String> = rate.into_iter().chain(prune).collect();
    if known.is_empty() {
        return String::new();
    }
    format!("\n       {}: {}", pace.remote, known.join(", "))
}

/// Whether a step that a drain left is here and still not durable on that remote.
fn waits(left: &LeftStep, steps: &[SealedStep], remotes: &[RunRemote]) -> bool {
    let step = steps.iter().find(|step| step.id() == left.id);
    let remote = remotes.iter().find(|remote| *remote.name() == left.remote);
    match (step, remote) {
        (Some(step), Some(remote)) => !is_durable_on(step, remote).unwrap_or(false),
        _ => false,
    }
}

/// Whether somebody holds the vault's lock. A shared lock, given back at once, disturbs nobody who looks likewise and
/// leaves the holder's name in the file alone.
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
        let uploaded = step
            .remote_state(remote.name())?
            .is_some_and(|state| state.state == UploadState::Uploaded && state.url == remote.store.url());
        if uploaded {
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
            let _ = write!(line, ", eviction begins below {}", human::bytes(low));
        }
        if let Some(high) = self.free_space_high_bytes {
            let _ = write!(line, " and frees {}", human::bytes(high));
        }
        line
    }

    fn agent_line(&self) -> String {
        let Some(agent) = &self.agent else {
            return "agent  none answers".to_owned();
        };
        let mut line = format!("agent  process {}, since {}", agent.process_id, agent.started_at);
        if !agent.serves_run {
            line.push_str(", does not serve this run");
        }
        if let Some(reason) = &agent.stopping {
            let _ = write!(line, ", stopping on {reason}");
        }
        for remote in &agent.remotes {
            for step in &remote.lacking_parts {
                let _ = write!(line, "\n       {} on {}: {}", step.id, remote.remote, step.reason);
            }
        }
        for remote in &agent.remotes {
            if let Some(error) = &remote.last_error {
                let _ = write!(line, "\n       {}: {error}", remote.remote);
            }
        }
        for pace in &agent.paces {
            let _ = write!(line, "{}", pace_text(pace));
        }
        for entry in agent.unfinished.iter().take(MOST_UNFINISHED_SHOWN) {
            let path = entry.path.display();
            let _ = write!(line, "\n       {path} is not taken over yet: {}", entry.reason);
        }
        if let Some(more) = agent
            .unfinished
            .len()
            .checked_sub(MOST_UNFINISHED_SHOWN)
            .filter(|more| *more > 0)
        {
            let _ = write!(line, "\n       and {} more", human::count(more as u64, "entry"));
        }
        for complaint in &agent.complaints {
            let _ = write!(line, "\n       {complaint}");
        }
        line
    }
}

impl Report for StatusDocument {
    fn human(&self) -> String {
        let mut lines = vec![
            format!("run    {}", self.run),
            format!(
                "vault  {}{}",
                self.vault.display(),
                if self.locked { " (in use)" } else { "" }
            ),
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
            lines.push(format!("drain  {}", drain.text()));
        }
        lines.push(self.disk_line());
        lines.extend(self.starts.lines());
        if !self.remotes.is_empty() {
            let headings = [
                "remote",
                "staged",
                "uploaded",
                "durable",
                "not durable",
                "newest durable",
                "url",
            ];
            let mut remotes = table::table(&headings, &[1, 2, 3, 4, 5]);
            for remote in &self.remotes {
                remotes.add_row([
                    if remote.required {
                        remote.remote.clone()
                    } else {
                        format!("{} (optional)", remote.remote)
                    },
                    remote.staged_steps.to_string(),
                    remote.uploaded_steps.to_string(),
                    remote.durable_steps.to_string(),
                    human::bytes(remote.not_durable_bytes),
                    remote
                        .newest_durable_step
                        .map_or_else(|| "-".to_owned(), |step| step.to_string()),
                    remote.url.clone(),
                ]);
            }
            lines.push(String::new());
            lines.push(table::text(&remotes));
        }
        if let Some(steps) = steps::text(&self.newest_steps) {
            lines.push(String::new());
            lines.push(steps);
        }
        lines.join("\n")
    }
}
