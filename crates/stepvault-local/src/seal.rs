//! Sealing: turns a finished step into a snapshot in the vault, after which the trainer may delete its own files.
//! Each file is a reflink, else a hard link, else a copy.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record as _, encoded_bytes};
use stepvault_core::config::LinkPolicy;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;
use stepvault_core::keys::check_step_name;
use stepvault_core::manifest::Shape;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, NodeSet, RelativePath, Result, RunName, StepId, Timestamp, Writer,
};

use crate::beneath::{Beneath, Facts, create_new, name_of, times};
use crate::durable::{self, parent_of};
use crate::errors::{self, IoAt as _};
use crate::rename::{self, Place};
use crate::seal_record::{AttemptOrigin, SealRecord, SealedFile, SnapshotMethod};
use crate::sealed::{DATA, SEAL, SealedStep};
use crate::tree::{self, Checkpoint, Tree, TreeFile, source_changed};
use crate::vault::Vault;
use crate::{holes, notes, remove};

const WHAT: &str = "cannot seal the step";
/// Longer than one tick of the clock that kernels use for file times.
const TICK: Duration = Duration::from_millis(20);

/// Parameters of a seal.
#[derive(Debug, Clone)]
pub struct SealRequest {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    pub id: StepId,
    /// How the step's attempt was determined.
    pub attempt: AttemptOrigin,
    /// The node, and the other nodes that write the step.
    pub writer: Writer,
    /// What it is sealed from.
    pub checkpoint: Checkpoint,
    /// The algorithm of the digests of its files.
    pub digest: DigestAlgorithm,
    /// The tree as it was when it was judged complete. Sealing fails when it has changed since.
    pub expected: Option<Arc<Tree>>,
    /// An earlier revision of the step in this vault, with the same paths: what the source lacks of it is taken from there.
    pub completes: Option<SealedStep>,
}

/// A step that was sealed just now.
#[derive(Debug)]
pub struct Sealed {
    /// The step.
    pub step: SealedStep,
    /// The files of the checkpoint after the vault was linked to them, which changed the inodes of hard links.
    pub source: Tree,
}

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

/// Seals a step. When this returns, the step is `staged`: it survives a killed process and a power cut.
///
/// The checkpoint is listed right before its first file is linked or copied, and right after the last one: a step is
/// sealed only if both lists, and the tree by which it was judged complete, are the same.
///
/// The caller holds the vault's lock.
///
/// # Errors
/// `Conflict` when the step is already sealed; `SourceChanged` when a file changed, disappeared or was added during
/// sealing. On any error nothing is left behind and no other step is touched.
pub fn seal(vault: &Vault, request: &SealRequest) -> Result<Sealed> {
    seal_reporting(vault, request, &mut |_| ())
}

/// Like [`seal`], and reports the large files that have to be copied while they are copied.
///
/// # Errors
/// As for [`seal`].
pub fn seal_reporting(vault: &Vault, request: &SealRequest, on_copied: OnCopied<'_>) -> Result<Sealed> {
    let checkpoint = &request.checkpoint;
    check_step_name(&checkpoint.name)?;
    let destination = vault.step_directory(&request.run, request.id);
    if destination.symlink_metadata().is_ok() {
        return Err(sealed_already(&destination));
    }
    let source = &checkpoint.source;
    let judged = request.expected.as_deref();
    let tree = checkpoint.scan_again(judged)?;
    if let Some(change) = judged.and_then(|judged| judged.change_until(&tree)) {
        return Err(source_changed(WHAT, source, &change));
    }
    let completes = request.completes.as_ref();
    let missing = completes.map(|before| missing(before, &tree)).transpose()?;
    let joined = missing.as_ref().map(|missing| tree.joined(missing));
    // Both are directories: a file that lost something is gone.
    let whole = joined.as_ref().unwrap_or(&tree);
    check_fits(request, whole)?;
    let staging = Unfinished::create(vault)?;
    // Opened before the first write, so that it reports every write error up to the sync.
    let barrier = durable::Barrier::open(&staging.path)?;
    let_the_clock_tick(&staging.path, &tree)?;

    let Taken { files: mut snapshotted, data, home } =
        take(checkpoint, &tree, &staging.path, completes.is_none(), on_copied)?;
    if let (Some(missing), Some(from)) = (&missing, completes) {
        let from = from.data_root();
        let mut snapshot = Snapshot::new(&from, &data, LinkPolicy::Auto, missing)?;
        snapshotted.extend(snapshot.take_all(missing, None)?);
        snapshotted.sort_by(|(one, _), (next, _)| one.cmp(next));
    }
    let after = look_again(checkpoint, &tree)?;
    if let Some(change) = tree.change_until(&after) {
        return Err(source_changed(WHAT, source, &change));
    }
    // Files that stayed in their place were listed just now.
    let taken = if home.is_some() { None } else { Some(tree::scan_again(&data, &[], Some(whole))?) };
    let barrier = home.as_deref().map_or(Ok(barrier), durable::Barrier::open)?;
    let record = record_of(request, whole, &snapshotted, taken.as_ref().unwrap_or(&after))?;
    let record = SealRecord { source: home, ..record };
    // They may be long, and only the record is needed from here on.
    drop((tree, joined, missing, snapshotted, taken));
    check_readable(source, encoded_bytes(&record)?, record.files.len())?;
    check_readable(source, record.manifest_bytes()?, record.files.len())?;
    record.check()?;
    let files = record.files.iter().map(|file| &file.path);
    barrier.sync(&data, files, record.directories.iter())?;
    notes::create(&staging.path.join(SEAL), &record)?;
    staging.publish(vault, &destination)?;
    Ok(Sealed { step: SealedStep::new(destination, record), source: after })
}

/// Lists the checkpoint again. A missing source counts as changed.
fn look_again(checkpoint: &Checkpoint, before: &Tree) -> Result<Tree> {
    checkpoint.scan_again(Some(before)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            source_changed(WHAT, &checkpoint.source, "it vanished while the step was sealed")
        }
        _ => error,
    })
}

fn sealed_already(destination: &Path) -> Error {
    Error::at(ErrorKind::Conflict, WHAT, destination)
        .because("this step of this attempt is already sealed")
        .hint("after a rollback, seal the step under a new attempt")
}

/// Checks before any file is read that the step's records can be written: neither `seal.json` nor the manifest of this
/// node's part may turn out too long after its bytes have been sent.
fn check_fits(request: &SealRequest, tree: &Tree) -> Result<()> {
    let expected = |file: &TreeFile| {
        let how = Snapshotted {
            method: SnapshotMethod::HardLink,
            // The maximum number of digits.
            hole_bytes: if holes::may_have_holes(file.size_bytes, file.allocated_bytes) {
                file.size_bytes
            } else {
                0
            },
        };
        (file.path.clone(), how)
    };
    let expected = tree.files.iter().map(expected).collect();
    let record = record_of(request, tree, &expected, tree)?;
    let file_count = record.files.len();
    let source = &request.checkpoint.source;
    check_readable(source, encoded_bytes(&record)?, file_count)?;
    check_readable(source, record.manifest_bytes()?, file_count)
}

/// Checks that a record of this length can be read back.
fn check_readable(source: &Path, record_bytes: u64, file_count: usize) -> Result<()> {
    if record_bytes <= MAX_RECORD_BYTES {
        return Ok(());
    }
    Err(Error::at(ErrorKind::Usage, WHAT, source)
        .because(format!(
            "the list of its {file_count} files takes {record_bytes} bytes; the limit is {MAX_RECORD_BYTES}"
        ))
        .hint("write fewer, larger files or shorter names, or pack them into one file"))
}

/// Waits until a new write would get a later modification time than the newest existing one.
///
/// Kernels take file times from a clock that ticks every few milliseconds: a file rewritten within the tick of its last
/// write would appear unchanged. The time of the new directory shows that clock on this filesystem.
fn let_the_clock_tick(staging: &Path, tree: &Tree) -> Result<()> {
    if is_within_a_tick(tree.newest_mtime(), tree::scan(staging)?.newest_mtime()) {
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Returns whether the two times are less than a tick apart. Also true when the first is later than the second: they
/// may come from different clocks.
fn is_within_a_tick(first: Timestamp, second: Timestamp) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(second) - nanoseconds(first) < i128::from(TICK.subsec_nanos())
}

/// The files of a step that is being sealed.
struct Taken {
    files: SnapshottedFiles,
    /// Their directory, or the single file.
    data: PathBuf,
    /// The trainer's directory, if they stayed there.
    home: Option<PathBuf>,
}

/// Takes a snapshot of every entry into `data` below `staging`. Files that may stay in their place do so where they would
/// have to be copied.
fn take(
    checkpoint: &Checkpoint,
    tree: &Tree,
    staging: &Path,
    may_stay: bool,
    on_copied: OnCopied<'_>,
) -> Result<Taken> {
    let home = home_of(checkpoint, tree.shape).filter(|_| may_stay);
    match (snapshot_all(checkpoint, tree, staging, home.is_none(), on_copied), home) {
        (Err(error), Some(home)) if error.kind() == ErrorKind::Usage => {
            remove::tree(&staging.join(DATA))?;
            let files = take_in_place(&home, tree)?;
            Ok(Taken { files, data: checkpoint.source.clone(), home: Some(home) })
        }
        (taken, _) => taken,
    }
}

/// Returns the directory in which the files may stay under their names; `None` if they may not, or if a record could not
/// name it.
fn home_of(checkpoint: &Checkpoint, shape: Shape) -> Option<PathBuf> {
    let Checkpoint { source, name, in_place: true, .. } = checkpoint else { return None };
    source.to_str()?;
    match shape {
        Shape::Directory => Some(source.clone()),
        Shape::File => source.parent().filter(|_| source.ends_with(name)).map(Path::to_owned),
    }
}

fn snapshot_all(
    checkpoint: &Checkpoint,
    tree: &Tree,
    staging: &Path,
    may_copy: bool,
    on_copied: OnCopied<'_>,
) -> Result<Taken> {
    let root = staging.join(DATA);
    durable::create_directories_below(staging, &root)?;
    // A single file has the step's name in the data directory, whatever its name was before.
    let (source, own_name) = match tree.shape {
        Shape::Directory => (checkpoint.source.as_path(), None),
        Shape::File => (parent_of(&checkpoint.source), Some(RelativePath::new(checkpoint.name.as_str())?)),
    };
    let mut snapshot = Snapshot::new(source, &root, checkpoint.links, tree)?.reporting_to(on_copied);
    if !may_copy {
        snapshot = snapshot.without_copies();
    }
    let files = snapshot.take_all(tree, own_name.as_ref())?;
    Ok(Taken { files, data: own_name.map_or_else(|| root.clone(), |name| root.join(name)), home: None })
}

/// Facts about a file in the vault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshotted {
    method: SnapshotMethod,
    hole_bytes: u64,
}

/// With the path of each file in the checkpoint, sorted by it.
pub(crate) type SnapshottedFiles = Vec<(RelativePath, Snapshotted)>;

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
    fn reporting_to(mut self, on_copied: OnCopied<'a>) -> Self {
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

fn hole_bytes(parent: BorrowedFd<'_>, file: &TreeFile, place: &Path) -> Result<u64> {
    if !holes::may_have_holes(file.size_bytes, file.allocated_bytes) {
        return Ok(0);
    }
    let source = open_source(parent, file, place)?;
    holes::hole_bytes(&source, file.size_bytes).map_err(|error| fault(place, error))
}

/// Returns the error for the trainer's file. A missing file counts as changed.
fn fault(place: &Path, error: Errno) -> Error {
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
    create_new(parent, name, OFlags::WRONLY).at(WHAT, place)
}

/// Sets mode and time as the trainer had them, but always readable and writable for the vault's owner.
fn finish_target(target: &File, file: &TreeFile, place: &Path) -> Result<()> {
    rustix::fs::fchmod(target, Mode::from_raw_mode(file.mode | 0o600))
        .and_then(|()| rustix::fs::futimens(target, &times(file.mtime)))
        .at(WHAT, place)
}

/// Takes all files of the directory `source` as they are, where they are.
fn take_in_place(source: &Path, tree: &Tree) -> Result<SnapshottedFiles> {
    let root = Beneath::open_following(source).map_err(|error| fault(source, error))?;
    let take = |file: &TreeFile| {
        let place = source.join(&file.path);
        let parent = root.parent_of(&file.path).map_err(|error| fault(&place, error))?;
        let hole_bytes = hole_bytes(parent.as_fd(), file, &place)?;
        Ok((file.path.clone(), Snapshotted { method: SnapshotMethod::InPlace, hole_bytes }))
    };
    tree.files.iter().map(take).collect()
}

/// Returns what a checkpoint lacks of an earlier revision: as recorded, and as it is in the vault now.
fn missing(before: &SealedStep, present: &Tree) -> Result<Tree> {
    let mut missing = before.tree().without(present);
    let there = tree::scan(&before.data_root())?;
    for file in &mut missing.files {
        if let Some(found) = there.file(&file.path) {
            (file.device, file.inode, file.ctime) = (found.device, found.inode, found.ctime);
            file.allocated_bytes = found.allocated_bytes;
        }
    }
    Ok(missing)
}

/// Builds the record after checking that the files in the vault are those that were to be sealed.
///
/// The scans of the source before and after do not reveal a file that was swapped and swapped back in between; the copy
/// in the vault does.
fn record_of(
    request: &SealRequest,
    tree: &Tree,
    snapshotted: &SnapshottedFiles,
    taken: &Tree,
) -> Result<SealRecord> {
    let checkpoint = &request.checkpoint;
    let changed = |what: &str| {
        let change = format!("{what} changed while it was sealed");
        source_changed(WHAT, &checkpoint.source, &change)
    };
    let same_lists = taken.files.len() == tree.files.len() && taken.symlinks == tree.symlinks;
    if !same_lists || snapshotted.len() != tree.files.len() {
        return Err(changed("the list of files"));
    }
    let mut files = Vec::with_capacity(tree.files.len());
    for ((file, copy), (path, how)) in tree.files.iter().zip(&taken.files).zip(snapshotted) {
        let moved = how.method.is_trainers_file() && copy.inode != file.inode;
        let same_path = *path == file.path && (tree.shape == Shape::File || copy.path == file.path);
        if moved || !same_path || (copy.size_bytes, copy.mtime) != (file.size_bytes, file.mtime) {
            return Err(changed(file.path.as_str()));
        }
        files.push(SealedFile {
            path: copy.path.clone(),
            size_bytes: file.size_bytes,
            mode: file.mode,
            mtime: file.mtime,
            method: how.method,
            inode: copy.inode,
            hole_bytes: how.hole_bytes,
        });
    }
    let place = &request.writer.place;
    Ok(SealRecord {
        format: FORMAT,
        run: request.run.clone(),
        id: request.id,
        attempt: request.attempt.clone(),
        digest: request.digest,
        node: place.node().clone(),
        nodes: Some(place.nodes().clone()).filter(NodeSet::is_several),
        launch: request.writer.launch.clone(),
        shared: request.writer.shared && place.nodes().is_several(),
        name: checkpoint.name.clone(),
        shape: tree.shape,
        source: None,
        written_at: tree.newest_mtime(),
        metrics: checkpoint.metrics.clone(),
        files,
        directories: tree.directories.clone(),
        symlinks: tree.symlinks.clone(),
        members: members_of(request),
        origin: checkpoint.origin.clone(),
    })
}

/// Returns the paths that make up the step, those of the revision that it completes first.
fn members_of(request: &SealRequest) -> Vec<RelativePath> {
    let own = &request.checkpoint.members;
    let completes = request.completes.iter();
    let before = completes.flat_map(|before| &before.record().members);
    let lost = before.filter(|path| !own.contains(path));
    lost.chain(own).cloned().collect()
}

/// An unfinished step below `staging/`; removed unless it is published.
struct Unfinished {
    path: PathBuf,
    published: bool,
}

impl Unfinished {
    fn create(vault: &Vault) -> Result<Self> {
        let unfinished = Self { path: vault.fresh_place("staging")?, published: false };
        vault.create_directories(&unfinished.path)?;
        Ok(unfinished)
    }

    /// Renames the directory, which makes it a sealed step.
    fn publish(mut self, vault: &Vault, destination: &Path) -> Result<()> {
        let steps = parent_of(destination);
        vault.create_directories(steps)?;
        rename::no_replace(Place::path(&self.path), Place::path(destination)).map_err(
            |error| match error {
                Errno::EXIST | Errno::NOTEMPTY => sealed_already(destination),
                other => errors::io(WHAT, destination, other),
            },
        )?;
        durable::fsync_directory(steps).inspect_err(|_| {
            // No process may treat as staged what a power cut could undo.
            let _ = rename::no_replace(Place::path(destination), Place::path(&self.path));
        })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.published
            && let Err(error) = remove::tree(&self.path)
        {
            tracing::warn!(%error, "cannot remove an unfinished seal; the next start removes it");
        }
    }
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
