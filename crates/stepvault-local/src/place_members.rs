//! The end of a restore of a multi-path step: each path appears in one rename, in the step's own order.
//!
//! No filesystem renames several paths at once, so a reader can see some of them in between. The order limits what a
//! reader can see. The last path of a step is the one that announces the step to the trainer: `AReaL` looks for
//! `recover_info` and takes the weights beside it for those of the step that it names. Creating this path last, and
//! removing an older one first, ensures that it never exists beside weights of another step. Because every path that is
//! to be replaced is removed before the first new path appears, paths of two steps never coexist: in between, a reader
//! sees an incomplete step or none.
//!
//! The removed paths are kept until all new ones are in place. A restore that is killed in between leaves them, and the
//! same restore resumes from whatever state it finds.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode};
use rustix::io::Errno;
use stepvault_core::manifest::DirectoryEntry;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::{Beneath, DIRECTORY, name_of};
use crate::errors::{self, IoAt as _};
use crate::publish::taken;
use crate::remove;
use crate::rename::{self, Place};
use crate::staging::{Existing, Staging, WHAT};
use crate::staging_place::{DATA, TAKEN_DOWN};
use crate::stat::Facts;

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

    /// Performs the renames. All are durable when it returns, and each before the next one.
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
            rustix::fs::fsync(&held).map_err(fault)?;
        }
        rustix::fs::fsync(&to).map_err(fault)
    }

    /// Releases the replaced paths once all new ones are in place: from now on they count as leftovers, which the next
    /// restore may remove.
    fn give_up_what_was_replaced(&self) -> Result<()> {
        if !self.has_taken_down() {
            return Ok(());
        }
        let fault = |error: Errno| errors::io(WHAT, &self.work.path, error);
        remove::entry(self.own.as_fd(), DATA).map_err(fault)?;
        let at = |name| Place::new(&self.own, name);
        rename::no_replace(at(TAKEN_DOWN), at(DATA)).map_err(fault)
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
        Error::new(ErrorKind::Conflict, WHAT)
            .on(self.target.join(path).display())
            .because("a file or link is in place of a parent directory of the step")
            .hint("move it, or restore to another path")
    }
}

fn count(directory: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let own = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty())?;
    let mut entries = 0;
    for entry in Dir::read_from(&own)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        entries += usize::from(name != b"." && name != b"..");
    }
    Ok(entries)
}
