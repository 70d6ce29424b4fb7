//! Checkpoints to work on and words to say what one expects.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use stepvault_core::digest::PartDigest;
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::manifest::{FileEntry, PartManifest, Shape};
use stepvault_core::nodes::Writer;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, Result};
use stepvault_local::seal::{SealRequest, seal};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{self, Checkpoint};
use stepvault_local::vault::Vault;

/// A directory with a vault and a place for a trainer's checkpoints.
pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) vault: Vault,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    pub(crate) fn within(parent: &Path) -> Self {
        let directory = tempfile::tempdir_in(parent).unwrap();
        // Some tests take the umask of this process away, and a vault is not opened where everybody could replace it.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let vault = Vault::open_or_create(&directory.path().join("vault")).unwrap();
        Self { directory, vault }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A checkpoint directory with nested files, an empty directory, an empty file and a link.
    pub(crate) fn checkpoint(&self, name: &str) -> PathBuf {
        let root = self.at("run").join(name);
        fs::create_dir_all(root.join("trainer/empty")).unwrap();
        fs::write(root.join("trainer/__0_0.distcp"), vec![7_u8; 100_000]).unwrap();
        fs::write(root.join("trainer/.metadata"), format!("metadata of {name}")).unwrap();
        fs::write(root.join("zero"), "").unwrap();
        fs::set_permissions(root.join("zero"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("trainer/.metadata", root.join("link")).unwrap();
        root
    }

    pub(crate) fn request(&self, name: &str, step: u64) -> SealRequest {
        SealRequest {
            run: run(),
            attempt: stepvault_local::seal_record::AttemptOrigin::default(),
            id: id(step),
            writer: Writer::single_node(NodeName::new("node-0").unwrap()),
            checkpoint: Checkpoint::of_path(&self.at("run").join(name), name),
            digest: stepvault_core::digest::DigestAlgorithm::Sha256,
            expected: None,
            completes: None,
        }
    }

    /// Seals a fresh checkpoint called `step_<step>`.
    pub(crate) fn sealed(&self, step: u64) -> SealedStep {
        let name = format!("step_{step}");
        self.checkpoint(&name);
        seal(&self.vault, &self.request(&name, step)).unwrap().step
    }

    /// What an interrupted or failed operation may leave: nothing.
    pub(crate) fn assert_no_leftovers(&self) {
        for area in ["staging", "trash"] {
            let path = self.vault.root().join(area);
            assert!(!path.exists() || names(&path).is_empty(), "{} holds {:?}", path.display(), names(&path));
        }
    }
}

pub(crate) fn run() -> RunName {
    RunName::new("grpo/checkpoints").unwrap()
}

pub(crate) fn id(step: u64) -> StepId {
    StepId::new(Attempt::FIRST, Step::new(step).unwrap())
}

pub(crate) fn remote() -> RemoteName {
    RemoteName::new("bucket").unwrap()
}

pub(crate) fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The error, which there must be.
pub(crate) fn error<T>(result: Result<T>) -> Error {
    result.err().expect("an error")
}

/// The manifest entry of a file on disk.
pub(crate) fn entry(root: &Path, relative: &str) -> FileEntry {
    let bytes = fs::read(root.join(relative)).unwrap();
    let cut = FileParts::of(bytes.len() as u64).unwrap();
    let range = |index| {
        let range = cut.range(index);
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    };
    let parts: Vec<_> = (0..cut.count()).map(|index| PartDigest::of(&bytes[range(index)])).collect();
    let facts = tree::scan(&root.join(relative)).unwrap().files.remove(0);
    FileEntry::from_parts(path(relative), facts.mode, facts.mtime, &parts).unwrap()
}

/// The manifest of a checkpoint directory.
pub(crate) fn manifest(root: &Path, step: u64) -> PartManifest {
    let tree = tree::scan(root).unwrap();
    PartManifest {
        format: 1,
        digest: stepvault_core::digest::DigestAlgorithm::Sha256,
        run: run(),
        id: id(step),
        node: NodeName::new("node-0").unwrap(),
        name: root.file_name().unwrap().to_str().unwrap().to_owned(),
        shape: Shape::Directory,
        written_at: tree.newest_mtime(),
        metrics: BTreeMap::new(),
        shared_tree_sha256: None,
        files: tree.files.iter().map(|file| entry(root, file.path.as_str())).collect(),
        directories: tree.directories,
        symlinks: tree.symlinks,
        imported: None,
        members: Vec::new(),
        origin: stepvault_core::step_origin::StepOrigin::default(),
    }
}

/// Tells another thread to stop, also when a test fails in between.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A small filesystem in memory, gone when dropped.
pub(crate) struct Mount(pub(crate) tempfile::TempDir);

impl Mount {
    /// `None`, with a message, where this process may not mount.
    pub(crate) fn tmpfs(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(directory.path())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(directory));
        }
        eprintln!("skipped: this process may not mount a tmpfs");
        None
    }

    pub(crate) fn remount(&self, options: &str) {
        let done = Command::new("mount").args(["-o", options]).arg(self.0.path()).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(self.0.path()).status();
    }
}
