//! A step that several processes write together in a hidden directory until it is committed.
//!
//! All processes that stage the same step get the same directory, in any order and any number of times. A record beside
//! the directory holds the step's target, so the directory's path is all that processes have to pass on:
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

use stepvault_core::codec::encode;
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
use crate::sealed::read_record;
use crate::staging_abandoned::stamp;
use crate::staging_place::{self, SAVES};
use crate::tree::{self, Tree};

const WHAT: &str = "cannot stage the step";
pub(crate) const COMMIT: &str = "cannot commit the step";
const RECORD: &str = "save.json";
pub(crate) const COMMIT_LOCK: &str = "commit.lock";

/// A step to be staged.
#[derive(Debug, Clone, Copy)]
pub struct SaveRequest<'a> {
    /// The directory that will hold the step.
    pub directory: &'a Path,
    /// The name of the step in that directory.
    pub name: &'a str,
    /// Its number.
    pub step: Step,
    /// Distinguishes this save from an earlier attempt at the same step; any text.
    pub save_id: &'a str,
}

/// A step that is being staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedSave {
    /// The directory to write to.
    pub path: PathBuf,
    /// The path that the committed step will have.
    pub target: PathBuf,
}

/// Creates the directory that a step is written to, or returns the one that another process has created. It is on the
/// filesystem of the directory of the steps, which is created when missing.
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
    // Short: the clean-up of abandoned directories runs under it.
    let _lock = lock::wait_for(&area.join("stage.lock"))?;
    durable::create_directories(&own)?;
    let fault = |error| errors::io(WHAT, &own, error);
    Beneath::open(&own)
        .and_then(|open| stamp(open.as_fd()))
        .map_err(|error| fault(error.into()))?;
    let record = SaveRecord::new(text.to_owned(), request.name.to_owned(), request.step);
    if durable::create_new(&own.join(RECORD), &encode(&record)?)? == CreateOutcome::Exists
        && read_record::<SaveRecord>(&own.join(RECORD))? != Some(record)
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
    // Needed for an existing directory too: its creator may have been killed before the name was on disk.
    durable::fsync_directory(&own)?;
    save_abandoned::clear(&area, &own);
    Ok(StagedSave {
        path,
        target: directory.join(request.name),
    })
}

/// A staged step that is being committed. Holds a lock, so that commits move the link to the newest step in order.
#[derive(Debug)]
pub struct Save {
    pub(crate) record: SaveRecord,
    /// Directory with the records and the files.
    pub(crate) own: PathBuf,
    pub(crate) staged: PathBuf,
    _lock: lock::Lock,
}

impl Save {
    /// Opens the directory that [`stage`] created at this path. The directory may no longer exist when another process
    /// has committed it. Waits for other commits into the same directory.
    ///
    /// # Errors
    /// `Usage` when [`stage`] did not create this path.
    pub fn open(staged: &Path) -> Result<Self> {
        let unknown = || {
            Error::new(ErrorKind::Usage, COMMIT)
                .on(staged.display())
                .because("'stepvault stage' did not create this directory")
                .hint("give the path that 'stepvault stage' printed")
        };
        let absolute = std::path::absolute(staged).map_err(|error| errors::io(COMMIT, staged, error))?;
        let (Some(own), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(unknown());
        };
        let Ok(own) = own.canonicalize() else {
            return Err(unknown());
        };
        let (Some(area), Ok(Some(record))) = (own.parent(), read_record::<SaveRecord>(&own.join(RECORD)))
        else {
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

    /// Returns the step's number.
    pub fn step(&self) -> Step {
        self.record.step
    }

    /// Returns the path that the committed step will have.
    pub fn target(&self) -> PathBuf {
        Path::new(&self.record.directory).join(&self.record.name)
    }

    /// Scans the files written so far. Returns `None` when the directory no longer exists.
    pub fn tree(&self) -> Result<Option<Tree>> {
        match tree::scan(&self.staged) {
            Ok(tree) => Ok(Some(tree)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn key(parts: &[&str]) -> String {
    Sha256Digest::of(parts.join("\0").as_bytes()).to_string()[..16].to_owned()
}
