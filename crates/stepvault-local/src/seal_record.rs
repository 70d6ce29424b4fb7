//! The record that makes a directory of the vault a sealed step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::forecast::Taken;
use stepvault_core::ids::{NodeName, RunName, StepId};
use stepvault_core::keys::check_step_name;
use stepvault_core::launch::LaunchName;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{
    DirectoryEntry, FileEntry, MAX_ENTRIES, MODE_MASK, PartManifest, Shape, SymlinkEntry,
};
use stepvault_core::members;
use stepvault_core::nodes::NodeSet;
use stepvault_core::path::RelativePath;
use stepvault_core::shares::{own_share, tree_sha256};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

/// How a file came into the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotMethod {
    /// Shares its blocks with the trainer's file until either is written: as good as a copy.
    Reflink,
    /// Is the trainer's file under a second name: rewriting that in place changes this one, which readers notice.
    HardLink,
    /// A copy.
    Copy,
}

/// A file of a sealed step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedFile {
    /// Path inside the checkpoint.
    pub path: RelativePath,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Permission bits that the trainer gave it.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// How it came into the vault.
    pub method: SnapshotMethod,
    /// Its inode in the vault. The device is not kept: its number may change when the node starts again.
    pub inode: u64,
}

/// What `seal.json` says ([kept](crate::kept) with its digest): the step's files and what is known of the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealRecord {
    /// Format version.
    pub format: u32,
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    pub id: StepId,
    /// The node that sealed it.
    pub node: NodeName,
    /// The nodes whose parts make the step whole. Not written where it is this node's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeSet>,
    /// The launch that wrote it. Not written where nobody named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchName>,
    /// Whether all nodes see the directory it stands in, and share its files out among them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The name the trainer gave to the step's directory or file.
    pub name: String,
    /// Directory or single file.
    pub shape: Shape,
    /// The newest modification time of any file, by the trainer's clock.
    pub written_at: Timestamp,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Regular files, sorted by path.
    pub files: Vec<SealedFile>,
    /// Directories as the trainer had them, the checkpoint's own first, then sorted by path; empty for a single file.
    pub directories: Vec<DirectoryEntry>,
    /// Symbolic links, sorted by path.
    pub symlinks: Vec<SymlinkEntry>,
    /// The paths that make up a step of several, in the order in which a restore has to create them. Empty, and not
    /// written, where the checkpoint is one directory or file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<RelativePath>,
}

impl SealRecord {
    /// What it takes on a disk.
    pub fn taken(&self) -> Taken {
        Taken {
            bytes: self.data_bytes(),
            files: (self.files.len() + self.symlinks.len()) as u64,
            directories: self.directories.len() as u64,
        }
    }

    /// What of it is the vault's alone, on the disk that the trainer's own files are on.
    pub fn copied(&self) -> Taken {
        let own = |method| self.files.iter().filter(move |file| file.method == method);
        let copies = own(SnapshotMethod::Copy);
        Taken {
            bytes: copies
                .clone()
                .fold(0, |sum, file| sum.saturating_add(file.size_bytes)),
            files: (copies.count() + own(SnapshotMethod::Reflink).count() + self.symlinks.len()) as u64,
            directories: self.directories.len() as u64,
        }
    }

    /// Bytes of all files.
    pub fn data_bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.size_bytes))
    }

    /// The nodes whose parts make the step whole.
    pub fn nodes(&self) -> NodeSet {
        self.nodes
            .clone()
            .unwrap_or_else(|| NodeSet::alone(self.node.clone()))
    }

    /// Whether the step takes other nodes' parts as well.
    pub fn is_one_of_several(&self) -> bool {
        self.nodes.as_ref().is_some_and(NodeSet::is_several)
    }

    /// The files that this node sends: all, or its share of a directory that all nodes see.
    pub fn own_files(&self) -> Vec<&SealedFile> {
        if !self.shared {
            return self.files.iter().collect();
        }
        let share = own_share(&self.paths_and_sizes(), &self.nodes(), &self.node);
        self.files
            .iter()
            .filter(|file| share.contains(&file.path))
            .collect()
    }

    /// What the nodes have to see alike of a directory that they share.
    pub fn shared_tree_sha256(&self) -> Option<Sha256Digest> {
        self.shared
            .then(|| tree_sha256(&self.paths_and_sizes(), &self.symlinks))
    }

    fn paths_and_sizes(&self) -> Vec<(&RelativePath, u64)> {
        self.files
            .iter()
            .map(|file| (&file.path, file.size_bytes))
            .collect()
    }

    /// The manifest of this node's part, once the digests of its files are known.
    pub fn part_manifest(&self, files: Vec<FileEntry>) -> PartManifest {
        PartManifest {
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
            members: self.members.clone(),
        }
    }

    /// The entry of a file.
    pub fn file(&self, path: &RelativePath) -> Option<&SealedFile> {
        let index = self.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
        self.files.get(index)
    }

    fn check_entries(&self) -> Result<()> {
        if self.files.len() + self.directories.len() + self.symlinks.len() > MAX_ENTRIES {
            return Err(fault("it has too many entries"));
        }
        let sorted = self.files.windows(2).all(|pair| pair[0].path < pair[1].path)
            && self
                .directories
                .windows(2)
                .all(|pair| pair[0].path < pair[1].path)
            && self.symlinks.windows(2).all(|pair| pair[0].path < pair[1].path);
        if !sorted {
            return Err(fault(
                "its entries are not sorted by path, or one stands there twice",
            ));
        }
        let plain = |mode: u32, mtime: Timestamp| mode & !MODE_MASK == 0 && mtime.is_canonical();
        if !self.files.iter().all(|file| plain(file.mode, file.mtime))
            || !self
                .directories
                .iter()
                .all(|directory| plain(directory.mode, directory.mtime))
        {
            return Err(fault("a mode or time is out of range"));
        }
        check_links(&self.symlinks)
    }

    /// Everything but the checkpoint's own directory must lie in a directory that is listed as one.
    fn check_shape(&self) -> Result<()> {
        if self.shape == Shape::File {
            let alone = self.directories.is_empty() && self.symlinks.is_empty();
            let own = matches!(self.files.as_slice(), [file] if file.path.as_str() == self.name);
            return if alone && own {
                Ok(())
            } else {
                Err(fault("a single file must be all there is"))
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
        let paths = files.chain(self.symlinks.iter().map(|link| &link.path)).chain(
            self.directories
                .iter()
                .filter_map(|directory| directory.path.as_ref()),
        );
        if paths
            .flat_map(RelativePath::ancestors)
            .all(|directory| listed.contains(directory))
        {
            return Ok(());
        }
        Err(fault(
            "an entry lies below something that is not listed as a directory",
        ))
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
            return Err(fault("its node is none of the step's"));
        }
        if !self.written_at.is_canonical() || !self.metrics.values().all(|value| value.is_finite()) {
            return Err(fault(
                "its time is out of range, or a metric is not a finite number",
            ));
        }
        self.check_entries()?;
        self.check_shape()?;
        let files = self.files.iter().map(|file| &file.path);
        match members::fault(
            &self.members,
            self.shape,
            files,
            &self.directories,
            &self.symlinks,
        ) {
            None => Ok(()),
            Some(why) => Err(fault(&why)),
        }
    }
}

fn fault(why: &str) -> Error {
    Error::new(ErrorKind::Damaged, "the seal contradicts itself").because(why)
}

#[cfg(test)]
#[path = "seal_record_tests.rs"]
mod tests;
