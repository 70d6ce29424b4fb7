//! The entries of a checkpoint: files, directories and symbolic links, as a manifest lists them.

use serde::{Deserialize, Serialize};

use crate::codec::encoded_bytes;
use crate::digest::{Crc32c, FileDigest, PartDigest, Sha256Digest, composite_sha256};
use crate::error::{Error, ErrorKind, Result};
use crate::file_parts::FileParts;
use crate::path::RelativePath;
use crate::timestamp::Timestamp;

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

    pub(crate) fn check(&self) -> Result<()> {
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
