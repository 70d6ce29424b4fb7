//! `agent`: the background service.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::{AgentOptions, AgentRemote, AgentReport, Stop, StopReason};
use stepvault_core::config::Config;
use stepvault_core::{Error, ErrorKind, Observer, Result};
use stepvault_remote::open::OpenOptions;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::dashboard::{self, Protection};
use super::drain::left_undone;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Priority, Report, human};
use crate::progress::{Progress, Style};
use crate::session::Session;

/// Watch for finished steps, seal and upload them, and apply retention on every tier
///
/// Serves every configured run, or the one that --run names. On SIGTERM or SIGINT the agent seals complete steps,
/// including those that become quiet within the drain deadline, uploads the steps closest to durable first, exits
/// within the deadline, and reports the steps that are not durable; a second signal ends it at once. SIGUSR1, the notices of EC2, Compute Engine and Azure, and the
/// drain file announce that the machine is going away: the agent then also seals steps that finish until shortly before the
/// deadline.
#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Process pending work once and exit, for cron
    #[arg(long)]
    once: bool,
    /// With --once: the trainer has ended with all its processes, so no quiet time is waited for
    ///
    /// Serves the run too that the vault's last agent was given on the command line, as of 'stepvault run --run NAME --into DIR'.
    #[arg(long, requires = "once")]
    trainer_ended: bool,
    /// With --once and --local: use the configuration, node and launch of the vault's last agent
    ///
    /// For what an agent left that was killed with its job, as one that a script started: each agent records in its vault
    /// how it was started.
    #[arg(long, requires = "once")]
    like_last: bool,
    /// Drain when this process, and every other that attaches on the control socket, has ended
    ///
    /// Without this option the agent runs until it is told to end. With it, an agent that finds the vault in use ends with
    /// code 13 and without a message: several processes may start one at the same time, and attach to the first.
    #[arg(long, value_name = "PID", conflicts_with = "once", value_parser = clap::value_parser!(u32).range(1..))]
    follow: Option<u32>,
    /// Serve the page of 'stepvault dashboard' at this address while the agent runs
    #[arg(long, value_name = "ADDRESS", conflicts_with = "once")]
    dashboard: Option<SocketAddr>,
    #[command(flatten)]
    protection: Protection,
}

/// Maximum number of skipped entries to print, the latest.
const MAX_SKIPPED_TOLD: usize = 8;

#[derive(Serialize, JsonSchema)]
pub(super) struct AgentDocument {
    /// Whether every finished and every sealed step, of any run in the vault, is durable on each of its required
    /// remotes, and none was given up.
    durable: bool,
    #[serde(flatten)]
    report: AgentReport,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &AgentArguments) -> Result<ExitCode> {
    let settings = if arguments.like_last {
        Settings::of_last_agent(session)?
    } else if arguments.trainer_ended {
        Settings::load_with_last_agent(session)?
    } else {
        Settings::load(session)?
    };
    let config = served(&settings)?;
    let style = Style::of_service(&session.output);
    let progress = Progress::start(&config.remotes, style, &session.output);
    let remotes = open_remotes(&config, &progress.observer()).await?;
    let mut options = AgentOptions::from_config(
        &config,
        settings.writer()?,
        settings.attempt(None)?,
        remotes,
        arguments.once,
    )?
    .with_other_runs_of(&settings.config);
    options.traces = session.output.traces().cloned();
    options.lifecycle.trainer_ended = arguments.trainer_ended;
    options.lifecycle.followed_process = arguments.follow;
    if !arguments.once {
        options.lifecycle.invocation = settings.invocation();
    }
    options.refuse_read_only_mounts().await?;
    let stop = Stop::new();
    tokio::spawn(stop_at_signal(session.interrupt.clone(), stop.clone()));
    tokio::spawn(stop_at_notice(drain_signal()?, stop.clone()));
    let drain_deadline = options.agent.drain_deadline;
    let ended = CancellationToken::new();
    let dashboard = match arguments.dashboard {
        Some(address) => {
            let (settings, output) = (settings.clone(), &session.output);
            let ended = ended.clone();
            Some(dashboard::beside(address, &arguments.protection, settings, output, ended).await?)
        }
        None => None,
    };
    let report = stepvault_agent::run(options, progress.observer(), stop.clone()).await;
    if let Some(request) = stop.requested() {
        session.exit_deadline.set(request.exit_deadline(drain_deadline).into_std());
    }
    ended.cancel();
    if let Some(dashboard) = dashboard {
        // A panic was printed.
        let _ = dashboard.await;
    }
    let report = match report {
        Err(error) if arguments.follow.is_some() && error.kind() == ErrorKind::Held => {
            tracing::debug!(%error, "another process was faster");
            return Ok(ExitCode::Held);
        }
        report => report?,
    };
    progress.finish();
    let durable = report.is_durable();
    // A single round answers whether this vault may be deleted: other nodes' parts come from their own vaults.
    let is_done = durable || arguments.once && report.is_safe_here();
    session.output.result(&AgentDocument { durable, report })?;
    Ok(if is_done { ExitCode::Done } else { ExitCode::Partly })
}

async fn stop_at_signal(interrupt: CancellationToken, stop: Stop) {
    interrupt.cancelled().await;
    stop.request(StopReason::Signal, None);
}

/// Listens for SIGUSR1, which batch systems send some time before they end a job, as Slurm does with
/// `--signal=B:USR1@120`.
fn drain_signal() -> Result<Signal> {
    signal(SignalKind::user_defined1())
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot listen for SIGUSR1").caused_by(error))
}

async fn stop_at_notice(mut signals: Signal, stop: Stop) {
    while signals.recv().await.is_some() {
        stop.request(StopReason::Notice("SIGUSR1".to_owned()), None);
    }
}

pub(super) async fn open_remotes(config: &Config, observer: &Arc<dyn Observer>) -> Result<Vec<AgentRemote>> {
    let mut remotes = Vec::with_capacity(config.remotes.len());
    for settings in &config.remotes {
        let opened = AgentRemote::open(settings.clone(), Arc::clone(observer), OpenOptions::default());
        remotes.push(opened.await?);
    }
    Ok(remotes)
}

/// Returns the configuration restricted to the runs and remotes that the command line names.
///
/// # Errors
/// If the named remotes exclude a remote of a run: local copies would be evicted without being durable there.
pub(super) fn served(settings: &Settings) -> Result<Config> {
    let mut config = settings.config.clone();
    if let Some(run) = settings.named_run() {
        config.runs = vec![config.run(run)];
    }
    let Some(named) = settings.named_remotes() else {
        return Ok(config);
    };
    let mut runs = config.runs.clone();
    for run in &mut runs {
        if let Some(left_out) =
            config.remotes_of(run).into_iter().find(|remote| !named.contains(&remote.name))
        {
            return Err(Error::new(ErrorKind::Usage, "the agent must serve every remote of its runs")
                .on(format!("run '{}'", run.name))
                .because(format!("--remote excludes '{}'", left_out.name))
                .hint("name that remote too, or set the run's remotes in the configuration"));
        }
        run.remotes = Some(named.to_vec());
    }
    config.runs = runs;
    Ok(config)
}

impl Report for AgentDocument {
    fn priority(&self) -> Priority {
        if self.durable { Priority::Info } else { Priority::Warning }
    }

    fn human(&self) -> String {
        let report = &self.report;
        let mut lines = vec![format!(
            "sealed {}, uploaded {}, evicted {}, pruned {}, skipped {}",
            human::count(report.sealed.total, "step"),
            report.uploaded.total,
            report.evicted.total,
            report.pruned.total,
            human::count(report.skipped.total, "entry"),
        )];
        if report.cleaned.total > 0 {
            let steps = human::count(report.cleaned.total, "step");
            lines.push(format!("removed {steps} from the trainer's directories"));
        }
        if report.given_up.total > 0 {
            let steps = human::count(report.given_up.total, "step");
            lines.push(format!("gave up {steps} that were not durable, to free disk space"));
        }
        let skipped = &report.skipped.latest;
        for entry in skipped.iter().rev().take(MAX_SKIPPED_TOLD).rev() {
            lines.push(format!("skipped {}: {}", entry.path.display(), entry.reason));
        }
        if skipped.len() > MAX_SKIPPED_TOLD {
            lines.push("earlier skipped entries are in the JSON document".to_owned());
        }
        lines.extend(left_undone(&report.left));
        lines.extend(report.restart_loop.as_ref().map(ToString::to_string));
        if report.left.has_no_step() && report.given_up.total == 0 {
            lines.push(
                "every finished step is sealed, and every sealed step is durable on every remote".to_owned(),
            );
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_not_durable_and_why() {
        let mut document = AgentDocument { durable: true, report: AgentReport::default() };
        assert_eq!(
            document.human(),
            "sealed 0 steps, uploaded 0, evicted 0, pruned 0, skipped 0 entries\n\
             every finished step is sealed, and every sealed step is durable on every remote"
        );
        for number in 1..=9 {
            document.report.skipped.latest.push(stepvault_agent::SkippedEntry {
                run: "demo".parse().unwrap(),
                path: format!("/out/step_{number}").into(),
                reason: "it has no .metadata".to_owned(),
            });
        }
        assert_eq!(
            document.human().lines().skip(1).take(2).collect::<Vec<_>>(),
            ["skipped /out/step_2: it has no .metadata", "skipped /out/step_3: it has no .metadata",]
        );
        assert!(document.human().contains("\nearlier skipped entries are in the JSON document\n"));
        document.report.left.not_durable.push(stepvault_agent::NotDurable {
            run: "demo".parse().unwrap(),
            id: stepvault_core::ids::StepId::from_label("000000000010.a1").unwrap(),
            remote: "main".parse().unwrap(),
            required: true,
            needs_this_vault: true,
            failed: false,
            missing_bytes: 3 << 20,
            reason: "cannot reach it".to_owned(),
        });
        assert!(document.human().ends_with(
            "step 10 (attempt 1) of 'demo' is not durable on main, 3.0 MiB missing: cannot reach it"
        ));
    }
}
