//! The entries of a checkpoint: files, directories and symbolic links, as a manifest lists them.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::encoded_bytes;
use crate::digest::{Blake3Digest, Crc64Nvme};
use crate::file_parts::FileParts;
use crate::{
    ContentDigest, Crc32c, DigestAlgorithm, Error, ErrorKind, FileDigest, PartDigest, RelativePath, Result,
    Sha256Digest, Timestamp,
};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The digest over the parts' digests.
    pub content: ContentDigest,
    /// CRC-32C of the whole file.
    pub crc32c: Crc32c,
    /// CRC-64/NVME of the whole file, where its digests are not SHA-256.
    pub crc64nvme: Option<Crc64Nvme>,
    /// Bytes that were holes when the step was sealed. A restore then creates holes wherever the file reads as zeros.
    /// Omitted if 0.
    pub hole_bytes: u64,
    /// Permission bits, at most 0o777.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Size of each part but the last, in bytes; always equal to [`FileParts`] for `size_bytes`.
    pub part_size_bytes: u64,
    /// The digest of each part, in order.
    pub parts_content: Vec<ContentDigest>,
    /// Path inside the checkpoint.
    pub path: RelativePath,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// A [`FileEntry`] in a record: its digests under the names of their algorithms, its members sorted by name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodedFileEntry<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<Blake3Digest>,
    crc32c: Crc32c,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc64nvme: Option<Crc64Nvme>,
    #[serde(default, skip_serializing_if = "is_zero")]
    hole_bytes: u64,
    mode: u32,
    mtime: Timestamp,
    part_size_bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts_blake3: Vec<Blake3Digest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts_sha256: Vec<Sha256Digest>,
    path: Cow<'a, RelativePath>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<Sha256Digest>,
    size_bytes: u64,
}

impl Serialize for FileEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let (blake3, sha256) = self.content.by_algorithm();
        let parts = || self.parts_content.iter().map(|part| part.by_algorithm());
        EncodedFileEntry {
            blake3,
            crc32c: self.crc32c,
            crc64nvme: self.crc64nvme,
            hole_bytes: self.hole_bytes,
            mode: self.mode,
            mtime: self.mtime,
            part_size_bytes: self.part_size_bytes,
            parts_blake3: parts().filter_map(|(blake3, _)| blake3).collect(),
            parts_sha256: parts().filter_map(|(_, sha256)| sha256).collect(),
            path: Cow::Borrowed(&self.path),
            sha256,
            size_bytes: self.size_bytes,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FileEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let encoded = EncodedFileEntry::deserialize(deserializer)?;
        let content = ContentDigest::only(encoded.blake3, encoded.sha256, encoded.crc64nvme)
            .map_err(serde::de::Error::custom)?;
        let (blake3, sha256) = (encoded.parts_blake3, encoded.parts_sha256);
        let parts_content = match content.algorithm() {
            DigestAlgorithm::Blake3 if sha256.is_empty() => {
                blake3.into_iter().map(ContentDigest::Blake3).collect()
            }
            DigestAlgorithm::Sha256 if blake3.is_empty() => {
                sha256.into_iter().map(ContentDigest::Sha256).collect()
            }
            _ => {
                return Err(serde::de::Error::custom(
                    "a file and its parts have digests by different algorithms",
                ));
            }
        };
        Ok(Self {
            content,
            crc32c: encoded.crc32c,
            crc64nvme: encoded.crc64nvme,
            hole_bytes: encoded.hole_bytes,
            mode: encoded.mode,
            mtime: encoded.mtime,
            part_size_bytes: encoded.part_size_bytes,
            parts_content,
            path: encoded.path.into_owned(),
            size_bytes: encoded.size_bytes,
        })
    }
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
            content: digest.content,
            crc32c: digest.crc32c,
            crc64nvme: digest.crc64nvme,
            hole_bytes: 0,
            mode: mode & MODE_MASK,
            mtime,
            part_size_bytes: cut.part_size_bytes(),
            parts_content: parts.iter().map(|part| part.content).collect(),
            path,
            size_bytes: digest.size_bytes,
        })
    }

    /// Returns the same entry with this many bytes in holes.
    #[must_use]
    pub fn with_holes(self, hole_bytes: u64) -> Self {
        Self { hole_bytes, ..self }
    }

    /// Returns the number of bytes that the entry of a file of `size_bytes` has in a manifest. This one is of an empty
    /// file in its place: the file need not be read, because all digests of an algorithm have the same length.
    pub fn encoded_bytes(mut self, size_bytes: u64) -> Result<u64> {
        /// A quoted digest and a comma.
        const NEXT_DIGEST_BYTES: u64 = 2 * 32 + 3;
        let cut = FileParts::of(size_bytes)?;
        self.part_size_bytes = cut.part_size_bytes();
        self.size_bytes = size_bytes;
        Ok(encoded_bytes(&self)? + u64::from(cut.count() - 1) * NEXT_DIGEST_BYTES)
    }

    /// Returns the digests of the whole file.
    pub fn digest(&self) -> FileDigest {
        FileDigest {
            content: self.content,
            crc32c: self.crc32c,
            crc64nvme: self.crc64nvme,
            size_bytes: self.size_bytes,
        }
    }

    /// Whether two entries mean the same bytes. Nodes may have different algorithms: then the CRC-32C decides, because each
    /// node compared what it did not write byte for byte.
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        if self.content.algorithm() == other.content.algorithm() {
            return self.content == other.content;
        }
        (self.size_bytes, self.crc32c) == (other.size_bytes, other.crc32c)
    }

    /// Returns how the file is divided into parts.
    pub fn parts(&self) -> Result<FileParts> {
        FileParts::of(self.size_bytes)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let cut = FileParts::of(self.size_bytes)?;
        let fault = if cut.part_size_bytes() != self.part_size_bytes {
            "its part size does not follow from its size"
        } else if self.parts_content.len() != cut.count() as usize {
            "it does not have one digest for each part"
        } else if ContentDigest::of_parts(&self.parts_content) != self.content {
            "its digest does not match the digests of its parts"
        } else if self.mode & !MODE_MASK != 0 {
            "its mode has more than permission bits"
        } else if self.hole_bytes > self.size_bytes {
            "its holes are larger than the file"
        } else if !self.mtime.is_canonical() {
            "the nanoseconds of its modification time are not below one second"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Damaged, "the entry of a file is invalid").on(&self.path).because(fault))
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
        return Err(fault("its target is empty, too long, or holds control characters"));
    }
    if target.starts_with('/') {
        return Err(fault("its target is absolute"));
    }
    let mut depth = path.ancestors().count();
    for component in target.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                depth =
                    depth.checked_sub(1).ok_or_else(|| fault("its target lies outside the checkpoint"))?;
            }
            _ => depth += 1,
        }
    }
    Ok(())
}
