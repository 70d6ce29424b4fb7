//! Trees of files: written, read, copied and compared.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Room that a filesystem in memory must have for a temporary directory to be on it.
const ROOM_IN_MEMORY_BYTES: u64 = 4 << 30;

/// Returns a temporary directory for files whose bytes need not survive a power cut: in memory, where syncing takes no
/// time, if there is room, else on the disk.
pub fn fast_directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let has_room = rustix::fs::statvfs(memory)
        .is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) >= ROOM_IN_MEMORY_BYTES);
    let in_memory = has_room.then(|| tempfile::tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Files by their path, with their modes and bytes.
pub type FileTree = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// Writes a tree below `root`.
pub fn write_tree(root: &Path, tree: &FileTree) {
    for (path, (mode, bytes)) in tree {
        let path = root.join(path);
        write(&path, bytes);
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
    }
}

/// Reads the files below `root`, which may be missing.
pub fn read_tree(root: &Path) -> FileTree {
    let read = |path: PathBuf| {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        let name = path.strip_prefix(root).unwrap().to_owned();
        (name, (mode, fs::read(path).unwrap()))
    };
    files_below(root).into_iter().map(read).collect()
}

/// Writes a file, and the directories above it.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Returns everything below a directory that is no directory itself, sorted; nothing if it is missing.
pub fn files_below(root: &Path) -> Vec<PathBuf> {
    let (files, _) = entries_below(root).into_iter().partition(|path| !is_directory(path));
    files
}

/// Returns every path below a directory, sorted; nothing if it is missing.
pub fn entries_below(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if is_directory(&path) {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// Returns the names in a directory, sorted.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Copies a file or a directory with modes, times and links.
///
/// In another process: a file that is open for writing here while a test starts a process could not be run.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let status = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success(), "cannot copy {}", from.display());
}

/// Removes a file or a directory, if it is there.
pub fn remove(path: &Path) {
    let removed = if is_directory(path) { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
        _ => {}
    }
}

/// Sets the mode of a file or directory.
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An entry of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A file.
    File {
        /// Its size.
        size_bytes: u64,
        /// The SHA-256 of its bytes.
        sha256: String,
        /// The nine bits of its permissions.
        mode: u32,
        /// When it was modified.
        mtime_nanoseconds: i128,
    },
    /// A directory.
    Directory {
        /// The nine bits of its permissions.
        mode: u32,
        /// When it was modified.
        mtime_nanoseconds: i128,
    },
    /// A symbolic link.
    Symlink {
        /// The path it points to.
        target: PathBuf,
    },
    /// A FIFO, a socket or a device.
    Other,
}

impl Entry {
    /// Returns the digest of a file.
    pub fn sha256(&self) -> Option<&str> {
        match self {
            Self::File { sha256, .. } => Some(sha256),
            _ => None,
        }
    }
}

/// Everything that a restore must reproduce, by path; the root's own path is empty.
pub type Snapshot = BTreeMap<PathBuf, Entry>;

/// Takes a snapshot of `root`, a directory or a file.
pub fn snapshot(root: &Path) -> Snapshot {
    let mut all = vec![root.to_owned()];
    if is_directory(root) {
        all.extend(entries_below(root));
    }
    all.into_iter().map(|path| (path.strip_prefix(root).unwrap().to_owned(), entry(&path))).collect()
}

/// Returns the number of files in a snapshot, and of their bytes.
pub fn totals(snapshot: &Snapshot) -> (u64, u64) {
    let sizes = snapshot.values().filter_map(|entry| match entry {
        Entry::File { size_bytes, .. } => Some(*size_bytes),
        _ => None,
    });
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}

fn entry(path: &Path) -> Entry {
    let metadata = path.symlink_metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mode = metadata.mode() & 0o777;
    let mtime_nanoseconds = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    if metadata.is_symlink() {
        let target = fs::read_link(path).unwrap();
        Entry::Symlink { target }
    } else if metadata.is_dir() {
        Entry::Directory { mode, mtime_nanoseconds }
    } else if metadata.is_file() {
        Entry::File {
            size_bytes: metadata.size(),
            sha256: sha256(&fs::read(path).unwrap()),
            mode,
            mtime_nanoseconds,
        }
    } else {
        Entry::Other
    }
}

/// Returns the SHA-256 of bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(bytes);
    digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
