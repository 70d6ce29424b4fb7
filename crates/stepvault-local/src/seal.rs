//! Sealing: turns a finished step into a snapshot in the vault, after which the trainer may delete its own files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record as _, encode, encoded_bytes};
use stepvault_core::config::LinkPolicy;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::keys::check_step_name;
use stepvault_core::manifest::Shape;
use stepvault_core::nodes::{NodeSet, Writer};
use stepvault_core::path::RelativePath;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::{self, parent_of};
use crate::errors;
use crate::holes;
use crate::kept;
use crate::remove;
use crate::rename::{self, Place};
use crate::seal_record::{AttemptOrigin, SealRecord, SealedFile, SnapshotMethod};
use crate::sealed::{DATA, SEAL, SealedStep};
use crate::snapshot::{Snapshot, WHAT};
use crate::sync;
use crate::tree::{self, Tree, TreeFile, source_changed};
use crate::vault::Vault;

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
    /// The trainer's directory or file.
    pub source: PathBuf,
    /// The paths below `source` that make up the step, in the order in which a restore must create them. Empty when the
    /// step is all of `source`.
    pub members: Vec<RelativePath>,
    /// Where its trainer keeps it, and what wrote it.
    pub origin: StepOrigin,
    /// The name that the step's directory or file has, or will have, where the trainer looks for it.
    pub name: String,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Allowed snapshot methods.
    pub links: LinkPolicy,
    /// The algorithm of the digests of its files.
    pub digest: DigestAlgorithm,
    /// The tree as it was when it was judged complete. Sealing fails when it has changed since.
    pub expected: Option<Tree>,
    /// An earlier revision of the step in this vault, with the same paths: what the source lacks of it is taken from there.
    pub completes: Option<SealedStep>,
}

/// Seals a step. When this returns, the step is `staged`: it survives a killed process and a power cut.
///
/// The caller holds the vault's lock.
///
/// # Errors
/// `Conflict` when the step is already sealed; `SourceChanged` when a file changed, disappeared or was added during
/// sealing. On any error nothing is left behind and no other step is touched.
pub fn seal(vault: &Vault, request: &SealRequest) -> Result<SealedStep> {
    check_step_name(&request.name)?;
    let destination = vault.step_directory(&request.run, request.id);
    if destination.symlink_metadata().is_ok() {
        return Err(sealed_already(&destination));
    }
    let source = &request.source;
    let tree = tree::scan_members(source, &request.members)?;
    if let Some(change) = request
        .expected
        .as_ref()
        .and_then(|expected| expected.change_until(&tree))
    {
        return Err(source_changed(WHAT, source, &change));
    }
    let completes = request.completes.as_ref();
    let missing = completes.map(|before| missing(before, &tree)).transpose()?;
    let whole = missing
        .as_ref()
        .map_or_else(|| tree.clone(), |missing| tree.joined(missing));
    // Both are directories: a file that lost something is gone.
    check_fits(request, &whole)?;
    let staging = Unfinished::create(vault)?;
    // Opened before the first write, so that it reports every write error up to the sync.
    let barrier = sync::Barrier::open(&staging.path)?;
    let_the_clock_tick(&staging.path, &tree)?;

    let (mut snapshotted, data) = snapshot_all(request, &tree, &staging.path)?;
    if let (Some(missing), Some(from)) = (&missing, completes) {
        let from = from.data_root();
        snapshotted.extend(snapshot_into(&data, &from, LinkPolicy::Auto, missing, None)?);
    }
    if let Some(change) = tree.change_until(&look_again(source, &request.members)?) {
        return Err(source_changed(WHAT, source, &change));
    }
    let record = record_of(request, &whole, &snapshotted, &tree::scan(&data)?)?;
    let bytes = encode(&record)?;
    check_readable(source, bytes.len() as u64, record.files.len())?;
    check_readable(source, record.manifest_bytes()?, record.files.len())?;
    record.check()?;
    let files = record.files.iter().map(|file| &file.path);
    barrier.sync(&data, files, record.directories.iter())?;
    durable::create_new(&staging.path.join(SEAL), &kept::with_digest(bytes))?;
    staging.publish(vault, &destination)?;
    Ok(SealedStep::new(destination, record))
}

/// Scans the source again. A missing source counts as changed.
fn look_again(source: &Path, members: &[RelativePath]) -> Result<Tree> {
    tree::scan_members(source, members).map_err(|error| match error.kind() {
        ErrorKind::NotFound => source_changed(WHAT, source, "it vanished while the step was sealed"),
        _ => error,
    })
}

fn sealed_already(destination: &Path) -> Error {
    Error::new(ErrorKind::Conflict, WHAT)
        .on(destination.display())
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
    check_readable(&request.source, encoded_bytes(&record)?, file_count)?;
    check_readable(&request.source, record.manifest_bytes()?, file_count)
}

/// Checks that a record of this length can be read back.
fn check_readable(source: &Path, record_bytes: u64, file_count: usize) -> Result<()> {
    if record_bytes <= MAX_RECORD_BYTES {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, WHAT)
        .on(source.display())
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

/// Facts about a file in the vault.
#[derive(Debug, Clone, Copy)]
struct Snapshotted {
    method: SnapshotMethod,
    hole_bytes: u64,
}

/// By the path of each file in the checkpoint.
type SnapshottedFiles = BTreeMap<RelativePath, Snapshotted>;

/// Takes a snapshot of every entry into `data` below `staging`.
fn snapshot_all(request: &SealRequest, tree: &Tree, staging: &Path) -> Result<(SnapshottedFiles, PathBuf)> {
    let root = staging.join(DATA);
    durable::create_directories_below(staging, &root)?;
    if tree.shape == Shape::Directory {
        let snapshotted = snapshot_into(&root, &request.source, request.links, tree, None)?;
        return Ok((snapshotted, root));
    }
    // A single file has the step's name in the data directory, whatever its name was before.
    let own_name = RelativePath::new(request.name.as_str())?;
    let source = parent_of(&request.source);
    let snapshotted = snapshot_into(&root, source, request.links, tree, Some(&own_name))?;
    Ok((snapshotted, root.join(&request.name)))
}

/// Takes a snapshot of entries of the directory `source` into `root`, which has none of them; of a single file under this
/// name.
fn snapshot_into(
    root: &Path,
    source: &Path,
    links: LinkPolicy,
    tree: &Tree,
    own_name: Option<&RelativePath>,
) -> Result<SnapshottedFiles> {
    let mut snapshot = Snapshot::new(source, root, links, tree)?;
    for path in tree
        .directories
        .iter()
        .filter_map(|directory| directory.path.as_ref())
    {
        snapshot.create_directory(path)?;
    }
    let take = |file: &TreeFile| {
        let (method, hole_bytes) = snapshot.take(file, own_name.unwrap_or(&file.path))?;
        Ok((file.path.clone(), Snapshotted { method, hole_bytes }))
    };
    let snapshotted = tree.files.iter().map(take).collect::<Result<_>>()?;
    for link in &tree.symlinks {
        snapshot.link(&link.path, &link.target)?;
    }
    Ok(snapshotted)
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
    let changed = |what: &str| {
        source_changed(
            WHAT,
            &request.source,
            &format!("{what} changed while it was sealed"),
        )
    };
    let same_lists = taken.files.len() == tree.files.len() && taken.symlinks == tree.symlinks;
    if !same_lists || snapshotted.len() != tree.files.len() {
        return Err(changed("the list of files"));
    }
    let mut files = Vec::with_capacity(tree.files.len());
    for (file, copy) in tree.files.iter().zip(&taken.files) {
        let how = snapshotted
            .get(&file.path)
            .ok_or_else(|| changed(file.path.as_str()))?;
        let moved = how.method == SnapshotMethod::HardLink && copy.inode != file.inode;
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
        name: request.name.clone(),
        shape: tree.shape,
        written_at: tree.newest_mtime(),
        metrics: request.metrics.clone(),
        files,
        directories: tree.directories.clone(),
        symlinks: tree.symlinks.clone(),
        members: members_of(request),
        origin: request.origin.clone(),
    })
}

/// Returns the paths that make up the step, those of the revision that it completes first.
fn members_of(request: &SealRequest) -> Vec<RelativePath> {
    let before = request
        .completes
        .iter()
        .flat_map(|before| &before.record().members);
    let lost = before.filter(|path| !request.members.contains(path));
    lost.chain(&request.members).cloned().collect()
}

/// An unfinished step below `staging/`; removed unless it is published.
struct Unfinished {
    path: PathBuf,
    published: bool,
}

impl Unfinished {
    fn create(vault: &Vault) -> Result<Self> {
        let unfinished = Self {
            path: vault.fresh_place("staging")?,
            published: false,
        };
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
