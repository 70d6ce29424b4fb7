//! Presents a trainer's directory as it will be: its current content, plus the step that is not in place yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use stepvault_core::manifest::{FileEntry, Shape};
use stepvault_core::{ErrorKind, RelativePath, Result, Timestamp};
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, ReadAt, Tree};
use stepvault_local::handoff::is_own_name;
use stepvault_local::survey::{OpenedFile, SurveyFiles, survey};
use stepvault_local::vault::Vault;
use tokio::runtime::Handle;

use crate::remote_file::RemoteFile;
use crate::restore::plan::RestorePlan;
use crate::restore::resolve::{ResolvedStep, Source};

/// Where a step's files are in the directory.
pub(super) struct Layout {
    /// The step's paths in the directory; never empty.
    pub(super) paths: Vec<String>,
    /// Whether these are also paths inside the step. Otherwise there is one path, which is the whole step.
    pub(super) several: bool,
}

impl Layout {
    /// Returns the layout of a planned step.
    pub(super) fn of(plan: &RestorePlan) -> Self {
        let names = plan.paths.iter().map(|path| path.strip_prefix(&plan.directory).unwrap_or(path));
        Self {
            paths: names.map(|name| name.to_string_lossy().into_owned()).collect(),
            several: !plan.step.members.is_empty(),
        }
    }

    fn holds(&self, path: &str) -> bool {
        self.paths.iter().any(|outer| is_at_or_below(path, outer))
    }

    /// Maps a path inside the step to its path in the directory.
    fn path_of(&self, inside: Option<&RelativePath>) -> Option<String> {
        if self.several {
            return inside.map(ToString::to_string);
        }
        let own = self.paths.first()?;
        Some(inside.map_or_else(|| own.clone(), |inside| format!("{own}/{inside}")))
    }

    /// Maps a path in the directory to its path inside the step.
    fn inside<'a>(&self, path: &'a str) -> Option<&'a str> {
        if self.several {
            return self.holds(path).then_some(path);
        }
        let inside = path.strip_prefix(self.paths.first()?.as_str())?;
        (inside.is_empty() || inside.starts_with('/')).then(|| inside.trim_start_matches('/'))
    }
}

/// Returns the directory's content with the recorded step in place of its paths.
pub(super) fn tree_with_step(present: &Tree, layout: &Layout, resolved: &ResolvedStep) -> Tree {
    let mut entries: BTreeMap<String, Entry> = present
        .entries()
        .filter(|(path, _)| !layout.holds(path))
        .map(|(path, entry)| (path.to_owned(), entry.clone()))
        .collect();
    entries.extend(step_entries(layout, resolved));
    Tree::new(entries)
}

/// Returns the step's paths at which the directory holds other content, by names, sizes and times.
pub(super) fn other_content(present: &Tree, layout: &Layout, resolved: &ResolvedStep) -> Vec<String> {
    let wanted = step_entries(layout, resolved);
    let is_other = |path: &&String| {
        let facts = |(other, entry): (&str, &Entry)| match entry.kind {
            EntryKind::File { size_bytes, .. } if is_at_or_below(other, path) => {
                Some((other.to_owned(), size_bytes, entry.mtime))
            }
            _ => None,
        };
        let there: BTreeSet<_> = present.entries().filter_map(facts).collect();
        let wanted = wanted.iter().map(|(other, entry)| (other.as_str(), entry));
        present.get(path).is_some() && there != wanted.filter_map(facts).collect()
    };
    layout.paths.iter().filter(is_other).cloned().collect()
}

/// Returns the directory's content without stepvault's own files.
pub(super) fn present_tree(directory: &Path, vault: Option<&Vault>) -> Result<Tree> {
    let present = match survey(directory) {
        Ok(tree) => tree,
        Err(error) if error.kind() == ErrorKind::NotFound => Tree::default(),
        Err(error) => return Err(error),
    };
    let vault = vault.and_then(|vault| vault.root().strip_prefix(directory).ok()?.to_str());
    let is_own = |path: &str| {
        path.split('/').any(is_own_name) || vault.is_some_and(|vault| is_at_or_below(path, vault))
    };
    let entries = present.entries().filter(|(path, _)| !is_own(path));
    Ok(Tree::new(entries.map(|(path, entry)| (path.to_owned(), entry.clone())).collect()))
}

fn step_entries(layout: &Layout, resolved: &ResolvedStep) -> Vec<(String, Entry)> {
    let single = resolved.shape == Shape::File;
    let at = |path: Option<&RelativePath>, kind, mtime: Timestamp| {
        let path = layout.path_of(path.filter(|_| !single))?;
        Some((path, Entry { kind, mtime }))
    };
    let directories = resolved
        .directories
        .iter()
        .map(|directory| at(directory.path.as_ref(), EntryKind::Directory, directory.mtime));
    let files = resolved.files.iter().map(|file| {
        let kind = EntryKind::File { size_bytes: file.size_bytes, allocated_bytes: None };
        at(Some(&file.path), kind, file.mtime)
    });
    let links = resolved.symlinks.iter().map(|link| {
        let target = link.target.clone();
        at(Some(&link.path), EntryKind::Symlink { target }, Timestamp::default())
    });
    directories.chain(files).chain(links).flatten().collect()
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The files of a directory, overlaid with those of a step that is not in place yet.
pub(super) struct OverlayFiles<'a> {
    pub(super) layout: &'a Layout,
    /// The step's files, by their paths inside the step; a single file has the empty path.
    pub(super) step: Option<Box<dyn OpenFile>>,
    pub(super) directory: Option<SurveyFiles>,
}

impl OpenFile for OverlayFiles<'_> {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let in_step = match (&self.step, self.layout.inside(path)) {
            (Some(step), Some(inside)) => step.open(inside),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        // Some paths of a multi-path step may be in place and not staged again.
        match (&in_step, &self.directory) {
            (Err(error), Some(directory)) if error.kind() == io::ErrorKind::NotFound => directory.open(path),
            _ => in_step,
        }
    }
}

/// The files of a staged step.
pub(super) struct StagedFiles {
    pub(super) files: SurveyFiles,
    /// The staged name of a single-file step.
    pub(super) single: Option<String>,
}

impl OpenFile for StagedFiles {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        self.files.open(self.single.as_deref().unwrap_or(path))
    }
}

/// The files of a step, read from the first tier that has it.
///
/// The data is not verified. It affects a plan's description, never what is restored.
pub(super) struct RangeReader {
    resolved: Arc<ResolvedStep>,
    runtime: Handle,
}

impl RangeReader {
    /// Must be created inside the runtime, and used on a thread that may block.
    pub(super) fn new(resolved: Arc<ResolvedStep>) -> Self {
        Self { resolved, runtime: Handle::current() }
    }

    fn entry(&self, path: &str) -> io::Result<&FileEntry> {
        let mut files = self.resolved.files.iter();
        // A single file is requested with an empty path.
        let found = files.find(|file| path.is_empty() || file.path.as_str() == path);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl OpenFile for RangeReader {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let entry = self.entry(path)?;
        let size_bytes = entry.size_bytes;
        match self.resolved.sources.first() {
            Some(Source::Local(step)) => {
                let file = File::open(step.file_path(&entry.path))?;
                Ok(Box::new(OpenedFile { file, size_bytes, allocated_bytes: None }))
            }
            Some(Source::Remote(remote)) => {
                let key = self.resolved.keys.key(&entry.path);
                Ok(Box::new(RemoteFile {
                    store: Arc::clone(&remote.store),
                    key: key.map_err(io::Error::other)?,
                    size_bytes,
                    runtime: self.runtime.clone(),
                }))
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
