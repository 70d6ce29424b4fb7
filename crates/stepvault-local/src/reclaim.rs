//! Computes how many bytes of disk only a sealed step occupies.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;

use crate::seal_record::SnapshotMethod;
use crate::sealed::SealedStep;

/// Unit of block counts in `stat`, whatever the file system's own block size.
const BLOCK_BYTES: u64 = 512;

impl SealedStep {
    /// Returns the bytes that removing the step would free: those of files of which the step holds every hard link.
    /// While the trainer also has a linked file, removing the step's name frees nothing. A reflinked file counts in
    /// full, because no cheap call reports whether its blocks are still shared. A file whose metadata cannot be read
    /// counts as 0.
    pub fn reclaimable_bytes(&self) -> u64 {
        let mut links: HashMap<(u64, u64), (u64, u64, u64)> = HashMap::new();
        for file in &self.record().files {
            let Ok(facts) = std::fs::symlink_metadata(self.file_path(&file.path)) else {
                continue;
            };
            let key = (facts.dev(), facts.ino());
            let (own, _, _) = links.entry(key).or_insert((0, facts.nlink(), facts.blocks()));
            *own += 1;
        }
        links
            .into_values()
            .filter(|(own, all, _)| own >= all)
            .fold(0, |sum, (_, _, blocks)| sum.saturating_add(blocks.saturating_mul(BLOCK_BYTES)))
    }

    /// Returns whether blocks of its files may be shared with the trainer's files.
    pub fn has_reflinks(&self) -> bool {
        let files = &self.record().files;
        files.iter().any(|file| file.method == SnapshotMethod::Reflink)
    }
}
