//! What a directory holds that is no step, and that nothing shows to be no checkpoint.

use std::collections::BTreeSet;

use stepvault_core::timestamp::Timestamp;

use super::copies::{MAX_COMPARED, is_same_content};
use super::units::{files_of, holds_state, is_text_alone, newest_of, total_bytes};
use super::{Found, FoundStep};
use crate::not_checkpoint::{is_no_checkpoint, is_tracker};
use crate::profile::template::last_component;
use crate::temporary::is_temporary;
use crate::tree::{EntryKind, OpenFile, Tree, joined};

/// An entry that may be a checkpoint and belongs to no step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its path.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The modification time of its newest file.
    pub written_at: Timestamp,
    /// The length of all its files, in bytes.
    pub bytes: u64,
}

/// Returns the entries that may be checkpoints and belong to no step that `is_stored`, in the order of their paths. Of a
/// directory without any step, only its own path is returned.
///
/// Everything else is accounted for: it belongs to a step, points to one, is one of [`Found::copies`], has a name that is
/// used only while writing, is ignored by the profile, or is known to be no checkpoint by its name.
pub fn leftovers(
    found: &Found,
    is_stored: impl Fn(&FoundStep) -> bool,
    tree: &Tree,
    files: &dyn OpenFile,
) -> Vec<Leftover> {
    let steps = found.steps.iter().filter(|step| is_stored(step));
    let known = steps
        .flat_map(|step| &step.members)
        .chain(found.pointers.iter().map(|pointer| &pointer.path))
        .chain(&found.temporary)
        .chain(&found.ignored)
        .chain(&found.copies);
    let search = Search { known: known.map(String::as_str).collect(), tree, files };
    let mut leftovers = Vec::new();
    search.collect("", &mut leftovers);
    leftovers
}

/// Returns the files beside the steps that hold the bytes of a complete step's file of the same name, such as what
/// `save_model` writes beside the last checkpoint. Reads files.
pub fn copied_files(found: &Found, tree: &Tree, files: &dyn OpenFile) -> Vec<String> {
    let mut complete: Vec<&FoundStep> = found.steps.iter().filter(|step| step.is_complete()).collect();
    complete.sort_by_key(|step| std::cmp::Reverse(step.step));
    complete.truncate(MAX_COMPARED);
    let is_copy = |leftover: &Leftover| {
        let mut steps = complete.iter();
        !leftover.is_directory && steps.any(|step| has_copy(step, &leftover.path, tree, files))
    };
    let rest = leftovers(found, |_| true, tree, files).into_iter();
    rest.filter(is_copy).map(|leftover| leftover.path).collect()
}

/// Whether a step has a file of the same name and content.
fn has_copy(step: &FoundStep, path: &str, tree: &Tree, files: &dyn OpenFile) -> bool {
    let inside = step.members.iter().flat_map(|member| tree.inside(member));
    let mut alike = inside.filter(|(other, _)| last_component(other) == last_component(path));
    alike.any(|(other, _)| tree.is_file(other) && is_same_content(path, other, files).unwrap_or(false))
}

struct Search<'a> {
    known: BTreeSet<&'a str>,
    tree: &'a Tree,
    files: &'a dyn OpenFile,
}

impl Search<'_> {
    fn collect(&self, directory: &str, leftovers: &mut Vec<Leftover>) {
        for (name, entry) in self.tree.children(directory) {
            let path = joined(directory, name);
            if self.known.contains(path.as_str()) || is_temporary(name) {
                continue;
            }
            let may_be_checkpoint = match entry.kind {
                EntryKind::Directory if is_tracker(name) => false,
                EntryKind::Directory if self.holds_known(&path) => {
                    self.collect(&path, leftovers);
                    false
                }
                EntryKind::Directory => true,
                EntryKind::File { size_bytes, .. } => {
                    size_bytes > 0 && !is_no_checkpoint(name) && !is_text_alone(&path, self.tree, self.files)
                }
                EntryKind::Symlink { .. } | EntryKind::Other => false,
            };
            if !may_be_checkpoint {
                continue;
            }
            let is_directory = entry.kind == EntryKind::Directory;
            let (files, _) = files_of(self.tree, &path, entry);
            if !is_directory || files.iter().any(holds_state) {
                leftovers.push(Leftover {
                    path,
                    is_directory,
                    written_at: newest_of(&files),
                    bytes: total_bytes(&files),
                });
            }
        }
    }

    fn holds_known(&self, directory: &str) -> bool {
        let prefix = format!("{directory}/");
        let mut inside = self.known.range(prefix.as_str()..);
        inside.next().is_some_and(|path| path.starts_with(&prefix))
    }
}
