//! The part manifest: the record of the files that one node contributes to a step.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::codec::{FORMAT, FORMAT_OF_IMPORTED, FORMAT_OF_TRUSTED, Record};
use crate::digest::TrustedChecksum;
pub use crate::entries::{
    DirectoryEntry, EntryDigests, FileEntry, FileProof, MODE_MASK, Shape, SymlinkEntry, check_link_target,
    is_zero,
};
use crate::imported::Imported;
use crate::keys::{FileKeys, RunKeys, check_step_name, is_in_layout};
use crate::links::check_links;
use crate::members;
use crate::step_origin::StepOrigin;
use crate::{
    DigestAlgorithm, Error, ErrorKind, NodeName, RelativePath, Result, RunName, Sha256Digest, StepId,
    Timestamp,
};

/// Maximum number of entries in one node's part of a step. The manifest must also fit into a record, which paths of
/// more than 140 bytes on average reach first. Both limits are checked when the step is sealed, before anything is
/// sent. Every command handles this many entries with paths of 100 bytes in less than 512 MiB of memory.
pub const MAX_ENTRIES: usize = 150_000;

/// The record of one node's part of a step. Immutable; entries are sorted by path. Members are declared in the order
/// of their names, so that a long manifest can be written without sorting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartManifest {
    /// The algorithm of its files' digests. Omitted for SHA-256.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub digest: DigestAlgorithm,
    /// Directories, the checkpoint's own first, then sorted by path; empty for a single file.
    pub directories: Vec<DirectoryEntry>,
    /// Regular files, sorted by path.
    pub files: Vec<FileEntry>,
    /// Format version.
    pub format: u32,
    /// Step and attempt.
    pub id: StepId,
    /// Where its objects are, if another program has written them. Omitted for objects in stepvault's layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
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
    /// Where its trainer keeps it, and what wrote it. Omitted when nothing of that is known.
    #[serde(default, skip_serializing_if = "StepOrigin::is_unknown")]
    pub origin: StepOrigin,
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

    /// Returns how many of its files have no digests, but the checksum of their store.
    pub fn trusted_files(&self) -> u64 {
        self.files.iter().filter(|file| file.digests().is_none()).count() as u64
    }

    /// Returns where its files are on the remote. Nothing else may derive the key of a file of a committed step.
    pub fn file_keys(&self) -> FileKeys {
        match &self.imported {
            Some(imported) => imported.file_keys(),
            None => RunKeys::new(self.run.clone()).files(&self.name, self.id),
        }
    }

    /// Returns the text with which the keys of all its files begin, as long as it can be.
    pub fn listed_prefix(&self) -> String {
        let keys = self.file_keys();
        let prefix = keys.prefix().to_owned();
        let (Some(_), Some(first), Some(last)) = (&self.imported, self.files.first(), self.files.last())
        else {
            return prefix;
        };
        let pairs = first.path.as_str().chars().zip(last.path.as_str().chars());
        prefix + &pairs.take_while(|(one, other)| one == other).map(|(one, _)| one).collect::<String>()
    }

    /// Checks the format, and that an imported part names no object that stepvault may have written: what is one step's
    /// would be deleted with another.
    fn check_imported(&self) -> Result<()> {
        let trusts_store = self.trusted_files() > 0;
        if trusts_store && self.imported.is_none() {
            return Err(inconsistent("a file that was not imported has no digests"));
        }
        let due = match &self.imported {
            None => FORMAT,
            Some(_) if !trusts_store => FORMAT_OF_IMPORTED,
            Some(_) => FORMAT_OF_TRUSTED,
        };
        if self.format != due {
            return Err(inconsistent(format!(
                "it has format {}, and its members are those of format {due}",
                self.format
            )));
        }
        let Some(imported) = &self.imported else { return Ok(()) };
        let mut named = imported.prefix.iter().chain(self.files.iter().map(|file| &file.path));
        match named.find(|path| is_in_layout(path.as_str())) {
            Some(path) => Err(inconsistent("it names an object of stepvault's own layout").on(path)),
            None => Ok(()),
        }
    }

    fn check_shape(&self) -> Result<()> {
        match self.shape {
            Shape::File => {
                let own =
                    self.files.len() == 1 && self.files.iter().all(|file| file.path.as_str() == self.name);
                if !own || !self.directories.is_empty() || !self.symlinks.is_empty() {
                    return Err(inconsistent(
                        "a single-file checkpoint must contain only the file it is named after",
                    ));
                }
            }
            Shape::Directory => {
                let roots = self.directories.iter().filter(|directory| directory.path.is_none()).count();
                if roots != 1 || self.directories.first().is_some_and(|first| first.path.is_some()) {
                    return Err(inconsistent("the checkpoint's own directory must come first, once"));
                }
            }
        }
        Ok(())
    }

    fn check_members(&self) -> Result<()> {
        let files = self.files.iter().map(|file| &file.path);
        let (directories, symlinks) = (&self.directories, &self.symlinks);
        let broken = members::fault(&self.members, self.shape, files, directories, symlinks);
        broken.map_or(Ok(()), |why| Err(inconsistent(why)))
    }

    /// Checks that paths are sorted and unique, and that no path is below one that is not a directory.
    fn check_tree(&self) -> Result<()> {
        let sorted = self.files.is_sorted_by(|one, next| one.path < next.path)
            && self.symlinks.is_sorted_by(|one, next| one.path < next.path)
            && self.directories.is_sorted_by(|one, next| one.path < next.path);
        if !sorted {
            return Err(inconsistent("its entries are not sorted by path, or one is listed twice")
                .on(format!("{:?}", self.name)));
        }
        let directories: BTreeSet<&str> = self
            .directories
            .iter()
            .filter_map(|entry| entry.path.as_ref())
            .map(RelativePath::as_str)
            .collect();
        let mut leaves = BTreeSet::new();
        let leaf_paths =
            self.files.iter().map(|file| &file.path).chain(self.symlinks.iter().map(|link| &link.path));
        for path in leaf_paths {
            if !leaves.insert(path.as_str()) || directories.contains(path.as_str()) {
                return Err(inconsistent("two entries have this path").on(format!("{:?}", path.as_str())));
            }
        }
        let all = leaves.iter().copied().chain(directories.iter().copied());
        for path in all {
            for (end, _) in path.match_indices('/') {
                if !directories.contains(&path[..end]) {
                    return Err(
                        inconsistent("a directory above it is not listed as one").on(format!("{path:?}"))
                    );
                }
            }
        }
        Ok(())
    }
}

impl Record for PartManifest {
    const WHAT: &'static str = "part manifest";
    const NEWEST_FORMAT: u32 = FORMAT_OF_TRUSTED;

    fn check(&self) -> Result<()> {
        self.check_imported()?;
        check_step_name(&self.name)?;
        if self.files.len() + self.directories.len() + self.symlinks.len() > MAX_ENTRIES {
            return Err(inconsistent(format!("more than {MAX_ENTRIES} entries")));
        }
        if !self.written_at.is_canonical() || !self.metrics.values().all(|value| value.is_finite()) {
            return Err(inconsistent("its time is out of range, or a metric is not a finite number"));
        }
        let mut total_bytes = 0_u64;
        for file in &self.files {
            file.check()?;
            // What is copied elsewhere gets digests by the algorithm of the part, and is compared with the checksum.
            let algorithm = match &file.proof {
                FileProof::Digests(digests) => digests.content.algorithm(),
                FileProof::Trusted(TrustedChecksum::Crc64Nvme(_)) => DigestAlgorithm::Blake3,
                FileProof::Trusted(TrustedChecksum::Crc32c(_)) => self.digest,
            };
            if algorithm != self.digest {
                return Err(inconsistent(format!(
                    "the digests of {} are {algorithm}, and those of the part are {}",
                    file.path, self.digest
                )));
            }
            total_bytes = total_bytes
                .checked_add(file.size_bytes)
                .ok_or_else(|| inconsistent("its sizes add up to more than 64 bits"))?;
        }
        for directory in &self.directories {
            if directory.mode & !MODE_MASK != 0 || !directory.mtime.is_canonical() {
                return Err(inconsistent("a directory's mode or time is out of range"));
            }
        }
        check_links(&self.symlinks)?;
        if let Some(why) = self.origin.fault() {
            return Err(inconsistent(why));
        }
        self.check_shape()?;
        self.check_tree()?;
        self.check_members()
    }
}

fn inconsistent(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Damaged, "the manifest is inconsistent").because(why)
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
