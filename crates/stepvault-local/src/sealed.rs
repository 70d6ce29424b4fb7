//! Sealed steps in the vault, and the recorded state of each on the remotes.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record, decode, encode};
use stepvault_core::manifest::{PartManifest, Shape};
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{
    Error, ErrorKind, RelativePath, RemoteName, Result, RunName, Sha256Digest, StepId, Timestamp,
};

use crate::durable::{self, CreateOutcome};
use crate::rename::{self, Place};
use crate::seal_record::{AttemptState, SealRecord, SealedFile, SnapshotMethod};
use crate::tree::{Tree, TreeFile};
use crate::vault::{Vault, entries, file_name};
use crate::{errors, notes, remove};

/// The record in a step's directory, written last.
pub(crate) const SEAL: &str = "seal.json";
/// The snapshot in a step's directory.
pub(crate) const DATA: &str = "data";
const MANIFEST: &str = "manifest.json";
const REMOTES: &str = "remotes";

/// The state of a step on a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadState {
    /// This node's part is verified there.
    Uploaded,
    /// Every part and the commit exist, confirmed by reading the commit back.
    Durable,
}

/// This node's record of a step on one remote. A cache: the remote itself is authoritative.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteState {
    /// Format version.
    pub format: u32,
    /// Step and attempt. Under another attempt nothing of the step has been sent.
    pub id: StepId,
    /// The remote's configured name.
    pub remote: RemoteName,
    /// Its URL at that time, with its endpoint if it has one of its own, because the configuration may change.
    pub url: String,
    /// Identity of the vault found there.
    pub vault: String,
    /// State of the step.
    pub state: UploadState,
    /// SHA-256 of the commit that was read back; always present once durable.
    pub commit_sha256: Option<Sha256Digest>,
}

impl Record for RemoteState {
    const WHAT: &'static str = "remote state";

    fn check(&self) -> Result<()> {
        let fault =
            |why: &str| Error::new(ErrorKind::Damaged, "the remote state contradicts itself").because(why);
        if self.format != FORMAT {
            return Err(fault("its format is not known"));
        }
        if self.state == UploadState::Durable && self.commit_sha256.is_none() {
            return Err(fault("it is marked durable but names no commit"));
        }
        Ok(())
    }
}

/// A sealed step.
#[derive(Debug, Clone)]
pub struct SealedStep {
    directory: PathBuf,
    /// Shared by all clones, because it may list many files.
    record: Arc<SealRecord>,
}

/// The sealed steps of a run, and the entries that cannot be read.
#[derive(Debug, Default)]
pub struct StepScan {
    /// Readable steps, newest last.
    pub steps: Vec<SealedStep>,
    /// Paths under `steps/` that are not readable steps, and why.
    pub faults: Vec<(PathBuf, Error)>,
}

impl SealedStep {
    pub(crate) fn new(directory: PathBuf, record: SealRecord) -> Self {
        Self { directory, record: Arc::new(record) }
    }

    /// Returns the step's own directory in the vault.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the run.
    pub fn run(&self) -> &RunName {
        &self.record.run
    }

    /// Returns step and attempt.
    pub fn id(&self) -> StepId {
        self.record.id
    }

    /// Returns the name of the step's directory or file.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns the seal's record.
    pub fn record(&self) -> &SealRecord {
        &self.record
    }

    /// Returns the checkpoint as it was sealed, without reading the disk: device numbers and inode change times are
    /// unknown.
    pub fn tree(&self) -> Tree {
        let file = |file: &SealedFile| TreeFile {
            path: file.path.clone(),
            size_bytes: file.size_bytes,
            mode: file.mode,
            mtime: file.mtime,
            ctime: Timestamp::default(),
            device: 0,
            inode: file.inode,
            allocated_bytes: file.size_bytes,
        };
        Tree {
            shape: self.record.shape,
            files: self.record.files.iter().map(file).collect(),
            directories: self.record.directories.clone(),
            symlinks: self.record.symlinks.clone(),
        }
    }

    /// Returns the path of the checkpoint: its directory, or its one file.
    pub fn checkpoint_path(&self) -> PathBuf {
        match self.record.shape {
            Shape::Directory => self.data_root(),
            Shape::File => self.data_root().join(&self.record.name),
        }
    }

    /// Returns the directory of the checkpoint's files, which is the trainer's own for a step that was sealed in place.
    /// A single-file checkpoint is one file in it.
    pub fn data_root(&self) -> PathBuf {
        self.record.source.clone().unwrap_or_else(|| self.directory.join(DATA))
    }

    /// Returns the path of a file of the step.
    pub fn file_path(&self, path: &RelativePath) -> PathBuf {
        self.data_root().join(path)
    }

    /// Returns the part manifest, or `None` before the files have been hashed.
    pub fn manifest(&self) -> Result<Option<PartManifest>> {
        let mut manifest: Option<PartManifest> = notes::read(&self.directory.join(MANIFEST))?;
        if let Some(manifest) = &mut manifest {
            self.check_own(manifest)?;
            manifest.id = self.record.id;
        }
        Ok(manifest)
    }

    /// Stores the part manifest.
    ///
    /// # Errors
    /// `Conflict` when a different one exists, because a manifest never changes; `Damaged` when it belongs to another
    /// step.
    pub fn save_manifest(&self, manifest: &PartManifest) -> Result<()> {
        manifest.check()?;
        self.check_own(manifest)?;
        let path = self.directory.join(MANIFEST);
        let is_kept = |kept: PartManifest| PartManifest { id: manifest.id, ..kept } == *manifest;
        if notes::create(&path, manifest)? == CreateOutcome::Exists && !self.manifest()?.is_some_and(is_kept)
        {
            return Err(Error::at(ErrorKind::Conflict, "cannot store the part manifest", &path)
                .because("a different one already exists")
                .hint(
                    "the step's files have changed since they were sealed: quarantine it and seal it again",
                ));
        }
        Ok(())
    }

    /// Checks that the manifest belongs to the step. The digests hold under whichever attempt they were computed.
    fn check_own(&self, manifest: &PartManifest) -> Result<()> {
        let attempt = manifest.id.attempt;
        let is_own_attempt =
            attempt == self.record.id.attempt || self.record.attempt.former.contains(&attempt);
        let ours = manifest.run == self.record.run
            && manifest.id.step == self.record.id.step
            && is_own_attempt
            && manifest.node == self.record.node;
        if ours {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, "the part manifest belongs to another step")
            .on(self.directory.join(MANIFEST).display())
            .because(format!("it is of {}, {}, node {}", manifest.run, manifest.id, manifest.node)))
    }

    /// Returns the recorded state of the step on a remote.
    pub fn remote_state(&self, remote: &RemoteName) -> Result<Option<RemoteState>> {
        let state = remote_state_in(&self.directory, remote)?;
        Ok(state.filter(|state| state.id == self.record.id))
    }

    /// Returns the remotes on which the step is recorded as durable.
    pub fn durable_remotes(&self) -> Result<Vec<RemoteName>> {
        let mut durable = Vec::new();
        for path in entries(&self.directory.join(REMOTES))? {
            let name = file_name(&path).strip_suffix(".json").and_then(|name| RemoteName::new(name).ok());
            let Some(name) = name else { continue };
            let state = self.remote_state(&name)?;
            if state.is_some_and(|state| state.state == UploadState::Durable) {
                durable.push(name);
            }
        }
        Ok(durable)
    }

    /// Stores the state of the step on a remote.
    pub fn save_remote_state(&self, state: &RemoteState) -> Result<()> {
        state.check()?;
        let path = remote_path(&self.directory, &state.remote);
        // A step that was evicted during its upload must not reappear as a directory without a seal.
        if !self.directory.join(SEAL).exists() {
            return Err(Error::at(ErrorKind::NotFound, "cannot store the upload state", &self.directory)
                .because("the step is no longer in the vault"));
        }
        durable::create_directories_below(&self.directory, durable::parent_of(&path))?;
        durable::replace(&path, &encode(state)?)
    }

    /// Removes the recorded state of the step on a remote. Returns `false` when there was none.
    pub fn forget_remote(&self, remote: &RemoteName) -> Result<bool> {
        durable::remove_file(&remote_path(&self.directory, remote))
    }
}

/// Returns the recorded state on a remote of the step in `directory`, which may be anywhere.
pub(crate) fn remote_state_in(directory: &Path, remote: &RemoteName) -> Result<Option<RemoteState>> {
    let path = remote_path(directory, remote);
    let state: Option<RemoteState> = read_record(&path)?;
    match state {
        Some(state) if state.remote != *remote => {
            Err(Error::at(ErrorKind::Damaged, "the remote state belongs to another remote", &path)
                .because(format!("it is of the remote {}", state.remote)))
        }
        state => Ok(state),
    }
}

fn remote_path(directory: &Path, remote: &RemoteName) -> PathBuf {
    directory.join(REMOTES).join(format!("{remote}.json"))
}

impl Vault {
    /// Returns all sealed steps of a run.
    pub fn steps(&self, run: &RunName) -> Result<StepScan> {
        let mut scan = StepScan::default();
        for path in entries(&self.steps_directory(run))? {
            let step = match StepId::from_label(file_name(&path)) {
                Some(id) => read_step(&path, run, id),
                None => Err(Error::at(ErrorKind::Damaged, "not a sealed step", &path)
                    .because("its name is not a valid step name")
                    .hint("move it out of the vault")),
            };
            match step {
                Ok(step) => scan.steps.push(step),
                Err(error) => scan.faults.push((path, error)),
            }
        }
        scan.steps.sort_unstable_by_key(SealedStep::id);
        Ok(scan)
    }

    /// Returns one sealed step, or `None` when it does not exist.
    pub fn step(&self, run: &RunName, id: StepId) -> Result<Option<SealedStep>> {
        let path = self.step_directory(run, id);
        // A dangling link counts as an existing, damaged step.
        match path.symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => read_step(&path, run, id).map(Some),
        }
    }
}

fn read_step(path: &Path, run: &RunName, id: StepId) -> Result<SealedStep> {
    let damaged = |why: &str| {
        Error::at(ErrorKind::Damaged, "cannot read the sealed step", path).because(why.to_owned())
    };
    let mut record: SealRecord =
        notes::read(&path.join(SEAL))?.ok_or_else(|| damaged("it has no seal.json"))?;
    if record.is_provisional() && record.id.step == id.step && record.id != id {
        record.attempt.remember(record.id.attempt);
        record.id = id;
    }
    if record.run != *run || record.id != id {
        return Err(damaged(&format!("its seal is of {}, {}", record.run, record.id)));
    }
    Ok(SealedStep::new(path.to_path_buf(), record))
}

/// Reads a record. Returns `None` when it does not exist.
pub(crate) fn read_record<R: Record>(path: &Path) -> Result<Option<R>> {
    durable::read_bounded(path, MAX_RECORD_BYTES)?
        .map(|bytes| decode(&bytes, &path.display().to_string()))
        .transpose()
}

// Computes how many bytes of disk only a sealed step occupies.

/// Unit of block counts in `stat`, whatever the file system's own block size.
const BLOCK_BYTES: u64 = 512;

impl SealedStep {
    /// Returns the bytes that removing the step would free: those of files of which the step holds every hard link.
    /// While the trainer also has a linked file, removing the step's name frees nothing. A reflinked file counts in
    /// full, because no cheap call reports whether its blocks are still shared. A file whose metadata cannot be read
    /// counts as 0.
    pub fn reclaimable_bytes(&self) -> u64 {
        if self.record().source.is_some() {
            return 0;
        }
        let mut links: HashMap<(u64, u64), (u64, u64, u64)> = HashMap::new();
        for file in &self.record().files {
            let Ok(facts) = std::fs::symlink_metadata(self.file_path(&file.path)) else {
                continue;
            };
            let key = (facts.dev(), facts.ino());
            let (own, _, _) = links.entry(key).or_insert((0, facts.nlink(), facts.blocks()));
            *own += 1;
        }
        links
            .into_values()
            .filter(|(own, all, _)| own >= all)
            .fold(0, |sum, (_, _, blocks)| sum.saturating_add(blocks.saturating_mul(BLOCK_BYTES)))
    }

    /// Returns whether blocks of its files may be shared with the trainer's files.
    pub fn has_reflinks(&self) -> bool {
        let files = &self.record().files;
        files.iter().any(|file| file.method == SnapshotMethod::Reflink)
    }

    /// Returns whether files of it are the trainer's own files under a second name.
    pub fn has_hard_links(&self) -> bool {
        self.record().files.iter().any(|file| file.method == SnapshotMethod::HardLink)
    }
}

// Assigns the identity of a sealed step, after sealing or again later.
//
// While the attempt is provisional, the name of the step's directory is authoritative; once it is final, `seal.json`
// holds the same value. Each change is one rename or one replaced record, so a process that ends in between leaves a
// readable step whose attempt is still provisional.

const WHAT: &str = "cannot assign an attempt to the step";

impl Vault {
    /// Assigns the final attempt and revision to a provisional step, with what its origin says of them. Durable when it
    /// returns.
    ///
    /// The caller holds the vault's lock, and no part of the step is being sent.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when another step is already sealed under that identity; [`ErrorKind::NotFound`] when the
    /// step no longer exists.
    pub fn place(&self, step: &SealedStep, id: StepId, origin: StepOrigin) -> Result<SealedStep> {
        let before = step.id();
        let renamed = self.rename_provisional(step, id)?;
        let mut record = renamed.record().clone();
        record.attempt.state = AttemptState::Placed;
        record.origin = origin;
        let placed = reseal(SealedStep::new(renamed.directory().to_owned(), record))?;
        if before != placed.id() {
            remove::tree(&self.journal_directory(placed.run(), before))?;
        }
        Ok(placed)
    }

    /// Assigns another provisional identity to a provisional step. Durable when it returns.
    ///
    /// # Errors
    /// As for [`Self::place`].
    pub fn rename_provisional(&self, step: &SealedStep, id: StepId) -> Result<SealedStep> {
        let mut record = step.record().clone();
        let before = record.id;
        if before == id {
            return Ok(step.clone());
        }
        let destination = self.step_directory(&record.run, id);
        // The pin of the former name stays: it may have meant the step that now has that name.
        if let Some(pin) = self.pins(&record.run)?.into_iter().find(|pin| pin.id == before) {
            self.pin(&record.run, id, &pin.note)?;
        }
        rename::no_replace(Place::path(step.directory()), Place::path(&destination)).map_err(|error| {
            match error {
                Errno::EXIST | Errno::NOTEMPTY => Error::at(ErrorKind::Conflict, WHAT, &destination)
                    .because("another step is already sealed under that identity"),
                other => errors::io(WHAT, step.directory(), other),
            }
        })?;
        durable::fsync_directory(&self.steps_directory(&record.run))?;
        if before.attempt != id.attempt {
            record.attempt.remember(before.attempt);
        }
        record.id = id;
        Ok(SealedStep::new(destination, record))
    }

    /// Makes the identity of a step provisional again, because another step holds it. Durable when it returns.
    ///
    /// The caller holds the vault's lock, and no part of the step is being sent.
    pub fn make_provisional_again(&self, step: &SealedStep) -> Result<SealedStep> {
        let mut record = step.record().clone();
        record.attempt.lost.push(record.id);
        record.attempt.state = AttemptState::Provisional;
        reseal(SealedStep::new(step.directory().to_owned(), record))
    }
}

/// Rewrites the record. A journal of the previous record does not apply to the new one.
fn reseal(step: SealedStep) -> Result<SealedStep> {
    notes::replace(&step.directory().join(SEAL), step.record())?;
    Ok(step)
}
