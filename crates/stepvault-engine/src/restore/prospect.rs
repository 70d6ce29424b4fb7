//! A trainer's directory as it is going to be: what it holds now, and the step that is not in place yet.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Result};
use stepvault_formats::source::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};
use stepvault_local::handover::is_own_name;
use stepvault_local::survey::{SurveyFiles, survey};
use stepvault_local::vault::Vault;

use super::resolve::Resolved;

/// What the directory holds, with the step as it was recorded in the place of what has its name, and without what is
/// stepvault's own.
pub(super) fn tree_with_step(
    directory: &Path,
    name: &str,
    vault: Option<&Vault>,
    resolved: &Resolved,
) -> Result<Tree> {
    let there = match survey(directory) {
        Ok(tree) => tree,
        Err(error) if error.kind() == ErrorKind::NotFound => Tree::default(),
        Err(error) => return Err(error),
    };
    let vault = vault.and_then(|vault| vault.root().strip_prefix(directory).ok()?.to_str());
    let is_own = |path: &str| {
        path.split('/').next().is_some_and(is_own_name)
            || vault.is_some_and(|vault| is_at_or_below(path, vault))
    };
    let mut entries: BTreeMap<String, Entry> = there
        .entries()
        .filter(|(path, _)| !is_at_or_below(path, name) && !is_own(path))
        .map(|(path, entry)| (path.to_owned(), entry.clone()))
        .collect();
    entries.extend(step_entries(name, resolved));
    Ok(Tree::new(entries))
}

fn step_entries(name: &str, resolved: &Resolved) -> Vec<(String, Entry)> {
    let single = resolved.shape == Shape::File;
    let at = |path: Option<&RelativePath>| match path {
        Some(path) if !single => format!("{name}/{path}"),
        _ => name.to_owned(),
    };
    let entry = |kind, mtime: Timestamp| Entry { kind, mtime };
    let directories = resolved.directories.iter().map(|directory| {
        (
            at(directory.path.as_ref()),
            entry(EntryKind::Directory, directory.mtime),
        )
    });
    let files = resolved.files.iter().map(|file| {
        let kind = EntryKind::File {
            size_bytes: file.size_bytes,
            allocated_bytes: None,
        };
        (at(Some(&file.path)), entry(kind, file.mtime))
    });
    let links = resolved.symlinks.iter().map(|link| {
        let target = link.target.clone();
        (
            at(Some(&link.path)),
            entry(EntryKind::Symlink { target }, Timestamp::default()),
        )
    });
    directories.chain(files).chain(links).collect()
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The files of a directory, and those of a step that is not in it yet.
pub(super) struct Overlay<'a> {
    pub(super) name: &'a str,
    /// By their paths inside the step; a single file has the empty one.
    pub(super) step: Option<Box<dyn OpenFile>>,
    pub(super) directory: Option<SurveyFiles>,
}

impl OpenFile for Overlay<'_> {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let inside = path
            .strip_prefix(self.name)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (&self.step, inside, &self.directory) {
            (Some(step), Some(inside), _) => step.open(inside.trim_start_matches('/')),
            (_, _, Some(directory)) => directory.open(path),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// The files of a step that is staged.
pub(super) struct Staged {
    pub(super) files: SurveyFiles,
    /// What a single-file step is called there.
    pub(super) single: Option<String>,
}

impl OpenFile for Staged {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        self.files.open(self.single.as_deref().unwrap_or(path))
    }
}
