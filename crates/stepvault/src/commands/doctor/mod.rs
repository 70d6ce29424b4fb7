//! `doctor`: checks before training that everything the service needs works.

mod arguments;
pub(super) mod document;
mod gc_commands;
mod local;
mod notices;
mod remotes;

use std::time::Instant;

use stepvault_core::Result;
use stepvault_diagnose::doctor::feasibility::{Feasibility, Notice, Situation, feasibility};
use stepvault_diagnose::doctor::{Check, Finding, Outcome};
use stepvault_engine::doctor::local::{RunLook, RunToCheck, check_local};

pub(crate) use self::arguments::DoctorArguments;
use self::document::DoctorDocument;
use self::remotes::{RemoteLook, Wanted};
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::session::Session;

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: DoctorArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?;
    let runs = local::chosen_runs(&settings, arguments.directory.as_deref())?;
    let check = local::to_check(&settings, &runs, &arguments)?;
    // Remotes and disks are checked concurrently.
    let wanted = Wanted { none: arguments.no_remotes, upload_rate: arguments.upload_rate };
    let commands = gc_commands::gc_commands(session, &settings, &runs)?;
    let looking = remotes::check(&settings, &runs, wanted, &commands);
    let (local, remote) = tokio::join!(check_local(&check), looking);
    let remote = remote?;
    let devices = if arguments.no_remotes {
        Vec::new()
    } else {
        remotes::devices(&settings, &runs, check.vault.clone()).await?
    };
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
    Ok(match document.outcome() {
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
