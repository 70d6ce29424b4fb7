//! The part manifest: the record of the files that one node contributes to a step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, Record, encoded_bytes};
use crate::digest::{Crc32c, FileDigest, PartDigest, Sha256Digest, composite_sha256};
use crate::error::{Error, ErrorKind, Result};
use crate::file_parts::FileParts;
use crate::ids::{NodeName, RunName, StepId};
use crate::keys::check_step_name;
use crate::links::check_links;
use crate::members;
use crate::path::RelativePath;
use crate::timestamp::Timestamp;

/// Maximum number of entries in one node's part of a step. The manifest must also fit into a record, which paths of
/// more than 140 bytes on average reach first. Both limits are checked when the step is sealed, before anything is
/// sent. Every command handles this many entries with paths of 100 bytes in less than 512 MiB of memory.
pub const MAX_ENTRIES: usize = 150_000;
/// The mode bits that are kept: only permissions. Set-uid, set-gid and sticky bits are never recorded or restored.
pub const MODE_MASK: u32 = 0o777;

/// Whether the trainer's checkpoint is a directory or a single file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A directory with the step's name.
    Directory,
    /// One file with the step's name.
    File,
}

/// One regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// CRC-32C of the whole file.
    pub crc32c: Crc32c,
    /// Bytes that were holes when the step was sealed. A restore then creates holes wherever the file reads as zeros.
    /// Omitted if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hole_bytes: u64,
    /// Permission bits, at most 0o777.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Size of each part but the last, in bytes; always equal to [`FileParts`] for `size_bytes`.
    pub part_size_bytes: u64,
    /// SHA-256 of each part, in order.
    pub parts_sha256: Vec<Sha256Digest>,
    /// Path inside the checkpoint.
    pub path: RelativePath,
    /// SHA-256 over the parts' digests.
    pub sha256: Sha256Digest,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// Returns whether a member has its default value, with which it is omitted.
pub fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl FileEntry {
    /// Returns an entry from the digests of the file's parts, in order.
    pub fn from_parts(path: RelativePath, mode: u32, mtime: Timestamp, parts: &[PartDigest]) -> Result<Self> {
        let digest = FileDigest::from_parts(parts);
        let cut = FileParts::of(digest.size_bytes)?;
        Ok(Self {
            crc32c: digest.crc32c,
            hole_bytes: 0,
            mode: mode & MODE_MASK,
            mtime,
            part_size_bytes: cut.part_size_bytes(),
            parts_sha256: parts.iter().map(|part| part.sha256).collect(),
            path,
            sha256: digest.sha256,
            size_bytes: digest.size_bytes,
        })
    }

    /// Returns the same entry with this many bytes in holes.
    #[must_use]
    pub fn with_holes(self, hole_bytes: u64) -> Self {
        Self { hole_bytes, ..self }
    }

    /// Returns the number of bytes of a file's entry in a manifest. It is known before the file is read, because all
    /// digests have the same length.
    pub fn encoded_bytes(
        path: &RelativePath,
        size_bytes: u64,
        mode: u32,
        mtime: Timestamp,
        hole_bytes: u64,
    ) -> Result<u64> {
        /// A quoted digest and a comma.
        const NEXT_DIGEST_BYTES: u64 = 2 * 32 + 3;
        let cut = FileParts::of(size_bytes)?;
        let nothing = Sha256Digest::of(&[]);
        let entry = Self {
            crc32c: Crc32c(0),
            hole_bytes,
            mode: mode & MODE_MASK,
            mtime,
            part_size_bytes: cut.part_size_bytes(),
            parts_sha256: vec![nothing],
            path: path.clone(),
            sha256: nothing,
            size_bytes,
        };
        Ok(encoded_bytes(&entry)? + u64::from(cut.count() - 1) * NEXT_DIGEST_BYTES)
    }

    /// Returns how the file is divided into parts.
    pub fn parts(&self) -> Result<FileParts> {
        FileParts::of(self.size_bytes)
    }

    fn check(&self) -> Result<()> {
        let fault = |why: &str| {
            Error::new(ErrorKind::Damaged, "the entry of a file is invalid")
                .on(&self.path)
                .because(why)
        };
        let cut = FileParts::of(self.size_bytes)?;
        if cut.part_size_bytes() != self.part_size_bytes {
            return Err(fault("its part size does not follow from its size"));
        }
        if self.parts_sha256.len() != cut.count() as usize {
            return Err(fault("it does not have one digest for each part"));
        }
        if composite_sha256(&self.parts_sha256) != self.sha256 {
            return Err(fault("its digest does not match the digests of its parts"));
        }
        if self.mode & !MODE_MASK != 0 {
            return Err(fault("its mode has more than permission bits"));
        }
        if self.hole_bytes > self.size_bytes {
            return Err(fault("its holes are larger than the file"));
        }
        if !self.mtime.is_canonical() {
            return Err(fault(
                "the nanoseconds of its modification time are not below one second",
            ));
        }
        Ok(())
    }
}

/// A directory inside the checkpoint. It is recorded for its mode and time, and because it may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryEntry {
    /// Permission bits.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Path inside the checkpoint; `None` for the checkpoint's own directory.
    pub path: Option<RelativePath>,
}

/// A symbolic link that stays inside the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymlinkEntry {
    /// Path of the link inside the checkpoint.
    pub path: RelativePath,
    /// Its target as written: relative, and resolving inside the checkpoint.
    pub target: String,
}

/// The record of one node's part of a step. Immutable; entries are sorted by path. Members are declared in the order
/// of their names, so that a long manifest can be written without sorting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartManifest {
    /// Directories, the checkpoint's own first, then sorted by path; empty for a single file.
    pub directories: Vec<DirectoryEntry>,
    /// Regular files, sorted by path.
    pub files: Vec<FileEntry>,
    /// Format version.
    pub format: u32,
    /// Step and attempt.
    pub id: StepId,
    /// The paths of a step that consists of several, in the order in which a restore has to create them. Empty and
    /// omitted if the checkpoint is one directory or file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<RelativePath>,
    /// Metrics by name, as found on this node; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// The name the trainer gave to the step's directory or file.
    pub name: String,
    /// The node whose files these are.
    pub node: NodeName,
    /// The run.
    pub run: RunName,
    /// Directory or single file.
    pub shape: Shape,
    /// For a step in one directory that all nodes share: the digest of the whole tree as this node saw it; the parts
    /// divide its files among the nodes. `None` if each node has its own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_tree_sha256: Option<Sha256Digest>,
    /// Symbolic links, sorted by path.
    pub symlinks: Vec<SymlinkEntry>,
    /// The newest modification time of any file, by the clock of this node's trainer.
    pub written_at: Timestamp,
}

impl PartManifest {
    /// Returns the bytes of all files.
    pub fn data_bytes(&self) -> u64 {
        // The sum was checked for overflow when the manifest was read or built.
        self.files.iter().map(|file| file.size_bytes).sum()
    }
}

impl Record for PartManifest {
    const WHAT: &'static str = "part manifest";

    fn check(&self) -> Result<()> {
        let fault = |why: String| Error::new(ErrorKind::Damaged, "the manifest is inconsistent").because(why);
        if self.format != FORMAT {
            return Err(fault(format!(
                "it has format {}, and this stepvault knows {FORMAT}",
                self.format
            )));
        }
        check_step_name(&self.name)?;
        if self.files.len() + self.directories.len() + self.symlinks.len() > MAX_ENTRIES {
            return Err(fault(format!("more than {MAX_ENTRIES} entries")));
        }
        if !self.written_at.is_canonical() || !self.metrics.values().all(|value| value.is_finite()) {
            return Err(fault(
                "its time is out of range, or a metric is not a finite number".to_owned(),
            ));
        }
        let mut total_bytes = 0_u64;
        for file in &self.files {
            file.check()?;
            total_bytes = total_bytes
                .checked_add(file.size_bytes)
                .ok_or_else(|| fault("its sizes add up to more than 64 bits".to_owned()))?;
        }
        for directory in &self.directories {
            if directory.mode & !MODE_MASK != 0 || !directory.mtime.is_canonical() {
                return Err(fault("a directory's mode or time is out of range".to_owned()));
            }
        }
        check_links(&self.symlinks)?;
        self.check_shape()?;
        self.check_tree()?;
        self.check_members()
    }
}

impl PartManifest {
    fn check_shape(&self) -> Result<()> {
        let fault = |why: &str| Error::new(ErrorKind::Damaged, "the manifest is inconsistent").because(why);
        match self.shape {
            Shape::File => {
                let own =
                    self.files.len() == 1 && self.files.iter().all(|file| file.path.as_str() == self.name);
                if !own || !self.directories.is_empty() || !self.symlinks.is_empty() {
                    return Err(fault(
                        "a single-file checkpoint must contain only the file it is named after",
                    ));
                }
            }
            Shape::Directory => {
                let roots = self
                    .directories
                    .iter()
                    .filter(|directory| directory.path.is_none())
                    .count();
                if roots != 1 || self.directories.first().is_some_and(|first| first.path.is_some()) {
                    return Err(fault("the checkpoint's own directory must come first, once"));
                }
            }
        }
        Ok(())
    }

    fn check_members(&self) -> Result<()> {
        let files = self.files.iter().map(|file| &file.path);
        match members::fault(
            &self.members,
            self.shape,
            files,
            &self.directories,
            &self.symlinks,
        ) {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::Damaged, "the manifest is inconsistent").because(why)),
        }
    }

    /// Checks that paths are sorted and unique, and that no path is below one that is not a directory.
    fn check_tree(&self) -> Result<()> {
        let fault = |path: &str, why: &str| {
            Error::new(ErrorKind::Damaged, "the manifest is inconsistent")
                .on(format!("{path:?}"))
                .because(why)
        };
        let sorted = self.files.windows(2).all(|pair| pair[0].path < pair[1].path)
            && self.symlinks.windows(2).all(|pair| pair[0].path < pair[1].path)
            && self
                .directories
                .windows(2)
                .all(|pair| pair[0].path < pair[1].path);
        if !sorted {
            return Err(fault(
                &self.name,
                "its entries are not sorted by path, or one is listed twice",
            ));
        }
        let directories: BTreeSet<&str> = self
            .directories
            .iter()
            .filter_map(|entry| entry.path.as_ref())
            .map(RelativePath::as_str)
            .collect();
        let mut leaves = BTreeSet::new();
        let leaf_paths = self
            .files
            .iter()
            .map(|file| &file.path)
            .chain(self.symlinks.iter().map(|link| &link.path));
        for path in leaf_paths {
            if !leaves.insert(path.as_str()) || directories.contains(path.as_str()) {
                return Err(fault(path.as_str(), "two entries have this path"));
            }
        }
        let all = leaves.iter().copied().chain(directories.iter().copied());
        for path in all {
            for (end, _) in path.match_indices('/') {
                if !directories.contains(&path[..end]) {
                    return Err(fault(path, "a directory above it is not listed as one"));
                }
            }
        }
        Ok(())
    }
}

/// Checks that a link's target is relative and stays inside the checkpoint when resolved from the link's place.
pub fn check_link_target(path: &RelativePath, target: &str) -> Result<()> {
    let fault = |why: &str| {
        Error::new(ErrorKind::Usage, "cannot store a symbolic link")
            .on(format!("{path} -> {target}"))
            .because(why)
            .hint("replace the link with the file it points to, or move it out of the checkpoint")
    };
    if target.is_empty() || target.len() > crate::path::MAX_PATH_BYTES || target.chars().any(char::is_control)
    {
        return Err(fault(
            "its target is empty, too long, or holds control characters",
        ));
    }
    if target.starts_with('/') {
        return Err(fault("its target is absolute"));
    }
    let mut depth = path.ancestors().count();
    for component in target.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| fault("its target lies outside the checkpoint"))?;
            }
            _ => depth += 1,
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
