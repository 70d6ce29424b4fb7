//! A checkpoint in memory that tests can damage.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::soundness::{Fault, Soundness, judged};
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

use crate::directory::archive::Fixture;
use crate::support::Numbers;

/// Files and directories by path, with the number of bytes that were read.
#[derive(Clone, Default)]
pub(crate) struct Checkpoint {
    pub(crate) files: BTreeMap<String, Arc<Vec<u8>>>,
    directories: BTreeSet<String>,
    read_bytes: Arc<AtomicU64>,
}

impl Checkpoint {
    /// Returns a real checkpoint, by the name of its archive without ending.
    pub(crate) fn fixture(name: &str) -> Self {
        let mut checkpoint = Self::default();
        checkpoint.load(&Fixture::unpack(name).root, "");
        checkpoint
    }

    fn load(&mut self, directory: &Path, prefix: &str) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                self.load(&entry.path(), &format!("{path}/"));
                self.directories.insert(path);
            } else {
                self.set(&path, std::fs::read(entry.path()).unwrap());
            }
        }
    }

    /// Adds a file, with its parent directories.
    pub(crate) fn set(&mut self, path: &str, bytes: Vec<u8>) {
        for (end, _) in path.match_indices('/') {
            self.directories.insert(path[..end].to_owned());
        }
        self.files.insert(path.to_owned(), Arc::new(bytes));
    }

    /// Returns a copy with this file.
    pub(crate) fn with(&self, path: &str, bytes: &[u8]) -> Self {
        let mut other = self.clone();
        other.set(path, bytes.to_vec());
        other
    }

    /// Returns a copy without this file.
    pub(crate) fn without(&self, path: &str) -> Self {
        let mut other = self.clone();
        assert!(other.files.remove(path).is_some(), "{path}");
        other
    }

    /// Returns the only file below `directory` whose path contains `part`.
    pub(crate) fn only(&self, directory: &str, part: &str) -> String {
        let prefix = format!("{directory}/");
        let mut found = self
            .files
            .keys()
            .filter(|path| path.strip_prefix(&prefix).is_some_and(|rest| rest.contains(part)));
        let path = found.next().unwrap().clone();
        assert_eq!(found.next(), None);
        path
    }

    pub(crate) fn tree(&self) -> Tree {
        let mtime = Timestamp::from_seconds(0);
        let directories = self.directories.iter().map(|path| {
            let kind = EntryKind::Directory;
            (path.clone(), Entry { kind, mtime })
        });
        let files = self.files.iter().map(|(path, bytes)| {
            let kind = EntryKind::File { size_bytes: bytes.len() as u64, allocated_bytes: None };
            (path.clone(), Entry { kind, mtime })
        });
        Tree::new(directories.chain(files).collect())
    }

    /// Returns the result of a check of one of its directories.
    pub(crate) fn judge(
        &self,
        check: impl Fn(&Tree, &str, &dyn OpenFile) -> Result<(), Fault>,
        directory: &str,
    ) -> Soundness {
        judged(check(&self.tree(), directory, self)).unwrap()
    }

    /// Returns the total size of its files.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Returns how many bytes checks have read of it and of its copies.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

impl OpenFile for Checkpoint {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let bytes = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Counted { bytes: Arc::clone(bytes), read_bytes: Arc::clone(&self.read_bytes) }))
    }
}

struct Counted {
    bytes: Arc<Vec<u8>>,
    read_bytes: Arc<AtomicU64>,
}

impl ReadAt for Counted {
    fn size_bytes(&self) -> u64 {
        self.bytes.size_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.bytes.read_exact_at(offset, buffer)
    }
}

/// Returns the same numbers on every run.
pub(crate) fn scattered(count: usize, below: usize) -> impl Iterator<Item = usize> {
    let mut numbers = Numbers::new(0);
    std::iter::repeat_with(move || numbers.below(below.max(1))).take(count)
}

pub(crate) fn is_broken(soundness: &Soundness) -> bool {
    matches!(soundness, Soundness::Broken { .. })
}

/// Returns the fault, or that there is none.
pub(crate) fn why(soundness: Soundness) -> String {
    match soundness {
        Soundness::Sound => "sound".to_owned(),
        Soundness::Broken { why, .. } => why,
        Soundness::Unknown { why } => format!("unknown: {why}"),
    }
}
