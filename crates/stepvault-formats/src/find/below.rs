//! Finds runs in the subdirectories of a directory that holds no step itself.

use std::collections::VecDeque;
use std::io;

use stepvault_core::timestamp::Timestamp;

use super::{FindOptions, FoundStep, find_steps};
use crate::detect::detect;
use crate::profile::{GENERIC, ProfileSet, last_component};
use crate::step_name::{looks_like_a_step, says_newest};
use crate::temporary::is_temporary;
use crate::tree::{OpenFile, ReadAt, Tree, joined};

/// How many levels below the directory are searched.
const MAX_DEPTH: usize = 3;
/// Maximum number of subdirectories that are searched.
const MAX_DIRECTORIES: usize = 64;

/// A subdirectory with steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunBelow {
    /// Its path.
    pub directory: String,
    /// The name of the profile.
    pub profile: String,
    /// The newest of its complete steps, with paths relative to the subdirectory; `None` when none is complete.
    pub newest: Option<FoundStep>,
}

/// Returns the outermost subdirectories that hold steps, in the order of their depths and names. At
/// most 64 subdirectories are searched, three levels deep; a step that is still written is none of them.
pub fn runs_below(
    tree: &Tree,
    files: &dyn OpenFile,
    profiles: &ProfileSet,
    now: Timestamp,
    options: &FindOptions,
) -> Vec<RunBelow> {
    let run_in = |directory: &str| {
        let inside = tree.below(directory);
        let files = Inside { files, directory };
        let profile = detect(&inside, &files, profiles)?.profile;
        let mut found = find_steps(profile, &inside, &files, now, options);
        if profile.name == GENERIC {
            // Any file may have a number, or none.
            let is_named_so = |step: &FoundStep| {
                let name = last_component(&step.path);
                step.is_complete()
                    && !step.path.contains('/')
                    && (looks_like_a_step(name) || says_newest(name))
            };
            found.steps.retain(is_named_so);
        }
        let complete = found.steps.iter().filter(|step| step.is_complete() && step.resumable);
        let newest = complete.max_by_key(|step| (step.step, step.written_at)).cloned();
        let (directory, profile) = (directory.to_owned(), profile.name.clone());
        (!found.steps.is_empty()).then_some(RunBelow { directory, profile, newest })
    };
    let mut runs = Vec::new();
    let mut searched = 0;
    let mut queue = VecDeque::from([(String::new(), 0)]);
    while let Some((parent, depth)) = queue.pop_front() {
        for (name, _) in tree.children(&parent) {
            let directory = joined(&parent, name);
            if !tree.is_directory(&directory) || is_temporary(name) {
                continue;
            }
            searched += 1;
            if searched > MAX_DIRECTORIES {
                return runs;
            }
            match run_in(&directory) {
                Some(run) => runs.push(run),
                None if depth + 1 < MAX_DEPTH => queue.push_back((directory, depth + 1)),
                None => {}
            }
        }
    }
    runs
}

/// Opens the files of a subdirectory.
struct Inside<'a> {
    files: &'a dyn OpenFile,
    directory: &'a str,
}

impl OpenFile for Inside<'_> {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        self.files.open(&format!("{}/{path}", self.directory))
    }
}
