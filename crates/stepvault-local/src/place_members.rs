//! The end of a restore of a step of several paths: each appears in one rename, in the step's own order.
//!
//! No filesystem renames several things at once, so that whoever looks in between sees some of them. What they may see
//! follows from the order. A step's last path is the one that tells the trainer of it: `AReaL` looks for `recover_info`,
//! and takes the weights beside it for those of the step that it names. Creating it last, and taking an older one down
//! first, keeps it from ever standing beside weights that are not all its own. And because everything that is to be
//! replaced goes before the first new path comes, the paths of two steps never stand side by side: what is seen in
//! between is a step of which something is missing, or none.
//!
//! What was taken down is kept until all that is new is in place. A restore that is killed in between leaves it, and
//! the same restore again goes on from whatever stands there.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode};
use rustix::io::Errno;
use stepvault_core::manifest::DirectoryEntry;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::{Beneath, DIRECTORY, name_of};
use crate::errors;
use crate::publish::taken;
use crate::remove;
use crate::rename::{self, Place};
use crate::staging::{DATA, Existing, Staging, WHAT};

/// What stood in the places of a step's paths.
pub(crate) const TAKEN_DOWN: &str = "taken-down";

/// What is going to be renamed.
#[derive(Debug)]
pub(crate) struct MemberMoves {
    /// Where the step's paths go.
    directory: Beneath,
    /// What stands in the step's places, in this order.
    take_down: Vec<RelativePath>,
    /// What is staged, in this order: a path of the step, or the outermost directory above it that is missing.
    pub(crate) put: Vec<RelativePath>,
}

impl Staging {
    /// Looks at what stands in the step's places; changes nothing.
    pub(crate) fn plan_members(&self, existing: Existing) -> Result<MemberMoves> {
        let directory = Beneath::open(&self.target).map_err(|error| errors::io(WHAT, &self.target, error))?;
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
            // A directory above several paths comes when the last of them is due.
            put.retain(|other| *other != moved);
            put.push(moved);
        }
        take_down.reverse();
        Ok(MemberMoves {
            directory,
            take_down,
            put,
        })
    }

    /// The outermost of `member` and the directories above it that is not there; nothing when all are.
    fn outermost_missing(&self, directory: &Beneath, member: &RelativePath) -> Result<Option<RelativePath>> {
        for above in member.ancestors() {
            match directory.directory(Some(above)) {
                Ok(_) => {}
                Err(Errno::NOENT) => return RelativePath::new(above).map(Some),
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(self.no_directory(above)),
                Err(error) => return Err(errors::io(WHAT, &self.target.join(above), error)),
            }
        }
        let there = directory
            .parent_of(member)
            .and_then(|parent| rustix::fs::statat(parent, name_of(member), AtFlags::SYMLINK_NOFOLLOW));
        match there {
            Ok(_) => Ok(None),
            Err(Errno::NOENT) => Ok(Some(member.clone())),
            Err(error) => Err(errors::io(WHAT, &self.target.join(member), error)),
        }
    }

    /// Carries the renames out. Durable when it returns, and each before the next one.
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
        let place = self.own_path.join(TAKEN_DOWN);
        let fault = |error: Errno| errors::io(WHAT, &place, error);
        match rustix::fs::mkdirat(&self.own, TAKEN_DOWN, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(fault(error)),
        }
        rustix::fs::fsync(&self.own).map_err(fault)?;
        let kept = self.own.directory(Some(TAKEN_DOWN)).map_err(fault)?;
        // An interrupted try may have taken something down before.
        let mut number = count(kept.as_fd()).map_err(fault)?;
        for member in &moves.take_down {
            let fault = |error: Errno| errors::io(WHAT, &self.target.join(member), error);
            let parent = moves.directory.parent_of(member).map_err(fault)?;
            let from = Place {
                directory: parent.as_fd(),
                name: Path::new(name_of(member)),
            };
            let name = number.to_string();
            let to = Place {
                directory: kept.as_fd(),
                name: Path::new(&name),
            };
            match rename::no_replace(from, to) {
                Ok(()) => number += 1,
                // Somebody else has removed it meanwhile.
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
        let (from, to) = (
            self.data.parent_of(path).map_err(fault)?,
            directory.parent_of(path).map_err(fault)?,
        );
        let held = entry.map(|_| self.data.directory(Some(path.as_str())));
        let held = held.transpose().map_err(fault)?;
        let name = Path::new(name_of(path));
        let at = |directory| Place { directory, name };
        match rename::no_replace(at(from.as_fd()), at(to.as_fd())) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOTEMPTY) => return Err(taken(&place)),
            Err(error) => return Err(fault(error)),
        }
        if let (Some(held), Some(entry)) = (held, entry) {
            // Its owner had to be able to write it while it was moved.
            self.give_mode_and_time(held.as_fd(), entry)?;
            rustix::fs::fsync(&held).map_err(fault)?;
        }
        rustix::fs::fsync(&to).map_err(fault)
    }

    /// All that is new is in place: what it replaced is from now on what any interrupted restore leaves, which the next
    /// one may clear away.
    fn give_up_what_was_replaced(&self) -> Result<()> {
        if !self.has_taken_down() {
            return Ok(());
        }
        let fault = |error: Errno| errors::io(WHAT, &self.own_path, error);
        remove::entry(self.own.as_fd(), DATA).map_err(fault)?;
        let at = |name| Place {
            directory: self.own.as_fd(),
            name: Path::new(name),
        };
        rename::no_replace(at(TAKEN_DOWN), at(DATA)).map_err(fault)
    }

    /// Whether an earlier try has taken something down that is not replaced yet.
    pub(crate) fn has_taken_down(&self) -> bool {
        rustix::fs::statat(&self.own, TAKEN_DOWN, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Ends a replacement that was killed when everything was in place: deletes what was replaced.
    pub fn end_replacement(self) -> Result<()> {
        self.give_up_what_was_replaced()?;
        self.clean_up()
    }

    fn no_directory(&self, path: &str) -> Error {
        Error::new(ErrorKind::Conflict, WHAT)
            .on(self.target.join(path).display())
            .because("a file or link stands where a directory has to lead to the step")
            .hint("move it away, or restore elsewhere")
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
