//! Resuming from a step in the trainer's own directory: the necessary preparation, as shell commands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stepvault_core::Result;
use stepvault_core::words::shell_word;
use stepvault_formats::handoff::{HandoffPlan, Restored, plan};
use stepvault_formats::pointer::{PointerContent, PointerWrite};
use stepvault_formats::profile::{Profile, ProfileSet};
use stepvault_formats::resume::{Resumed, resumed_by_framework};
use stepvault_formats::tree::{OpenFile, Tree};
use stepvault_local::survey::{SurveyFiles, survey};

use crate::inspect::Inspection;

/// Maximum number of paths that are moved out of a framework's way.
const MAXIMUM_MOVES: usize = 32;
/// Suffix of the name of a path that was moved away.
const MOVED: &str = ".not-whole";

/// A step on disk that a trainer can resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeOnDisk {
    /// The directory of the steps.
    pub directory: PathBuf,
    /// The step's path.
    pub path: PathBuf,
    /// Its number, where it has one.
    pub step: Option<u64>,
    /// Whether the trainer can resume from it; otherwise it holds only weights.
    pub resumable: bool,
    /// Shell commands, in order, that make the framework find it. Empty if it does by itself.
    pub commands: Vec<String>,
    /// How to start the trainer.
    pub resume: String,
}

/// Returns the newest step of a directory that is complete and sound, and how to resume from it.
pub(super) fn resume_on_disk(
    looked_at: &Path,
    inspection: &Inspection,
    profiles: &ProfileSet,
) -> Result<Option<ResumeOnDisk>> {
    let Some(entry) = inspection.newest_valid() else {
        return Ok(None);
    };
    let directory = std::path::absolute(looked_at)
        .map_err(|error| stepvault_local::errors::io("not a path", looked_at, error))?;
    let root = root_of(&directory, &entry.step.path).to_path_buf();
    let tree = survey(&root)?;
    let files = SurveyFiles::open(&root)?;
    let profile = profiles.get(&inspection.framework);
    let restored = Restored {
        directory: &root.to_string_lossy(),
        tree: &tree,
        paths: &entry.step.members,
        overrides_newer: true,
        skipped: &BTreeSet::new(),
        profile,
    };
    let planned = plan(&restored, profiles, &files);
    let commands = match (&planned, profile) {
        (Some(planned), Some(profile)) => {
            commands(&root, &entry.step.path, planned, (profile, &tree, &files))
        }
        _ => Vec::new(),
    };
    Ok(Some(ResumeOnDisk {
        path: root.join(&entry.step.path),
        step: entry.step.step,
        resumable: entry.step.resumable,
        resume: planned.map_or_else(String::new, |planned| planned.resume),
        commands,
        directory: root,
    }))
}

/// Returns the directory that a step's path is relative to. The examined path may itself be a step, which is then
/// relative to its parent.
pub(super) fn root_of<'a>(looked_at: &'a Path, step: &str) -> &'a Path {
    let is_inside = looked_at.join(step).symlink_metadata().is_ok();
    looked_at.parent().filter(|_| !is_inside).unwrap_or(looked_at)
}

fn commands(
    root: &Path,
    step: &str,
    planned: &HandoffPlan,
    (profile, tree, files): (&Profile, &Tree, &SurveyFiles),
) -> Vec<String> {
    let mut commands = Vec::new();
    let mut left = tree.clone();
    for _ in 0..MAXIMUM_MOVES {
        let in_the_way = match resumed_by_framework(profile, &left, files as &dyn OpenFile) {
            Resumed::Step(path) if path != step => path,
            Resumed::Fails { path, .. } => path,
            Resumed::Step(_) | Resumed::Nothing | Resumed::Unknown => break,
        };
        let pointed = planned.pointers.iter().any(|pointer| pointer.write.path == in_the_way);
        // A pointer that names another step is rewritten, and nothing is moved.
        if pointed || planned.pointers.iter().any(|pointer| !pointer.is_right) {
            break;
        }
        commands.push(moved_away(root, &in_the_way));
        left = without(&left, &in_the_way);
    }
    let wrong = planned.pointers.iter().filter(|pointer| !pointer.is_right);
    commands.extend(wrong.map(|pointer| written(root, &pointer.write)));
    commands
}

fn without(tree: &Tree, path: &str) -> Tree {
    let below = format!("{path}/");
    let kept = tree
        .entries()
        .filter(|(other, _)| *other != path && !other.starts_with(&below))
        .map(|(other, entry)| (other.to_owned(), entry.clone()));
    Tree::new(kept.collect())
}

/// Returns the command that moves a path out of the directory that the framework scans, next to it, without
/// overwriting.
fn moved_away(root: &Path, path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    let beside = root.parent().unwrap_or(root).join(format!("{name}{MOVED}"));
    format!("mv -n -- {} {}", quoted(&root.join(path)), quoted(&beside))
}

fn written(root: &Path, write: &PointerWrite) -> String {
    let path = quoted(&root.join(&write.path));
    match &write.content {
        PointerContent::Text(text) => format!("printf %s {} > {path}", quoted(Path::new(text))),
        PointerContent::Symlink(target) => format!("ln -sfn -- {} {path}", quoted(Path::new(target))),
        PointerContent::CopyOf(of) => format!("cp -p -- {} {path}", quoted(&root.join(of))),
    }
}

/// Quotes a path as one word of a shell.
pub fn quoted(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_goes_beside_the_directory() {
        assert_eq!(
            moved_away(Path::new("/data/out"), "checkpoints/step_30"),
            "mv -n -- /data/out/checkpoints/step_30 /data/step_30.not-whole"
        );
        let write = |content| {
            let path = "latest".to_owned();
            written(Path::new("/data/out"), &PointerWrite { path, content })
        };
        assert_eq!(
            write(PointerContent::Text("global_step10".to_owned())),
            "printf %s global_step10 > /data/out/latest"
        );
        assert_eq!(write(PointerContent::Symlink("a b".to_owned())), "ln -sfn -- 'a b' /data/out/latest");
        assert_eq!(
            write(PointerContent::CopyOf("step=1.ckpt".to_owned())),
            "cp -p -- '/data/out/step=1.ckpt' /data/out/latest"
        );
    }
}
