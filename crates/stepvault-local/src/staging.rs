//! The staging directory of a restore. It holds the files until all are complete and verified; then they are published
//! at once.
//!
//! Every file is opened relative to a directory descriptor, never through a link, so that links swapped in meanwhile in
//! the staging directory or the target cannot redirect a restore.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::config::RestoreSync;
use stepvault_core::manifest::{MODE_MASK, check_link_target};
use stepvault_core::{Error, ErrorKind, RelativePath, Result, Sha256Digest, Timestamp};

use crate::beneath::{Beneath, DIRECTORY, Facts, create_new, name_of, times};
use crate::errors::{self, IoAt as _};
use crate::staging_place::{DATA, TAKEN_DOWN, Workplace};
use crate::survey::SurveyFiles;
use crate::vault::Vault;
use crate::{durable, holes, leftovers, remove};

pub(crate) const WHAT: &str = "cannot restore";
/// What to do when the target exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Existing {
    /// Keep it and fail.
    Refuse,
    /// Replace it with the restored step, then delete it.
    Replace,
}

/// A restore in progress into one target. Holds a lock on the target; several threads may write files at once.
#[derive(Debug)]
pub struct Staging {
    /// Absolute path, with links resolved except in its last component. For a multi-path step, the directory that
    /// receives the paths; it is its own parent here and has no name.
    pub(crate) target: PathBuf,
    pub(crate) target_name: OsString,
    pub(crate) target_parent: OwnedFd,
    /// The paths below the target that are published one by one; empty where the target is the whole step.
    pub(crate) members: Vec<RelativePath>,
    /// This restore's own directory, with the lock.
    pub(crate) work: Workplace,
    pub(crate) own: Beneath,
    pub(crate) data: Beneath,
    /// Whether an interrupted restore may have left files in it.
    pub resumes: bool,
    sync: RestoreSync,
    pub(crate) progress: Arc<Progress>,
    /// Directories known to exist.
    made: Mutex<BTreeSet<String>>,
}

impl Staging {
    /// Begins or resumes the restore of `identity` (the digest of the content) to `target`.
    ///
    /// Creates a missing parent of the target. The files are stored on the target's filesystem, outside the directory
    /// that the trainer scans where possible, and under a name that the same restore finds again after an interruption.
    ///
    /// # Errors
    /// `Held` when another restore to the same target is in progress.
    pub fn open(target: &Path, vault: Option<&Vault>, identity: &str) -> Result<Self> {
        let (parent, target_name) = resolve(target)?;
        let target = parent.join(&target_name);
        let place = target.as_os_str().as_bytes().to_owned();
        let staging = Self::begin(&parent, target, target_name, &place, vault, identity)?;
        staging.put_back_replaced()?;
        Ok(staging)
    }

    /// Like [`Self::open`], for a multi-path step or for those of its paths that are not in place yet: `members` below
    /// `directory`, in the order in which they must appear. Other content of the directory is not touched.
    ///
    /// # Errors
    /// `Held` when another multi-path restore into the same directory is in progress, of any step: its paths may be the
    /// same.
    pub fn open_members(
        directory: &Path,
        members: &[RelativePath],
        vault: Option<&Vault>,
        identity: &str,
    ) -> Result<Self> {
        let directory = existing_directory(directory)?;
        // Differs from the key of any single target: no path contains this byte.
        let place = [directory.as_os_str().as_bytes(), b"members"].join(&0);
        let (target, no_name) = (directory.clone(), OsString::new());
        let staging = Self::begin(&directory, target, no_name, &place, vault, identity)?;
        Ok(Self { members: members.to_vec(), ..staging })
    }

    fn begin(
        parent: &Path,
        target: PathBuf,
        target_name: OsString,
        place: &[u8],
        vault: Option<&Vault>,
        identity: &str,
    ) -> Result<Self> {
        let target_parent =
            Beneath::open(parent).and_then(|parent| parent.directory(None)).at(WHAT, parent)?;
        let key = |parts: &[&[u8]]| Sha256Digest::of(&parts.join(&0)).to_string()[..32].to_owned();
        let (lock_key, own_key) = (key(&[place]), key(&[place, identity.as_bytes()]));
        let work = Workplace::choose(parent, vault, &lock_key, &own_key)?;
        durable::create_directories(&work.path)?;
        let own = Beneath::open(&work.path).at(WHAT, &work.path)?;
        let resumes = make_data(own.as_fd()).at(WHAT, &work.path)?;
        leftovers::stamp(own.as_fd()).at(WHAT, &work.path)?;
        leftovers::clear_restores(&work.base.path, &lock_key, &work.path);
        let data = Beneath::open(&work.path.join(DATA)).at(WHAT, &work.path)?;
        // An interrupted finish may have set the step's own mode already.
        rustix::fs::fchmod(&data, Mode::from_raw_mode(0o700)).at(WHAT, &work.path)?;
        Ok(Self {
            target,
            target_name,
            target_parent,
            members: Vec::new(),
            work,
            own,
            data,
            resumes,
            sync: RestoreSync::Full,
            progress: Arc::default(),
            made: Mutex::default(),
        })
    }

    /// Sets when the files are on the disk.
    #[must_use]
    pub fn synced(self, sync: RestoreSync) -> Self {
        Self { sync, ..self }
    }

    /// Returns the directory that holds the files until the end.
    pub fn directory(&self) -> &Path {
        &self.work.path
    }

    /// Opens the staged files for content checks.
    pub fn files(&self) -> Result<SurveyFiles> {
        SurveyFiles::open(&self.work.path.join(DATA))
    }

    /// Opens a file for writing, with the content that an interrupted restore left, truncated to at most `size_bytes`.
    /// For a single-file checkpoint `path` is its one component.
    pub fn file(&self, path: &RelativePath, size_bytes: u64) -> Result<StagedFile> {
        let place = self.work.path.join(DATA).join(path);
        let fault = |error: Errno| errors::io(FILE, &place, error);
        let parent = self.parent_of(path)?;
        let name = name_of(path);
        self.progress.lock().insert(path.clone(), None);
        let file = match create_new(&parent, name, OFlags::RDWR) {
            Ok(file) => file,
            Err(Errno::EXIST) => {
                if let Some(file) = open_present(parent.as_fd(), name).map_err(fault)? {
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o600)).map_err(fault)?;
                    let present = Facts::from(rustix::fs::fstat(&file).map_err(fault)?);
                    if present.size_bytes > size_bytes {
                        rustix::fs::ftruncate(&file, size_bytes).map_err(fault)?;
                    }
                    File::from(file)
                } else {
                    self.clear(parent.as_fd(), path)?;
                    create_new(&parent, name, OFlags::RDWR).map_err(fault)?
                }
            }
            Err(error) => return Err(fault(error)),
        };
        let progress = Arc::clone(&self.progress);
        Ok(StagedFile {
            file,
            place,
            path: path.clone(),
            size_bytes,
            progress,
            sync: self.sync,
            keeps_holes: false,
            turn: Mutex::default(),
        })
    }

    /// Creates a symbolic link and replaces whatever has its name. The target must stay inside the checkpoint.
    pub fn symlink(&self, path: &RelativePath, target: &str) -> Result<()> {
        check_link_target(path, target)?;
        let place = self.work.path.join(DATA).join(path);
        let fault = |error: Errno| errors::io("cannot restore the link", &place, error);
        let parent = self.parent_of(path)?;
        self.clear(parent.as_fd(), path)?;
        rustix::fs::symlinkat(target, &parent, name_of(path)).map_err(fault)?;
        let stat = rustix::fs::statat(&parent, name_of(path), AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        self.progress.lock().insert(path.clone(), Some(Facts::from(stat).inode));
        Ok(())
    }

    /// Aborts the restore and removes the staged files. Content that an interrupted replacement has taken down is kept:
    /// it is the only copy.
    pub fn discard(self) -> Result<()> {
        if self.has_taken_down() {
            tracing::warn!(
                path = %self.work.path.join(TAKEN_DOWN).display(),
                "the previous content of the target is kept in this directory"
            );
            return remove::tree(&self.work.path.join(DATA));
        }
        self.work.remove()
    }

    /// Opens the directory that holds `path`, and creates it and its ancestors when missing.
    fn parent_of(&self, path: &RelativePath) -> Result<OwnedFd> {
        for ancestor in path.ancestors() {
            self.make_directory(&RelativePath::new(ancestor)?)?;
        }
        self.data.parent_of(path).at(WHAT, &self.work.path.join(DATA).join(path))
    }

    /// Creates a directory whose parent exists and replaces anything else that has its name.
    pub(crate) fn make_directory(&self, path: &RelativePath) -> Result<()> {
        let mut made = self.made.lock();
        if made.contains(path.as_str()) {
            return Ok(());
        }
        let place = self.work.path.join(DATA).join(path);
        let fault = |error: Errno| errors::io("cannot restore the directory", &place, error);
        let parent = self.data.parent_of(path).map_err(fault)?;
        let private = Mode::from_raw_mode(0o700);
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        if let Ok(present) = rustix::fs::openat(&parent, name_of(path), flags, Mode::empty()) {
            rustix::fs::fchmod(&present, private).map_err(fault)?;
        } else {
            self.clear(parent.as_fd(), path)?;
            rustix::fs::mkdirat(&parent, name_of(path), private).map_err(fault)?;
        }
        made.insert(path.as_str().to_owned());
        Ok(())
    }

    /// Makes a file or directory durable, unless the restore syncs nothing.
    pub(crate) fn sync(&self, written: impl AsFd) -> rustix::io::Result<()> {
        sync(self.sync, written)
    }

    /// Removes whatever has the name of `path` in its directory.
    fn clear(&self, parent: BorrowedFd<'_>, path: &RelativePath) -> Result<()> {
        remove::entry(parent, name_of(path)).at(WHAT, &self.work.path.join(DATA).join(path))
    }
}

fn sync(sync: RestoreSync, written: impl AsFd) -> rustix::io::Result<()> {
    match sync {
        RestoreSync::Full => rustix::fs::fsync(written),
        RestoreSync::None => Ok(()),
    }
}

/// Returns the target's parent, created when missing and with links resolved, and the target's name.
fn resolve(target: &Path) -> Result<(PathBuf, OsString)> {
    let name = target.file_name().ok_or_else(|| {
        Error::at(ErrorKind::Usage, WHAT, target)
            .because("its last component is not a name")
            .hint("name the directory or file to create")
    })?;
    Ok((existing_directory(durable::parent_of(target))?, name.to_owned()))
}

/// Returns the directory, created when missing, with links resolved.
fn existing_directory(path: &Path) -> Result<PathBuf> {
    durable::create_directories(path)?;
    path.canonicalize().at(WHAT, path)
}

/// Creates the directory for the files unless it exists, and returns whether it existed. A replacement that was
/// interrupted after its swap has left the target's previous content under this name: a link, a file, or another user's
/// directory cannot be used here and is removed.
fn make_data(own: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    match Facts::at(own, DATA)? {
        Some(there) if there.kind == FileType::Directory && is_ours(&there) => return Ok(true),
        Some(_) => remove::entry(own, DATA)?,
        None => {}
    }
    rustix::fs::mkdirat(own, DATA, Mode::from_raw_mode(0o700))?;
    Ok(false)
}

fn is_ours(facts: &Facts) -> bool {
    facts.owner == rustix::process::geteuid().as_raw()
}

/// Opens a file that an interrupted restore left, if it may be written to: a regular file of this user with only this
/// name. Anything else could be another user's file under a second name.
fn open_present(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(file) => {
            let facts = Facts::from(rustix::fs::fstat(&file)?);
            let fit = facts.kind == FileType::RegularFile && facts.single_name && is_ours(&facts);
            Ok(fit.then_some(file))
        }
        Err(Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO | Errno::ACCESS | Errno::PERM) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

// One file of a restore in progress.

const FILE: &str = "cannot restore the file";

/// The finished files and links of a restore: for each path its inode, or `None` until it is finished.
pub(crate) type Progress = Mutex<BTreeMap<RelativePath, Option<u64>>>;

/// A file of a restore in progress. `&self` may be used from several threads at once.
#[derive(Debug)]
pub struct StagedFile {
    file: File,
    /// Path for messages.
    place: PathBuf,
    path: RelativePath,
    size_bytes: u64,
    pub(crate) progress: Arc<Progress>,
    sync: RestoreSync,
    /// Whether blocks of zeros become holes.
    keeps_holes: bool,
    /// Held to write: the kernel lets one writer into a file at a time, and the others would spin at its lock.
    turn: Mutex<()>,
}

impl StagedFile {
    /// Writes blocks of zeros as holes.
    #[must_use]
    pub fn with_holes(self) -> Self {
        Self { keeps_holes: true, ..self }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Failed` when the bytes would exceed the size that the file was opened for.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.size_bytes);
        if end.is_none() {
            return Err(Error::at(ErrorKind::Failed, FILE, &self.place).because(format!(
                "{} bytes at {offset} reach past its {} bytes",
                bytes.len(),
                self.size_bytes
            )));
        }
        let fault = |error: std::io::Error| errors::io(FILE, &self.place, error);
        let _turn = self.turn.lock();
        if !self.keeps_holes {
            return self.file.write_all_at(bytes, offset).map_err(fault);
        }
        for (piece, is_left_out) in holes::pieces(offset, bytes, self.size_bytes) {
            let at = offset + piece.start as u64;
            let is_done = is_left_out
                && holes::punch(&self.file, at, piece.len() as u64).map_err(|error| fault(error.into()))?;
            if !is_done {
                self.file.write_all_at(&bytes[piece], at).map_err(fault)?;
            }
        }
        Ok(())
    }

    /// Begins to write a range to the disk, so that [`finish`](Self::finish) waits for little. Proves nothing: what could not
    /// be written is an error of `finish`.
    pub fn start_writeback(&self, range: &Range<u64>) {
        if self.sync == RestoreSync::None {
            return;
        }
        // The kernel starts to write the dirty pages of the range before it looks for clean ones to drop, and drops none
        // that is being written.
        let length = NonZeroU64::new(range.end - range.start);
        let _ = rustix::fs::fadvise(&self.file, range.start, length, Advice::DontNeed);
    }

    /// Fills `buffer` from `offset`. Returns `false` when the file ends before that.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<bool> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(errors::io(FILE, &self.place, error)),
        }
    }

    /// Sets mode and time and makes the file durable, unless the restore syncs nothing.
    ///
    /// # Errors
    /// `Failed` when the file does not have the size it was opened for.
    pub fn finish(&self, mode: u32, mtime: Timestamp) -> Result<()> {
        let facts = Facts::from(rustix::fs::fstat(&self.file).at(FILE, &self.place)?);
        if facts.size_bytes != self.size_bytes {
            let why = format!("it has {} of {} bytes", facts.size_bytes, self.size_bytes);
            return Err(Error::at(ErrorKind::Failed, FILE, &self.place).because(why));
        }
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & MODE_MASK)).at(FILE, &self.place)?;
        rustix::fs::futimens(&self.file, &times(mtime)).at(FILE, &self.place)?;
        sync(self.sync, &self.file).at(FILE, &self.place)?;
        self.progress.lock().insert(self.path.clone(), Some(facts.inode));
        Ok(())
    }
}
