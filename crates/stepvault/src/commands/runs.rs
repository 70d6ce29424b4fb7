//! `runs`: lists the runs on the remotes.

use clap::Args;
use futures::future::join_all;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::{Error, ErrorKind, RemoteSettings, Result, StepId, Timestamp};
use stepvault_engine::tier::runs::{Runs, list_runs};
use stepvault_remote::open::open_with;

use super::inventory::FailedTier;
use super::list::short_time;
use crate::context::Settings;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::progress::{Progress, Style};
use crate::session::Session;

/// List the runs on the remotes: their steps, sizes and last writes
///
/// Reads no record: one listing of every object below each URL tells all of it. On an object store that is one request
/// for each 1,000 objects.
#[derive(Debug, Args)]
pub(crate) struct RunsArguments {}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RunsDocument {
    /// Every run on every remote, by name.
    pub(super) runs: Vec<ListedRun>,
    /// Remotes that could not be listed.
    pub(super) failed: Vec<FailedTier>,
}

/// A run on a remote.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ListedRun {
    /// The run.
    pub(super) run: String,
    /// The remote.
    remote: String,
    /// Number of its steps that are committed.
    steps: usize,
    /// The newest of them; null if there is none.
    newest: Option<NewestStep>,
    /// Bytes of all its objects, those of incomplete steps included.
    bytes: u64,
    /// When its last object was written, by the clock of the store, in UTC.
    pub(super) last_write_at: Option<String>,
}

/// A step by its identity alone.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct NewestStep {
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, _arguments: &RunsArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let remotes = settings.all_remotes();
    if remotes.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no remote selected")
            .because("none is given or configured")
            .hint("give --remote URL, such as --remote s3://bucket/prefix"));
    }
    let progress = Progress::start(&remotes, Style::of(&session.output), &session.output);
    let (document, results) = RunsDocument::list(&settings, &remotes, &progress).await;
    progress.finish();
    let code = ExitCode::of_tiers(results.iter().map(Result::as_ref));
    session.output.errors_beside_report(&results);
    let is_none = document.runs.is_empty() && document.failed.is_empty();
    session.output.result(&document)?;
    Ok(if is_none { ExitCode::NotFound } else { code })
}

impl RunsDocument {
    /// Lists the runs of each remote, with how that ended.
    pub(super) async fn list(
        settings: &Settings,
        remotes: &[RemoteSettings],
        progress: &Progress,
    ) -> (Self, Vec<Result<()>>) {
        let listed = join_all(remotes.iter().map(|remote| listed(settings, remote, progress))).await;
        let (mut runs, mut failed, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (remote, listed) in remotes.iter().zip(listed) {
            let name = remote.name.to_string();
            results.push(listed.map(|found| {
                runs.extend(found.runs.into_iter().map(|(run, on)| ListedRun {
                    run: run.to_string(),
                    remote: name.clone(),
                    steps: on.steps.len(),
                    newest: on.steps.last().map(|id| NewestStep { id: *id }),
                    bytes: on.bytes,
                    last_write_at: on.last_write.map(Timestamp::to_rfc3339),
                }));
            }));
            if let Some(Err(error)) = results.last() {
                failed.push((name, error.clone()));
            }
        }
        runs.sort_by(|a, b| (&a.run, &a.remote).cmp(&(&b.run, &b.remote)));
        (Self { runs, failed: FailedTier::all(&failed) }, results)
    }
}

async fn listed(settings: &Settings, remote: &RemoteSettings, progress: &Progress) -> Result<Runs> {
    let store = open_with(remote, progress.observer(), settings.open_options()).await?;
    list_runs(&*store, usize::MAX).await
}

impl Report for RunsDocument {
    fn human(&self) -> String {
        if self.runs.is_empty() {
            let failed = self.failed.iter().map(|failed| &failed.tier).join(", ");
            return if failed.is_empty() {
                "no remote holds a run".to_owned()
            } else {
                format!("no run was found, but {failed} could not be listed")
            };
        }
        let headings = ["run", "remote", "steps", "newest", "size", "last write (utc)"];
        let row = |run: &ListedRun| {
            let newest =
                run.newest.as_ref().map_or_else(|| "-".to_owned(), |newest| newest.id.step.to_string());
            let last_write = run.last_write_at.as_deref().map(short_time).unwrap_or_default();
            let (steps, size) = (run.steps.to_string(), human::bytes(run.bytes));
            [run.run.clone(), run.remote.clone(), steps, newest, size, last_write]
        };
        table::text(&headings, &[2, 3, 4], self.runs.iter().map(row))
    }
}
