//! Compares a checkpoint with the files that a tier holds under its number.

use std::collections::BTreeMap;

use stepvault_core::Result;
use stepvault_core::manifest::{PartManifest, Shape, SymlinkEntry};
use stepvault_core::path::RelativePath;
use stepvault_core::placement::Content;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::state_files::may_carry_state;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::tree::Tree;

/// Where a trainer keeps the files of a step: what their full paths begin with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout<'a> {
    pub(super) origin: &'a StepOrigin,
    pub(super) name: &'a str,
    pub(super) shape: Shape,
    pub(super) has_members: bool,
}

impl Layout<'_> {
    /// Returns the path of an entry below the directory that the trainer writes to. A step may be one directory first, and
    /// several paths once another one has its number.
    fn full_path(&self, path: &RelativePath) -> String {
        if self.has_members {
            return path.as_str().to_owned();
        }
        let directory = self.origin.directory.iter().map(RelativePath::as_str);
        let name = (self.shape == Shape::Directory).then_some(self.name);
        let parts: Vec<&str> = directory.chain(name).chain([path.as_str()]).collect();
        parts.join("/")
    }
}

#[derive(Debug, Clone, Copy)]
struct File<'a> {
    path: &'a RelativePath,
    size_bytes: u64,
    mtime: Timestamp,
}

/// The files and links of a checkpoint or of a stored step, by their full paths.
#[derive(Debug)]
pub(super) struct StepFiles<'a> {
    files: BTreeMap<String, File<'a>>,
    links: BTreeMap<String, &'a str>,
}

impl<'a> StepFiles<'a> {
    fn new(
        layout: Layout<'_>,
        files: impl Iterator<Item = (&'a RelativePath, u64, Timestamp)>,
        links: &'a [SymlinkEntry],
    ) -> Self {
        let file = |(path, size_bytes, mtime)| {
            let file = File {
                path,
                size_bytes,
                mtime,
            };
            (layout.full_path(path), file)
        };
        let links = links.iter();
        Self {
            files: files.map(file).collect(),
            links: links
                .map(|link| (layout.full_path(&link.path), link.target.as_str()))
                .collect(),
        }
    }

    pub(super) fn of_tree(layout: Layout<'_>, tree: &'a Tree) -> Self {
        let files = tree.files.iter();
        let files = files.map(|file| (&file.path, file.size_bytes, file.mtime));
        Self::new(layout, files, &tree.symlinks)
    }

    pub(super) fn of_record(record: &'a SealRecord) -> Self {
        let files = record.files.iter();
        let files = files.map(|file| (&file.path, file.size_bytes, file.mtime));
        let layout = Layout {
            origin: &record.origin,
            name: &record.name,
            shape: record.shape,
            has_members: !record.members.is_empty(),
        };
        Self::new(layout, files, &record.symlinks)
    }

    pub(super) fn of_manifest(manifest: &'a PartManifest) -> Self {
        let files = manifest.files.iter();
        let files = files.map(|file| (&file.path, file.size_bytes, file.mtime));
        let layout = Layout {
            origin: &manifest.origin,
            name: &manifest.name,
            shape: manifest.shape,
            has_members: !manifest.members.is_empty(),
        };
        Self::new(layout, files, &manifest.symlinks)
    }

    /// Returns how this checkpoint compares with what is stored. `has_same_bytes` compares a file of it with a stored one
    /// of the same size, and is called where the times of both differ.
    pub(super) fn compare(
        &self,
        stored: &StepFiles<'_>,
        mut has_same_bytes: impl FnMut(&RelativePath, &RelativePath) -> Result<bool>,
    ) -> Result<Content> {
        let has_state = stored.files.keys().any(|path| may_carry_state(path));
        let is_state = |path: &str| !has_state || may_carry_state(path);
        let (mut is_changed, mut keeps_state) = (false, false);
        for (path, file) in &self.files {
            let same = match stored.files.get(path) {
                Some(other) if other.size_bytes != file.size_bytes => false,
                Some(other) if other.mtime == file.mtime => true,
                Some(other) => has_same_bytes(file.path, other.path)?,
                None => false,
            };
            is_changed |= !same;
            keeps_state |= same && is_state(path);
        }
        is_changed |= (self.links.iter()).any(|(path, target)| stored.links.get(path) != Some(target));
        if !is_changed {
            return Ok(Content::Same);
        }
        let lost = || stored.files.keys().filter(|path| !self.files.contains_key(*path));
        let has_own_state = self.files.keys().any(|path| is_state(path));
        Ok(if keeps_state || !has_own_state {
            if lost().next().is_some() {
                Content::AmendedWithLosses
            } else {
                Content::Amended
            }
        } else if lost().any(|path| is_state(path)) {
            Content::OtherWithLosses
        } else {
            Content::Other
        })
    }
}
