//! The entries of a checkpoint directory or single-file checkpoint, listed without following links.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;
use stepvault_core::config::LinkPolicy;
use stepvault_core::forecast::Taken;
use stepvault_core::keys::check_step_name;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{DirectoryEntry, MAX_ENTRIES, Shape, SymlinkEntry, check_link_target};
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{Error, ErrorKind, RelativePath, Result, Sha256Digest, Timestamp};

use crate::beneath::{Beneath, Facts, children, name_of};
use crate::errors::{self, IoAt as _};

const WHAT: &str = "cannot read the checkpoint";

/// A regular file, as reported by `stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// Path inside the checkpoint; for a single-file checkpoint its own name.
    pub path: RelativePath,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Time of the last change of the inode.
    pub ctime: Timestamp,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Bytes allocated on disk; fewer than the size where the file has holes.
    pub allocated_bytes: u64,
}

/// The entries of a checkpoint, each list sorted by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Directory or single file.
    pub shape: Shape,
    /// Regular files.
    pub files: Vec<TreeFile>,
    /// Directories, the checkpoint's own first (as `None`); empty for a single file.
    pub directories: Vec<DirectoryEntry>,
    /// Symbolic links, all of which stay inside.
    pub symlinks: Vec<SymlinkEntry>,
}

/// Lists everything at `root`, a directory or a regular file.
///
/// # Errors
/// `NotFound` when nothing is there; `SourceChanged` when an entry disappeared meanwhile; `Usage` for an entry that a
/// checkpoint cannot hold (sockets, FIFOs, devices, links that lead outside, names that are not UTF-8, …), naming it.
pub fn scan(root: &Path) -> Result<Tree> {
    scan_all(root, None)
}

fn scan_all(root: &Path, known: Option<&Tree>) -> Result<Tree> {
    let stat = rustix::fs::statat(CWD, root, AtFlags::SYMLINK_NOFOLLOW).at(WHAT, root)?;
    let facts = Facts::from(stat);
    match facts.kind {
        FileType::Directory => {
            let mut walk = Walk::new(root, Beneath::open(root).at(WHAT, root)?, known);
            walk.pending.push(None);
            walk.finish()
        }
        FileType::RegularFile => {
            let name = root.file_name().and_then(|name| name.to_str());
            let path = name.and_then(|name| RelativePath::new(name).ok());
            let path = path.ok_or_else(|| unsupported(root, "its name is not plain UTF-8", "rename it"))?;
            Ok(Tree {
                shape: Shape::File,
                files: vec![TreeFile::new(path, &facts)],
                directories: Vec::new(),
                symlinks: Vec::new(),
            })
        }
        FileType::Symlink => Err(unsupported(
            root,
            "it is a symbolic link",
            "give the directory or file that the link points to",
        )),
        kind => Err(unsupported(root, describe(kind), "give a directory or a regular file")),
    }
}

/// Like [`scan`], for a multi-path checkpoint: lists `members` below the directory `root` by their paths below `root`,
/// and the directories that lead to them. Without members it is all of `root`.
///
/// # Errors
/// As for [`scan`]; `SourceChanged` when a member no longer exists.
pub fn scan_members(root: &Path, members: &[RelativePath]) -> Result<Tree> {
    scan_again(root, members, None)
}

/// Like [`scan_members`]. The paths that `known` has too are shared with it, because a step may have very many.
pub(crate) fn scan_again(root: &Path, members: &[RelativePath], known: Option<&Tree>) -> Result<Tree> {
    if members.is_empty() {
        return scan_all(root, known);
    }
    // The root may be reached through a link: it is not part of the checkpoint.
    let mut walk = Walk::new(root, Beneath::open_following(root).at(WHAT, root)?, known);
    walk.enter(None)?;
    let above: BTreeSet<&str> = members.iter().flat_map(RelativePath::ancestors).collect();
    for path in above {
        walk.enter(Some(&RelativePath::new(path)?))?;
    }
    for member in members {
        walk.member(member)?;
    }
    walk.finish()
}

impl TreeFile {
    pub(crate) fn new(path: RelativePath, facts: &Facts) -> Self {
        Self {
            path,
            size_bytes: facts.size_bytes,
            mode: facts.mode,
            mtime: facts.mtime,
            ctime: facts.ctime,
            device: facts.device,
            inode: facts.inode,
            allocated_bytes: facts.allocated_bytes,
        }
    }

    /// Returns how this file differs from `later`, the file at the same path in a later scan.
    ///
    /// The inode change time does not count: creating a hard link changes it.
    fn change_until(&self, later: &Self) -> Option<String> {
        if self.size_bytes != later.size_bytes {
            let verb = if later.size_bytes > self.size_bytes { "grew" } else { "shrank" };
            return Some(format!(
                "{} {verb} from {} to {} bytes",
                self.path, self.size_bytes, later.size_bytes
            ));
        }
        if (self.inode, self.device) != (later.inode, later.device) {
            return Some(format!("{} was replaced by another file", self.path));
        }
        (self.mtime != later.mtime).then(|| format!("{} was written again", self.path))
    }
}

impl Tree {
    /// Returns a digest of names, sizes, modification times and inodes: equal as long as nothing was written.
    pub fn fingerprint(&self) -> Sha256Digest {
        let mut text = String::with_capacity(self.files.len() * 96);
        // Writing to a String cannot fail. Names contain no control characters, so a line feed ends each entry.
        for file in &self.files {
            let Timestamp { seconds, nanoseconds } = file.mtime;
            let _ =
                writeln!(text, "f {} {seconds}.{nanoseconds} {} {}", file.size_bytes, file.inode, file.path);
        }
        for directory in &self.directories {
            let _ = writeln!(text, "d {}", directory.path.as_ref().map_or("", RelativePath::as_str));
        }
        for link in &self.symlinks {
            let _ = writeln!(text, "l {}\n{}", link.path, link.target);
        }
        Sha256Digest::of(text.as_bytes())
    }

    /// Returns a digest of the [fingerprint](Self::fingerprint) and of the times at which the inodes last changed, which no
    /// program can set: equal only if the files are the same ones, and none was written, linked or renamed meanwhile.
    pub fn unchanged_sha256(&self) -> Sha256Digest {
        let mut text = self.fingerprint().to_string();
        for file in &self.files {
            let Timestamp { seconds, nanoseconds } = file.ctime;
            let _ = write!(text, " {seconds}.{nanoseconds}");
        }
        Sha256Digest::of(text.as_bytes())
    }

    /// Returns the entries that another directory lacks, except below what is no directory there.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let files = other.files.iter().map(|file| &file.path);
        let leaves: BTreeSet<&str> =
            (files.chain(other.symlinks.iter().map(|link| &link.path))).map(RelativePath::as_str).collect();
        let directories = other.directories.iter().filter_map(|directory| directory.path.as_ref());
        let known: BTreeSet<&str> = directories.map(RelativePath::as_str).collect();
        let is_missing = |path: &RelativePath| {
            let is_there = |path: &str| leaves.contains(path);
            !known.contains(path.as_str()) && !is_there(path.as_str()) && !path.ancestors().any(is_there)
        };
        let is_new = |directory: &&DirectoryEntry| directory.path.as_ref().is_some_and(is_missing);
        let symlinks = self.symlinks.iter().filter(|link| is_missing(&link.path));
        Self {
            shape: self.shape,
            files: (self.files.iter().filter(|file| is_missing(&file.path))).cloned().collect(),
            directories: self.directories.iter().filter(is_new).cloned().collect(),
            symlinks: symlinks.cloned().collect(),
        }
    }

    /// Returns this directory with further entries. It has none of them.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let mut whole = self.clone();
        whole.files.extend_from_slice(&other.files);
        whole.directories.extend_from_slice(&other.directories);
        whole.symlinks.extend_from_slice(&other.symlinks);
        whole.sort();
        whole
    }

    fn sort(&mut self) {
        self.files.sort_by(|one, next| one.path.cmp(&next.path));
        self.directories.sort_by(|one, next| one.path.cmp(&next.path));
        self.symlinks.sort_by(|one, next| one.path.cmp(&next.path));
    }

    /// Returns the file at a path.
    pub(crate) fn file(&self, path: &RelativePath) -> Option<&TreeFile> {
        let index = self.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
        self.files.get(index)
    }

    /// Returns the newest modification time of any file, or of the directories when there is no file.
    pub fn newest_mtime(&self) -> Timestamp {
        let files = self.files.iter().map(|file| file.mtime).max();
        files.or_else(|| self.directories.iter().map(|directory| directory.mtime).max()).unwrap_or_default()
    }

    /// Returns the disk space that the checkpoint takes.
    pub fn taken(&self) -> Taken {
        Taken {
            bytes: self.data_bytes(),
            files: (self.files.len() + self.symlinks.len()) as u64,
            directories: self.directories.len() as u64,
        }
    }

    /// Returns the number of bytes of all files.
    pub fn data_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes))
    }

    /// Returns the first difference from `later`, a scan of the same path, in words, or `None` when nothing was
    /// written.
    pub fn change_until(&self, later: &Self) -> Option<String> {
        if self.shape != later.shape {
            return Some("it changed from a file to a directory, or the reverse".to_owned());
        }
        changed(&self.files, &later.files, |file| Some(&file.path), TreeFile::change_until)
            .or_else(|| {
                changed(&self.directories, &later.directories, |entry| entry.path.as_ref(), |_, _| None)
            })
            .or_else(|| {
                changed(
                    &self.symlinks,
                    &later.symlinks,
                    |link| Some(&link.path),
                    |link, later| {
                        (link.target != later.target).then(|| format!("{} has a new target", link.path))
                    },
                )
            })
    }
}

/// Returns the first change between two lists that are sorted by path.
fn changed<T>(
    before: &[T],
    after: &[T],
    path: impl Fn(&T) -> Option<&RelativePath>,
    change: impl Fn(&T, &T) -> Option<String>,
) -> Option<String> {
    let name = |entry| path(entry).map_or(".", RelativePath::as_str).to_owned();
    for (old, new) in before.iter().zip(after) {
        match path(old).cmp(&path(new)) {
            Ordering::Less => return Some(format!("{} vanished", name(old))),
            Ordering::Greater => return Some(format!("{} appeared", name(new))),
            Ordering::Equal => {}
        }
        if let Some(text) = change(old, new) {
            return Some(text);
        }
    }
    let common = before.len().min(after.len());
    match (before.get(common), after.get(common)) {
        (Some(old), _) => Some(format!("{} vanished", name(old))),
        (None, Some(new)) => Some(format!("{} appeared", name(new))),
        (None, None) => None,
    }
}

/// Returns the error for a checkpoint that was written while it was read.
pub(crate) fn source_changed(what: &str, root: &Path, change: &str) -> Error {
    Error::at(ErrorKind::SourceChanged, what, root)
        .because(change)
        .hint("the trainer is still writing: seal the step when it is complete")
}

struct Walk<'a> {
    root: &'a Path,
    beneath: Beneath,
    known: Option<&'a Tree>,
    tree: Tree,
    pending: Vec<Option<RelativePath>>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Path, beneath: Beneath, known: Option<&'a Tree>) -> Self {
        let tree = Tree {
            shape: Shape::Directory,
            files: Vec::with_capacity(known.map_or(0, |known| known.files.len())),
            directories: Vec::new(),
            symlinks: Vec::new(),
        };
        Self { root, beneath, known, tree, pending: Vec::new() }
    }

    /// Visits the remaining directories and returns the sorted lists.
    fn finish(mut self) -> Result<Tree> {
        while let Some(next) = self.pending.pop() {
            self.visit(next.as_ref())?;
        }
        self.tree.sort();
        check_links(&self.tree.symlinks)?;
        Ok(self.tree)
    }

    fn place(&self, path: Option<&RelativePath>) -> PathBuf {
        path.map_or_else(|| self.root.to_path_buf(), |path| self.root.join(path))
    }

    /// Opens a directory and lists its own entry.
    fn enter(&mut self, path: Option<&RelativePath>) -> Result<OwnedFd> {
        let place = self.place(path);
        let descriptor =
            self.beneath.directory(path.map(RelativePath::as_str)).map_err(|error| fault(&place, error))?;
        let facts = Facts::from(rustix::fs::fstat(&descriptor).map_err(|error| fault(&place, error))?);
        self.tree.directories.push(DirectoryEntry {
            path: path.cloned(),
            mode: facts.mode,
            mtime: facts.mtime,
        });
        Ok(descriptor)
    }

    /// Lists one of the paths of a multi-path checkpoint.
    fn member(&mut self, path: &RelativePath) -> Result<()> {
        let place = self.root.join(path);
        let stat = self
            .beneath
            .parent_of(path)
            .and_then(|parent| rustix::fs::statat(parent, name_of(path), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(|error| fault(&place, error))?;
        let facts = Facts::from(stat);
        match facts.kind {
            FileType::RegularFile => self.tree.files.push(TreeFile::new(path.clone(), &facts)),
            FileType::Directory => self.pending.push(Some(path.clone())),
            FileType::Symlink => {
                let hint = "give the directory or file that the link points to";
                return Err(unsupported(&place, "it is a symbolic link", hint));
            }
            kind => {
                return Err(unsupported(&place, describe(kind), "move it out of the checkpoint"));
            }
        }
        Ok(())
    }

    fn visit(&mut self, path: Option<&RelativePath>) -> Result<()> {
        let place = self.place(path);
        let fault = |error: Errno| fault(&place, error);
        let descriptor = self.enter(path)?;
        for entry in children(&descriptor).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let child = child_of(path, &place, entry.file_name().to_bytes())?;
            let stat = rustix::fs::statat(&descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let facts = stat.map(Facts::from).map_err(|error| match error {
                Errno::NOENT => source_changed(WHAT, &self.root.join(&child), "it vanished meanwhile"),
                other => errors::io(WHAT, &self.root.join(&child), other),
            })?;
            match facts.kind {
                FileType::RegularFile => {
                    let known = self.known.and_then(|known| known.file(&child));
                    let path = known.map_or(child, |known| known.path.clone());
                    self.tree.files.push(TreeFile::new(path, &facts));
                }
                FileType::Directory => self.pending.push(Some(child)),
                FileType::Symlink => {
                    let target =
                        rustix::fs::readlinkat(&descriptor, entry.file_name(), Vec::new()).map_err(fault)?;
                    self.link(child, target.into_bytes())?;
                }
                kind => {
                    return Err(unsupported(
                        &self.root.join(&child),
                        describe(kind),
                        "move it out of the checkpoint",
                    ));
                }
            }
            self.check_bound()?;
        }
        Ok(())
    }

    fn link(&mut self, path: RelativePath, target: Vec<u8>) -> Result<()> {
        let place = self.root.join(&path);
        let target = String::from_utf8(target).map_err(|_| {
            unsupported(&place, "its target is not UTF-8", "replace the link with the file it points to")
        })?;
        check_link_target(&path, &target)?;
        self.tree.symlinks.push(SymlinkEntry { path, target });
        Ok(())
    }

    fn check_bound(&self) -> Result<()> {
        let tree = &self.tree;
        let entries = tree.files.len() + tree.directories.len() + tree.symlinks.len() + self.pending.len();
        if entries <= MAX_ENTRIES {
            return Ok(());
        }
        let why = format!("it has more than {MAX_ENTRIES} entries");
        Err(unsupported(
            self.root,
            &why,
            "give one checkpoint, not a directory of many; or write fewer files",
        ))
    }
}

fn fault(place: &Path, error: Errno) -> Error {
    match error {
        Errno::NOENT => source_changed(WHAT, place, "it vanished meanwhile"),
        // A link that no longer is one, or a directory that became a link or a file.
        Errno::INVAL | Errno::LOOP | Errno::NOTDIR => {
            source_changed(WHAT, place, "something else is at that path now")
        }
        other => errors::io(WHAT, place, other),
    }
}

/// Returns the path of an entry, or why it cannot be stored.
fn child_of(parent: Option<&RelativePath>, place: &Path, bytes: &[u8]) -> Result<RelativePath> {
    let Ok(name) = std::str::from_utf8(bytes) else {
        let name = String::from_utf8_lossy(bytes).into_owned();
        return Err(unsupported(&place.join(name), "its name is not UTF-8", "rename it"));
    };
    let path = parent.map_or_else(|| name.to_owned(), |parent| format!("{parent}/{name}"));
    RelativePath::new(path).map_err(|error| {
        let text = error.to_string();
        // The text after the last colon is the reason alone.
        unsupported(&place.join(name), text.rsplit(": ").next().unwrap_or_default(), "rename it")
    })
}

/// Returns the error for an entry that a checkpoint cannot hold.
#[expect(
    clippy::unnecessary_debug_formatting,
    reason = "a name may hold control characters, which quoting escapes"
)]
fn unsupported(path: &Path, why: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Usage, "cannot store this in a checkpoint")
        .on(format!("{path:?}"))
        .because(why)
        .hint(hint)
}

/// Describes an entry that is neither file, directory nor link.
fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "it is a FIFO",
        FileType::Socket => "it is a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "it is a device",
        _ => "it is not a regular file",
    }
}

// What a step is sealed from.

/// A checkpoint that a trainer wrote, from its discovery to its seal: where its files are, and what is stored with them.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The directory or file; the watched directory for a multi-path step.
    pub source: PathBuf,
    /// The paths below `source` that make up the step, in the order in which a restore must create them. Empty when the
    /// step is all of `source`.
    pub members: Vec<RelativePath>,
    /// The name that the step's directory or file has, or will have, where the trainer looks for it.
    pub name: String,
    /// Where its trainer keeps it, and what wrote it.
    pub origin: StepOrigin,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// How its files may be linked or copied into the vault.
    pub links: LinkPolicy,
    /// Whether the files stay where they are instead of being copied. For a caller that waits for the upload: the step
    /// exists only as long as the trainer leaves them alone.
    pub in_place: bool,
}

impl Checkpoint {
    /// Returns the checkpoint that is all of a directory or file, stored under this name. Its files may be hard links.
    pub fn of_path(source: &Path, name: impl Into<String>) -> Self {
        Self {
            source: source.to_owned(),
            members: Vec::new(),
            name: name.into(),
            origin: StepOrigin::default(),
            metrics: BTreeMap::new(),
            links: LinkPolicy::Auto,
            in_place: false,
        }
    }

    /// Returns the checkpoint at a path, to be stored under the path's own name.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a path without a name, or one that is not UTF-8.
    pub fn at(source: &Path) -> Result<Self> {
        let absolute = absolute(source)?;
        let fault = |why: &str| Error::at(ErrorKind::Usage, "cannot name the step", &absolute).because(why);
        let name = absolute.file_name();
        let name = name.ok_or_else(|| fault("the path has no last component"))?;
        let name = name.to_str().ok_or_else(|| fault("its name is not UTF-8"))?;
        check_step_name(name)?;
        Ok(Self::of_path(source, name))
    }

    /// Lists its files as they are now. Blocks.
    ///
    /// # Errors
    /// As for [`scan_members`].
    pub fn scan(&self) -> Result<Tree> {
        scan_members(&self.source, &self.members)
    }

    /// Like [`scan`](Self::scan). The paths that `known` has too are shared with it.
    pub(crate) fn scan_again(&self, known: Option<&Tree>) -> Result<Tree> {
        scan_again(&self.source, &self.members, known)
    }
}

/// Returns a path as an absolute one. Links stay.
///
/// # Errors
/// [`ErrorKind::Usage`] for an empty path.
pub fn absolute(source: &Path) -> Result<PathBuf> {
    std::path::absolute(source)
        .map_err(|error| Error::at(ErrorKind::Usage, "not a path", source).caused_by(error))
}
