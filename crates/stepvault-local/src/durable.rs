//! Durable writes. Each is one function: write a temporary file, check its length, sync it, rename it, sync the
//! directory.
//!
//! A failed sync is never retried: the kernel may have dropped the pages that could not be written, and the next sync
//! would then report success over a hole. The whole write fails and the caller starts over.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::manifest::DirectoryEntry;
use stepvault_core::{Error, ErrorKind, RelativePath, Result};

use crate::beneath::DIRECTORY;
use crate::errors::{self, IoAt as _};
use crate::rename::{self, Place};
use crate::temporary::Temporary;

/// Outcome of a create-if-absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The file was created and is durable.
    Written,
    /// Something already has that name, durably; it was not changed.
    Exists,
}

/// Creates `path` with `bytes` unless the name is taken. The file is durable when this returns
/// [`CreateOutcome::Written`].
pub fn create_new(path: &Path, bytes: &[u8]) -> Result<CreateOutcome> {
    create_new_with(path, |file| file.write_all(bytes))
}

/// Like [`create_new`], for what `content` writes.
pub fn create_new_with(
    path: &Path,
    content: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> Result<CreateOutcome> {
    let temporary = Temporary::write(path, content)?;
    if rename_new("cannot create", &temporary.path, path)? == CreateOutcome::Exists {
        // The process that created it may have been killed before the name was on disk. From here on it counts as
        // existing.
        fsync_directory(parent_of(path))?;
        return Ok(CreateOutcome::Exists);
    }
    temporary.forget();
    fsync_directory(parent_of(path)).inspect_err(|_| {
        // Another process must not treat as durable what a power cut may still remove. The caller's next attempt starts
        // over.
        let _ = std::fs::remove_file(path);
    })?;
    Ok(CreateOutcome::Written)
}

/// Gives a file another name unless that is taken. Syncs nothing. `what` is the operation, for messages.
pub fn rename_new(what: &str, from: &Path, to: &Path) -> Result<CreateOutcome> {
    match rename::no_replace(Place::path(from), Place::path(to)) {
        Ok(()) => Ok(CreateOutcome::Written),
        Err(Errno::EXIST) => Ok(CreateOutcome::Exists),
        Err(error @ (Errno::PERM | Errno::OPNOTSUPP)) => Err(errors::io(what, to, error)
            .hint("the filesystem must be able to rename without replacing, or to make hard links")),
        Err(error) => Err(errors::io(what, to, error)),
    }
}

/// Writes `bytes` to `path` and replaces an existing file. Readers see the old or the new content, never a mixture.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_with(path, |file| file.write_all(bytes))
}

/// Like [`replace`], for what `content` writes.
pub(crate) fn replace_with(
    path: &Path,
    content: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> Result<()> {
    let temporary = Temporary::write(path, content)?;
    rename::over(Place::path(&temporary.path), Place::path(path)).at("cannot replace", path)?;
    temporary.forget();
    fsync_directory(parent_of(path))
}

/// Removes a file durably. Returns `false` when it did not exist.
pub fn remove_file(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => fsync_directory(parent_of(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(errors::io("cannot remove", path, error)),
    }
}

/// Makes the names in a directory durable.
pub fn fsync_directory(path: &Path) -> Result<()> {
    rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())
        .and_then(rustix::fs::fsync)
        .at("cannot sync the directory", path)
}

/// Makes the name of something found at `path` durable: the process that created it may have been killed before the
/// name was on disk. A directory that this user may not read holds no name that this program created.
pub fn fsync_name_found(path: &Path) -> Result<()> {
    fsync_directory(parent_of(path)).or_else(|error| match error.kind() {
        ErrorKind::Denied => Ok(()),
        _ => Err(error),
    })
}

/// What was found at a path where a directory could not be created.
#[derive(Debug, PartialEq, Eq)]
enum InTheWay {
    /// A directory, which can be used instead.
    Directory,
    /// Nothing any more.
    Gone,
    /// A file, or a link that does not lead to a directory.
    Other,
}

/// Reads the metadata once: other processes create and remove the same directory meanwhile, and two reads might see two
/// different directories.
fn in_the_way(path: &Path) -> InTheWay {
    match path.symlink_metadata() {
        Ok(facts) if facts.is_dir() || facts.is_symlink() && path.is_dir() => InTheWay::Directory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => InTheWay::Gone,
        _ => InTheWay::Other,
    }
}

/// Creates a directory and its missing ancestors with mode 0700. Makes each of them durable, including one that already
/// exists and is empty: a directory receives entries only after its own name is on disk.
pub fn create_directories(path: &Path) -> Result<()> {
    create_directories_from(None, path)
}

/// Like [`create_directories`], for a directory below `root`. Never creates `root`: if it is missing, it was deleted on
/// purpose.
///
/// # Errors
/// `NotFound` when `root` does not exist.
pub fn create_directories_below(root: &Path, path: &Path) -> Result<()> {
    create_directories_from(Some(root), path)
}

fn create_directories_from(root: Option<&Path>, path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    if path.is_dir() {
        // One that cannot be read counts as not empty: writing into it reports the error.
        let is_empty = path.read_dir().is_ok_and(|mut entries| entries.next().is_none());
        return if is_empty { fsync_name_found(path) } else { Ok(()) };
    }
    let fault = |error: io::Error| errors::io("cannot create the directory", path, error);
    if root.is_some_and(|root| !path.starts_with(root) || path == root) {
        return Err(fault(Errno::NOENT.into()));
    }
    let parent = parent_of(path);
    create_directories_from(root, parent)?;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fsync_directory(parent).inspect_err(|_| {
            // Otherwise the next call would find it and treat it as durable.
            let _ = std::fs::remove_dir(path);
        }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match in_the_way(path) {
            InTheWay::Directory => fsync_name_found(path),
            InTheWay::Gone => create_directories_from(root, path),
            InTheWay::Other => Err(fault(error)),
        },
        Err(error) => Err(fault(error)),
    }
}

/// Reads a whole file of at most `max_bytes`. Returns `None` when it does not exist. A longer one is [`Damaged`].
///
/// [`Damaged`]: stepvault_core::ErrorKind::Damaged
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>> {
    // Non-blocking, in case the path is a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let read = with_retries(|| {
        let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let most_bytes = max_bytes.saturating_add(1);
        let length = file.metadata()?.len().min(most_bytes);
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        file.take(most_bytes).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    });
    let Some(bytes) = read.at("cannot read", path)? else {
        return Ok(None);
    };
    if bytes.len() as u64 > max_bytes {
        return Err(Error::at(ErrorKind::Damaged, "cannot read", path)
            .because(format!("it exceeds the limit of {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

/// Returns the directory that holds `path`; the working directory for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// Up to this number, files and directories are synced one by one. More share one sync of the filesystem, because each
/// sync waits for the disk. That sync may also write recent data of other processes, so it is not used for a few files.
const FEW: usize = 16;

/// An open directory of the filesystem that will be synced. It reports write errors since it was opened.
pub(crate) struct Barrier {
    directory: std::os::fd::OwnedFd,
    path: PathBuf,
}

impl Barrier {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let directory = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty()).at("cannot sync", path)?;
        Ok(Self { directory, path: path.to_path_buf() })
    }

    /// Syncs files and directories below `data`; `None` means `data` itself. Without any directory `data` is a single
    /// file.
    pub(crate) fn sync<'a>(
        &self,
        data: &Path,
        files: impl ExactSizeIterator<Item = &'a RelativePath>,
        directories: impl ExactSizeIterator<Item = &'a DirectoryEntry>,
    ) -> Result<()> {
        if files.len() + directories.len() > FEW && reports_errors() {
            return rustix::fs::syncfs(&self.directory).at("cannot sync the filesystem of", &self.path);
        }
        if directories.len() == 0 {
            sync_one(data)?;
            return fsync_directory(parent_of(data));
        }
        for path in files {
            sync_one(&data.join(path))?;
        }
        // In any order: nothing is visible before the rename that follows.
        for directory in directories {
            let path = directory.path.as_ref().map_or_else(|| data.to_path_buf(), |path| data.join(path));
            fsync_directory(&path)?;
        }
        Ok(())
    }
}

fn sync_one(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty()).at("cannot seal the step", path)?;
    rustix::fs::fsync(&file).at("cannot seal the step", path)
}

/// Before Linux 5.8 `syncfs` does not report data that could not be written.
fn reports_errors() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (5, 8),
        _ => false,
    }
}

/// Waits before each retry. A longer failure is an outage, which the caller must handle.
const WAITS: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(400)];

/// Runs `read` and retries it while it fails for a reason that may be transient. Returns the last error if it does not
/// succeed. Blocks for at most half a second besides the time that `read` takes.
///
/// Writes and syncs must not use this: a failed sync must never be retried.
pub fn with_retries<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        let error = match read() {
            Err(error) => error,
            done => return done,
        };
        let Some(wait) =
            Errno::from_io_error(&error).and_then(|errno| WAITS.get(..waits_for(errno))?.get(tries))
        else {
            return Err(error);
        };
        std::thread::sleep(*wait);
        tries += 1;
    }
}

/// Returns how many retries an error gets.
fn waits_for(errno: Errno) -> usize {
    match errno {
        Errno::IO
        | Errno::STALE
        | Errno::TIMEDOUT
        | Errno::NOTCONN
        | Errno::CONNRESET
        | Errno::CONNREFUSED
        | Errno::CONNABORTED
        | Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::SHUTDOWN
        | Errno::AGAIN
        | Errno::INTR
        | Errno::NOMEM
        | Errno::BUSY => WAITS.len(),
        // Missing permissions mostly persist, and a scan may meet many such files.
        Errno::ACCESS | Errno::PERM => 1,
        _ => 0,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::expect_used, clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn create_new_never_touches_what_is_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.json");
        assert_eq!(create_new(&path, b"first").unwrap(), CreateOutcome::Written);
        assert_eq!(create_new(&path, b"second").unwrap(), CreateOutcome::Exists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(place.path()), ["a.json"], "no temporary stays");
    }

    #[test]
    fn replace_puts_the_new_in_place_of_the_old() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.json");
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        fs::create_dir(place.path().join("taken")).unwrap();
        let error = replace(&place.path().join("taken"), b"x").unwrap_err();
        assert!(error.to_string().ends_with("taken: it is a directory"), "{error}");
        assert_eq!(names(place.path()).len(), 2, "no temporary stays after an error");
    }

    #[test]
    fn errors_name_the_final_path_not_the_temporary() {
        let place = tempfile::tempdir().unwrap();
        let error = create_new(&place.path().join("missing/a.json"), b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().ends_with("missing/a.json: it does not exist"), "{error}");
    }

    #[test]
    fn a_directory_counts_also_behind_a_link_and_nothing_else_does() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "").unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(at(to), at(name)).unwrap();
        link("file", "to-file");
        link("nothing", "dangling");
        fs::create_dir(at("there")).unwrap();
        link("there", "to-there");
        let looks = ["there", "to-there", "nothing"].map(|name| in_the_way(&at(name)));
        assert_eq!(looks, [InTheWay::Directory, InTheWay::Directory, InTheWay::Gone]);
        create_directories(&at("to-there")).unwrap();
        for name in ["file", "to-file", "dangling"] {
            assert_eq!(in_the_way(&at(name)), InTheWay::Other, "{name}");
            let error = create_directories(&at(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        }
    }

    #[test]
    fn directories_are_private() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b/c");
        create_directories(&path).unwrap();
        create_directories(&path).unwrap();
        for directory in [&path, path.parent().unwrap()] {
            assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700);
        }
        fs::write(place.path().join("file"), "x").unwrap();
        assert_eq!(create_directories(&place.path().join("file")).unwrap_err().kind(), ErrorKind::Conflict);
    }

    #[test]
    fn reads_are_bounded() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        assert_eq!(read_bounded(&path, 10).unwrap(), None);
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap().unwrap(), b"12345");
        assert_eq!(read_bounded(&path, 4).unwrap_err().kind(), ErrorKind::Damaged);
    }
    /// A blocking read of a FIFO would wait for a writer and hold up the caller.
    #[test]
    fn a_fifo_in_a_records_place_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(read_bounded(&path, 10)));
        let read = receiver.recv_timeout(Duration::from_mins(1));
        assert_eq!(read.expect("it waits").unwrap(), Some(Vec::new()));
    }

    #[test]
    fn only_a_directory_is_synced_as_one() {
        let place = tempfile::tempdir().unwrap();
        fsync_directory(place.path()).unwrap();
        fs::write(place.path().join("file"), "x").unwrap();
        assert!(fsync_directory(&place.path().join("file")).is_err());
        assert_eq!(fsync_directory(&place.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_name_is_synced_where_it_is_unless_it_cannot_be_ours() {
        let place = tempfile::tempdir().unwrap();
        let missing = fsync_name_found(&place.path().join("missing/name")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
        let others = place.path().join("others");
        fs::create_dir(&others).unwrap();
        let search_only = fs::Permissions::from_mode(0o311);
        fs::set_permissions(&others, search_only).unwrap();
        let synced = as_a_user_with_no_rights(|| {
            let refused = fsync_directory(&others).unwrap_err();
            (refused.kind(), fsync_name_found(&others.join("ours")))
        });
        assert_eq!(synced.0, ErrorKind::Denied);
        synced.1.unwrap();
    }

    /// Runs `act` in a thread of its own without the capabilities that let root bypass permissions.
    fn as_a_user_with_no_rights<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn directories_are_created_below_a_root_and_the_root_is_not() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("mount");
        let error = create_directories_below(&root, &root.join("a/b")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!root.exists());
        fs::create_dir(&root).unwrap();
        create_directories_below(&root, &root.join("a/b")).unwrap();
        assert!(root.join("a/b").is_dir());
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error() {
        let error = create_directories(Path::new("/proc/stepvault/vault")).unwrap_err();
        assert!(error.to_string().contains("/proc/stepvault"), "{error}");
    }

    #[test]
    fn many_create_the_same_directories_at_once() {
        let place = tempfile::tempdir().unwrap();
        let together = std::sync::Barrier::new(4);
        // The results are checked after the barrier: a thread that panicked early would leave the others waiting.
        let create = || -> Vec<Result<()>> {
            let rounds = (0..50).map(|round| place.path().join(format!("{round}/a/b")));
            rounds
                .map(|path| {
                    together.wait();
                    create_directories(&path)
                })
                .collect()
        };
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Result<Vec<()>>>()
        });
        results.unwrap();
        assert!(place.path().join("49/a/b").is_dir());
    }

    #[test]
    fn every_path_has_a_directory() {
        for (path, directory) in [("a/b", "a"), ("/a", "/"), ("a", "."), ("/", "/"), ("", "")] {
            assert_eq!(parent_of(Path::new(path)), Path::new(directory), "{path:?}");
        }
    }

    fn tries_until_given_up(errno: Errno) -> usize {
        let mut tries = 0;
        let outcome: io::Result<()> = with_retries(|| {
            tries += 1;
            Err(errno.into())
        });
        assert_eq!(Errno::from_io_error(&outcome.unwrap_err()), Some(errno));
        tries
    }

    #[test]
    fn tries_are_bounded_and_what_is_not_there_is_not_asked_for_twice() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::NOTCONN] {
            assert_eq!(tries_until_given_up(errno), 4, "{errno:?}");
        }
        assert_eq!(tries_until_given_up(Errno::ACCESS), 2);
        assert_eq!(tries_until_given_up(Errno::NOENT), 1);
    }

    #[test]
    fn one_failure_is_not_seen_outside() {
        let mut failures = vec![Errno::STALE, Errno::IO];
        let read = with_retries(|| failures.pop().map_or(Ok("bytes"), |errno| Err(errno.into())));
        assert_eq!(read.unwrap(), "bytes");
    }
}
