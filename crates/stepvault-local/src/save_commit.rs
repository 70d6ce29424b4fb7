//! The end of a save: the step appears under its name in one rename, then the link to the newest moves to it.
//!
//! Killed at any point, the next commit of the same save finishes it: nothing is in place before everything is on
//! disk, and which directory the step was is written down before it gets its name.

use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode};
use rustix::io::Errno;
use stepvault_core::codec::encode;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::Beneath;
use crate::compare_trees;
use crate::durable;
use crate::errors;
use crate::remove;
use crate::rename::{self, Place};
use crate::save::{COMMIT, Save, read};
use crate::save_record::SaveOutcome;
use crate::stat::Facts;
use crate::symlink;
use crate::sync::Barrier;
use crate::tree::{self, Tree};

/// The link that names the step committed last, beside the steps.
pub const LATEST: &str = "latest";
const OUTCOME: &str = "outcome.json";
/// The link's name until it is moved in place.
const NEW_LATEST: &str = "latest.new";

/// Who committed a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// This process.
    Now,
    /// Another one, or the same step with the same bytes was there before.
    Already,
}

impl Save {
    /// Makes everything durable, gives the step its name, and moves the link `latest` to it. `written` is the tree
    /// that was checked.
    ///
    /// # Errors
    /// `Conflict` when something else has the step's name, or something that is no link has the link's;
    /// `SourceChanged` when somebody is still writing. What was staged stays.
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
                .hint("commit when every process has finished writing, after a barrier"));
        }
        if let Some(there) = self.inode_in(&directory)? {
            return self.take_for_granted(&directory, written, there);
        }
        self.give_name(&directory)?;
        Ok(Committed::Now)
    }

    /// Finishes what another process has begun, when the staged directory is gone.
    ///
    /// # Errors
    /// `NotFound` when it was never committed.
    pub fn finish(&self) -> Result<()> {
        let directory = self.open_directory()?;
        let Some(outcome) = read::<SaveOutcome>(&self.own.join(OUTCOME))? else {
            return Err(self.vanished());
        };
        // Whoever has come so far may have been killed before the names it gave were on disk.
        if outcome.finished {
            return durable::fsync_directory(&self.own);
        }
        if self.inode_in(&directory)? != Some(outcome.inode) {
            return Err(self.vanished());
        }
        durable::fsync_directory(Path::new(&self.record.directory))?;
        // A later step may have been committed since: then the link is newer than what this one wrote before it.
        let mtime = |path: &Path| mtime(path).map_err(|error| errors::io(COMMIT, path, error));
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

    /// The inode of what has the step's name.
    fn inode_in(&self, directory: &Beneath) -> Result<Option<u64>> {
        match rustix::fs::statat(directory, &self.record.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Facts::from(stat).inode)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(errors::io(COMMIT, &self.target(), error)),
        }
    }

    /// Before anything is done: a link that cannot be moved would leave the step half committed.
    fn check_link(&self, directory: &Beneath) -> Result<()> {
        let link = Path::new(&self.record.directory).join(LATEST);
        let facts = match rustix::fs::statat(directory, LATEST, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Facts::from(stat),
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(errors::io(COMMIT, &link, error)),
        };
        if facts.kind == FileType::Symlink {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, COMMIT)
            .on(link.display())
            .because("it is no symbolic link, and is to become the one to the newest step")
            .hint("move it away, then commit again; what was staged stays"))
    }

    fn give_name(&self, directory: &Beneath) -> Result<()> {
        let fault = |error: Errno| errors::io(COMMIT, &self.target(), error);
        let staged = Beneath::open(&self.staged).map_err(fault)?;
        let own = Facts::from(rustix::fs::fstat(&staged).map_err(fault)?);
        let above = Facts::from(rustix::fs::fstat(directory).map_err(fault)?);
        // Whoever may look into the directory of the steps may look into the step.
        let mode = Mode::from_raw_mode(above.mode & 0o777 | 0o700);
        rustix::fs::fchmod(&staged, mode).map_err(fault)?;
        rustix::fs::fsync(&staged).map_err(fault)?;
        self.write_outcome(own.inode, false)?;
        let to = Place {
            directory: directory.as_fd(),
            name: Path::new(&self.record.name),
        };
        rename::no_replace(Place::path(&self.staged), to).map_err(fault)?;
        rustix::fs::fsync(directory).map_err(fault)?;
        durable::fsync_directory(&self.own)?;
        self.move_link(directory)?;
        self.write_outcome(own.inode, true)
    }

    /// Something has the step's name: fine when it is the same.
    fn take_for_granted(&self, directory: &Beneath, written: &Tree, inode: u64) -> Result<Committed> {
        let target = self.target();
        if let Some(difference) = compare_trees::differ(&target, &self.staged, written)? {
            return Err(Error::new(ErrorKind::Conflict, COMMIT)
                .on(target.display())
                .because(format!("something else is there already: {difference}"))
                .hint(format!(
                    "move it away and commit again, or delete what was staged: {}",
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
        let by_way_of = Place {
            directory: own.as_fd(),
            name: Path::new(NEW_LATEST),
        };
        let to = Place {
            directory: directory.as_fd(),
            name: Path::new(LATEST),
        };
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
            .because("the directory is gone, and nobody has committed it")
            .hint("stage the step and write it again")
    }
}

/// The modification time of what has this name, a link's own; `None` when nothing has it.
fn mtime(path: &Path) -> rustix::io::Result<Option<Timestamp>> {
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(Facts::from(stat).mtime)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
