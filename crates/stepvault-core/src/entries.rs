//! The entries of a checkpoint: files, directories and symbolic links, as a manifest lists them.

use std::borrow::Cow;
use std::mem;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::encoded_bytes;
use crate::digest::{Blake3Digest, Crc64Nvme, TrustedChecksum};
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
    /// Bytes that were holes when the step was sealed. A restore then creates holes wherever the file reads as zeros.
    /// Omitted if 0.
    pub hole_bytes: u64,
    /// Permission bits, at most 0o777.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Size of each part but the last, in bytes; always equal to [`FileParts`] for `size_bytes`.
    pub part_size_bytes: u64,
    /// Path inside the checkpoint.
    pub path: RelativePath,
    /// What proves its bytes.
    pub proof: FileProof,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// What proves the bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileProof {
    /// Digests that stepvault has computed from the bytes.
    Digests(EntryDigests),
    /// The checksum of an imported object by its store. Its bytes are not known to be those of any other file.
    Trusted(TrustedChecksum),
}

/// The digests of a file and of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryDigests {
    /// The digest over the parts' digests.
    pub content: ContentDigest,
    /// CRC-32C of the whole file.
    pub crc32c: Crc32c,
    /// CRC-64/NVME of the whole file, where its digests are not SHA-256.
    pub crc64nvme: Option<Crc64Nvme>,
    /// The digest of each part, in order.
    pub parts: Vec<ContentDigest>,
}

/// A [`FileEntry`] in a record: its digests under the names of their algorithms, its members sorted by name. An entry
/// without digests has one of the two checksums.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncodedFileEntry<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<Blake3Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<Crc32c>,
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
        let digests = self.digests();
        let (blake3, sha256) = digests.map_or((None, None), |digests| digests.content.by_algorithm());
        let parts = || digests.iter().flat_map(|digests| &digests.parts).map(|part| part.by_algorithm());
        let (crc32c, crc64nvme) = match &self.proof {
            FileProof::Digests(digests) => (Some(digests.crc32c), digests.crc64nvme),
            FileProof::Trusted(TrustedChecksum::Crc32c(checksum)) => (Some(*checksum), None),
            FileProof::Trusted(TrustedChecksum::Crc64Nvme(checksum)) => (None, Some(*checksum)),
        };
        EncodedFileEntry {
            blake3,
            crc32c,
            crc64nvme,
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

impl EncodedFileEntry<'_> {
    /// Returns what proves the file, and takes the digests of its parts.
    fn take_proof(&mut self) -> Result<FileProof> {
        let invalid = |why: &str| Error::new(ErrorKind::Damaged, "invalid digests").because(why);
        let (blake3, sha256) = (mem::take(&mut self.parts_blake3), mem::take(&mut self.parts_sha256));
        if self.blake3.is_none() && self.sha256.is_none() && blake3.is_empty() && sha256.is_empty() {
            return match (self.crc32c, self.crc64nvme) {
                (Some(checksum), None) => Ok(FileProof::Trusted(TrustedChecksum::Crc32c(checksum))),
                (None, Some(checksum)) => Ok(FileProof::Trusted(TrustedChecksum::Crc64Nvme(checksum))),
                _ => Err(invalid("a file without digests must have one checksum")),
            };
        }
        let content = ContentDigest::only(self.blake3, self.sha256, self.crc64nvme)?;
        let parts = match content.algorithm() {
            DigestAlgorithm::Blake3 if sha256.is_empty() => {
                blake3.into_iter().map(ContentDigest::Blake3).collect()
            }
            DigestAlgorithm::Sha256 if blake3.is_empty() => {
                sha256.into_iter().map(ContentDigest::Sha256).collect()
            }
            _ => return Err(invalid("a file and its parts have digests by different algorithms")),
        };
        let crc32c = self.crc32c.ok_or_else(|| invalid("a file with digests must have a CRC-32C"))?;
        Ok(FileProof::Digests(EntryDigests { content, crc32c, crc64nvme: self.crc64nvme, parts }))
    }
}

impl<'de> Deserialize<'de> for FileEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut encoded = EncodedFileEntry::deserialize(deserializer)?;
        let proof = encoded.take_proof().map_err(serde::de::Error::custom)?;
        Ok(Self {
            hole_bytes: encoded.hole_bytes,
            mode: encoded.mode,
            mtime: encoded.mtime,
            part_size_bytes: encoded.part_size_bytes,
            path: encoded.path.into_owned(),
            proof,
            size_bytes: encoded.size_bytes,
        })
    }
}

/// Returns whether a member has its default value, with which it is omitted.
pub fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl EntryDigests {
    /// Returns the digests of a file from those of its parts, in order.
    pub fn of_parts(parts: &[PartDigest]) -> Self {
        let FileDigest { content, crc32c, crc64nvme, .. } = FileDigest::from_parts(parts);
        Self { content, crc32c, crc64nvme, parts: parts.iter().map(|part| part.content).collect() }
    }
}

impl FileEntry {
    /// Returns an entry from the digests of the file's parts, in order.
    pub fn from_parts(path: RelativePath, mode: u32, mtime: Timestamp, parts: &[PartDigest]) -> Result<Self> {
        let size_bytes = parts.iter().map(|part| part.size_bytes).sum();
        Self::new(path, mode, mtime, size_bytes, FileProof::Digests(EntryDigests::of_parts(parts)))
    }

    /// Returns an entry without holes.
    pub fn new(
        path: RelativePath,
        mode: u32,
        mtime: Timestamp,
        size_bytes: u64,
        proof: FileProof,
    ) -> Result<Self> {
        let part_size_bytes = FileParts::of(size_bytes)?.part_size_bytes();
        let mode = mode & MODE_MASK;
        Ok(Self { hole_bytes: 0, mode, mtime, part_size_bytes, path, proof, size_bytes })
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

    /// Returns its digests; `None` where only the checksum of its store is known.
    pub fn digests(&self) -> Option<&EntryDigests> {
        match &self.proof {
            FileProof::Digests(digests) => Some(digests),
            FileProof::Trusted(_) => None,
        }
    }

    /// Returns the checksum of its store, where it has no digests.
    pub fn trusted_checksum(&self) -> Option<TrustedChecksum> {
        match self.proof {
            FileProof::Digests(_) => None,
            FileProof::Trusted(checksum) => Some(checksum),
        }
    }

    /// Returns the digest of a part; `None` where only the checksum of the whole file is known.
    pub fn part_digest(&self, index: u32) -> Option<ContentDigest> {
        self.digests()?.parts.get(index as usize).copied()
    }

    /// Returns the digests of the whole file; `None` where only the checksum of its store is known.
    pub fn digest(&self) -> Option<FileDigest> {
        let EntryDigests { content, crc32c, crc64nvme, .. } = *self.digests()?;
        Some(FileDigest { content, crc32c, crc64nvme, size_bytes: self.size_bytes })
    }

    /// Returns the algorithm by which bytes are hashed that are compared with it. A CRC-64/NVME comes with BLAKE3 only.
    pub fn algorithm(&self) -> DigestAlgorithm {
        self.digests().map_or(DigestAlgorithm::Blake3, |digests| digests.content.algorithm())
    }

    /// Returns from which byte on the file differs from bytes whose parts have these digests by
    /// [`algorithm`](Self::algorithm), or `None` if they are its bytes. A checksum of the whole file does not tell where.
    pub fn first_difference(&self, parts: &[PartDigest]) -> Option<u64> {
        let differing = match &self.proof {
            FileProof::Digests(digests) => {
                let count = digests.parts.len();
                let different = digests.parts.iter().zip(parts).position(|(own, part)| part.content != *own);
                different.or((parts.len() != count).then_some(count.min(parts.len())))
            }
            FileProof::Trusted(checksum) => {
                let found = FileDigest::from_parts(parts);
                let is_same = found.size_bytes == self.size_bytes && checksum.matches(&found);
                (!is_same).then_some(0)
            }
        };
        differing.map(|part| part as u64 * self.part_size_bytes)
    }

    /// Whether two entries mean the same bytes. Nodes may have different algorithms: then the CRC-32C decides, because each
    /// node compared what it did not write byte for byte. Of a file without digests, that is never known.
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.digests(), other.digests()) else { return false };
        if own.content.algorithm() == others.content.algorithm() {
            return own.content == others.content;
        }
        (self.size_bytes, own.crc32c) == (other.size_bytes, others.crc32c)
    }

    /// Returns how the file is divided into parts.
    pub fn parts(&self) -> Result<FileParts> {
        FileParts::of(self.size_bytes)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let cut = FileParts::of(self.size_bytes)?;
        let digests = self.digests();
        let fault = if cut.part_size_bytes() != self.part_size_bytes {
            "its part size does not follow from its size"
        } else if digests.is_some_and(|digests| digests.parts.len() != cut.count() as usize) {
            "it does not have one digest for each part"
        } else if digests.is_some_and(|digests| ContentDigest::of_parts(&digests.parts) != digests.content) {
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
