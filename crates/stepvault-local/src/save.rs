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
//!
//! A commit makes the step appear under its name in one rename, then moves the link to the newest step to it. If the
//! process is killed at any point, the next commit of the same step finishes the work. Nothing becomes visible before
//! everything is on disk, and the identity of the step's directory is recorded before the directory gets its name.

use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stepvault_core::codec::{FORMAT, Record, encode};
use stepvault_core::{Error, ErrorKind, Result, Sha256Digest, Step};

use crate::beneath::{Beneath, Facts};
use crate::durable::{self, Barrier, CreateOutcome};
use crate::errors::{self, IoAt as _};
use crate::rename::{self, Place};
use crate::sealed::read_record;
use crate::staging_place::{self, SAVES};
use crate::tree::{self, Tree};
use crate::{compare, leftovers, lock, remove};

const WHAT: &str = "cannot stage the step";
const COMMIT: &str = "cannot commit the step";
const RECORD: &str = "save.json";
const COMMIT_LOCK: &str = "commit.lock";
/// Name of the link to the step committed last, beside the steps.
pub const LATEST: &str = "latest";
const OUTCOME: &str = "outcome.json";
/// Temporary name of the link until it is moved into place.
const NEW_LATEST: &str = "latest.new";

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
    let directory = request.directory.canonicalize().at(WHAT, request.directory)?;
    let text = directory
        .to_str()
        .ok_or_else(|| Error::at(ErrorKind::Usage, WHAT, &directory).because("the path is not UTF-8"))?;
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
        .and_then(|open| leftovers::stamp(open.as_fd()))
        .map_err(|error| fault(error.into()))?;
    let record = SaveRecord {
        format: FORMAT,
        directory: text.to_owned(),
        name: request.name.to_owned(),
        step: request.step,
    };
    if durable::create_new(&own.join(RECORD), &encode(&record)?)? == CreateOutcome::Exists
        && read_record::<SaveRecord>(&own.join(RECORD))? != Some(record)
    {
        return Err(Error::at(ErrorKind::Conflict, WHAT, &own).because("it belongs to another step"));
    }
    let path = own.join(request.name);
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(error) => return Err(fault(error)),
    }
    // Needed for an existing directory too: its creator may have been killed before the name was on disk.
    durable::fsync_directory(&own)?;
    leftovers::clear_saves(&area, &own, &area.join(COMMIT_LOCK));
    Ok(StagedSave { path, target: directory.join(request.name) })
}

/// A staged step that is being committed. Holds a lock, so that commits move the link to the newest step in order.
#[derive(Debug)]
pub struct Save {
    record: SaveRecord,
    /// Directory with the records and the files.
    own: PathBuf,
    staged: PathBuf,
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
            Error::at(ErrorKind::Usage, COMMIT, staged)
                .because("'stepvault stage' did not create this directory")
                .hint("give the path that 'stepvault stage' printed")
        };
        let absolute = std::path::absolute(staged).at(COMMIT, staged)?;
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
        Ok(Self { _lock: lock::wait_for(&area.join(COMMIT_LOCK))?, staged: own.join(name), record, own })
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

/// Which process committed a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// This process.
    Now,
    /// Another process, or the same step with the same bytes existed before.
    Already,
}

impl Save {
    /// Makes everything durable, renames the step into place, and moves the link `latest` to it. `written` is the tree
    /// that was checked.
    ///
    /// # Errors
    /// `Conflict` when something else has the step's name, or something other than a link has the link's name;
    /// `SourceChanged` when a process is still writing. The staged files are kept.
    pub fn commit(&self, written: &Tree) -> Result<Committed> {
        let directory = self.open_directory()?;
        self.check_link(&directory)?;
        let files = written.files.iter().map(|file| &file.path);
        Barrier::open(&self.staged)?.sync(&self.staged, files, written.directories.iter())?;
        let unchanged = tree::scan(&self.staged)?;
        if let Some(change) = written.change_until(&unchanged) {
            return Err(Error::at(ErrorKind::SourceChanged, COMMIT, &self.staged)
                .because(change)
                .hint("commit after a barrier, when every process has finished writing"));
        }
        if let Some(there) = self.inode_in(&directory)? {
            return self.take_for_granted(&directory, written, there);
        }
        self.give_name(&directory)?;
        Ok(Committed::Now)
    }

    /// Finishes a commit that another process began, when the staged directory no longer exists.
    ///
    /// # Errors
    /// `NotFound` when the step was never committed.
    pub fn finish(&self) -> Result<()> {
        let directory = self.open_directory()?;
        let Some(outcome) = read_record::<SaveOutcome>(&self.own.join(OUTCOME))? else {
            return Err(self.vanished());
        };
        // The process that got this far may have been killed before its renames were on disk.
        if outcome.finished {
            return durable::fsync_directory(&self.own);
        }
        if self.inode_in(&directory)? != Some(outcome.inode) {
            return Err(self.vanished());
        }
        durable::fsync_directory(Path::new(&self.record.directory))?;
        // A later step may have been committed since: then the link is newer than this step's outcome record.
        let mtime = |path: &Path| {
            let facts = Facts::at(CWD, path).at(COMMIT, path)?;
            Ok::<_, Error>(facts.map(|facts| facts.mtime))
        };
        let written = mtime(&self.own.join(OUTCOME))?;
        let link = Path::new(&self.record.directory).join(LATEST);
        if mtime(&link)?.is_none_or(|moved| Some(moved) <= written) {
            self.move_link(&directory)?;
        }
        self.write_outcome(outcome.inode, true)
    }

    fn open_directory(&self) -> Result<Beneath> {
        let path = Path::new(&self.record.directory);
        Beneath::open(path).at(COMMIT, path)
    }

    /// Returns the inode of the entry with the step's name.
    fn inode_in(&self, directory: &Beneath) -> Result<Option<u64>> {
        Facts::at(directory, &self.record.name)
            .map(|facts| facts.map(|facts| facts.inode))
            .at(COMMIT, &self.target())
    }

    /// Checked before any change: a link that cannot be moved would leave the step half committed.
    fn check_link(&self, directory: &Beneath) -> Result<()> {
        let link = Path::new(&self.record.directory).join(LATEST);
        let facts = Facts::at(directory, LATEST).at(COMMIT, &link)?;
        if facts.is_none_or(|facts| facts.kind == FileType::Symlink) {
            return Ok(());
        }
        Err(Error::at(ErrorKind::Conflict, COMMIT, &link)
            .because("it is not a symbolic link, so it cannot be replaced by the link to the newest step")
            .hint("move it, then commit again; the staged files are kept"))
    }

    fn give_name(&self, directory: &Beneath) -> Result<()> {
        let fault = |error: Errno| errors::io(COMMIT, &self.target(), error);
        let staged = Beneath::open(&self.staged).map_err(fault)?;
        let own = Facts::from(rustix::fs::fstat(&staged).map_err(fault)?);
        let above = Facts::from(rustix::fs::fstat(directory).map_err(fault)?);
        // Users who may read the directory of the steps may read the step.
        let mode = Mode::from_raw_mode(above.mode & 0o777 | 0o700);
        rustix::fs::fchmod(&staged, mode).map_err(fault)?;
        rustix::fs::fsync(&staged).map_err(fault)?;
        self.write_outcome(own.inode, false)?;
        let to = Place::new(directory, &self.record.name);
        rename::no_replace(Place::path(&self.staged), to).map_err(fault)?;
        rustix::fs::fsync(directory).map_err(fault)?;
        durable::fsync_directory(&self.own)?;
        self.move_link(directory)?;
        self.write_outcome(own.inode, true)
    }

    /// Handles an existing entry with the step's name: accepted when it is identical.
    fn take_for_granted(&self, directory: &Beneath, written: &Tree, inode: u64) -> Result<Committed> {
        let target = self.target();
        if let Some(difference) = compare::directories_differ(&target, &self.staged, written)? {
            return Err(Error::at(ErrorKind::Conflict, COMMIT, &target)
                .because(format!("it already exists and differs: {difference}"))
                .hint(format!(
                    "move it and commit again, or delete the staged files: {}",
                    self.staged.display()
                )));
        }
        self.move_link(directory)?;
        self.write_outcome(inode, true)?;
        remove::tree(&self.staged)?;
        Ok(Committed::Already)
    }

    fn move_link(&self, directory: &Beneath) -> Result<()> {
        let own = Beneath::open(&self.own).at(COMMIT, &self.own)?;
        let by_way_of = Place::new(&own, NEW_LATEST);
        let to = Place::new(directory, LATEST);
        rename::replace_link(by_way_of, to, &self.record.name).map_err(|error| {
            let path = Path::new(&self.record.directory).join(LATEST);
            errors::io(COMMIT, &path, error)
        })
    }

    fn write_outcome(&self, inode: u64, finished: bool) -> Result<()> {
        let outcome = SaveOutcome { format: FORMAT, inode, finished };
        durable::replace(&self.own.join(OUTCOME), &encode(&outcome)?)
    }

    fn vanished(&self) -> Error {
        Error::at(ErrorKind::NotFound, COMMIT, &self.staged)
            .because("the directory no longer exists, and the step was not committed")
            .hint("stage the step again and rewrite it")
    }
}

/// The target of a staged step. Written once, by the process that stages it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SaveRecord {
    format: u32,
    /// The directory of the steps, absolute, with links resolved.
    directory: String,
    /// The name of the step in that directory.
    name: String,
    step: Step,
}

impl Record for SaveRecord {
    const WHAT: &'static str = "record of a staged step";

    fn check(&self) -> Result<()> {
        if self.directory.starts_with('/') && !self.name.is_empty() && !self.name.contains('/') {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, "invalid path for a step").on(&self.directory))
    }
}

/// The state of a commit. Written before the rename that publishes the step, and again when all is done, so that a
/// later process can distinguish the committed step from one that existed before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SaveOutcome {
    format: u32,
    /// The inode of the step's directory, which a rename preserves.
    inode: u64,
    /// Whether the link has been moved as well.
    finished: bool,
}

impl Record for SaveOutcome {
    const WHAT: &'static str = "outcome of a staged step";
}
