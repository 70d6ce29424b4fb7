//! `stage` and `commit`: for scripts that save a step from several processes.

use std::path::PathBuf;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::{Result, Step};
use stepvault_engine::blocking::blocking;
use stepvault_engine::save::{CommitReport, CommitRequest, StageRequest, commit, stage};

use crate::arguments::values::checked;
use crate::exit_code::ExitCode;
use crate::output::{Report, human};
use crate::session::Session;

#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
/// Create a private directory to write a step to, and print its path
///
/// It is on the filesystem of DIR, where no trainer looks for steps. All processes that stage the same step get the
/// same directory, in any order. The step appears in DIR only after 'stepvault commit'.
#[derive(Debug, Args)]
pub(crate) struct StageArguments {
    /// Directory that will hold the step
    #[arg(long = "in", id = "in", value_name = "DIR")]
    directory: PathBuf,
    /// Step number
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Step,
    /// Name of the step; step_N by default
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Text that distinguishes this save from an earlier try at the same step, such as a job ID; the same for all
    /// processes
    ///
    /// Without it a killed save is continued: the directory already holds what it has written.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    save_id: String,
    /// Stage the step even if the disk has less free space than the last steps took
    #[arg(long)]
    anyway: bool,
}

/// Publish a staged step under its name, atomically and synced to disk
///
/// Syncs every file, renames the directory to its final name, and points the symbolic link 'latest' beside it to it.
/// Call it when every process has finished writing, from one process or from all: the first one commits, the others
/// find the step committed. If it is killed, run the same command again.
#[derive(Debug, Args)]
pub(crate) struct CommitArguments {
    /// Path that 'stepvault stage' printed
    #[arg(value_name = "DIR")]
    staged: PathBuf,
    /// Pattern that at least one file must match, else nothing is committed; repeatable: --expect 'rank_*.pt'
    #[arg(long, value_name = "GLOB")]
    expect: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct StageDocument {
    /// The step's number.
    step: u64,
    /// The directory to write to.
    path: PathBuf,
    /// The path after the commit.
    target: PathBuf,
}

/// Runs `stage`.
pub(crate) async fn run_stage(session: &Session, arguments: StageArguments) -> Result<ExitCode> {
    let step = arguments.step;
    let request = StageRequest {
        directory: arguments.directory,
        step,
        name: arguments.name,
        save_id: arguments.save_id,
        anyway: arguments.anyway,
    };
    let staged = blocking(move || stage(&request)).await?;
    session.output.result(&StageDocument {
        step: step.number(),
        path: staged.path,
        target: staged.target,
    })?;
    Ok(ExitCode::Done)
}

/// Runs `commit`.
pub(crate) async fn run_commit(session: &Session, arguments: CommitArguments) -> Result<ExitCode> {
    let request = CommitRequest { staged: arguments.staged, expected: arguments.expect };
    let report = blocking(move || commit(&request)).await?;
    session.output.result(&report)?;
    Ok(ExitCode::Done)
}

impl Report for StageDocument {
    /// Returns only the path, for `$(…)`.
    fn human(&self) -> String {
        self.path.display().to_string()
    }
}

impl Report for CommitReport {
    fn human(&self) -> String {
        let path = self.path.display();
        match (self.files, self.bytes) {
            (Some(files), Some(bytes)) => format!(
                "committed step {}: {}, {}, to {path}",
                self.step,
                human::count(files, "file"),
                human::bytes(bytes)
            ),
            _ => format!("step {} is already committed: {path}", self.step),
        }
    }
}
