//! Compares descriptions of a checkpoint: whether they mean the same files, and how far a checkpoint differs from what a tier
//! holds under its number.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::manifest::{PartManifest, Shape, SymlinkEntry};
use stepvault_core::placement::Content;
use stepvault_core::shares::tree_sha256;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{RelativePath, Result, Timestamp};
use stepvault_formats::not_checkpoint::may_hold_state;
use stepvault_local::seal_record::{SealRecord, SealedFile, SnapshotMethod};
use stepvault_local::tree::Tree;

/// What identifies a file without reading it.
type FileFacts<'a> = (&'a RelativePath, u64, Timestamp);

fn files_of_tree(tree: &Tree) -> impl Iterator<Item = FileFacts<'_>> {
    let files = tree.files.iter();
    files.map(|file| (&file.path, file.size_bytes, file.mtime))
}

fn files_of_manifest(manifest: &PartManifest) -> impl Iterator<Item = FileFacts<'_>> {
    let files = manifest.files.iter();
    files.map(|file| (&file.path, file.size_bytes, file.mtime))
}

fn sealed_file(file: &SealedFile) -> FileFacts<'_> {
    (&file.path, file.size_bytes, file.mtime)
}

/// Whether a sealed step has the files of its node's manifest, by path, size and modification time.
pub fn record_matches_manifest(record: &SealRecord, manifest: &PartManifest) -> bool {
    let own = record.own_files();
    record.shape == manifest.shape
        && record.symlinks == manifest.symlinks
        && record.shared_tree_sha256() == manifest.shared_tree_sha256
        && own.into_iter().map(sealed_file).eq(files_of_manifest(manifest))
}

/// Whether a scanned directory has the files of a sealed step, by path, size and time.
pub fn tree_matches_record(tree: &Tree, record: &SealRecord) -> bool {
    tree.shape == record.shape
        && tree.symlinks == record.symlinks
        && files_of_tree(tree).eq(record.files.iter().map(sealed_file))
}

/// Whether the vault has links to all files of a scanned directory that [matches](tree_matches_record) a sealed step.
pub fn tree_is_linked(tree: &Tree, record: &SealRecord) -> bool {
    let mut pairs = tree.files.iter().zip(&record.files);
    pairs.all(|(file, sealed)| sealed.method == SnapshotMethod::HardLink && sealed.inode == file.inode)
}

/// Whether a scanned directory is what a node made its part of, by paths, sizes and times.
pub fn tree_matches_part(tree: &Tree, part: &PartManifest) -> bool {
    if part.shared_tree_sha256.is_some() {
        let files: Vec<_> = tree.files.iter().map(|file| (&file.path, file.size_bytes)).collect();
        return part.shared_tree_sha256 == Some(tree_sha256(&files, &tree.symlinks))
            && part.written_at == tree.newest_mtime();
    }
    tree.shape == part.shape
        && tree.symlinks == part.symlinks
        && files_of_tree(tree).eq(files_of_manifest(part))
}

/// Whether a scanned directory contains only files of a multi-node step, and all files that this node wrote of it, by
/// paths, sizes and times.
pub fn tree_is_of_step(tree: &Tree, own: &PartManifest, parts: &[PartManifest]) -> bool {
    let known: BTreeSet<FileFacts<'_>> = parts.iter().flat_map(files_of_manifest).collect();
    let found: BTreeSet<FileFacts<'_>> = files_of_tree(tree).collect();
    let paths: BTreeSet<&RelativePath> = found.iter().map(|(path, ..)| *path).collect();
    // Of a file that several nodes wrote, a restore takes one.
    found.is_subset(&known) && own.files.iter().all(|file| paths.contains(&file.path))
}

/// Returns what the paths of a step's files begin with, below the directory that the trainer writes to. A step may be one
/// directory first, and several paths once another one has its number.
pub(crate) fn prefix_of(origin: &StepOrigin, name: &str, shape: Shape, has_members: bool) -> String {
    if has_members {
        return String::new();
    }
    let directory = origin.directory.iter().map(RelativePath::as_str);
    let name = (shape == Shape::Directory).then_some(name);
    directory.chain(name).flat_map(|part| [part, "/"]).collect()
}

/// The files and links of a checkpoint or of a stored step, by their full paths.
#[derive(Debug)]
pub(crate) struct StepFiles<'a> {
    files: BTreeMap<String, FileFacts<'a>>,
    links: BTreeMap<String, &'a str>,
}

impl<'a> StepFiles<'a> {
    fn new(prefix: &str, files: impl Iterator<Item = FileFacts<'a>>, links: &'a [SymlinkEntry]) -> Self {
        let links = links.iter();
        Self {
            files: files.map(|file| (format!("{prefix}{}", file.0), file)).collect(),
            links: links.map(|link| (format!("{prefix}{}", link.path), link.target.as_str())).collect(),
        }
    }

    pub(crate) fn of_tree(prefix: &str, tree: &'a Tree) -> Self {
        Self::new(prefix, files_of_tree(tree), &tree.symlinks)
    }

    pub(crate) fn of_manifest(manifest: &'a PartManifest) -> Self {
        let PartManifest { origin, name, shape, members, symlinks, .. } = manifest;
        Self::new(
            &prefix_of(origin, name, *shape, !members.is_empty()),
            files_of_manifest(manifest),
            symlinks,
        )
    }

    /// Returns how this checkpoint compares with what is stored. `has_same_bytes` compares a file of it with a stored one
    /// of the same size, and gets whether their times are equal too, which proves nothing. It is not called for those if
    /// the checkpoint `is_proven` to be what was stored.
    ///
    /// A save of a trainer writes its files anew; a few may get the bytes or even the times that they had. So the step is
    /// amended if as many files that carry state have their times as have other bytes, or if none has other bytes.
    pub(crate) fn compare(
        &self,
        stored: &StepFiles<'_>,
        is_proven: bool,
        mut has_same_bytes: impl FnMut(&RelativePath, &RelativePath, bool) -> Result<bool>,
    ) -> Result<Content> {
        let has_state = stored.files.keys().any(|path| may_hold_state(path));
        let is_state = |path: &str| !has_state || may_hold_state(path);
        let (mut untouched, mut changed, mut is_changed) = (0_usize, 0_usize, false);
        for (path, (file, size_bytes, mtime)) in &self.files {
            let Some((other, other_size_bytes, other_mtime)) = stored.files.get(path) else {
                is_changed = true;
                continue;
            };
            let is_timed_alike = other_mtime == mtime;
            let is_same = other_size_bytes == size_bytes
                && (is_timed_alike && is_proven || has_same_bytes(file, other, is_timed_alike)?);
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

    const STORED: [(&str, u64, i64); 4] =
        [("args.bin", 5, 100), ("config.json", 2, 100), ("model.pt", 50, 100), ("optimizer.pt", 90, 100)];

    /// Compares with [`STORED`]; files of equal size have the same bytes if they are listed.
    fn compared(files: &[(&str, u64, i64)], same_bytes: &[&str]) -> Content {
        let (present, stored) = (tree(files), tree(&STORED));
        let stored = StepFiles::of_tree("step_1/", &stored);
        let same = |path: &RelativePath, _: &RelativePath, is_timed_alike| {
            Ok(is_timed_alike || same_bytes.contains(&path.as_str()))
        };
        StepFiles::of_tree("step_1/", &present).compare(&stored, false, same).unwrap()
    }

    #[test]
    fn sizes_and_times_prove_nothing() {
        let files = tree(&STORED);
        let files = StepFiles::of_tree("step_1/", &files);
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
        let one = tree(&[("model.pt", 50, 100)]);
        let several = tree(&[("step_1/model.pt", 50, 100), ("step_1_hf/model.safetensors", 50, 900)]);
        let one = StepFiles::of_tree("step_1/", &one);
        let several = StepFiles::of_tree("", &several);
        assert_eq!(several.compare(&one, true, |_, _, _| Ok(false)).unwrap(), Content::Amended);
    }
}
