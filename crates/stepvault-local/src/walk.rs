//! Walks a checkpoint directory, one descriptor at a time, never through a link.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{DirectoryEntry, MAX_ENTRIES, Shape, SymlinkEntry, check_link_target};
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::{Beneath, name_of};
use crate::errors;
use crate::stat::Facts;
use crate::tree::{Tree, TreeFile, source_changed};

const WHAT: &str = "cannot read the checkpoint";

/// Lists everything below the directory `root`.
pub(crate) fn directory(root: &Path) -> Result<Tree> {
    let beneath = Beneath::open(root).map_err(|error| errors::io(WHAT, root, error))?;
    let mut walk = Walk::new(root, beneath);
    walk.pending.push(None);
    walk.finish()
}

/// Lists these paths below the directory `root`, and the directories that lead to them. `root` may be reached through a
/// link: it is not part of the checkpoint.
pub(crate) fn members(root: &Path, members: &[RelativePath]) -> Result<Tree> {
    let beneath = Beneath::open_following(root).map_err(|error| errors::io(WHAT, root, error))?;
    let mut walk = Walk::new(root, beneath);
    walk.enter(None)?;
    let above: BTreeSet<&str> = members.iter().flat_map(RelativePath::ancestors).collect();
    for path in above {
        walk.enter(Some(&RelativePath::new(path)?))?;
    }
    for member in members {
        walk.member(member)?;
    }
    walk.finish()
}

struct Walk<'a> {
    root: &'a Path,
    beneath: Beneath,
    tree: Tree,
    pending: Vec<Option<RelativePath>>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Path, beneath: Beneath) -> Self {
        let tree = Tree {
            shape: Shape::Directory,
            files: Vec::new(),
            directories: Vec::new(),
            symlinks: Vec::new(),
        };
        Self {
            root,
            beneath,
            tree,
            pending: Vec::new(),
        }
    }

    /// Visits the remaining directories and returns the sorted lists.
    fn finish(mut self) -> Result<Tree> {
        while let Some(next) = self.pending.pop() {
            self.visit(next.as_ref())?;
        }
        let mut tree = self.tree;
        tree.files
            .sort_unstable_by(|first, second| first.path.cmp(&second.path));
        tree.directories
            .sort_unstable_by(|first, second| first.path.cmp(&second.path));
        tree.symlinks
            .sort_unstable_by(|first, second| first.path.cmp(&second.path));
        check_links(&tree.symlinks)?;
        Ok(tree)
    }

    fn place(&self, path: Option<&RelativePath>) -> PathBuf {
        path.map_or_else(|| self.root.to_path_buf(), |path| self.root.join(path))
    }

    /// Opens a directory and lists its own entry.
    fn enter(&mut self, path: Option<&RelativePath>) -> Result<OwnedFd> {
        let place = self.place(path);
        let descriptor = self
            .beneath
            .directory(path.map(RelativePath::as_str))
            .map_err(|error| fault(&place, error))?;
        let facts = Facts::from(rustix::fs::fstat(&descriptor).map_err(|error| fault(&place, error))?);
        self.tree.directories.push(DirectoryEntry {
            path: path.cloned(),
            mode: facts.mode,
            mtime: facts.mtime,
        });
        Ok(descriptor)
    }

    /// Lists one of the paths of a multi-path checkpoint.
    fn member(&mut self, path: &RelativePath) -> Result<()> {
        let place = self.root.join(path);
        let stat = self
            .beneath
            .parent_of(path)
            .and_then(|parent| rustix::fs::statat(parent, name_of(path), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(|error| fault(&place, error))?;
        let facts = Facts::from(stat);
        match facts.kind {
            FileType::RegularFile => self.tree.files.push(TreeFile::new(path.clone(), &facts)),
            FileType::Directory => self.pending.push(Some(path.clone())),
            FileType::Symlink => {
                let hint = "give the directory or file that the link points to";
                return Err(unsupported(&place, "it is a symbolic link", hint));
            }
            kind => {
                return Err(unsupported(
                    &place,
                    describe(kind),
                    "move it out of the checkpoint",
                ));
            }
        }
        Ok(())
    }

    fn visit(&mut self, path: Option<&RelativePath>) -> Result<()> {
        let place = self.place(path);
        let fault = |error: Errno| fault(&place, error);
        let descriptor = self.enter(path)?;
        for entry in Dir::read_from(&descriptor).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let bytes = entry.file_name().to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            let child = child_of(path, &place, bytes)?;
            let stat = rustix::fs::statat(&descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let facts = stat.map(Facts::from).map_err(|error| match error {
                Errno::NOENT => source_changed(WHAT, &self.root.join(&child), "it vanished meanwhile"),
                other => errors::io(WHAT, &self.root.join(&child), other),
            })?;
            match facts.kind {
                FileType::RegularFile => self.tree.files.push(TreeFile::new(child, &facts)),
                FileType::Directory => self.pending.push(Some(child)),
                FileType::Symlink => {
                    let target =
                        rustix::fs::readlinkat(&descriptor, entry.file_name(), Vec::new()).map_err(fault)?;
                    self.link(child, target.into_bytes())?;
                }
                kind => {
                    return Err(unsupported(
                        &self.root.join(&child),
                        describe(kind),
                        "move it out of the checkpoint",
                    ));
                }
            }
            self.check_bound()?;
        }
        Ok(())
    }

    fn link(&mut self, path: RelativePath, target: Vec<u8>) -> Result<()> {
        let place = self.root.join(&path);
        let target = String::from_utf8(target).map_err(|_| {
            unsupported(
                &place,
                "its target is not UTF-8",
                "replace the link with the file it points to",
            )
        })?;
        check_link_target(&path, &target)?;
        self.tree.symlinks.push(SymlinkEntry { path, target });
        Ok(())
    }

    fn check_bound(&self) -> Result<()> {
        let tree = &self.tree;
        let entries = tree.files.len() + tree.directories.len() + tree.symlinks.len() + self.pending.len();
        if entries <= MAX_ENTRIES {
            return Ok(());
        }
        let why = format!("it has more than {MAX_ENTRIES} entries");
        Err(unsupported(
            self.root,
            &why,
            "give one checkpoint, not a directory of many; or write fewer files",
        ))
    }
}

fn fault(place: &Path, error: Errno) -> Error {
    match error {
        Errno::NOENT => source_changed(WHAT, place, "it vanished meanwhile"),
        // A link that no longer is one, or a directory that became a link or a file.
        Errno::INVAL | Errno::LOOP | Errno::NOTDIR => {
            source_changed(WHAT, place, "something else is at that path now")
        }
        other => errors::io(WHAT, place, other),
    }
}

/// Returns the path of an entry, or why it cannot be stored.
fn child_of(parent: Option<&RelativePath>, place: &Path, bytes: &[u8]) -> Result<RelativePath> {
    let Ok(name) = std::str::from_utf8(bytes) else {
        let name = String::from_utf8_lossy(bytes).into_owned();
        return Err(unsupported(
            &place.join(name),
            "its name is not UTF-8",
            "rename it",
        ));
    };
    let path = parent.map_or_else(|| name.to_owned(), |parent| format!("{parent}/{name}"));
    RelativePath::new(path).map_err(|error| {
        let text = error.to_string();
        // The text after the last colon is the reason alone.
        unsupported(
            &place.join(name),
            text.rsplit(": ").next().unwrap_or_default(),
            "rename it",
        )
    })
}

/// Returns the error for an entry that a checkpoint cannot hold.
#[expect(
    clippy::unnecessary_debug_formatting,
    reason = "a name may hold control characters, which quoting escapes"
)]
pub(crate) fn unsupported(path: &Path, why: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Usage, "cannot store this in a checkpoint")
        .on(format!("{path:?}"))
        .because(why)
        .hint(hint)
}

/// Describes an entry that is neither file, directory nor link.
pub(crate) fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "it is a FIFO",
        FileType::Socket => "it is a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "it is a device",
        _ => "it is not a regular file",
    }
}
