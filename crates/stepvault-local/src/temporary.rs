//! Temporary files of records: written and synced beside the final path, and distinguishable from the leftovers of a
//! dead process.
//!
//! A writer holds a lock on its file while it works, and the kernel releases the lock however the writer ends. So the
//! removal of leftovers needs no knowledge of other writers: a locked file is in use, an unlocked one is abandoned.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::beneath::create_new;
use crate::durable::parent_of;
use crate::errors::{self, IoAt as _};

/// Prefix of the names of temporary files; the leading dot hides them from most scanners.
pub(crate) const TEMPORARY_PREFIX: &str = ".stepvault-tmp-";

/// Number of attempts when the file is removed as a leftover before the writer has locked it.
const TRIES: u32 = 8;

/// A synced temporary file beside its final path; removed unless it was renamed there.
pub(crate) struct Temporary {
    pub(crate) path: PathBuf,
    armed: bool,
    /// Holds the lock.
    file: File,
}

impl Temporary {
    /// Creates one with what `content` writes.
    pub(crate) fn write(
        beside: &Path,
        content: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> Result<Self> {
        let (path, file) = create_held(beside).at("cannot write", beside)?;
        // From here on the file exists and is removed on drop, whatever happens.
        let temporary = Self { path, armed: true, file };
        let mut counted = Counted { file: &temporary.file, bytes: 0 };
        let length = content(&mut counted).and_then(|()| counted.file.metadata());
        let (length, written) = (length.at("cannot write", beside)?.len(), counted.bytes);
        if length != written {
            return Err(Error::at(ErrorKind::Failed, "cannot write", beside)
                .because(format!("{written} bytes were written and the file has {length}")));
        }
        temporary.file.sync_all().at("cannot sync", beside)?;
        Ok(temporary)
    }

    /// Called when it has its final name.
    pub(crate) fn forget(mut self) {
        self.armed = false;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.armed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Counts the bytes that the kernel took.
struct Counted<'a> {
    file: &'a File,
    bytes: u64,
}

impl io::Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates a locked file. Where the filesystem has no locks, it stays unlocked.
fn create_held(beside: &Path) -> rustix::io::Result<(PathBuf, File)> {
    for _ in 0..TRIES {
        let name = format!("{TEMPORARY_PREFIX}{}", uuid::Uuid::new_v4().simple());
        let path = parent_of(beside).join(name);
        let file = create_new(CWD, &path, OFlags::WRONLY)?;
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        let is_taken_away = rustix::fs::fstat(&file).is_ok_and(|found| found.st_nlink == 0);
        if locked != Err(Errno::WOULDBLOCK) && !is_taken_away {
            return Ok((path, file));
        }
    }
    Err(Errno::AGAIN)
}

/// Removes an unlocked temporary file. Returns whether it did.
pub(crate) fn remove_abandoned(path: &Path) -> Result<bool> {
    let fault = |error| errors::io("cannot delete", path, error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let held = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(fault(error)),
    };
    if rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Ok(false);
    }
    match rustix::fs::unlinkat(CWD, path, rustix::fs::AtFlags::empty()) {
        Ok(()) => Ok(true),
        // Its writer renamed it before releasing the lock.
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(fault(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_no_leftover() {
        let place = tempfile::tempdir().unwrap();
        let written = Temporary::write(&place.path().join("a.json"), |file| file.write_all(b"a")).unwrap();
        let path = written.path.clone();
        assert!(!remove_abandoned(&path).unwrap());
        assert!(path.exists());
        written.forget();
        assert!(remove_abandoned(&path).unwrap());
        assert!(!path.exists() && !remove_abandoned(&path).unwrap());
    }

    #[test]
    fn removal_never_costs_a_writer_its_record() {
        let place = tempfile::tempdir().unwrap();
        let record = place.path().join("a.json");
        let written = std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| (0..300).try_for_each(|_| crate::durable::replace(&record, b"whole")));
            while !writer.is_finished() {
                for entry in std::fs::read_dir(place.path()).unwrap().flatten() {
                    if entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) {
                        remove_abandoned(&entry.path()).unwrap();
                    }
                }
                // A real one looks once. One that looks without a pause may win all attempts of a writer, whose file is seen
                // before it can be locked.
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            writer.join().unwrap()
        });
        written.unwrap();
        assert_eq!(std::fs::read(&record).unwrap(), b"whole");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
