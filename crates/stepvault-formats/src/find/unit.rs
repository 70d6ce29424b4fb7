//! A step as the paths and files that make it up.

use std::collections::BTreeSet;

use stepvault_core::timestamp::Timestamp;

use super::members::Beside;
use crate::not_checkpoint::is_in_clutter;
use crate::profile::pattern::PathParts;
use crate::profile::template::last_component;
use crate::profile::{PathGlob, Series};
use crate::tree::{Entry, EntryKind, Tree};

/// A path that belongs to a step.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) parts: PathParts,
}

/// A file of a step.
#[derive(Debug, Clone)]
pub(crate) struct UnitFile {
    /// Path inside the member that holds it; its own name when the member is a file.
    pub(crate) inside: String,
    pub(crate) size_bytes: u64,
    pub(crate) mtime: Timestamp,
}

/// A step: its paths and files.
#[derive(Debug, Clone)]
pub(crate) struct Unit<'a> {
    pub(crate) series: &'a Series,
    /// In the order of their ranks, then paths; never empty.
    pub(crate) members: Vec<Member>,
    pub(crate) step: Option<u64>,
    /// Whether its path holds one step after another, so that only the content tells its number.
    pub(crate) rewritten: bool,
    pub(crate) files: Vec<UnitFile>,
    /// What tools left among its files: stored with them, and no part of any judgement.
    pub(crate) clutter: Vec<UnitFile>,
    /// Other entries of the same number.
    pub(crate) beside: Vec<Beside>,
    /// Whether it contains what its series requires.
    pub(crate) fits: bool,
    /// Whether the trainer can resume from it.
    pub(crate) resumable: bool,
    /// Why files beside it show that it is not complete.
    pub(crate) objection: Option<String>,
}

impl Unit<'_> {
    /// Returns the first of its paths.
    pub(crate) fn path(&self) -> &str {
        self.members.first().map_or("", |member| &member.path)
    }

    /// Returns whether one of its files matches.
    pub(crate) fn has(&self, glob: &PathGlob) -> bool {
        self.files.iter().any(|file| glob.is_match(&file.inside))
    }

    /// Whether all of its paths are files.
    pub(crate) fn is_files(&self) -> bool {
        self.members.iter().all(|member| self.is_file(member))
    }

    /// Returns whether this path of the step is a file.
    pub(crate) fn is_file(&self, member: &Member) -> bool {
        let name = last_component(&member.path);
        self.files.iter().any(|file| file.inside == name)
    }

    /// Returns the name of a file without the number of the step, for comparison with other steps.
    pub(crate) fn name_of(&self, file: &UnitFile) -> String {
        match self.step {
            Some(step) => file.inside.replace(&step.to_string(), "#"),
            None => file.inside.clone(),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        let beside = self.beside.iter().flat_map(|beside| &beside.files);
        self.files.iter().chain(beside).map(|file| file.mtime).max()
    }

    /// Returns the files of the step that are judged, with the path of the entry that they belong to.
    pub(crate) fn judged_files(&self) -> impl Iterator<Item = (&str, &UnitFile)> {
        let own = self.files.iter();
        let beside = self.beside.iter();
        let beside = beside.flat_map(|beside| beside.files.iter().map(|file| (beside.path.as_str(), file)));
        own.map(|file| (self.path(), file)).chain(beside)
    }
}

/// Returns the length of all these files, in bytes.
pub(super) fn total_bytes<'a>(files: impl IntoIterator<Item = &'a UnitFile>) -> u64 {
    let sizes = files.into_iter().map(|file| file.size_bytes);
    sizes.fold(0, u64::saturating_add)
}

/// Returns the modification time of the newest of these files.
pub(super) fn newest_of<'a>(files: impl IntoIterator<Item = &'a UnitFile>) -> Timestamp {
    let times = files.into_iter().map(|file| file.mtime);
    times.max().unwrap_or_default()
}

/// Returns whether a path lies in one of these directories.
pub(crate) fn is_below(path: &str, taken: &BTreeSet<String>) -> bool {
    let mut end = path.len();
    while let Some(slash) = path.get(..end).and_then(|start| start.rfind('/')) {
        if path.get(..slash).is_some_and(|parent| taken.contains(parent)) {
            return true;
        }
        end = slash;
    }
    false
}

/// Returns the files of an entry, by their paths inside it, and apart from them what tools left among them.
pub(super) fn files_of(tree: &Tree, path: &str, entry: &Entry) -> (Vec<UnitFile>, Vec<UnitFile>) {
    if let EntryKind::File { size_bytes, .. } = entry.kind {
        let file = UnitFile { inside: last_component(path).to_owned(), size_bytes, mtime: entry.mtime };
        return (vec![file], Vec::new());
    }
    let files = tree.inside(path).filter_map(|(below, file)| match file.kind {
        EntryKind::File { size_bytes, .. } => Some(UnitFile {
            inside: below.strip_prefix(path)?.trim_start_matches('/').to_owned(),
            size_bytes,
            mtime: file.mtime,
        }),
        _ => None,
    });
    files.partition(|file| !is_in_clutter(&file.inside))
}
