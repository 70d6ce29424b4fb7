//! Directories written by hand, one line per entry.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

/// A directory in memory. Entries are written one second after another; bytes read from files are counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    entries: BTreeMap<String, Entry>,
    contents: BTreeMap<String, Vec<u8>>,
    pub(crate) clock_seconds: i64,
    pub(crate) read_bytes: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new(lines: &[&str]) -> Self {
        let mut memory = Self::default();
        for line in lines {
            memory.write(line);
        }
        memory
    }

    /// Makes a file, or all below a directory, unreadable, as another user's are: their formats tell nothing.
    pub(crate) fn hide(mut self, hidden: &str) -> Self {
        self.contents.retain(|path, _| path != hidden && !path.starts_with(&format!("{hidden}/")));
        self
    }

    /// Writes `path`, `path = content`, `path -> target`, `path/` (a directory), `path =` (an empty file), `old >> new`
    /// (a rename) or `- path` (a removal), at the next second.
    pub(crate) fn write(&mut self, line: &str) {
        self.clock_seconds += 1;
        let mtime = Timestamp::from_seconds(self.clock_seconds);
        if let Some(path) = line.strip_prefix("- ") {
            self.entries.retain(|name, _| name != path && !name.starts_with(&format!("{path}/")));
            return;
        }
        if let Some((old, new)) = line.split_once(" >> ") {
            self.rename(old, new);
            return;
        }
        let (path, kind) = if let Some((path, target)) = line.split_once(" -> ") {
            let target = target.to_owned();
            (path, EntryKind::Symlink { target })
        } else if let Some(path) = line.strip_suffix('/') {
            (path, EntryKind::Directory)
        } else {
            let (path, content) = line.split_once(" =").unwrap_or((line, " content"));
            let content = content.strip_prefix(' ').unwrap_or(content);
            self.contents.insert(path.to_owned(), content.as_bytes().to_vec());
            let kind = EntryKind::File { size_bytes: content.len() as u64, allocated_bytes: None };
            (path, kind)
        };
        for (slash, _) in path.match_indices('/') {
            self.entries
                .entry(path[..slash].to_owned())
                .or_insert(Entry { kind: EntryKind::Directory, mtime });
        }
        self.entries.insert(path.to_owned(), Entry { kind, mtime });
    }

    /// Writes a file with these bytes, at the next second.
    pub(crate) fn write_bytes(&mut self, path: &str, bytes: &[u8]) {
        self.write(&format!("{path} ="));
        self.contents.insert(path.to_owned(), bytes.to_vec());
        if let Some(entry) = self.entries.get_mut(path) {
            entry.kind = EntryKind::File { size_bytes: bytes.len() as u64, allocated_bytes: None };
        }
    }

    fn rename(&mut self, old: &str, new: &str) {
        let moved: Vec<_> = self
            .entries
            .keys()
            .filter(|name| *name == old || name.starts_with(&format!("{old}/")))
            .cloned()
            .collect();
        assert!(!moved.is_empty(), "{old}");
        for name in moved {
            let renamed = name.replacen(old, new, 1);
            let entry = self.entries.remove(&name).unwrap();
            self.entries.insert(renamed.clone(), entry);
            if let Some(content) = self.contents.remove(&name) {
                self.contents.insert(renamed, content);
            }
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree::new(self.entries.clone())
    }

    /// Returns a time long after the last write.
    pub(crate) fn settled(&self) -> Timestamp {
        Timestamp::from_seconds(self.clock_seconds + 1_000_000)
    }
}

struct Counted(Vec<u8>, Arc<AtomicU64>);

impl ReadAt for Counted {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.1.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.0.read_exact_at(offset, buffer)
    }
}

impl OpenFile for Memory {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let content = self.contents.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Counted(content.clone(), Arc::clone(&self.read_bytes))))
    }
}
