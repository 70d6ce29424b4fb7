//! The archives of real checkpoints, unpacked, as trees.

use std::collections::BTreeMap;
use std::fs::{File, read_dir, read_link, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::tree::ReadAt;
use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};
use tempfile::TempDir;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Returns the entry of each fixture in `MANIFEST.json`.
pub(crate) fn manifest() -> Vec<Value> {
    let bytes = std::fs::read(directory().join("MANIFEST.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&bytes).unwrap();
    manifest["fixtures"].as_array().unwrap().clone()
}

/// A fixture, unpacked for as long as this value lives. Opens its files.
pub(crate) struct Fixture {
    pub(crate) root: PathBuf,
    pub(crate) tree: Tree,
    _directory: TempDir,
}

impl Fixture {
    /// Unpacks a fixture, by the name of its archive without ending.
    pub(crate) fn unpack(name: &str) -> Self {
        let archive = ["tar", "tar.gz"]
            .map(|ending| directory().join(format!("{name}.{ending}")))
            .into_iter()
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("no fixture {name}"));
        let unpacked = tempfile::tempdir().unwrap();
        // Sub-second times are in extended headers, which GNU tar reads.
        let status = Command::new("tar")
            .args(["--extract", "--preserve-permissions", "--no-same-owner", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(unpacked.path())
            .status()
            .expect("tar runs");
        assert!(status.success());
        let root = unpacked.path().join(name);
        Self { tree: scan(&root), root, _directory: unpacked }
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.root.join(path)).unwrap()
    }

    /// Returns the paths of its regular files, relative to its root, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        self.tree.files().map(|(path, _)| path.to_owned()).collect()
    }
}

/// Reads a directory on disk as a tree.
pub(crate) fn scan(root: &Path) -> Tree {
    let mut entries = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = symlink_metadata(&path).unwrap();
            let kind = if metadata.is_symlink() {
                EntryKind::Symlink { target: read_link(&path).unwrap().to_str().unwrap().to_owned() }
            } else if metadata.is_dir() {
                pending.push(path.clone());
                EntryKind::Directory
            } else {
                EntryKind::File { size_bytes: metadata.len(), allocated_bytes: Some(metadata.blocks() * 512) }
            };
            let mtime = Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap(),
            };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            entries.insert(name, Entry { kind, mtime });
        }
    }
    Tree::new(entries)
}

struct OnDisk(File, u64);

impl ReadAt for OnDisk {
    fn size_bytes(&self) -> u64 {
        self.1
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

impl OpenFile for Fixture {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let file = File::open(self.root.join(path))?;
        let size_bytes = file.metadata()?.len();
        Ok(Box::new(OnDisk(file, size_bytes)))
    }
}
