//! Saves a step from a script that has no such function: every process writes into one private directory, and one
//! rename makes it a step.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::forecast::{STEPS_THAT_COUNT, Taken, next_step};
use stepvault_core::include::IncludeFilter;
use stepvault_core::keys::check_step_name;
use stepvault_core::{Error, ErrorKind, Result, Step};
use stepvault_formats::step_name;
use stepvault_formats::temporary::{is_temporary, is_unfinished_file};
use stepvault_local::save::{self, Committed, LATEST, Save, SaveRequest, StagedSave};
use stepvault_local::space;
use stepvault_local::tree::{Tree, scan};

const COMMIT: &str = "cannot commit the step";

/// A step to be staged.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// The directory that is to hold the step.
    pub directory: PathBuf,
    /// Its number.
    pub step: Step,
    /// Its name; `step_N` when not given.
    pub name: Option<String>,
    /// Distinguishes this save from an earlier try at the same step; any text, the same for all processes.
    pub save_id: String,
    /// Whether to stage the step even if it is not expected to fit.
    pub anyway: bool,
}

/// A staged step to commit.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// The directory that was written to.
    pub staged: PathBuf,
    /// Patterns, each of which must match a file.
    pub expected: Vec<String>,
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommitReport {
    /// The step's number.
    #[schemars(with = "u64")]
    pub step: Step,
    /// Path of the step.
    pub path: PathBuf,
    /// The link to the most recently committed step.
    pub latest: PathBuf,
    /// Whether another process, or an earlier call, has already committed the step.
    pub already_there: bool,
    /// Number of files; null if it was already committed.
    pub files: Option<u64>,
    /// Bytes of its files; null if it was already committed.
    pub bytes: Option<u64>,
}

/// Creates the directory to write a step to, or returns the one that another process has created.
///
/// # Errors
/// `Usage` for a name that is not a step's, or has a different number; `NoSpace` when the disk cannot hold as much as
/// the last steps took.
pub fn stage(request: &StageRequest) -> Result<StagedSave> {
    let name = request.name.clone().unwrap_or_else(|| format!("step_{}", request.step));
    check_name(&name, request.step)?;
    let staged = save::stage(&SaveRequest {
        directory: &request.directory,
        name: &name,
        step: request.step,
        save_id: &request.save_id,
    })?;
    if !request.anyway
        && let Some(numbers) = shortfall(request, &staged)?
    {
        // Empty unless another process writes to it already.
        let _ = std::fs::remove_dir(&staged.path);
        return Err(Error::at(ErrorKind::NoSpace, "refusing to stage the step", &request.directory)
            .because(numbers)
            .hint("free some space or remove old steps, or stage it regardless with --anyway"));
    }
    Ok(staged)
}

/// Returns why the step is not expected to fit, judged by the directory's content.
fn shortfall(request: &StageRequest, staged: &StagedSave) -> Result<Option<String>> {
    let mut steps = Vec::new();
    // A directory that cannot be listed is ignored here; the save itself will report it.
    for entry in std::fs::read_dir(&request.directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_step = !is_temporary(&name) && entry.file_type().is_ok_and(|kind| !kind.is_symlink());
        let number = step_name::parse(&name).filter(|number| is_step && *number != request.step.number());
        steps.extend(number.map(|number| (number, entry.path())));
    }
    steps.sort();
    let recent = &steps[steps.len().saturating_sub(STEPS_THAT_COUNT)..];
    let taken: Vec<Taken> =
        recent.iter().filter_map(|(_, path)| scan(path).ok()).map(|tree| tree.taken()).collect();
    let Some(forecast) = next_step(&taken) else {
        return Ok(None);
    };
    let written = scan(&staged.path).map(|tree| tree.taken()).unwrap_or_default();
    let mut room = space::free(&staged.path)?;
    // Data of this step that another process has already written needs no more space.
    room.free_bytes = room.free_bytes.saturating_add(written.bytes);
    room.free_inodes = room.free_inodes.map(|free| free.saturating_add(written.inodes()));
    Ok(forecast.shortfall(room))
}

/// Publishes a staged step under its name, complete and on disk, and moves the link to it. Of several processes, the
/// first does it and the others find it done.
///
/// # Errors
/// `Failed` when an expected file is missing or a file is unfinished; `Conflict` when something else has its name.
pub fn commit(request: &CommitRequest) -> Result<CommitReport> {
    let save = Save::open(&request.staged)?;
    let path = save.target();
    let latest = path.with_file_name(LATEST);
    let written = match save.tree()? {
        None => {
            save.finish()?;
            None
        }
        Some(tree) => {
            check_complete(&tree, request)?;
            let written = (tree.files.len() as u64, tree.data_bytes());
            (save.commit(&tree)? == Committed::Now).then_some(written)
        }
    };
    let (files, bytes) = written.unzip();
    Ok(CommitReport { step: save.step(), path, latest, already_there: written.is_none(), files, bytes })
}

fn check_name(name: &str, step: Step) -> Result<()> {
    check_step_name(name).map_err(|error| error.with_kind(ErrorKind::Usage))?;
    let fault = |why: String| {
        Error::new(ErrorKind::Usage, "invalid step name").on(format!("{name:?}")).because(why).hint(format!(
            "use a name like step_{step}, from which the agent and a restore read the step number"
        ))
    };
    if is_temporary(name) || name == LATEST {
        return Err(fault("such names are reserved for files that are not steps".to_owned()));
    }
    match step_name::parse(name) {
        Some(number) if number == step.number() => Ok(()),
        Some(number) => Err(fault(format!("it names step {number}, not {step}"))),
        None => Err(fault("it contains no step number".to_owned())),
    }
}

fn check_complete(tree: &Tree, request: &CommitRequest) -> Result<()> {
    let fault = |why: String| Error::at(ErrorKind::Failed, COMMIT, &request.staged).because(why);
    let all_done = "commit after a barrier, when every process has finished writing";
    if tree.files.is_empty() {
        return Err(fault("it holds no file".to_owned()).hint(all_done));
    }
    for pattern in &request.expected {
        let filter = IncludeFilter::new(std::slice::from_ref(pattern))?;
        if !tree.files.iter().any(|file| filter.takes(&file.path)) {
            return Err(fault(format!("no file matches {pattern:?}")).hint(all_done));
        }
    }
    let unfinished = tree.files.iter().find(|file| {
        let name = file.path.components().last();
        name.is_some_and(is_unfinished_file)
    });
    match unfinished {
        Some(file) => Err(fault(format!("{} is still being written, as its name shows", file.path))
            .hint(format!("{all_done}; delete the files that a killed process left"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_step_and_nothing_else() {
        let step = Step::new(40).unwrap();
        for name in ["step_40", "step-40", "global_step40", "epoch=1-step=40", "40", "run_checkpoint_40"] {
            check_name(name, step).unwrap();
        }
        for (name, why) in [
            ("step_41", "it names step 41, not 40"),
            ("final", "it contains no step number"),
            ("latest", "such names are reserved for files that are not steps"),
            (".step_40", "such names are reserved for files that are not steps"),
            ("step_40.tmp", "such names are reserved for files that are not steps"),
        ] {
            let error = check_name(name, step).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid step name: {name:?}: {why}"));
        }
        for name in ["a/step_40", "..", "", ".stepvault"] {
            assert_eq!(check_name(name, step).unwrap_err().kind(), ErrorKind::Usage, "{name}");
        }
    }
}
