//! `tier`: copies to the selective remotes what they wait for.

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::retention::Selection;
use stepvault_core::{Error, ErrorKind, RemoteName, Result};
use stepvault_engine::copy::CopyChoice;

use super::copy::{CopyDocument, Results, copy_runs, runs_of};
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::Report;
use crate::session::Session;

/// Copy selected steps to the selective remotes
///
/// A remote with a configured source gets those of its steps that the remote's rules select, once they are old enough:
/// every byte is verified, and each step becomes visible when it is complete. For cron, where no agent does the same. Run
/// the same command again to continue after an interruption, with the same vault: without --local or a configured vault
/// it is .stepvault in the working directory.
#[derive(Debug, Args)]
pub(crate) struct TierArguments {
    /// Copy every run of the sources
    #[arg(long)]
    all_runs: bool,
    /// Print the state of each step, and copy nothing
    #[arg(long)]
    dry_run: bool,
}

/// The result of copying to selective remotes.
#[derive(Serialize, JsonSchema)]
pub(super) struct TierDocument {
    /// Whether this is only a plan.
    dry_run: bool,
    /// One entry for each selective remote.
    remotes: Vec<CopyDocument>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &TierArguments) -> Result<ExitCode> {
    if arguments.all_runs && session.global.run.is_some() {
        return Err(Error::new(ErrorKind::Usage, "cannot tell what to copy")
            .because("--run and --all-runs are given")
            .hint("give one of them"));
    }
    let settings = Settings::load(session)?;
    let mut results = Results::new();
    let mut remotes = Vec::new();
    for (name, selection) in selective_remotes(&settings, arguments)? {
        let pair = settings.clone().with_remotes(vec![selection.from.clone(), name.clone()]);
        let runs =
            if arguments.all_runs { runs_of(session, &pair).await } else { Ok(vec![settings.run()?.name]) };
        let mut runs = runs.unwrap_or_else(|error| {
            results.push((name.to_string(), Err(error)));
            Vec::new()
        });
        runs.retain(|run| settings.config.run(run).has_remote(&name));
        let choice = |_: &_| Ok(CopyChoice::Selected(selection.clone()));
        remotes.push(copy_runs(session, &pair, runs, arguments.dry_run, choice, &mut results).await);
    }
    session.output.errors_beside_report(results.iter().map(|(_, result)| result));
    session.output.result(&TierDocument { dry_run: arguments.dry_run, remotes })?;
    Ok(ExitCode::of_any_tiers(&results))
}

/// Returns the selective remotes among the selected ones.
fn selective_remotes(settings: &Settings, arguments: &TierArguments) -> Result<Vec<(RemoteName, Selection)>> {
    let remotes =
        if arguments.all_runs { settings.all_remotes() } else { settings.remotes(&settings.run()?) };
    let selective = remotes.into_iter().filter_map(|remote| Some((remote.name, remote.selection?)));
    let selective = selective.collect_vec();
    if selective.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no selective remote")
            .because("no selected remote has a source")
            .hint("set from = \"NAME\" in the table of the remote that gets selected steps"));
    }
    Ok(selective)
}

impl Report for TierDocument {
    fn human(&self) -> String {
        let remotes = self.remotes.iter().map(Report::human);
        remotes.filter(|text| !text.is_empty()).join("\n\n")
    }
}
