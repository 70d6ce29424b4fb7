//! Saving a step from a script that has nothing of the kind: every process writes into one private directory, and one
//! rename makes it a step.

use std::path::PathBuf;

use stepvault_core::forecast::{STEPS_THAT_COUNT, Taken, next_step};
use stepvault_core::ids::Step;
use stepvault_core::keys::check_step_name;
use stepvault_core::restore_plan::IncludeFilter;
use stepvault_core::{Error, ErrorKind, Result};
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
    /// What tells this save from an earlier try at the same step; any text, the same for all processes.
    pub save_id: String,
    /// Stage it also where the step is not expected to fit.
    pub anyway: bool,
}

/// A staged step to be committed.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// The directory that was written to.
    pub staged: PathBuf,
    /// Each of these patterns must match a file.
    pub expected: Vec<String>,
}

/// What a commit came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReport {
    /// The step's number.
    pub step: Step,
    /// Where it is.
    pub path: PathBuf,
    /// The link to the step committed last.
    pub latest: PathBuf,
    /// Files and their bytes, when it was this process that committed them.
    pub written: Option<(u64, u64)>,
}

/// Makes the directory to write a step to, or finds the one that another process has made.
///
/// # Errors
/// `Usage` for a name that is none for a step, or that says another number; `NoSpace` when the disk has no room for as
/// much as the last steps took.
pub fn stage(request: &StageRequest) -> Result<StagedSave> {
    let name = request
        .name
        .clone()
        .unwrap_or_else(|| format!("step_{}", request.step));
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
        return Err(Error::new(ErrorKind::NoSpace, "will not stage the step")
            .on(request.directory.display())
            .because(numbers)
            .hint("free some space or remove old steps there; --anyway stages it nevertheless"));
    }
    Ok(staged)
}

/// Why the step is not expected to fit, by what stands in the directory already.
fn shortfall(request: &StageRequest, staged: &StagedSave) -> Result<Option<String>> {
    let mut steps = Vec::new();
    // What cannot be listed says nothing, and the save itself will say why.
    for entry in std::fs::read_dir(&request.directory)
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_step = !is_temporary(&name) && entry.file_type().is_ok_and(|kind| !kind.is_symlink());
        let number = step_name::parse(&name).filter(|number| is_step && *number != request.step.number());
        steps.extend(number.map(|number| (number, entry.path())));
    }
    steps.sort();
    let recent = &steps[steps.len().saturating_sub(STEPS_THAT_COUNT)..];
    let taken: Vec<Taken> = recent
        .iter()
        .filter_map(|(_, path)| scan(path).ok())
        .map(|tree| tree.taken())
        .collect();
    let Some(forecast) = next_step(&taken) else {
        return Ok(None);
    };
    let written = scan(&staged.path).map(|tree| tree.taken()).unwrap_or_default();
    let mut room = space::free(&staged.path)?;
    // What another process has written of this step already needs no room any more.
    room.free_bytes = room.free_bytes.saturating_add(written.bytes);
    room.free_inodes = room.free_inodes.map(|free| free.saturating_add(written.inodes()));
    Ok(forecast.shortfall(room))
}

/// Makes a staged step appear under its name, whole and on disk, and moves the link to it. The first of several
/// processes does it, the others find it done.
///
/// # Errors
/// `Failed` when an expected file is missing or one is unfinished; `Conflict` when something else has its name.
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
    Ok(CommitReport {
        step: save.step(),
        path,
        latest,
        written,
    })
}

fn check_name(name: &str, step: Step) -> Result<()> {
    check_step_name(name).map_err(|error| error.with_kind(ErrorKind::Usage))?;
    let fault = |why: String| {
        Error::new(ErrorKind::Usage, "not a name for the step")
            .on(format!("{name:?}"))
            .because(why)
            .hint(format!(
                "a name like step_{step} says which step it is, to the agent and to a restore"
            ))
    };
    if is_temporary(name) || name == LATEST {
        return Err(fault("names of this kind are for what is no step".to_owned()));
    }
    match step_name::parse(name) {
        Some(number) if number == step.number() => Ok(()),
        Some(number) => Err(fault(format!("it says step {number}, not {step}"))),
        None => Err(fault("it does not say which step it is".to_owned())),
    }
}

fn check_complete(tree: &Tree, request: &CommitRequest) -> Result<()> {
    let fault = |why: String| {
        Error::new(ErrorKind::Failed, COMMIT)
            .on(request.staged.display())
            .because(why)
    };
    let all_done = "commit when every process has finished writing, after a barrier";
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
        Some(file) => Err(
            fault(format!("{} is still being written, by its name", file.path))
                .hint(format!("{all_done}; delete what a killed one has left")),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_step_and_nothing_else() {
        let step = Step::new(40).unwrap();
        for name in [
            "step_40",
            "step-40",
            "global_step40",
            "epoch=1-step=40",
            "40",
            "run_checkpoint_40",
        ] {
            check_name(name, step).unwrap();
        }
        for (name, why) in [
            ("step_41", "it says step 41, not 40"),
            ("final", "it does not say which step it is"),
            ("latest", "names of this kind are for what is no step"),
            (".step_40", "names of this kind are for what is no step"),
            ("step_40.tmp", "names of this kind are for what is no step"),
        ] {
            let error = check_name(name, step).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("not a name for the step: {name:?}: {why}")
            );
        }
        for name in ["a/step_40", "..", "", ".stepvault"] {
            assert_eq!(
                check_name(name, step).unwrap_err().kind(),
                ErrorKind::Usage,
                "{name}"
            );
        }
    }
}
