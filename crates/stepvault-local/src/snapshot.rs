//! Takes snapshots of single files into the vault: reflink, else hard link, else copy.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;
use stepvault_core::{Error, ErrorKind, RelativePath, Result};

use crate::beneath::{Beneath, Facts, name_of, times};
use crate::errors::{self, IoAt as _};
use crate::holes;
use crate::seal_record::{SealedFile, SnapshotMethod};
use crate::tree::{Tree, TreeFile, source_changed};
use stepvault_core::config::LinkPolicy;

pub(crate) const WHAT: &str = "cannot seal the step";

/// A file of several file parts that is being copied into the vault. Nothing of it is sealed yet, and the seal may fail.
#[derive(Debug, Clone)]
pub struct CopiedFile {
    /// Where the copy is until the seal ends.
    pub place: PathBuf,
    /// The copy as a seal record will describe it, but for its holes.
    pub file: SealedFile,
    /// What can be read of it from its beginning. All of it has its mode and its time as well.
    pub copied_bytes: u64,
}

/// Is told of each file that is being copied, whenever a part of it was.
pub type OnCopied<'a> = &'a mut dyn FnMut(&CopiedFile);

/// Takes snapshots of the files of one checkpoint, remembering what the filesystems support.
pub(crate) struct Snapshot<'a> {
    /// The trainer's directory, for messages.
    source_path: &'a Path,
    source: Beneath,
    target_path: &'a Path,
    target: Beneath,
    methods: Methods,
    /// Bytes still to come, checked against the free space when the first file needs a copy.
    remaining_bytes: u64,
    space_checked: bool,
    /// Whether files that no reflink can stand for are copied on every filesystem.
    is_always_copied: bool,
    parents: Option<Parents>,
    on_copied: Option<OnCopied<'a>>,
}

/// Facts about a file in the vault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshotted {
    pub(crate) method: SnapshotMethod,
    pub(crate) hole_bytes: u64,
}

/// By the path of each file in the checkpoint.
pub(crate) type SnapshottedFiles = BTreeMap<RelativePath, Snapshotted>;

/// Methods that are allowed and have not failed yet.
struct Methods {
    reflink: bool,
    hard_link: bool,
    copy: bool,
}

/// The two directories of the last file, cached because the next file is mostly in the same one.
struct Parents {
    path: String,
    source: OwnedFd,
    target: OwnedFd,
}

impl<'a> Snapshot<'a> {
    /// Creates a snapshot from the directory `source` into the directory `target`.
    pub(crate) fn new(source: &'a Path, target: &'a Path, policy: LinkPolicy, tree: &Tree) -> Result<Self> {
        Ok(Self {
            source_path: source,
            // The scan has refused a checkpoint that is itself a link, but the directory of a single file may be one.
            source: Beneath::open_following(source).map_err(|error| fault(source, error))?,
            target_path: target,
            target: Beneath::open(target).at(WHAT, target)?,
            methods: Methods {
                reflink: policy != LinkPolicy::Copy,
                hard_link: policy == LinkPolicy::Auto,
                copy: true,
            },
            remaining_bytes: tree.files.iter().map(room_bytes).fold(0, u64::saturating_add),
            space_checked: false,
            is_always_copied: policy != LinkPolicy::Auto,
            parents: None,
            on_copied: None,
        })
    }

    /// Makes it fail for a file that would have to be copied.
    pub(crate) fn without_copies(mut self) -> Self {
        self.methods.copy = false;
        self
    }

    /// Makes it report what it copies.
    pub(crate) fn reporting_to(mut self, on_copied: OnCopied<'a>) -> Self {
        self.on_copied = Some(on_copied);
        self
    }

    /// Takes a snapshot of all entries, of which the target has none; a single file gets `own_name`.
    pub(crate) fn take_all(
        &mut self,
        tree: &Tree,
        own_name: Option<&RelativePath>,
    ) -> Result<SnapshottedFiles> {
        let directories = tree.directories.iter();
        for path in directories.filter_map(|directory| directory.path.as_ref()) {
            self.create_directory(path)?;
        }
        let take = |file: &TreeFile| {
            let snapshotted = self.take(file, own_name.unwrap_or(&file.path))?;
            Ok((file.path.clone(), snapshotted))
        };
        let snapshotted = tree.files.iter().map(take).collect::<Result<_>>()?;
        for link in &tree.symlinks {
            self.link(&link.path, &link.target)?;
        }
        Ok(snapshotted)
    }

    /// Creates the directories that contain `path`. They arrive in path order.
    fn create_directory(&self, path: &RelativePath) -> Result<()> {
        self.target
            .parent_of(path)
            .and_then(|parent| rustix::fs::mkdirat(parent, name_of(path), Mode::from_raw_mode(0o700)))
            .at(WHAT, &self.target_path.join(path))
    }

    /// Creates a symbolic link.
    fn link(&self, path: &RelativePath, target: &str) -> Result<()> {
        self.target
            .parent_of(path)
            .and_then(|parent| rustix::fs::symlinkat(target, parent, name_of(path)))
            .at(WHAT, &self.target_path.join(path))
    }

    /// Takes a snapshot of one file to `path` below the target.
    fn take(&mut self, file: &TreeFile, path: &RelativePath) -> Result<Snapshotted> {
        let parent = file.path.ancestors().last().unwrap_or("");
        let parents = match self.parents.take() {
            Some(parents) if parents.path == parent => parents,
            _ => self.open_parents(&file.path, path, parent)?,
        };
        let method = self.take_into(file, path, &parents)?;
        let hole_bytes = hole_bytes(parents.source.as_fd(), file, &self.source_path.join(&file.path))?;
        self.parents = Some(parents);
        self.remaining_bytes = self.remaining_bytes.saturating_sub(room_bytes(file));
        Ok(Snapshotted { method, hole_bytes })
    }

    fn open_parents(&self, source: &RelativePath, target: &RelativePath, path: &str) -> Result<Parents> {
        let place = self.source_path.join(source);
        Ok(Parents {
            path: path.to_owned(),
            source: self.source.parent_of(source).map_err(|error| fault(&place, error))?,
            target: self.target.parent_of(target).at(WHAT, &place)?,
        })
    }

    fn take_into(
        &mut self,
        file: &TreeFile,
        path: &RelativePath,
        parents: &Parents,
    ) -> Result<SnapshotMethod> {
        let (place, name) = (self.source_path.join(&file.path), name_of(path));
        if self.methods.reflink {
            let source = open_source(parents.source.as_fd(), file, &place)?;
            let target = create_target(parents.target.as_fd(), name, &place)?;
            match rustix::fs::ioctl_ficlone(&target, &source) {
                Ok(()) => return finish_target(&target, file, &place).map(|()| SnapshotMethod::Reflink),
                Err(error) if is_space(error) => return Err(errors::io(WHAT, &place, error)),
                // Another filesystem, or one without reflinks: the next file would fail as well.
                Err(_) => self.methods.reflink = false,
            }
            if !self.methods.hard_link {
                return self.copy(&source, &target, file, path, &place);
            }
            rustix::fs::unlinkat(&parents.target, name, AtFlags::empty()).at(WHAT, &place)?;
        }
        if self.methods.hard_link {
            let linked = rustix::fs::linkat(
                &parents.source,
                name_of(&file.path),
                &parents.target,
                name,
                AtFlags::empty(),
            );
            match linked {
                Ok(()) => return Ok(SnapshotMethod::HardLink),
                Err(error) if is_space(error) || error == Errno::NOENT => return Err(fault(&place, error)),
                // This file has reached its maximum number of links.
                Err(Errno::MLINK) => {}
                // Another filesystem, or files of another user, which the kernel does not let us link.
                Err(_) => self.methods.hard_link = false,
            }
        }
        let source = open_source(parents.source.as_fd(), file, &place)?;
        let target = create_target(parents.target.as_fd(), name, &place)?;
        self.copy(&source, &target, file, path, &place)
    }

    fn copy(
        &mut self,
        source: &File,
        target: &File,
        file: &TreeFile,
        path: &RelativePath,
        place: &Path,
    ) -> Result<SnapshotMethod> {
        if !self.methods.copy {
            return Err(Error::at(ErrorKind::Usage, WHAT, place)
                .because("it can be neither a reflink nor a hard link"));
        }
        if !self.space_checked {
            self.check_space(target, place)?;
        }
        let mut unfinished = (file.size_bytes > MINIMUM_PART_SIZE_BYTES)
            .then(|| CopiedFile::new(target, file, path, self.target_path.join(path)))
            .transpose()
            .at(WHAT, place)?;
        let mut report = |copied_bytes| {
            if let (Some(copy), Some(on_copied)) = (&mut unfinished, &mut self.on_copied) {
                copy.copied_bytes = copied_bytes;
                on_copied(copy);
            }
        };
        // The end of the file is reported when it has its mode and its time.
        let mut on_part = |copied_bytes| {
            if copied_bytes < file.size_bytes {
                report(copied_bytes);
            }
        };
        let copied = if holes::may_have_holes(file.size_bytes, file.allocated_bytes) {
            holes::copy_around_holes(source, target, file.size_bytes, &mut on_part)
        } else {
            holes::copy_piece(source, target, 0..u64::MAX, &mut on_part)
        };
        let copied = copied.at(WHAT, place)?;
        if copied != file.size_bytes {
            let change = format!("it had {} bytes and {copied} were read", file.size_bytes);
            return Err(source_changed(WHAT, place, &change));
        }
        finish_target(target, file, place)?;
        report(copied);
        Ok(SnapshotMethod::Copy)
    }

    fn no_space_hint(&self) -> &'static str {
        if self.is_always_copied {
            "free some space, or push the step: `stepvault push` reads the files where they are"
        } else {
            "free some space, or put the vault on the checkpoints' own filesystem, where files are linked"
        }
    }

    /// Fails early instead of filling the disk that the trainer writes to.
    fn check_space(&mut self, target: &File, place: &Path) -> Result<()> {
        self.space_checked = true;
        let facts = rustix::fs::fstatvfs(target).at(WHAT, place)?;
        let free_bytes = facts.f_bavail.saturating_mul(facts.f_frsize);
        if free_bytes >= self.remaining_bytes {
            return Ok(());
        }
        Err(Error::at(ErrorKind::NoSpace, WHAT, self.source_path)
            .because(format!("a copy takes {} more bytes, but {free_bytes} are free", self.remaining_bytes))
            .hint(self.no_space_hint()))
    }
}

impl CopiedFile {
    fn new(target: &File, file: &TreeFile, path: &RelativePath, place: PathBuf) -> rustix::io::Result<Self> {
        let file = SealedFile {
            path: path.clone(),
            size_bytes: file.size_bytes,
            mode: file.mode,
            mtime: file.mtime,
            method: SnapshotMethod::Copy,
            inode: Facts::from(rustix::fs::fstat(target)?).inode,
            hole_bytes: 0,
        };
        Ok(Self { place, file, copied_bytes: 0 })
    }

    /// Whether this is what was sealed as `file`.
    pub fn is_sealed_as(&self, file: &SealedFile) -> bool {
        self.file == SealedFile { hole_bytes: 0, ..file.clone() }
    }
}

/// Takes all files of the directory `source` as they are, where they are.
pub(crate) fn take_in_place(source: &Path, tree: &Tree) -> Result<SnapshottedFiles> {
    let root = Beneath::open_following(source).map_err(|error| fault(source, error))?;
    let take = |file: &TreeFile| {
        let place = source.join(&file.path);
        let parent = root.parent_of(&file.path).map_err(|error| fault(&place, error))?;
        let hole_bytes = hole_bytes(parent.as_fd(), file, &place)?;
        Ok((file.path.clone(), Snapshotted { method: SnapshotMethod::InPlace, hole_bytes }))
    };
    tree.files.iter().map(take).collect()
}

fn hole_bytes(parent: BorrowedFd<'_>, file: &TreeFile, place: &Path) -> Result<u64> {
    if !holes::may_have_holes(file.size_bytes, file.allocated_bytes) {
        return Ok(0);
    }
    let source = open_source(parent, file, place)?;
    holes::hole_bytes(&source, file.size_bytes).map_err(|error| fault(place, error))
}

/// Returns the error for the trainer's file. A missing file counts as changed.
pub(crate) fn fault(place: &Path, error: Errno) -> Error {
    match error {
        Errno::NOENT => source_changed(WHAT, place, "it vanished while the step was sealed"),
        Errno::LOOP | Errno::NOTDIR => source_changed(WHAT, place, "something else is at that path now"),
        other => errors::io(WHAT, place, other),
    }
}

/// Returns the disk space that a copy of a file takes: holes take none.
fn room_bytes(file: &TreeFile) -> u64 {
    if holes::may_have_holes(file.size_bytes, file.allocated_bytes) {
        file.allocated_bytes
    } else {
        file.size_bytes
    }
}

fn is_space(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS)
}

fn open_source(parent: BorrowedFd<'_>, file: &TreeFile, place: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(parent, name_of(&file.path), flags, Mode::empty())
        .map_err(|error| fault(place, error))?;
    let facts = Facts::from(rustix::fs::fstat(&descriptor).map_err(|error| fault(place, error))?);
    if facts.kind != FileType::RegularFile || (facts.device, facts.inode) != (file.device, file.inode) {
        return Err(source_changed(WHAT, place, "it was replaced while the step was sealed"));
    }
    Ok(File::from(descriptor))
}

fn create_target(parent: BorrowedFd<'_>, name: &str, place: &Path) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600));
    descriptor.map(File::from).at(WHAT, place)
}

/// Sets mode and time as the trainer had them, but always readable and writable for the vault's owner.
fn finish_target(target: &File, file: &TreeFile, place: &Path) -> Result<()> {
    rustix::fs::fchmod(target, Mode::from_raw_mode(file.mode | 0o600))
        .and_then(|()| rustix::fs::futimens(target, &times(file.mtime)))
        .at(WHAT, place)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_is_named_in_full() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("target"));
        for directory in [&source, &target] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(target.join("taken"), "").unwrap();
        let snapshot =
            Snapshot::new(&source, &target, LinkPolicy::Auto, &crate::tree::scan(&source).unwrap()).unwrap();
        let path = RelativePath::new("taken").unwrap();
        for outcome in [snapshot.create_directory(&path), snapshot.link(&path, "a")] {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(&target.join("taken").display().to_string()), "{text}");
        }
    }
}
