//! Sealing: a finished step becomes a snapshot in the vault, and the trainer is free to delete its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record as _, encode};
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::keys::check_step_name;
use stepvault_core::manifest::Shape;
use stepvault_core::nodes::{NodeSet, Writer};
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::{self, parent_of};
use crate::errors;
use crate::kept;
use crate::remove;
use crate::rename::{self, Place};
use crate::seal_record::{SealRecord, SealedFile, SnapshotMethod};
use crate::sealed::{DATA, SEAL, SealedStep};
use crate::snapshot::{Snapshot, WHAT};
use crate::sync;
use crate::tree::{self, Tree, source_changed};
use crate::vault::Vault;

/// Longer than the clock by which kernels stamp files takes for a tick.
const TICK: Duration = Duration::from_millis(20);

/// Which ways of taking a file over are allowed; each falls back to the next where the filesystem cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LinkPolicy {
    /// Reflink, else hard link, else copy.
    #[default]
    Auto,
    /// Reflink, else copy: for trainers that rewrite files in place.
    ReflinkOrCopy,
    /// Always copy.
    Copy,
}

/// What to seal, and as what.
#[derive(Debug, Clone)]
pub struct SealRequest {
    /// The run.
    pub run: RunName,
    /// Step and attempt.
    pub id: StepId,
    /// Who writes the step.
    pub writer: Writer,
    /// The trainer's directory or file.
    pub source: PathBuf,
    /// The paths below `source` that make up the step, in the order in which a restore has to create them; none when it
    /// is all of it.
    pub members: Vec<RelativePath>,
    /// The name the step's directory or file has, or is to have, where the trainer looks for it.
    pub name: String,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// Allowed ways of taking files over.
    pub links: LinkPolicy,
    /// The tree as it was when it was judged complete; sealing fails when it has changed since.
    pub expected: Option<Tree>,
}

/// Seals a step. When this returns, the step is `staged`: it survives a killed process and a power cut.
///
/// The caller holds the vault's lock.
///
/// # Errors
/// `Conflict` when the step is sealed already; `SourceChanged` when a file changed, vanished or came while it was
/// taken over. Whatever the error, nothing is left behind and no other step is touched.
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
    let staging = Unfinished::create(vault)?;
    // Opened before the first write, so that it learns of every write error up to the sync.
    let barrier = sync::Barrier::open(&staging.path)?;
    let_the_clock_tick(&staging.path, &tree)?;

    let (methods, data) = take_over(request, &tree, &staging.path)?;
    if let Some(change) = tree.change_until(&look_again(source, &request.members)?) {
        return Err(source_changed(WHAT, source, &change));
    }
    let record = record_of(request, &tree, &methods, &tree::scan(&data)?)?;
    let bytes = encode(&record)?;
    check_readable(source, bytes.len() as u64, record.files.len())?;
    record.check()?;
    let files = record.files.iter().map(|file| &file.path);
    barrier.sync(&data, files, record.directories.iter())?;
    durable::create_new(&staging.path.join(SEAL), &kept::with_digest(bytes))?;
    staging.publish(&destination)?;
    Ok(SealedStep::new(destination, record))
}

/// The source once more: what is not there any more has changed.
fn look_again(source: &Path, members: &[RelativePath]) -> Result<Tree> {
    tree::scan_members(source, members).map_err(|error| match error.kind() {
        ErrorKind::NotFound => source_changed(WHAT, source, "it vanished while the step was sealed"),
        _ => error,
    })
}

fn sealed_already(destination: &Path) -> Error {
    Error::new(ErrorKind::Conflict, WHAT)
        .on(destination.display())
        .because("this step of this attempt is sealed already")
        .hint("a step that is saved again after going back is another attempt")
}

/// Checks that a record of that length can be read back.
fn check_readable(source: &Path, record_bytes: u64, file_count: usize) -> Result<()> {
    if record_bytes <= MAX_RECORD_BYTES {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Usage, WHAT)
        .on(source.display())
        .because(format!(
            "the list of its {file_count} files would be too long to read back"
        ))
        .hint("let the trainer write fewer files"))
}

/// Waits until a write from now on would get another modification time than the newest there is.
///
/// Kernels stamp files with a clock that ticks every few milliseconds: a file rewritten within the tick of its last
/// write would look untouched. The new directory's own time tells what that clock says, on that filesystem.
fn let_the_clock_tick(staging: &Path, tree: &Tree) -> Result<()> {
    if is_within_a_tick(tree.newest_mtime(), tree::scan(staging)?.newest_mtime()) {
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Whether less than a tick lies between the two times. Also when the first comes after the second: they may have been
/// stamped by different clocks.
fn is_within_a_tick(first: Timestamp, second: Timestamp) -> bool {
    let nanoseconds =
        |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    nanoseconds(second) - nanoseconds(first) < i128::from(TICK.subsec_nanos())
}

/// Takes every entry over into `data` below `staging`.
fn take_over(request: &SealRequest, tree: &Tree, staging: &Path) -> Result<(Vec<SnapshotMethod>, PathBuf)> {
    let root = staging.join(DATA);
    durable::create_directories(&root)?;
    // A single file stands in the data directory under the step's name, whatever it was called before.
    let own_name = RelativePath::new(request.name.as_str())?;
    let single = tree.shape == Shape::File;
    let source = if single {
        parent_of(&request.source)
    } else {
        &request.source
    };
    let mut snapshot = Snapshot::new(source, &root, request.links, tree.data_bytes())?;
    for path in tree
        .directories
        .iter()
        .filter_map(|directory| directory.path.as_ref())
    {
        snapshot.create_directory(path)?;
    }
    let take = |file| snapshot.take(file, if single { &own_name } else { &file.path });
    let methods = tree.files.iter().map(take).collect::<Result<Vec<_>>>()?;
    for link in &tree.symlinks {
        snapshot.link(&link.path, &link.target)?;
    }
    let data = if single { root.join(&request.name) } else { root };
    Ok((methods, data))
}

/// The record, after checking that what stands in the vault is what was to be taken over.
///
/// The scans of the source before and after do not show a file that was swapped and swapped back in between; the
/// vault's own copy does.
fn record_of(
    request: &SealRequest,
    tree: &Tree,
    methods: &[SnapshotMethod],
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
    if !same_lists || methods.len() != tree.files.len() {
        return Err(changed("the list of files"));
    }
    let mut files = Vec::with_capacity(tree.files.len());
    for ((file, copy), &method) in tree.files.iter().zip(&taken.files).zip(methods) {
        let moved = method == SnapshotMethod::HardLink && copy.inode != file.inode;
        let same_path = tree.shape == Shape::File || copy.path == file.path;
        if moved || !same_path || (copy.size_bytes, copy.mtime) != (file.size_bytes, file.mtime) {
            return Err(changed(file.path.as_str()));
        }
        files.push(SealedFile {
            path: copy.path.clone(),
            size_bytes: file.size_bytes,
            mode: file.mode,
            mtime: file.mtime,
            method,
            inode: copy.inode,
        });
    }
    let place = &request.writer.place;
    Ok(SealRecord {
        format: FORMAT,
        run: request.run.clone(),
        id: request.id,
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
        members: request.members.clone(),
    })
}

/// A step in the making, below `staging/`; removed unless it is published.
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
        durable::create_directories(&unfinished.path)?;
        Ok(unfinished)
    }

    /// The one rename that makes it a sealed step.
    fn publish(mut self, destination: &Path) -> Result<()> {
        let steps = parent_of(destination);
        durable::create_directories(steps)?;
        rename::no_replace(Place::path(&self.path), Place::path(destination)).map_err(
            |error| match error {
                Errno::EXIST | Errno::NOTEMPTY => sealed_already(destination),
                other => errors::io(WHAT, destination, other),
            },
        )?;
        durable::fsync_directory(steps).inspect_err(|_| {
            // Nobody may take for staged what a power cut could undo.
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
            tracing::warn!(%error, "an unfinished seal stays until the next start");
        }
    }
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
