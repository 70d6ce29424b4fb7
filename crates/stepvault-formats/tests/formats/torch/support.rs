//! Directories in memory with times, and helpers for the results of checks.

use std::collections::BTreeMap;
use std::io;

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::soundness::{Fault, Soundness, judged};
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

pub(super) use crate::support::{Counting, Fixture, Numbers, cuts};

/// A directory in memory: files by path, with their times in seconds.
#[derive(Default, Clone)]
pub(super) struct InMemory(pub(super) BTreeMap<String, (Vec<u8>, i64)>);

impl InMemory {
    /// Returns a directory of a fixture; its times are rounded but keep their order.
    pub(super) fn of(fixture: &Fixture, directory: &str) -> Self {
        let tree = fixture.tree.below(directory);
        let mut times: Vec<_> = tree.files().map(|(_, entry)| entry.mtime).collect();
        times.sort();
        times.dedup();
        let files = tree.files().map(|(path, entry)| {
            let bytes = fixture.read(&format!("{directory}/{path}"));
            let rank = times.binary_search(&entry.mtime).unwrap();
            (path.to_owned(), (bytes, i64::try_from(rank).unwrap()))
        });
        Self(files.collect())
    }

    pub(super) fn tree(&self) -> Tree {
        let entry = |(path, (bytes, seconds)): (&String, &(Vec<u8>, i64))| {
            let kind = EntryKind::File { size_bytes: bytes.len() as u64, allocated_bytes: None };
            let mtime = Timestamp::from_seconds(*seconds);
            (path.clone(), Entry { kind, mtime })
        };
        Tree::new(self.0.iter().map(entry).collect())
    }

    pub(super) fn bytes(&mut self, path: &str) -> &mut Vec<u8> {
        &mut self.0.get_mut(path).unwrap().0
    }
}

impl OpenFile for InMemory {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let (bytes, _) = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(bytes.clone()))
    }
}

pub(super) type Check = fn(&dyn ReadAt) -> Result<(), Fault>;

pub(super) fn verdict(check: Check, bytes: &[u8]) -> Soundness {
    judged(check(&bytes.to_vec())).unwrap()
}

/// Returns why a check reports bytes as broken.
#[track_caller]
pub(super) fn why_broken(check: Check, bytes: &[u8]) -> String {
    crate::support::why_broken(verdict(check, bytes))
}
