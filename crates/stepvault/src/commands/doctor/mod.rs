//! `doctor`: whether everything that the service needs works, before training begins.

mod document;
mod local;
mod notices;
mod remotes;
mod sweeps;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use stepvault_core::Result;
use stepvault_core::doctor::feasibility::{Feasibility, Notice, Situation, feasibility};
use stepvault_core::doctor::{Finding, Outcome};
use stepvault_engine::doctor::local::{RunLook, check_local};

use self::document::DoctorDocument;
use self::local::ChosenRun;
use self::remotes::{RemoteLook, Wanted};
use super::Session;
use crate::arguments::values;
use crate::context::Settings;
use crate::exit_code::ExitCode;

/// Look before training whether everything works: directories, disks, limits, leftovers, and what fits into the time
///
/// It does what the service is going to do, for a moment: writes, syncs, renames, links and deletes files of its own in
/// each directory, measures each disk with at most 256 MiB in a few seconds, and leaves nothing behind. On each remote it
/// puts, refuses to overwrite, reads, lists and deletes objects of its own below the run's keys, and measures both ways.
/// A mount or a store that does not answer is a finding. Each line is pass, warn (works, and costs something) or fail, with what was measured
/// and what to do. Run it as the trainer's user and in the trainer's environment. Ends with code 14 when a line fails.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The directory that a trainer writes its steps into; by default those of the configured runs
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// How large the next step is going to be, such as "60 GB"; by default what the steps so far were
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    step_size: Option<u64>,
    /// How many files it is going to have
    #[arg(long, value_name = "N")]
    step_files: Option<u64>,
    /// How often steps are saved, such as "10m"; by default as often as so far
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    save_interval: Option<Duration>,
    /// Bytes that a remote takes in a second, such as "200 MB", in place of what is measured
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    upload_rate: Option<u64>,
    /// Leave the remotes alone
    #[arg(long)]
    no_remotes: bool,
    /// How long before the machine goes away it is told so; by default what the provider of this machine gives
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    notice: Option<Duration>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DoctorArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?;
    let runs = local::chosen_runs(&settings, arguments.directory.as_deref())?;
    let check = local::to_check(&settings, &runs, &arguments)?;
    // The remotes are asked while the disks are looked at: neither waits for the other.
    let wanted = Wanted {
        none: arguments.no_remotes,
        upload_rate: arguments.upload_rate,
    };
    let swept = sweeps::sweeps(session, &settings, &runs)?;
    let looking = remotes::look(&settings, &runs, wanted, &swept);
    let (local, remote) = tokio::join!(check_local(&check), looking);
    let remote = remote?;
    let (notices, said) = notices::counted(&settings, arguments.notice);
    let mut feasible = Feasibility::default();
    for (run, look) in runs.iter().zip(&local.runs) {
        let answered = answer(&settings, run, look, &remote, &notices);
        feasible.findings.extend(answered.findings);
        feasible.suggested.extend(answered.suggested);
    }
    let findings: Vec<Finding> = local
        .findings
        .into_iter()
        .chain(said)
        .chain(remote.findings)
        .collect();
    let document = DoctorDocument::new(findings, feasible, began.elapsed());
    session.output.result(&document)?;
    Ok(match document.outcome() {
        Outcome::Fail => ExitCode::Preflight,
        Outcome::Pass | Outcome::Warn => ExitCode::Done,
    })
}

/// What is feasible for one run.
fn answer(
    settings: &Settings,
    run: &ChosenRun,
    look: &RunLook,
    remote: &RemoteLook,
    notices: &[Notice],
) -> Feasibility {
    let Some(forecast) = look.forecast.clone() else {
        return Feasibility {
            findings: vec![Finding::pass(
                "forecast",
                look.title.clone(),
                "no step is there yet to go by: --step-size and --save-interval say what is going to come",
            )],
            suggested: Vec::new(),
        };
    };
    feasibility(&Situation {
        run: look.title.clone(),
        keep_table: run.keep_table(),
        forecast,
        takeover: look.takeover,
        shares_disk: look.shares_disk,
        disk_rates: look.disk_rates,
        room: look.room,
        kept: look.kept,
        remotes: remote.rates_of(settings, run),
        notices: notices.to_vec(),
        keep_local: run.settings.keep_local.clone(),
        limits: settings.config.local.limits,
    })
}
