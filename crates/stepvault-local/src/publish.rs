//! The end of a restore: everything appears at the target in one rename, or in one for each path of a multi-path step.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use stepvault_core::manifest::{DirectoryEntry, MODE_MASK, Shape};
use stepvault_core::members::MemberSet;
use stepvault_core::{Error, ErrorKind, RelativePath, Result};

use crate::beneath::{Beneath, DIRECTORY, Facts, children, name_of, times};
use crate::errors::{self, IoAt as _};
use crate::remove;
use crate::rename::{self, Place};
use crate::staging::{Existing, Staging, WHAT};
use crate::staging_place::{DATA, REPLACED, TAKEN_DOWN};
use crate::tree::{self, Tree};

impl Staging {
    /// Publishes the restored step in one rename, or in one rename per path of a multi-path step. It consists of the
    /// files that were opened and finished, the links, and `directories` with their modes and times, and nothing else.
    /// Durable when it returns, unless the restore syncs nothing. Deletes replaced content last.
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
                    self.sync(&self.data).at(WHAT, &self.target)?;
                }
            }
        }
        self.sync(&self.target_parent).at(WHAT, &self.target)?;
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

    /// Sets mode and time of a directory and syncs the names in it.
    fn settle(
        &self,
        path: Option<&RelativePath>,
        entry: Option<&DirectoryEntry>,
        is_moved: bool,
    ) -> Result<()> {
        let directory = self.data.directory(path.map(RelativePath::as_str)).at(WHAT, &self.target)?;
        if let Some(entry) = entry {
            // A directory that its owner cannot write cannot be moved. A directory to be moved gets its own mode after
            // the move.
            let movable = if is_moved { 0o700 } else { 0 };
            let mode = entry.mode | movable;
            self.give_mode_and_time(directory.as_fd(), &DirectoryEntry { mode, ..entry.clone() })?;
        }
        self.sync(&directory).at(WHAT, &self.target)
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
        let held = rustix::fs::fstat(&self.data).at(WHAT, &self.work.path)?;
        let named =
            rustix::fs::statat(&self.own, DATA, AtFlags::SYMLINK_NOFOLLOW).at(WHAT, &self.work.path)?;
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

// The end of a restore of a multi-path step: each path appears in one rename, in the step's own order.
//
// No filesystem renames several paths at once, so a reader can see some of them in between. The order limits what a
// reader can see. The last path of a step is the one that announces the step to the trainer: `AReaL` looks for
// `recover_info` and takes the weights beside it for those of the step that it names. Creating this path last, and
// removing an older one first, ensures that it never exists beside weights of another step. Because every path that is
// to be replaced is removed before the first new path appears, paths of two steps never coexist: in between, a reader
// sees an incomplete step or none.
//
// The removed paths are kept until all new ones are in place. A restore that is killed in between leaves them, and the
// same restore resumes from whatever state it finds.

/// The planned renames.
#[derive(Debug)]
pub(crate) struct MemberMoves {
    /// The directory that receives the step's paths.
    directory: Beneath,
    /// Existing paths that are removed, in this order.
    take_down: Vec<RelativePath>,
    /// Staged paths in this order: a path of the step, or its outermost missing ancestor.
    pub(crate) put: Vec<RelativePath>,
}

impl Staging {
    /// Plans the renames from what exists at the step's paths. Changes nothing.
    pub(crate) fn plan_members(&self, existing: Existing) -> Result<MemberMoves> {
        let directory = Beneath::open(&self.target).at(WHAT, &self.target)?;
        let mut take_down = Vec::new();
        let mut put: Vec<RelativePath> = Vec::new();
        for member in &self.members {
            let missing = self.outermost_missing(&directory, member)?;
            if missing.is_none() {
                if existing == Existing::Refuse {
                    return Err(taken(&self.target.join(member)));
                }
                take_down.push(member.clone());
            }
            let moved = missing.unwrap_or_else(|| member.clone());
            // A directory above several paths is renamed when the last of them is due.
            put.retain(|other| *other != moved);
            put.push(moved);
        }
        take_down.reverse();
        Ok(MemberMoves { directory, take_down, put })
    }

    /// Returns the outermost missing path among `member` and its ancestors, or `None` when all exist.
    fn outermost_missing(&self, directory: &Beneath, member: &RelativePath) -> Result<Option<RelativePath>> {
        for above in member.ancestors() {
            match directory.directory(Some(above)) {
                Ok(_) => {}
                Err(Errno::NOENT) => return RelativePath::new(above).map(Some),
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.no_directory(above)),
                Err(error) => return Err(errors::io(WHAT, &self.target.join(above), error)),
            }
        }
        let there = directory.parent_of(member).and_then(|parent| Facts::at(parent, name_of(member)));
        match there {
            Ok(Some(_)) => Ok(None),
            Ok(None) | Err(Errno::NOENT) => Ok(Some(member.clone())),
            Err(error) => Err(errors::io(WHAT, &self.target.join(member), error)),
        }
    }

    /// Performs the renames. All are durable when it returns, and each before the next one, unless the restore syncs
    /// nothing. What is removed to be replaced is always synced: it is the only copy.
    pub(crate) fn move_members(
        &self,
        moves: &MemberMoves,
        listed: &BTreeMap<Option<&RelativePath>, &DirectoryEntry>,
    ) -> Result<()> {
        self.take_down(moves)?;
        for path in &moves.put {
            self.put(&moves.directory, path, listed.get(&Some(path)).copied())?;
        }
        self.give_up_what_was_replaced()
    }

    fn take_down(&self, moves: &MemberMoves) -> Result<()> {
        if moves.take_down.is_empty() {
            return Ok(());
        }
        let place = self.work.path.join(TAKEN_DOWN);
        let fault = |error: Errno| errors::io(WHAT, &place, error);
        match rustix::fs::mkdirat(&self.own, TAKEN_DOWN, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(fault(error)),
        }
        rustix::fs::fsync(&self.own).map_err(fault)?;
        let kept = self.own.directory(Some(TAKEN_DOWN)).map_err(fault)?;
        // An interrupted attempt may have moved paths here before.
        let mut number = count(kept.as_fd()).map_err(fault)?;
        for member in &moves.take_down {
            let fault = |error: Errno| errors::io(WHAT, &self.target.join(member), error);
            let parent = moves.directory.parent_of(member).map_err(fault)?;
            let from = Place::new(&parent, name_of(member));
            let name = number.to_string();
            let to = Place::new(&kept, &name);
            match rename::no_replace(from, to) {
                Ok(()) => number += 1,
                // Another process has removed it meanwhile.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(fault(error)),
            }
            rustix::fs::fsync(&kept).map_err(fault)?;
            rustix::fs::fsync(&parent).map_err(fault)?;
        }
        Ok(())
    }

    fn put(&self, directory: &Beneath, path: &RelativePath, entry: Option<&DirectoryEntry>) -> Result<()> {
        let place = self.target.join(path);
        let fault = |error: Errno| errors::io(WHAT, &place, error);
        let (from, to) =
            (self.data.parent_of(path).map_err(fault)?, directory.parent_of(path).map_err(fault)?);
        let held = entry.map(|_| self.data.directory(Some(path.as_str())));
        let held = held.transpose().map_err(fault)?;
        let name = name_of(path);
        match rename::no_replace(Place::new(&from, name), Place::new(&to, name)) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) => return Err(taken(&place)),
            Err(error) => return Err(fault(error)),
        }
        if let (Some(held), Some(entry)) = (held, entry) {
            // The owner needed write permission while the directory was moved.
            self.give_mode_and_time(held.as_fd(), entry)?;
            self.sync(&held).map_err(fault)?;
        }
        self.sync(&to).map_err(fault)
    }

    /// Releases the replaced paths once all new ones are in place: from now on they count as leftovers, which the next
    /// restore may remove.
    fn give_up_what_was_replaced(&self) -> Result<()> {
        if !self.has_taken_down() {
            return Ok(());
        }
        remove::entry(self.own.as_fd(), DATA).at(WHAT, &self.work.path)?;
        let at = |name| Place::new(&self.own, name);
        rename::no_replace(at(TAKEN_DOWN), at(DATA)).at(WHAT, &self.work.path)
    }

    /// Returns whether an earlier attempt removed paths that are not replaced yet.
    pub(crate) fn has_taken_down(&self) -> bool {
        rustix::fs::statat(&self.own, TAKEN_DOWN, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Finishes a replacement that was killed after all paths were in place: deletes the replaced paths.
    pub fn end_replacement(self) -> Result<()> {
        self.give_up_what_was_replaced()?;
        self.work.remove()
    }

    fn no_directory(&self, path: &str) -> Error {
        Error::at(ErrorKind::Conflict, WHAT, &self.target.join(path))
            .because("a file or link is in place of a parent directory of the step")
            .hint("move it, or restore to another path")
    }
}

fn count(directory: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let own = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty())?;
    children(own)?.try_fold(0, |entries, entry| entry.map(|_| entries + 1))
}
