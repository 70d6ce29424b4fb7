//! The record that turns a directory of the vault into a sealed step.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, encoded_bytes};
use stepvault_core::forecast::Taken;
use stepvault_core::keys::check_step_name;
use stepvault_core::launch::LaunchName;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{
    DirectoryEntry, FileEntry, MAX_ENTRIES, MODE_MASK, PartManifest, Shape, SymlinkEntry, is_zero,
};
use stepvault_core::placement::LiveSave;
use stepvault_core::shares::{own_share, tree_sha256};
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{
    Attempt, DigestAlgorithm, Error, ErrorKind, NodeName, NodeSet, PartDigest, RelativePath, Result, RunName,
    Sha256Digest, StepId, Timestamp, members,
};

/// How a file was copied into the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotMethod {
    /// Shares its blocks with the trainer's file until either is written; as safe as a copy.
    Reflink,
    /// Is the trainer's file under a second name. If the trainer rewrites the file in place, this one changes too,
    /// which readers detect.
    HardLink,
    /// A copy.
    Copy,
    /// Is the trainer's file where it is. If the trainer rewrites or deletes it, readers detect that.
    InPlace,
}

impl SnapshotMethod {
    /// Whether it is the very file that the trainer wrote, so that only its inode is the one that was sealed.
    pub fn is_trainers_file(self) -> bool {
        matches!(self, Self::HardLink | Self::InPlace)
    }
}

/// A file of a sealed step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedFile {
    /// Number of bytes in holes. Omitted when 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hole_bytes: u64,
    /// Its inode in the vault. The device is not recorded: its number may change when the node reboots.
    pub inode: u64,
    /// Snapshot method.
    pub method: SnapshotMethod,
    /// Permission bits that the trainer set.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Path inside the checkpoint.
    pub path: RelativePath,
    /// Length in bytes.
    pub size_bytes: u64,
}

impl SealedFile {
    /// Returns the file's entry in a manifest, from the digests of its parts in order.
    pub fn entry(&self, parts: &[PartDigest]) -> Result<FileEntry> {
        let entry = FileEntry::from_parts(self.path.clone(), self.mode, self.mtime, parts)?;
        Ok(entry.with_holes(self.hole_bytes))
    }
}

/// How final the attempt of a sealed step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptState {
    /// No remote could be reached, or one holds other files under this attempt. It is determined before anything is
    /// sent.
    Provisional,
    /// Determined from the steps on the tiers.
    #[default]
    Placed,
    /// Given by the user; it never changes.
    Given,
}

/// How the attempt of a sealed step was determined, with the facts needed to determine it again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptOrigin {
    /// Earlier attempts of the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Attempt>,
    /// The step was seen live, whole and new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveSave>,
    /// Identities of the step that turned out to be taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<StepId>,
    /// The step is known to belong to its launch, whatever the times of its files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_launch: bool,
    /// The step was written no earlier than this by this node's clock, whatever the times of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// How final the attempt is.
    pub state: AttemptState,
}

impl AttemptOrigin {
    /// Records an earlier attempt of the step.
    pub(crate) fn remember(&mut self, attempt: Attempt) {
        if !self.former.contains(&attempt) {
            self.former.push(attempt);
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Content of `seal.json` (stored [with its digest](crate::notes)): the step's files and metadata. Fields are declared
/// in alphabetical order, so that a long record is written in canonical order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealRecord {
    /// How the attempt was determined. Omitted where it was determined from the tiers and nothing else is known.
    #[serde(default, skip_serializing_if = "AttemptOrigin::is_default")]
    pub attempt: AttemptOrigin,
    /// The algorithm of the digests of its files, on every tier. Omitted for SHA-256.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub digest: DigestAlgorithm,
    /// Directories as the trainer created them, the checkpoint's own first, then sorted by path; empty for a single
    /// file.
    pub directories: Vec<DirectoryEntry>,
    /// Regular files, sorted by path.
    pub files: Vec<SealedFile>,
    /// Format version.
    pub format: u32,
    /// Step and attempt. While the attempt is provisional, the name of the step's directory in the vault is
    /// authoritative.
    pub id: StepId,
    /// The launch that wrote the step. Omitted when none was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchName>,
    /// The paths of a multi-path step, in the order in which a restore must create them. Empty and omitted where the
    /// checkpoint is one directory or file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<RelativePath>,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// The name the trainer gave to the step's directory or file.
    pub name: String,
    /// The node that sealed it.
    pub node: NodeName,
    /// The nodes whose parts make up the step. Omitted when it is this node alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeSet>,
    /// Where its trainer keeps it, and what wrote it. Omitted when nothing of that is known.
    #[serde(default, skip_serializing_if = "StepOrigin::is_unknown")]
    pub origin: StepOrigin,
    /// The run.
    pub run: RunName,
    /// Directory or single file.
    pub shape: Shape,
    /// Whether all nodes see the step's directory and divide its files among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The directory in which the files are, if they stayed where the trainer wrote them; absolute. Omitted where they
    /// are in the vault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    /// Symbolic links, sorted by path.
    pub symlinks: Vec<SymlinkEntry>,
    /// The newest modification time of any file, by the trainer's clock.
    pub written_at: Timestamp,
}

impl SealRecord {
    /// Returns the disk space that the step takes.
    pub fn taken(&self) -> Taken {
        Taken {
            bytes: self.data_bytes(),
            files: (self.files.len() + self.symlinks.len()) as u64,
            directories: self.directories.len() as u64,
        }
    }

    /// Returns the part of it that only the vault occupies, on the disk with the trainer's own files.
    pub fn copied(&self) -> Taken {
        if self.source.is_some() {
            return Taken::default();
        }
        let own = |method| self.files.iter().filter(move |file| file.method == method);
        let copies = own(SnapshotMethod::Copy);
        Taken {
            bytes: copies
                .clone()
                .fold(0, |sum, file| sum.saturating_add(file.size_bytes.saturating_sub(file.hole_bytes))),
            files: (copies.count() + own(SnapshotMethod::Reflink).count() + self.symlinks.len()) as u64,
            directories: self.directories.len() as u64,
        }
    }

    /// Returns the number of bytes of all files.
    pub fn data_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes))
    }

    /// Returns the nodes whose parts make up the step.
    pub fn nodes(&self) -> NodeSet {
        self.nodes.clone().unwrap_or_else(|| NodeSet::single_node(self.node.clone()))
    }

    /// Returns whether the attempt is still provisional. Nothing of the step is sent before it is determined.
    pub fn is_provisional(&self) -> bool {
        self.attempt.state == AttemptState::Provisional
    }

    /// Returns whether the step also needs parts of other nodes.
    pub fn is_one_of_several(&self) -> bool {
        self.nodes.as_ref().is_some_and(NodeSet::is_several)
    }

    /// Returns the files that this node sends: all, or its share of a directory that all nodes see.
    pub fn own_files(&self) -> Vec<&SealedFile> {
        if !self.shared {
            return self.files.iter().collect();
        }
        let share = own_share(&self.paths_and_sizes(), &self.nodes(), &self.node);
        self.files.iter().filter(|file| share.contains(&file.path)).collect()
    }

    /// Returns the bytes of the files that this node sends.
    pub fn own_bytes(&self) -> u64 {
        self.own_files().iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes))
    }

    /// Returns a digest of a shared directory that must be equal on all nodes.
    pub fn shared_tree_sha256(&self) -> Option<Sha256Digest> {
        self.shared.then(|| tree_sha256(&self.paths_and_sizes(), &self.symlinks))
    }

    fn paths_and_sizes(&self) -> Vec<(&RelativePath, u64)> {
        self.files.iter().map(|file| (&file.path, file.size_bytes)).collect()
    }

    /// Returns the manifest of this node's part from the digests of its files.
    pub fn part_manifest(&self, files: Vec<FileEntry>) -> PartManifest {
        PartManifest {
            digest: self.digest,
            format: FORMAT,
            run: self.run.clone(),
            id: self.id,
            node: self.node.clone(),
            name: self.name.clone(),
            shape: self.shape,
            written_at: self.written_at,
            metrics: self.metrics.clone(),
            shared_tree_sha256: self.shared_tree_sha256(),
            files,
            directories: self.directories.clone(),
            symlinks: self.symlinks.clone(),
            imported: None,
            members: self.members.clone(),
            origin: self.origin.clone(),
        }
    }

    /// Returns the length in bytes that the manifest of this node's part will have. It is known before any file is
    /// read.
    pub fn manifest_bytes(&self) -> Result<u64> {
        let own = self.own_files();
        let frame = encoded_bytes(&self.part_manifest(Vec::new()))?;
        let commas = own.len().saturating_sub(1) as u64;
        let unread = [PartDigest::by(self.digest, &[])];
        own.into_iter().try_fold(frame + commas, |sum, file| {
            let bytes = file.entry(&unread)?.encoded_bytes(file.size_bytes);
            let subject = || format!("{}, {} bytes", file.path, file.size_bytes);
            Ok(sum + bytes.map_err(|error| error.on(subject()))?)
        })
    }

    /// Returns the entry of a file.
    pub fn file(&self, path: &RelativePath) -> Option<&SealedFile> {
        let index = self.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
        self.files.get(index)
    }

    fn check_entries(&self) -> Result<()> {
        if self.files.len() + self.directories.len() + self.symlinks.len() > MAX_ENTRIES {
            return Err(fault("it has too many entries"));
        }
        let sorted = self.files.windows(2).all(|pair| pair[0].path < pair[1].path)
            && self.directories.windows(2).all(|pair| pair[0].path < pair[1].path)
            && self.symlinks.windows(2).all(|pair| pair[0].path < pair[1].path);
        if !sorted {
            return Err(fault("its entries are not sorted by path, or one is listed twice"));
        }
        if self.files.iter().any(|file| file.hole_bytes > file.size_bytes) {
            return Err(fault("the holes of a file exceed its size"));
        }
        let plain = |mode: u32, mtime: Timestamp| mode & !MODE_MASK == 0 && mtime.is_canonical();
        if !self.files.iter().all(|file| plain(file.mode, file.mtime))
            || !self.directories.iter().all(|directory| plain(directory.mode, directory.mtime))
        {
            return Err(fault("a mode or time is out of range"));
        }
        check_links(&self.symlinks)
    }

    /// Checks that everything except the checkpoint's own directory is in a listed directory.
    fn check_shape(&self) -> Result<()> {
        if self.shape == Shape::File {
            let has_no_others = self.directories.is_empty() && self.symlinks.is_empty();
            let own = matches!(self.files.as_slice(), [file] if file.path.as_str() == self.name);
            return if has_no_others && own {
                Ok(())
            } else {
                Err(fault("a single-file checkpoint may have no other entry"))
            };
        }
        if self.directories.first().is_none_or(|first| first.path.is_some()) {
            return Err(fault("the checkpoint's own directory must come first"));
        }
        let listed: BTreeSet<&str> = self
            .directories
            .iter()
            .filter_map(|entry| entry.path.as_ref())
            .map(RelativePath::as_str)
            .collect();
        let files = self.files.iter().map(|file| &file.path);
        let paths = files
            .chain(self.symlinks.iter().map(|link| &link.path))
            .chain(self.directories.iter().filter_map(|directory| directory.path.as_ref()));
        if paths.flat_map(RelativePath::ancestors).all(|directory| listed.contains(directory)) {
            return Ok(());
        }
        Err(fault("an entry lies below something that is not listed as a directory"))
    }
}

impl Record for SealRecord {
    const WHAT: &'static str = "seal";

    fn check(&self) -> Result<()> {
        if self.format != FORMAT {
            return Err(fault("its format is not known"));
        }
        check_step_name(&self.name)?;
        if !self.nodes().contains(&self.node) {
            return Err(fault("its node is not one of the step's nodes"));
        }
        if !self.written_at.is_canonical() || !self.metrics.values().all(|value| value.is_finite()) {
            return Err(fault("its time is out of range, or a metric is not a finite number"));
        }
        let is_in_place = |file: &SealedFile| file.method == SnapshotMethod::InPlace;
        if self.source.as_deref().is_some_and(Path::is_relative)
            || self.files.iter().any(|file| is_in_place(file) != self.source.is_some())
        {
            return Err(fault("it does not say where its files are"));
        }
        self.check_entries()?;
        self.check_shape()?;
        let files = self.files.iter().map(|file| &file.path);
        let why = members::fault(&self.members, self.shape, files, &self.directories, &self.symlinks);
        why.map_or(Ok(()), |why| Err(fault(&why)))
    }
}

fn fault(why: &str) -> Error {
    Error::new(ErrorKind::Damaged, "the seal contradicts itself").because(why)
}

#[cfg(test)]
#[path = "seal_record_tests.rs"]
mod tests;
