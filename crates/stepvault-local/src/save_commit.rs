//! Commits a staged step: the step appears under its name in one rename, then the link to the newest step moves to it.
//!
//! If the process is killed at any point, the next commit of the same step finishes the work. Nothing becomes visible
//! before everything is on disk, and the identity of the step's directory is recorded before the directory gets its
//! name.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use stepvault_core::codec::encode;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::Beneath;
use crate::compare_trees;
use crate::durable;
use crate::errors;
use crate::remove;
use crate::rename::{self, Place};
use crate::save::{COMMIT, Save};
use crate::save_record::SaveOutcome;
use crate::sealed::read_record;
use crate::stat::Facts;
use crate::symlink;
use crate::sync::Barrier;
use crate::tree::{self, Tree};

/// Name of the link to the step committed last, beside the steps.
pub const LATEST: &str = "latest";
const OUTCOME: &str = "outcome.json";
/// Temporary name of the link until it is moved into place.
const NEW_LATEST: &str = "latest.new";

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
            return Err(Error::new(ErrorKind::SourceChanged, COMMIT)
                .on(self.staged.display())
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
            let facts = Facts::at(CWD, path).map_err(|error| errors::io(COMMIT, path, error))?;
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
        Beneath::open(path).map_err(|error| errors::io(COMMIT, path, error))
    }

    /// Returns the inode of the entry with the step's name.
    fn inode_in(&self, directory: &Beneath) -> Result<Option<u64>> {
        Facts::at(directory, &self.record.name)
            .map(|facts| facts.map(|facts| facts.inode))
            .map_err(|error| errors::io(COMMIT, &self.target(), error))
    }

    /// Checked before any change: a link that cannot be moved would leave the step half committed.
    fn check_link(&self, directory: &Beneath) -> Result<()> {
        let link = Path::new(&self.record.directory).join(LATEST);
        let facts = Facts::at(directory, LATEST).map_err(|error| errors::io(COMMIT, &link, error))?;
        if facts.is_none_or(|facts| facts.kind == FileType::Symlink) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, COMMIT)
            .on(link.display())
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
        if let Some(difference) = compare_trees::differ(&target, &self.staged, written)? {
            return Err(Error::new(ErrorKind::Conflict, COMMIT)
                .on(target.display())
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
        let own = Beneath::open(&self.own).map_err(|error| errors::io(COMMIT, &self.own, error))?;
        let by_way_of = Place::new(&own, NEW_LATEST);
        let to = Place::new(directory, LATEST);
        symlink::replace(by_way_of, to, &self.record.name).map_err(|error| {
            let path = Path::new(&self.record.directory).join(LATEST);
            errors::io(COMMIT, &path, error)
        })
    }

    fn write_outcome(&self, inode: u64, finished: bool) -> Result<()> {
        let outcome = SaveOutcome::new(inode, finished);
        durable::replace(&self.own.join(OUTCOME), &encode(&outcome)?)
    }

    fn vanished(&self) -> Error {
        Error::new(ErrorKind::NotFound, COMMIT)
            .on(self.staged.display())
            .because("the directory no longer exists, and the step was not committed")
            .hint("stage the step again and rewrite it")
    }
}
