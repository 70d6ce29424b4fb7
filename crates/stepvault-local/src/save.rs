//! A step that processes write together, out of everybody's sight, until it is committed.
//!
//! Whoever stages the same step gets the same directory, in whatever order and however often. What is kept beside the
//! directory says where the step is to go, so that its path is all that has to be handed from one process to another:
//!
//! ```text
//! .stepvault/saves/<directory of the steps>/stage.lock, commit.lock
//! .stepvault/saves/<directory of the steps>/<save>/save.json      where it is to go
//! .stepvault/saves/<directory of the steps>/<save>/outcome.json   how far it was committed
//! .stepvault/saves/<directory of the steps>/<save>/step_100/      the files
//! ```

use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use stepvault_core::codec::{Record, decode, encode};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::Beneath;
use crate::durable::{self, CreateOutcome};
use crate::errors;
use crate::lock;
use crate::save_abandoned;
pub use crate::save_commit::{Committed, LATEST};
use crate::save_record::SaveRecord;
use crate::staging_abandoned::stamp;
use crate::staging_place::{self, SAVES};
use crate::tree::{self, Tree};

const WHAT: &str = "cannot stage the step";
pub(crate) const COMMIT: &str = "cannot commit the step";
const RECORD: &str = "save.json";
pub(crate) const COMMIT_LOCK: &str = "commit.lock";
/// A path of 4,096 bytes and a name, with every byte escaped.
const MAX_RECORD_BYTES: u64 = 64 << 10;

/// A step to be staged.
#[derive(Debug, Clone, Copy)]
pub struct SaveRequest<'a> {
    /// The directory that is to hold the step.
    pub directory: &'a Path,
    /// The name that the step is to have there.
    pub name: &'a str,
    /// Its number.
    pub step: Step,
    /// What tells this save from an earlier try at the same step; any text.
    pub save_id: &'a str,
}

/// Where a step is staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedSave {
    /// The directory to write to.
    pub path: PathBuf,
    /// Where it is going to be.
    pub target: PathBuf,
}

/// Makes the directory that a step is written to, or finds the one that another process has made. It is on the
/// filesystem of the directory of the steps, which is created when it is missing.
pub fn stage(request: &SaveRequest<'_>) -> Result<StagedSave> {
    durable::create_directories(request.directory)?;
    let directory = request
        .directory
        .canonicalize()
        .map_err(|error| errors::io(WHAT, request.directory, error))?;
    let text = directory.to_str().ok_or_else(|| {
        Error::new(ErrorKind::Usage, WHAT)
            .on(directory.display())
            .because("the path is not UTF-8")
    })?;
    let base = staging_place::choose(&directory, None, SAVES)?;
    let area = base.path.join(key(&[text]));
    let step = request.step.to_string();
    let own = area.join(key(&[request.name, &step, request.save_id]));
    durable::create_directories(&area)?;
    // Only for the moment: abandoned ones are cleared away under it.
    let _lock = lock::wait_for(&area.join("stage.lock"))?;
    durable::create_directories(&own)?;
    let fault = |error| errors::io(WHAT, &own, error);
    Beneath::open(&own)
        .and_then(|open| stamp(open.as_fd()))
        .map_err(|error| fault(error.into()))?;
    let record = SaveRecord::new(text.to_owned(), request.name.to_owned(), request.step);
    if durable::create_new(&own.join(RECORD), &encode(&record)?)? == CreateOutcome::Exists
        && read::<SaveRecord>(&own.join(RECORD))? != Some(record)
    {
        return Err(Error::new(ErrorKind::Conflict, WHAT)
            .on(own.display())
            .because("it belongs to another step"));
    }
    let path = own.join(request.name);
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(error) => return Err(fault(error)),
    }
    // Also when it was there: whoever made it may have been killed before its name was on disk.
    durable::fsync_directory(&own)?;
    save_abandoned::clear(&area, &own);
    Ok(StagedSave {
        path,
        target: directory.join(request.name),
    })
}

/// A staged step that is being committed. Holds a lock, so that the link to the newest moves in one order.
#[derive(Debug)]
pub struct Save {
    pub(crate) record: SaveRecord,
    /// Holds the records and the files.
    pub(crate) own: PathBuf,
    pub(crate) staged: PathBuf,
    _lock: lock::Lock,
}

impl Save {
    /// Opens what [`stage`] has made at this path, which need not be there any more when another process has
    /// committed it. Waits for other commits into the same directory.
    ///
    /// # Errors
    /// `Usage` when [`stage`] has made no such path.
    pub fn open(staged: &Path) -> Result<Self> {
        let unknown = || {
            Error::new(ErrorKind::Usage, COMMIT)
                .on(staged.display())
                .because("'stepvault stage' has made no such directory")
                .hint("give the path that 'stepvault stage' printed")
        };
        let absolute = std::path::absolute(staged).map_err(|error| errors::io(COMMIT, staged, error))?;
        let (Some(own), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(unknown());
        };
        let Ok(own) = own.canonicalize() else {
            return Err(unknown());
        };
        let (Some(area), Ok(Some(record))) = (own.parent(), read::<SaveRecord>(&own.join(RECORD))) else {
            return Err(unknown());
        };
        if name != record.name.as_str() {
            return Err(unknown());
        }
        Ok(Self {
            _lock: lock::wait_for(&area.join(COMMIT_LOCK))?,
            staged: own.join(name),
            record,
            own,
        })
    }

    /// The step's number.
    pub fn step(&self) -> Step {
        self.record.step
    }

    /// Where the step is going to be.
    pub fn target(&self) -> PathBuf {
        Path::new(&self.record.directory).join(&self.record.name)
    }

    /// What was written so far; `None` when the directory is gone.
    pub fn tree(&self) -> Result<Option<Tree>> {
        match tree::scan(&self.staged) {
            Ok(tree) => Ok(Some(tree)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads a record; `None` when there is none.
pub(crate) fn read<R: Record>(path: &Path) -> Result<Option<R>> {
    durable::read_bounded(path, MAX_RECORD_BYTES)?
        .map(|bytes| decode(&bytes, &path.display().to_string()))
        .transpose()
}

fn key(parts: &[&str]) -> String {
    Sha256Digest::of(parts.join("\0").as_bytes()).to_string()[..16].to_owned()
}
