//! Sealed steps as they stand in the vault, and what is known of each on the remotes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, MAX_RECORD_BYTES, Record, decode, encode};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::manifest::{PartManifest, Shape};
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::{self, CreateOutcome};
use crate::kept;
use crate::seal_record::SealRecord;
use crate::vault::{Vault, entries};

/// The record in a step's directory, written last.
pub(crate) const SEAL: &str = "seal.json";
/// The snapshot in a step's directory.
pub(crate) const DATA: &str = "data";
const MANIFEST: &str = "manifest.json";

/// How far a step has come on a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadState {
    /// This node's part is verified there.
    Uploaded,
    /// Every part and the commit are there, confirmed by reading the commit back.
    Durable,
}

/// What this node knows of a step on one remote. A cache of the truth, which is the remote itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteState {
    /// Format version.
    pub format: u32,
    /// The remote's configured name.
    pub remote: RemoteName,
    /// Its URL at that time: the same name may point elsewhere tomorrow.
    pub url: String,
    /// Identity of the vault found there.
    pub vault: String,
    /// How far the step has come.
    pub state: UploadState,
    /// SHA-256 of the commit that was read back; always there once durable.
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
            return Err(fault("it is durable and names no commit"));
        }
        Ok(())
    }
}

/// A sealed step.
#[derive(Debug, Clone)]
pub struct SealedStep {
    directory: PathBuf,
    record: SealRecord,
}

/// All steps of a run, and what should have been one and cannot be read.
#[derive(Debug, Default)]
pub struct StepScan {
    /// Readable steps, the newest last.
    pub steps: Vec<SealedStep>,
    /// Paths under `steps/` that are no readable step, and why.
    pub faults: Vec<(PathBuf, Error)>,
}

impl SealedStep {
    pub(crate) fn new(directory: PathBuf, record: SealRecord) -> Self {
        Self { directory, record }
    }

    /// The step's own directory in the vault.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The run.
    pub fn run(&self) -> &RunName {
        &self.record.run
    }

    /// Step and attempt.
    pub fn id(&self) -> StepId {
        self.record.id
    }

    /// The name of the step's directory or file.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Directory or single file.
    pub fn shape(&self) -> Shape {
        self.record.shape
    }

    /// The seal's record.
    pub fn record(&self) -> &SealRecord {
        &self.record
    }

    /// The directory that stands for the checkpoint's own; a single-file checkpoint is the one file in it.
    pub fn data_root(&self) -> PathBuf {
        self.directory.join(DATA)
    }

    /// Where a file of the step stands.
    pub fn file_path(&self, path: &RelativePath) -> PathBuf {
        self.data_root().join(path)
    }

    /// The part manifest, once the files have been hashed.
    pub fn manifest(&self) -> Result<Option<PartManifest>> {
        let manifest: Option<PartManifest> = kept::read(&self.directory.join(MANIFEST))?;
        manifest.map(|manifest| self.own(manifest)).transpose()
    }

    /// Keeps the part manifest.
    ///
    /// # Errors
    /// `Conflict` when a different one is there: a manifest never changes. `Damaged` when it is another step's.
    pub fn save_manifest(&self, manifest: &PartManifest) -> Result<()> {
        manifest.check()?;
        let manifest = self.own(manifest.clone())?;
        let path = self.directory.join(MANIFEST);
        if durable::create_new(&path, &kept::with_digest(encode(&manifest)?))? == CreateOutcome::Exists
            && kept::read::<PartManifest>(&path)?.as_ref() != Some(&manifest)
        {
            return Err(Error::new(ErrorKind::Conflict, "cannot keep the part manifest")
                .on(path.display())
                .because("another one is there already")
                .hint(
                    "the step's files have changed since they were sealed: quarantine it and seal it again",
                ));
        }
        Ok(())
    }

    fn own(&self, manifest: PartManifest) -> Result<PartManifest> {
        let ours = manifest.run == self.record.run
            && manifest.id == self.record.id
            && manifest.node == self.record.node;
        if ours {
            return Ok(manifest);
        }
        Err(
            Error::new(ErrorKind::Damaged, "the part manifest is another step's")
                .on(self.directory.join(MANIFEST).display())
                .because(format!(
                    "it is of {}, {}, node {}",
                    manifest.run, manifest.id, manifest.node
                )),
        )
    }

    /// What is known of the step on a remote.
    pub fn remote_state(&self, remote: &RemoteName) -> Result<Option<RemoteState>> {
        let path = self.remote_path(remote);
        let state: Option<RemoteState> = read_record(&path)?;
        match state {
            Some(state) if state.remote != *remote => {
                Err(Error::new(ErrorKind::Damaged, "not the remote's state")
                    .on(path.display())
                    .because(format!("it is of the remote {}", state.remote)))
            }
            state => Ok(state),
        }
    }

    /// Keeps what is known of the step on a remote.
    pub fn save_remote_state(&self, state: &RemoteState) -> Result<()> {
        state.check()?;
        let path = self.remote_path(&state.remote);
        durable::create_directories(durable::parent_of(&path))?;
        durable::replace(&path, &encode(state)?)
    }

    fn remote_path(&self, remote: &RemoteName) -> PathBuf {
        self.directory.join("remotes").join(format!("{remote}.json"))
    }
}

impl Vault {
    /// All sealed steps of a run.
    pub fn steps(&self, run: &RunName) -> Result<StepScan> {
        let mut scan = StepScan::default();
        for path in entries(&self.steps_directory(run))? {
            let label = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(StepId::from_label);
            let step = match label {
                Some(id) => read_step(&path, run, id),
                None => Err(Error::new(ErrorKind::Damaged, "not a sealed step")
                    .on(path.display())
                    .because("its name is not one that a step has")
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

    /// One sealed step; `None` when there is none.
    pub fn step(&self, run: &RunName, id: StepId) -> Result<Option<SealedStep>> {
        let path = self.step_directory(run, id);
        // A link that leads nowhere counts as there, and as damaged.
        match path.symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            _ => read_step(&path, run, id).map(Some),
        }
    }
}

fn read_step(path: &Path, run: &RunName, id: StepId) -> Result<SealedStep> {
    let damaged = |why: &str| {
        Error::new(ErrorKind::Damaged, "cannot read the sealed step")
            .on(path.display())
            .because(why.to_owned())
    };
    let record: SealRecord = kept::read(&path.join(SEAL))?.ok_or_else(|| damaged("it has no seal.json"))?;
    if record.run != *run || record.id != id {
        return Err(damaged(&format!("its seal is of {}, {}", record.run, record.id)));
    }
    Ok(SealedStep::new(path.to_path_buf(), record))
}

/// Reads a record; `None` when there is none.
pub(crate) fn read_record<R: Record>(path: &Path) -> Result<Option<R>> {
    let Some(bytes) = durable::read_bounded(path, MAX_RECORD_BYTES)? else {
        return Ok(None);
    };
    decode(&bytes, &path.display().to_string()).map(Some)
}
