//! Sealing: turns a finished step into a snapshot in the vault, after which the trainer may delete its own files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record as _, encode, encoded_bytes};
use stepvault_core::config::LinkPolicy;
use stepvault_core::keys::check_step_name;
use stepvault_core::manifest::Shape;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, NodeSet, RelativePath, Result, RunName, StepId, Timestamp, Writer,
};

use crate::durable::{self, parent_of};
use crate::rename::{self, Place};
use crate::seal_record::{AttemptOrigin, SealRecord, SealedFile, SnapshotMethod};
use crate::sealed::{DATA, SEAL, SealedStep};
use crate::snapshot::{Snapshot, Snapshotted, SnapshottedFiles, WHAT, take_in_place};
use crate::tree::{self, Checkpoint, Tree, TreeFile, source_changed};
use crate::vault::Vault;
use crate::{errors, holes, notes, remove};

pub use crate::snapshot::{CopiedFile, OnCopied};

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
    pub expected: Option<Tree>,
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
    let tree = checkpoint.scan()?;
    let judged = request.expected.as_ref();
    if let Some(change) = judged.and_then(|judged| judged.change_until(&tree)) {
        return Err(source_changed(WHAT, source, &change));
    }
    let completes = request.completes.as_ref();
    let missing = completes.map(|before| missing(before, &tree)).transpose()?;
    let whole = missing.as_ref().map_or_else(|| tree.clone(), |missing| tree.joined(missing));
    // Both are directories: a file that lost something is gone.
    check_fits(request, &whole)?;
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
    }
    let after = look_again(checkpoint)?;
    if let Some(change) = tree.change_until(&after) {
        return Err(source_changed(WHAT, source, &change));
    }
    // Files that stayed in their place were listed just now.
    let taken = if home.is_some() { after.clone() } else { tree::scan(&data)? };
    let barrier = home.as_deref().map_or(Ok(barrier), durable::Barrier::open)?;
    let record = SealRecord { source: home, ..record_of(request, &whole, &snapshotted, &taken)? };
    let bytes = encode(&record)?;
    check_readable(source, bytes.len() as u64, record.files.len())?;
    check_readable(source, record.manifest_bytes()?, record.files.len())?;
    record.check()?;
    let files = record.files.iter().map(|file| &file.path);
    barrier.sync(&data, files, record.directories.iter())?;
    durable::create_new(&staging.path.join(SEAL), &notes::with_digest(bytes))?;
    staging.publish(vault, &destination)?;
    Ok(Sealed { step: SealedStep::new(destination, record), source: after })
}

/// Lists the checkpoint again. A missing source counts as changed.
fn look_again(checkpoint: &Checkpoint) -> Result<Tree> {
    checkpoint.scan().map_err(|error| match error.kind() {
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

/// Returns what a checkpoint lacks of an earlier revision: as recorded, and as it is in the vault now.
fn missing(before: &SealedStep, present: &Tree) -> Result<Tree> {
    let mut missing = before.tree().without(present);
    let there = tree::scan(&before.data_root())?;
    for file in &mut missing.files {
        let found = there.files.binary_search_by(|found| found.path.cmp(&file.path));
        if let Some(found) = found.ok().and_then(|index| there.files.get(index)) {
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
    for (file, copy) in tree.files.iter().zip(&taken.files) {
        let how = snapshotted.get(&file.path).ok_or_else(|| changed(file.path.as_str()))?;
        let moved = how.method.is_trainers_file() && copy.inode != file.inode;
        let same_path = tree.shape == Shape::File || copy.path == file.path;
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
