//! Files in memory, for tests.

use std::collections::BTreeMap;
use std::io;

use stepvault_core::timestamp::Timestamp;

use crate::tree::{Entry, EntryKind, OpenFile, ReadAt, Tree};

/// Files by path.
#[derive(Debug, Default)]
pub(crate) struct Files(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files {
    /// Returns the files and their parent directories.
    pub(crate) fn tree(&self) -> Tree {
        let entry = |kind| Entry { kind, mtime: Timestamp::from_seconds(0) };
        let mut entries = BTreeMap::new();
        for (path, bytes) in &self.0 {
            for (end, _) in path.match_indices('/') {
                entries.insert(path[..end].to_owned(), entry(EntryKind::Directory));
            }
            let size_bytes = bytes.len() as u64;
            let allocated_bytes = None;
            entries.insert(path.clone(), entry(EntryKind::File { size_bytes, allocated_bytes }));
        }
        Tree::new(entries)
    }
}

impl OpenFile for Files {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(self.0.get(path).ok_or(io::ErrorKind::NotFound)?.clone()))
    }
}
