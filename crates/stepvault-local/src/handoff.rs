//! Resume handoff: prepares a restored step for its trainer. Moves obstacles aside and writes the pointer files from
//! which the trainer finds the step.
//!
//! Trainers scan the directory of their steps, and some fail on names they do not know. Therefore nothing is created
//! there under a name other than its final one: files are written in the staging directory of restores and renamed into
//! place. Nothing is deleted except a pointer that a new one replaces.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::manifest::MODE_MASK;
use stepvault_core::{Error, ErrorKind, RelativePath, Result, Sha256Digest};

use crate::beneath::{Beneath, Facts, create_new, name_of, times};
use crate::errors::{self, IoAt as _};
use crate::rename::{self, MAX_OF_ONE_NAME, Place};
use crate::staging_place::{DATA, OWN, OWN_INSIDE, Workplace};
use crate::vault::Vault;
use crate::{durable, remove, space};

const MOVE: &str = "cannot move aside";
const POINT: &str = "cannot write the trainer's pointer";
/// Temporary name of the file being written, in a directory of our own.
const TEMPORARY: &str = "pointer";
/// Maximum length of a name, so that it stays valid with a number in front of it.
const MAX_KEPT_NAME_BYTES: usize = 240;

/// Returns whether a name in a directory of steps belongs to stepvault, so that framework rules need not see it.
pub fn is_own_name(name: &str) -> bool {
    name == OWN || name.starts_with(OWN_INSIDE)
}

/// The directory in which a trainer looks for its steps. Holds a lock, so that two restores into one directory cannot
/// undo each other's pointers.
#[derive(Debug)]
pub struct HandoffDirectory {
    path: PathBuf,
    directory: Beneath,
    work: Workplace,
    temporary: Beneath,
}

impl HandoffDirectory {
    /// Opens the directory at `path`, which may be reached through a link.
    ///
    /// # Errors
    /// `Held` when another restore performs its handoff there.
    pub fn open(path: &Path, vault: Option<&Vault>) -> Result<Self> {
        let path = path.canonicalize().at(POINT, path)?;
        let directory = Beneath::open(&path).at(POINT, &path)?;
        // Differs from the key of any target: no path contains this byte.
        let parts: [&[u8]; 2] = [path.as_os_str().as_bytes(), b"handoff"];
        let key = Sha256Digest::of(&parts.join(&0)).to_string()[..32].to_owned();
        // Named like a restore, so that the clean-up of abandoned restores also removes what a killed process leaves.
        let work = Workplace::choose(&path, vault, &key, &key)?;
        remove::tree(&work.path)?;
        durable::create_directories(&work.path.join(DATA))?;
        let temporary = Beneath::open(&work.path.join(DATA)).at(POINT, &work.path)?;
        Ok(Self { path, directory, work, temporary })
    }

    /// Moves an entry out of the trainer's sight in one rename and returns its new path, or `None` when it no longer
    /// exists. Durable when it returns.
    pub fn move_aside(&self, path: &RelativePath) -> Result<Option<PathBuf>> {
        let place = self.path.join(path);
        let fault = |error: Errno| errors::io(MOVE, &place, error);
        durable::create_directories(&self.work.base.aside)?;
        let parent = match self.directory.parent_of(path) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(fault(error)),
        };
        let from = Place::new(&parent, name_of(path));
        let numbered = |number| numbered(number, name_of(path));
        match rename::to_free_name(from, &self.work.base.aside, numbered) {
            Ok(to) => {
                durable::fsync_directory(&self.work.base.aside)?;
                rustix::fs::fsync(&parent).map_err(fault)?;
                Ok(Some(to))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::EXIST) => Err(Error::at(ErrorKind::Conflict, MOVE, &place)
                .because(format!(
                    "{} holds {MAX_OF_ONE_NAME} entries with this name",
                    self.work.base.aside.display()
                ))
                .hint("check that directory and delete what is not needed")),
            Err(error) => Err(fault(error)),
        }
    }

    /// Writes a text file and replaces what has its name.
    pub fn write_text(&self, path: &RelativePath, text: &str, mode: u32) -> Result<()> {
        let fault = |error: std::io::Error| errors::io(POINT, &self.path.join(path), error);
        let mut file = self.create_temporary(path)?;
        file.write_all(text.as_bytes()).map_err(fault)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & MODE_MASK))
            .map_err(|error| fault(error.into()))?;
        file.sync_all().map_err(fault)?;
        self.bring_in(path)
    }

    /// Creates a symbolic link and replaces a file or link that has its name.
    pub fn write_link(&self, path: &RelativePath, target: &str) -> Result<()> {
        let put = self.put(path, |by_way_of, to| rename::replace_link(by_way_of, to, target));
        put.map(drop).at(POINT, &self.path.join(path))
    }

    /// Writes a file with the bytes, mode and time of another one and replaces what has its name. The copy shares no
    /// blocks with that file: some trainers write into such files in place.
    pub fn write_copy(&self, path: &RelativePath, of: &RelativePath) -> Result<()> {
        let place = self.path.join(path);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let source =
            self.directory.open_file(of.as_str(), flags, Mode::empty()).at(POINT, &self.path.join(of))?;
        let facts = Facts::from(rustix::fs::fstat(&source).at(POINT, &place)?);
        let file = self.create_temporary(path)?;
        if rustix::fs::ioctl_ficlone(&file, &source).is_err() {
            self.copy(source, &file, &facts, &place)?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(facts.mode & MODE_MASK)).at(POINT, &place)?;
        rustix::fs::futimens(&file, &times(facts.mtime)).at(POINT, &place)?;
        rustix::fs::fsync(&file).at(POINT, &place)?;
        self.bring_in(path)
    }

    /// Removes what was created for the handoff only.
    pub fn finish(self) -> Result<()> {
        self.work.remove()
    }

    fn copy(&self, source: OwnedFd, mut file: &File, facts: &Facts, place: &Path) -> Result<()> {
        let free_bytes = space::free(&self.work.path)?.free_bytes;
        if free_bytes < facts.size_bytes {
            return Err(Error::at(ErrorKind::NoSpace, POINT, place)
                .because(format!(
                    "it is a copy of the step, which takes {} bytes, but {free_bytes} are free",
                    facts.size_bytes
                ))
                .hint(
                    "the step itself is restored: free some space and restore again, or use --no-pointer",
                ));
        }
        let copied = std::io::copy(&mut File::from(source), &mut file).at(POINT, place)?;
        if copied == facts.size_bytes {
            return Ok(());
        }
        Err(Error::at(ErrorKind::SourceChanged, POINT, place)
            .because(format!("the step had {} bytes and {copied} were read", facts.size_bytes))
            .hint("restore again, and let nothing write to the directory meanwhile"))
    }

    fn create_temporary(&self, path: &RelativePath) -> Result<File> {
        remove::entry(self.temporary.as_fd(), TEMPORARY)
            .and_then(|()| create_new(&self.temporary, TEMPORARY, OFlags::RDWR))
            .at(POINT, &self.path.join(path))
    }

    fn bring_in(&self, path: &RelativePath) -> Result<()> {
        self.put(path, rename::over).and_then(rustix::fs::fsync).at(POINT, &self.path.join(path))
    }

    /// Puts what has the temporary name at `path`, and returns the directory there.
    fn put(
        &self,
        path: &RelativePath,
        put: impl FnOnce(Place<'_>, Place<'_>) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<OwnedFd> {
        let parent = self.directory.parent_of(path)?;
        put(Place::new(&self.temporary, TEMPORARY), Place::new(&parent, name_of(path)))?;
        Ok(parent)
    }
}

/// Returns `name` with a number in front. The number comes first because some scans search every directory below for
/// names that begin like a step's.
fn numbered(number: u32, name: &str) -> String {
    let mut end = name.len().min(MAX_KEPT_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{number:04}-{}", name.get(..end).unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text).unwrap()
    }

    struct Rig {
        place: tempfile::TempDir,
        run: PathBuf,
    }

    impl Rig {
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            let run = place.path().canonicalize().unwrap().join("run");
            fs::create_dir(&run).unwrap();
            Self { place, run }
        }

        fn open(&self) -> HandoffDirectory {
            HandoffDirectory::open(&self.run, None).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(self.place.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn what_is_in_the_way_is_moved_whole_and_never_over_something() {
        let rig = Rig::new();
        for round in ["first", "second"] {
            fs::create_dir_all(rig.run.join("a/step_9.partial")).unwrap();
            fs::write(rig.run.join("a/step_9.partial/file"), round).unwrap();
            let open = rig.open();
            let to = open.move_aside(&path("a/step_9.partial")).unwrap().unwrap();
            assert_eq!(fs::read_to_string(to.join("file")).unwrap(), round);
            assert!(!rig.run.join("a/step_9.partial").exists());
            assert_eq!(open.move_aside(&path("a/step_9.partial")).unwrap(), None);
            assert_eq!(open.move_aside(&path("none/x")).unwrap(), None);
            open.finish().unwrap();
        }
        let aside = rig.place.path().join(".stepvault/moved-aside");
        assert!(aside.join("0001-step_9.partial/file").exists());
        assert!(aside.join("0002-step_9.partial/file").exists());
        let mode = fs::metadata(&aside).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // A vault can still be created there.
        Vault::open_or_create(&rig.place.path().join(".stepvault")).unwrap();
    }

    #[test]
    fn pointers_replace_files_and_links_and_leave_nothing_else() {
        let rig = Rig::new();
        fs::write(rig.run.join("step_1.ckpt"), "weights").unwrap();
        fs::set_permissions(rig.run.join("step_1.ckpt"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(rig.run.join("latest"), "old").unwrap();
        std::os::unix::fs::symlink("gone", rig.run.join("link")).unwrap();
        std::os::unix::fs::symlink("step_1.ckpt", rig.run.join("last.ckpt")).unwrap();
        let open = rig.open();
        open.write_text(&path("latest"), "global_step5", 0o644).unwrap();
        open.write_link(&path("link"), "step_1.ckpt").unwrap();
        open.write_copy(&path("last.ckpt"), &path("step_1.ckpt")).unwrap();
        open.finish().unwrap();
        assert_eq!(fs::read_to_string(rig.run.join("latest")).unwrap(), "global_step5");
        assert_eq!(fs::metadata(rig.run.join("latest")).unwrap().mode() & 0o777, 0o644);
        assert_eq!(fs::read_link(rig.run.join("link")).unwrap(), Path::new("step_1.ckpt"));
        let (copy, step) = (rig.run.join("last.ckpt"), rig.run.join("step_1.ckpt"));
        let (copied, original) = (fs::symlink_metadata(&copy).unwrap(), fs::metadata(&step).unwrap());
        assert!(copied.is_file() && copied.ino() != original.ino());
        assert_eq!(
            (copied.mode(), copied.modified().unwrap()),
            (original.mode(), original.modified().unwrap())
        );
        assert_eq!(fs::read_to_string(&step).unwrap(), "weights", "a link is replaced, not written through");
        assert_eq!(rig.names(), ["run"], "nothing stays beside it");
        assert_eq!(fs::read_dir(&rig.run).unwrap().count(), 4);
    }

    #[test]
    fn one_restore_at_a_time_hands_over() {
        let rig = Rig::new();
        let first = rig.open();
        let error = HandoffDirectory::open(&rig.run, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        // The leftovers of a killed process are no obstacle.
        drop(first);
        rig.open().finish().unwrap();
        assert_eq!(rig.names(), ["run"]);
    }

    #[test]
    fn a_directory_is_no_pointer() {
        let rig = Rig::new();
        fs::create_dir(rig.run.join("latest")).unwrap();
        let error = rig.open().write_text(&path("latest"), "x", 0o644).unwrap_err();
        let expected =
            format!("cannot write the trainer's pointer: {}/latest: it is a directory", rig.run.display());
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn long_names_stay_names() {
        assert_eq!(numbered(7, "step_9"), "0007-step_9");
        assert!(numbered(9_999, &"ü".repeat(127)).len() <= 255);
    }
}
