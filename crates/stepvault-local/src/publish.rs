//! The end of a restore: everything appears at the target in one rename. For a multi-path step see
//! [`crate::place_members`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use stepvault_core::manifest::{DirectoryEntry, MODE_MASK, Shape};
use stepvault_core::members::MemberSet;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::name_of;
use crate::errors::{self, IoAt as _};
use crate::remove;
use crate::rename::{self, Place};
use crate::staging::{Existing, Staging, WHAT};
use crate::staging_place::{DATA, REPLACED};
use crate::stat::times;
use crate::tree::{self, Tree};

impl Staging {
    /// Publishes the restored step in one rename, or in one rename per path of a multi-path step. It consists of the
    /// files that were opened and finished, the links, and `directories` with their modes and times, and nothing else.
    /// Durable when it returns. Deletes replaced content last.
    ///
    /// # Errors
    /// `Conflict` when something is at the target and `existing` is `Refuse`; `Failed` when a file that was opened was
    /// not finished. Staged files are kept for another attempt.
    pub fn finish(self, shape: Shape, directories: &[DirectoryEntry], existing: Existing) -> Result<()> {
        let moves = (!self.members.is_empty()).then(|| self.plan_members(existing)).transpose()?;
        for path in directories.iter().filter_map(|directory| directory.path.as_ref()) {
            for ancestor in path.ancestors() {
                self.make_directory(&RelativePath::new(ancestor)?)?;
            }
            self.make_directory(path)?;
        }
        self.remove_strays(directories)?;
        let fault = |error: Errno| errors::io(WHAT, &self.target, error);
        let tree = tree::scan(&self.work.path.join(DATA))?;
        self.check_complete(&tree, shape)?;
        let listed: BTreeMap<_, _> = directories.iter().map(|entry| (entry.path.as_ref(), entry)).collect();
        let renamed = moves.as_ref().map(|moves| MemberSet::new(&moves.put));
        // Deepest first: a change below a directory updates that directory's own time.
        for present in tree.directories.iter().rev() {
            let path = present.path.as_ref();
            // A directory that only leads to the paths of a step stays here and must be writable until the end.
            let (is_moved, is_placed) = match &renamed {
                Some(renamed) => {
                    (path.is_some_and(|path| renamed.has(path)), path.is_some_and(|path| renamed.holds(path)))
                }
                None => (path.is_none(), shape == Shape::Directory),
            };
            let entry = listed.get(&path).copied().filter(|_| is_placed);
            self.settle(path, entry, is_moved)?;
        }
        match (&moves, shape, tree.files.first()) {
            (Some(moves), ..) => self.move_members(moves, &listed)?,
            (None, Shape::File, Some(file)) => self.publish(Place::new(&self.data, &file.path), existing)?,
            (None, ..) => {
                self.publish(Place::new(&self.own, DATA), existing)?;
                if let Some(&root) = listed.get(&None).filter(|_| shape == Shape::Directory) {
                    self.give_mode_and_time(self.data.as_fd(), root)?;
                    rustix::fs::fsync(&self.data).map_err(fault)?;
                }
            }
        }
        rustix::fs::fsync(&self.target_parent).map_err(fault)?;
        if let Err(error) = self.work.remove() {
            // The step is in place and valid; only the content that it replaced still exists.
            tracing::warn!(%error, "cannot delete what the restore replaced");
        }
        Ok(())
    }

    /// Removes everything that neither this restore nor an earlier attempt at it wrote.
    fn remove_strays(&self, directories: &[DirectoryEntry]) -> Result<()> {
        let data = self.work.path.join(DATA);
        let tree = tree::scan(&data)?;
        let progress = self.progress.lock();
        let mut wanted: BTreeSet<&str> = progress.keys().flat_map(RelativePath::ancestors).collect();
        for path in directories.iter().filter_map(|directory| directory.path.as_ref()) {
            wanted.extend(path.ancestors().chain([path.as_str()]));
        }
        let files =
            tree.files.iter().map(|file| &file.path).chain(tree.symlinks.iter().map(|link| &link.path));
        let stray_files = files.filter(|path| !progress.contains_key(*path));
        let stray_directories = tree
            .directories
            .iter()
            .filter_map(|entry| entry.path.as_ref())
            .filter(|path| !wanted.contains(path.as_str()));
        stray_files.chain(stray_directories).try_for_each(|path| {
            match self.data.parent_of(path) {
                Ok(parent) => remove::entry(parent.as_fd(), name_of(path)),
                // It was removed with the directory above it.
                Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error),
            }
            .at(WHAT, &data.join(path))
        })
    }

    /// Checks that every file was finished and is still the same file.
    fn check_complete(&self, tree: &Tree, shape: Shape) -> Result<()> {
        let fault = |why: String| Error::at(ErrorKind::Failed, WHAT, &self.target).because(why);
        let mut present: BTreeMap<&RelativePath, Option<u64>> =
            tree.files.iter().map(|file| (&file.path, Some(file.inode))).collect();
        present.extend(tree.symlinks.iter().map(|link| (&link.path, None)));
        for (path, finished) in self.progress.lock().iter() {
            let Some(inode) = finished else {
                return Err(fault(format!("{path} is not finished")));
            };
            match present.get(path) {
                None => {
                    return Err(fault(format!("{path} has vanished from {}", self.work.path.display())));
                }
                Some(Some(there)) if there != inode => {
                    return Err(fault(format!("{path} was replaced in {}", self.work.path.display())));
                }
                Some(_) => {}
            }
        }
        if shape == Shape::File && (tree.files.len() != 1 || !tree.symlinks.is_empty()) {
            return Err(fault(format!(
                "a single-file checkpoint must have one file, not {} files and {} links",
                tree.files.len(),
                tree.symlinks.len()
            )));
        }
        Ok(())
    }

    /// Sets mode and time of a directory and makes the names in it durable.
    fn settle(
        &self,
        path: Option<&RelativePath>,
        entry: Option<&DirectoryEntry>,
        is_moved: bool,
    ) -> Result<()> {
        let fault = |error: Errno| errors::io(WHAT, &self.target, error);
        let directory = self.data.directory(path.map(RelativePath::as_str)).map_err(fault)?;
        if let Some(entry) = entry {
            // A directory that its owner cannot write cannot be moved. A directory to be moved gets its own mode after
            // the move.
            let movable = if is_moved { 0o700 } else { 0 };
            let mode = entry.mode | movable;
            self.give_mode_and_time(directory.as_fd(), &DirectoryEntry { mode, ..entry.clone() })?;
        }
        rustix::fs::fsync(&directory).map_err(fault)
    }

    pub(crate) fn give_mode_and_time(&self, directory: BorrowedFd<'_>, entry: &DirectoryEntry) -> Result<()> {
        rustix::fs::fchmod(directory, Mode::from_raw_mode(entry.mode & MODE_MASK))
            .and_then(|()| rustix::fs::futimens(directory, &times(entry.mtime)))
            .at(WHAT, &self.target)
    }

    fn publish(&self, from: Place<'_>, existing: Existing) -> Result<()> {
        let fault = |error: Errno| errors::io(WHAT, &self.target, error);
        self.check_data_is_ours()?;
        let to = Place::new(&self.target_parent, &self.target_name);
        match rename::no_replace(from, to) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST | Errno::NOTEMPTY) if existing == Existing::Refuse => {
                return Err(taken(&self.target));
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(error) => return Err(fault(error)),
        }
        if rename::exchange(from, to).map_err(fault)?.is_some() {
            return Ok(());
        }
        let aside = Place::new(&self.own, REPLACED);
        rename::no_replace(to, aside).map_err(fault)?;
        rename::no_replace(from, to).map_err(|error| {
            let _ = rename::no_replace(aside, to);
            fault(error)
        })
    }

    /// Checks that the name `data` still refers to the directory that was written to.
    fn check_data_is_ours(&self) -> Result<()> {
        let fault = |error: Errno| errors::io(WHAT, &self.work.path, error);
        let held = rustix::fs::fstat(&self.data).map_err(fault)?;
        let named = rustix::fs::statat(&self.own, DATA, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino) {
            return Ok(());
        }
        Err(Error::at(ErrorKind::Refused, WHAT, &self.work.path)
            .because("another process replaced the restored directory"))
    }

    /// Undoes a replacement that was interrupted between its two renames.
    pub(crate) fn put_back_replaced(&self) -> Result<()> {
        let fault = |error: Errno| errors::io(WHAT, &self.target, error);
        let aside = Place::new(&self.own, REPLACED);
        let to = Place::new(&self.target_parent, &self.target_name);
        match rename::no_replace(aside, to) {
            Ok(()) => rustix::fs::fsync(&self.target_parent).map_err(fault),
            Err(Errno::NOENT) => Ok(()),
            // The second rename was done as well; only the replaced content is left to delete.
            Err(Errno::EXIST | Errno::NOTEMPTY) => remove::tree(&self.work.path.join(REPLACED)),
            Err(error) => Err(fault(error)),
        }
    }
}

pub(crate) fn taken(place: &Path) -> Error {
    Error::at(ErrorKind::Conflict, WHAT, place)
        .because("something with that name already exists")
        .hint("choose another path, or allow it to be replaced")
}
