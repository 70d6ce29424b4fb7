//! Real checkpoints on disk, damage, and a count of what a check reads.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::timestamp::Timestamp;
use stepvault_formats::soundness::{Fault, Soundness, judged};
use stepvault_formats::source::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};
use tempfile::TempDir;

/// A fixture, unpacked.
pub(super) struct Fixture {
    _directory: TempDir,
    pub(super) root: PathBuf,
}

impl Fixture {
    pub(super) fn unpack(name: &str) -> Self {
        let archives = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let archive = ["tar", "tar.gz"]
            .iter()
            .map(|ending| archives.join(format!("{name}.{ending}")))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no fixture {name}"));
        let directory = tempfile::tempdir().unwrap();
        let status = Command::new("tar")
            .arg("-xpf")
            .arg(archive)
            .arg("-C")
            .arg(directory.path())
            .status()
            .unwrap();
        assert!(status.success());
        let root = directory.path().join(name);
        Self {
            _directory: directory,
            root,
        }
    }

    pub(super) fn bytes(&self, path: &str) -> Vec<u8> {
        fs::read(self.root.join(path)).unwrap()
    }

    pub(super) fn tree(&self) -> Tree {
        let mut entries = BTreeMap::new();
        collect(&self.root, "", &mut entries);
        Tree::new(entries)
    }
}

fn collect(directory: &Path, prefix: &str, entries: &mut BTreeMap<String, Entry>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        let facts = fs::symlink_metadata(entry.path()).unwrap();
        let kind = if facts.is_dir() {
            collect(&entry.path(), &format!("{path}/"), entries);
            EntryKind::Directory
        } else if facts.is_symlink() {
            EntryKind::Symlink {
                target: fs::read_link(entry.path()).unwrap().to_str().unwrap().to_owned(),
            }
        } else {
            EntryKind::File {
                size_bytes: facts.len(),
                allocated_bytes: Some(facts.blocks() * 512),
            }
        };
        let mtime = Timestamp {
            seconds: facts.mtime(),
            nanoseconds: u32::try_from(facts.mtime_nsec()).unwrap(),
        };
        entries.insert(path, Entry { kind, mtime });
    }
}

/// The files of a directory on disk.
pub(super) struct OnDisk(pub(super) PathBuf);

impl OpenFile for OnDisk {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(DiskFile(fs::File::open(self.0.join(path))?)))
    }
}

struct DiskFile(fs::File);

impl ReadAt for DiskFile {
    fn size_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

/// A directory in memory: files by path, with their times in seconds.
#[derive(Default, Clone)]
pub(super) struct InMemory(pub(super) BTreeMap<String, (Vec<u8>, i64)>);

impl InMemory {
    /// A directory of a fixture, with the times in it rounded to their order.
    pub(super) fn of(fixture: &Fixture, directory: &str) -> Self {
        let tree = fixture.tree().below(directory);
        let mut times: Vec<_> = tree.files().map(|(_, entry)| entry.mtime).collect();
        times.sort();
        times.dedup();
        let files = tree.files().map(|(path, entry)| {
            let bytes = fixture.bytes(&format!("{directory}/{path}"));
            let rank = times.binary_search(&entry.mtime).unwrap();
            (path.to_owned(), (bytes, i64::try_from(rank).unwrap()))
        });
        Self(files.collect())
    }

    pub(super) fn tree(&self) -> Tree {
        let entry = |(path, (bytes, seconds)): (&String, &(Vec<u8>, i64))| {
            let kind = EntryKind::File {
                size_bytes: bytes.len() as u64,
                allocated_bytes: None,
            };
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

/// Counts what is read of a file.
pub(super) struct Counted<'a> {
    bytes: &'a [u8],
    pub(super) read_bytes: AtomicU64,
}

impl<'a> Counted<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            read_bytes: AtomicU64::new(0),
        }
    }
}

impl ReadAt for Counted<'_> {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.bytes.read_exact_at(offset, buffer)
    }
}

pub(super) type Check = fn(&dyn ReadAt) -> Result<(), Fault>;

pub(super) fn verdict(check: Check, bytes: &[u8]) -> Soundness {
    judged(check(&bytes.to_vec())).unwrap()
}

/// Why a check says that bytes are broken.
#[track_caller]
pub(super) fn why_broken(check: Check, bytes: &[u8]) -> String {
    match verdict(check, bytes) {
        Soundness::Broken { why, .. } => why,
        other => panic!("not broken: {other:?}"),
    }
}

/// The same numbers in every run.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }
}

/// Lengths to cut a file of `size` bytes to: the given ones, those one byte around them, and 200 others.
pub(super) fn cuts(size: usize, boundaries: &[usize], seed: u64) -> Vec<usize> {
    let mut numbers = Numbers::new(seed);
    let mut cuts: Vec<usize> = boundaries
        .iter()
        .flat_map(|at| [at.saturating_sub(1), *at, at + 1])
        .chain((0..200).map(|_| numbers.below(size)))
        .filter(|at| *at < size)
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
