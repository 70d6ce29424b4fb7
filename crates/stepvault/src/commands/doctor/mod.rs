//! `doctor`: checks before training that everything the service needs works.

pub(super) mod document;
mod gc_commands;
mod local;
mod notices;
mod remotes;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use stepvault_core::Result;
use stepvault_diagnose::doctor::feasibility::{Feasibility, Notice, Situation, feasibility};
use stepvault_diagnose::doctor::{Check, Finding, Outcome};
use stepvault_engine::doctor::local::{GivenForecast, RunLook, RunToCheck, check_local};

use self::document::DoctorDocument;
use self::remotes::RemoteLook;
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::session::Session;

/// Check directories, disks, limits, remotes and throughput before training
///
/// It briefly performs the operations of the service: it writes, syncs, renames, links and deletes its own test files
/// in each directory, measures each disk with at most 256 MiB in a few seconds, and removes its files. On each remote
/// it creates objects of its own below the run's keys, checks that they cannot be overwritten, reads, lists and deletes
/// them, and measures both directions. It also reports leftovers, and whether saves, uploads and notices fit into the
/// available time and space. A mount or a store that does not answer is a finding. Each line is pass, warn (works, but
/// at a cost) or fail, with the measurement and a remedy. Run it as the trainer's user, in the trainer's environment.
/// The exit code is 14 if a check fails.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Directory that the trainer writes its steps to; by default those of the configured runs
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Expected size of the next step, such as "60 GiB"; by default estimated from the existing steps
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    step_size: Option<u64>,
    /// Expected number of files of the next step
    #[arg(long, value_name = "N")]
    step_files: Option<u64>,
    /// Interval between saves, such as "10m"; by default estimated from the existing steps
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    save_interval: Option<Duration>,
    /// Upload rate of a remote in bytes per second, such as "200 MiB", instead of the measured one
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    upload_rate: Option<u64>,
    /// Skip the remotes
    #[arg(long)]
    no_remotes: bool,
    /// Notice period before the machine is taken away; by default that of this machine's provider
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    notice: Option<Duration>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DoctorArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?;
    let runs = local::chosen_runs(&settings, arguments.directory.as_deref())?;
    let given = GivenForecast {
        bytes: arguments.step_size,
        files: arguments.step_files,
        interval_seconds: arguments.save_interval.map(|interval| interval.as_secs()),
    };
    let check = local::to_check(&settings, &runs, given)?;
    // Remotes and disks are checked concurrently.
    let commands = gc_commands::gc_commands(session, &settings, &runs)?;
    let looking = remotes::check(&settings, &runs, arguments.no_remotes, arguments.upload_rate, &commands);
    let (local, remote) = tokio::join!(check_local(&check), looking);
    let remote = remote?;
    let vault = check.vault.clone().filter(|_| !arguments.no_remotes);
    let devices = remotes::devices(&settings, &runs, vault).await?;
    let (notices, said) = notices::counted(&settings, arguments.notice);
    let mut feasible = Feasibility::default();
    for (run, look) in runs.iter().zip(&local.runs) {
        let answered = answer(&settings, run, look, &remote, &notices);
        feasible.findings.extend(answered.findings);
        feasible.suggested.extend(answered.suggested);
    }
    let findings: Vec<Finding> =
        local.findings.into_iter().chain(said).chain(devices).chain(remote.findings).collect();
    let document = DoctorDocument::new(findings, feasible, began.elapsed());
    session.output.result(&document)?;
    Ok(match document.outcome {
        Outcome::Fail => ExitCode::Preflight,
        Outcome::Pass | Outcome::Warn => ExitCode::Done,
    })
}

/// Computes the feasibility for one run.
fn answer(
    settings: &Settings,
    run: &RunToCheck,
    look: &RunLook,
    remote: &RemoteLook,
    notices: &[Notice],
) -> Feasibility {
    let Some(forecast) = look.forecast.clone() else {
        return Feasibility {
            findings: vec![
                Check::new("forecast", look.facts.title.as_str())
                    .pass("no step exists yet: give --step-size and --save-interval for a forecast"),
            ],
            suggested: Vec::new(),
        };
    };
    feasibility(&Situation {
        local: look.facts.clone(),
        keep_table: local::keep_table(run),
        forecast,
        remotes: remote.rates_of(settings, run),
        notices: notices.to_vec(),
        keep_local: run.settings.keep_local.clone(),
        limits: settings.config.local.limits,
    })
}
