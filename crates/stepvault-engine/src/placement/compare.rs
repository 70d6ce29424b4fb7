//! Compares a checkpoint with the files that a tier holds under its number.

use std::collections::BTreeMap;

use stepvault_core::Result;
use stepvault_core::manifest::{PartManifest, Shape, SymlinkEntry};
use stepvault_core::path::RelativePath;
use stepvault_core::placement::Content;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::not_checkpoint::may_hold_state;
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
            let file = File { path, size_bytes, mtime };
            (layout.full_path(path), file)
        };
        let links = links.iter();
        Self {
            files: files.map(file).collect(),
            links: links.map(|link| (layout.full_path(&link.path), link.target.as_str())).collect(),
        }
    }

    pub(super) fn of_tree(layout: Layout<'_>, tree: &'a Tree) -> Self {
        let files = tree.files.iter();
        let files = files.map(|file| (&file.path, file.size_bytes, file.mtime));
        Self::new(layout, files, &tree.symlinks)
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
    /// of the same size, and gets whether their times are equal too, which proves nothing. It is not called for those if
    /// the checkpoint `is_proven` to be what was stored.
    ///
    /// A save of a trainer writes its files anew; a few may get the bytes or even the times that they had. So the step is
    /// amended if as many files that carry state have their times as have other bytes, or if none has other bytes.
    pub(super) fn compare(
        &self,
        stored: &StepFiles<'_>,
        is_proven: bool,
        mut has_same_bytes: impl FnMut(&RelativePath, &RelativePath, bool) -> Result<bool>,
    ) -> Result<Content> {
        let has_state = stored.files.keys().any(|path| may_hold_state(path));
        let is_state = |path: &str| !has_state || may_hold_state(path);
        let (mut untouched, mut changed, mut is_changed) = (0_usize, 0_usize, false);
        for (path, file) in &self.files {
            let Some(other) = stored.files.get(path) else {
                is_changed = true;
                continue;
            };
            let is_timed_alike = other.mtime == file.mtime;
            let is_same = other.size_bytes == file.size_bytes
                && (is_timed_alike && is_proven || has_same_bytes(file.path, other.path, is_timed_alike)?);
            if !is_same {
                changed += usize::from(is_state(path));
                is_changed = true;
            } else if is_timed_alike {
                untouched += usize::from(is_state(path));
            }
        }
        is_changed |= (self.links.iter()).any(|(path, target)| stored.links.get(path) != Some(target));
        if !is_changed {
            return Ok(Content::Same);
        }
        let lost = || stored.files.keys().filter(|path| !self.files.contains_key(*path));
        let keeps_state = lost().all(|path| !is_state(path)) || untouched > 0;
        Ok(if untouched >= changed && keeps_state {
            if lost().next().is_some() { Content::AmendedWithLosses } else { Content::Amended }
        } else if lost().any(|path| is_state(path)) {
            Content::OtherWithLosses
        } else {
            Content::Other
        })
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::manifest::Shape;
    use stepvault_local::tree::TreeFile;

    use super::*;

    /// Returns a directory with files of these names, sizes and times.
    fn tree(files: &[(&str, u64, i64)]) -> Tree {
        let file = |(path, size_bytes, seconds): &(&str, u64, i64)| TreeFile {
            path: RelativePath::new(*path).unwrap(),
            size_bytes: *size_bytes,
            mode: 0o644,
            mtime: Timestamp::from_seconds(*seconds),
            ctime: Timestamp::from_seconds(*seconds),
            device: 1,
            inode: 1,
            allocated_bytes: *size_bytes,
        };
        Tree {
            shape: Shape::Directory,
            files: files.iter().map(file).collect(),
            directories: Vec::new(),
            symlinks: Vec::new(),
        }
    }

    fn layout<'a>(origin: &'a StepOrigin, name: &'a str) -> Layout<'a> {
        Layout { origin, name, shape: Shape::Directory, has_members: name.is_empty() }
    }

    const STORED: [(&str, u64, i64); 4] =
        [("args.bin", 5, 100), ("config.json", 2, 100), ("model.pt", 50, 100), ("optimizer.pt", 90, 100)];

    /// Compares with [`STORED`]; files of equal size have the same bytes if they are listed.
    fn compared(files: &[(&str, u64, i64)], same_bytes: &[&str]) -> Content {
        let (origin, present, stored) = (StepOrigin::default(), tree(files), tree(&STORED));
        let layout = layout(&origin, "step_1");
        let stored = StepFiles::of_tree(layout, &stored);
        let same = |path: &RelativePath, _: &RelativePath, is_timed_alike| {
            Ok(is_timed_alike || same_bytes.contains(&path.as_str()))
        };
        StepFiles::of_tree(layout, &present).compare(&stored, false, same).unwrap()
    }

    #[test]
    fn sizes_and_times_prove_nothing() {
        let (origin, files) = (StepOrigin::default(), tree(&STORED));
        let files = StepFiles::of_tree(layout(&origin, "step_1"), &files);
        let compared = |is_proven, same: bool| files.compare(&files, is_proven, |_, _, _| Ok(same)).unwrap();
        assert_eq!(compared(false, false), Content::Other);
        assert_eq!(compared(false, true), Content::Same);
        assert_eq!(compared(true, false), Content::Same);
    }

    #[test]
    fn what_is_added_to_a_step_or_changed_in_it_amends_it() {
        let with = |more: &[(&'static str, u64, i64)]| [&STORED[..], more].concat();
        assert_eq!(compared(&STORED, &[]), Content::Same);
        assert_eq!(compared(&STORED[..3], &[]), Content::Same);
        assert_eq!(compared(&with(&[("README.md", 9, 900)]), &[]), Content::Amended);
        assert_eq!(compared(&with(&[("ema.pt", 50, 900)]), &[]), Content::Amended);
        let converted = [STORED[0], STORED[1], ("model.pt", 25, 900), STORED[3]];
        assert_eq!(compared(&converted, &[]), Content::Amended);
        let lost = [STORED[0], ("README.md", 9, 900)];
        assert_eq!(compared(&lost, &[]), Content::AmendedWithLosses);
    }

    #[test]
    fn a_save_writes_its_files_anew_though_some_get_the_bytes_that_they_had() {
        let anew = STORED.map(|(path, size_bytes, _)| (path, size_bytes, 900));
        assert_eq!(compared(&anew, &["args.bin", "config.json"]), Content::Other);
        // Frozen weights that are linked into each step.
        let frozen = [STORED[0], anew[1], anew[2], anew[3]];
        assert_eq!(compared(&frozen, &["config.json"]), Content::Other);
        assert_eq!(compared(&anew[..3], &[]), Content::OtherWithLosses);
        let other = [("model.safetensors", 50, 900)];
        assert_eq!(compared(&other, &[]), Content::OtherWithLosses);
    }

    #[test]
    fn a_copy_without_times_is_the_step() {
        let copied = STORED.map(|(path, size_bytes, _)| (path, size_bytes, 900));
        let all = ["args.bin", "config.json", "model.pt", "optimizer.pt"];
        assert_eq!(compared(&copied, &all), Content::Same);
        let noted = [&copied[..], &[("README.md", 9, 900)]].concat();
        assert_eq!(compared(&noted, &all), Content::Amended);
    }

    #[test]
    fn a_step_of_one_path_and_of_several_have_the_same_files() {
        let (origin, one) = (StepOrigin::default(), tree(&[("model.pt", 50, 100)]));
        let several = tree(&[("step_1/model.pt", 50, 100), ("step_1_hf/model.safetensors", 50, 900)]);
        let one = StepFiles::of_tree(layout(&origin, "step_1"), &one);
        let several = StepFiles::of_tree(layout(&origin, ""), &several);
        assert_eq!(several.compare(&one, true, |_, _, _| Ok(false)).unwrap(), Content::Amended);
    }
}
