//! `stage` and `commit`: for scripts that save a step from several processes.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::ids::Step;
use stepvault_engine::blocking::blocking;
use stepvault_engine::save::{CommitRequest, StageRequest, commit, stage};

use super::Session;
use crate::arguments::values::checked;
use crate::exit_code::ExitCode;
use crate::output::{Report, human};

#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
/// Make a private directory to write a step to, and print its path
///
/// It is on the filesystem of DIR and out of the trainer's sight. Every process that stages the same step gets the same
/// directory, in any order. Nothing is in DIR before 'stepvault commit' puts it there.
#[derive(Debug, Args)]
pub(crate) struct StageArguments {
    /// The directory that is to hold the step
    #[arg(long = "in", id = "in", value_name = "DIR")]
    directory: PathBuf,
    /// Its number
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Step,
    /// The name that it is to have; step_N when not given
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What tells this save from an earlier try at the same step, such as a job's number; the same for all processes
    ///
    /// Without it a save that was killed is gone on with: what it has written is in the directory already.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    save_id: String,
    /// Stage it also where the disk has no room for as much as the last steps took
    #[arg(long)]
    anyway: bool,
}

/// Make a staged step appear under its name, whole and on disk
///
/// Every file is synced, one rename puts the directory in its place, and the symbolic link 'latest' beside it moves to
/// it. To be called when every process has finished writing, by one of them or by all: the first does it, the others
/// find it done. Killed in between, the same command finishes it.
#[derive(Debug, Args)]
pub(crate) struct CommitArguments {
    /// The path that 'stepvault stage' printed
    #[arg(value_name = "DIR")]
    staged: PathBuf,
    /// A pattern that a file must match, or nothing is committed; repeatable: --expect 'rank_*.pt'
    #[arg(long, value_name = "GLOB")]
    expect: Vec<String>,
}

#[derive(Serialize)]
struct StageDocument {
    step: u64,
    /// The directory to write to.
    path: PathBuf,
    /// Where it is going to be.
    target: PathBuf,
}

#[derive(Serialize)]
struct CommitDocument {
    step: u64,
    path: PathBuf,
    /// The link to the step committed last.
    latest: PathBuf,
    /// Whether another process did it, or the same step was there before.
    already_there: bool,
    /// Null when it was there already.
    files: Option<u64>,
    bytes: Option<u64>,
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
    let request = CommitRequest {
        staged: arguments.staged,
        expected: arguments.expect,
    };
    let report = blocking(move || commit(&request)).await?;
    session.output.result(&CommitDocument {
        step: report.step.number(),
        path: report.path,
        latest: report.latest,
        already_there: report.written.is_none(),
        files: report.written.map(|(files, _)| files),
        bytes: report.written.map(|(_, bytes)| bytes),
    })?;
    Ok(ExitCode::Done)
}

impl Report for StageDocument {
    /// The path alone, for `$(…)`.
    fn human(&self) -> String {
        self.path.display().to_string()
    }
}

impl Report for CommitDocument {
    fn human(&self) -> String {
        let path = self.path.display();
        match (self.files, self.bytes) {
            (Some(files), Some(bytes)) => format!(
                "committed step {}: {}, {}, to {path}",
                self.step,
                human::count(files, "file"),
                human::bytes(bytes)
            ),
            _ => format!("step {} is committed already: {path}", self.step),
        }
    }
}
