//! Tries every operation of the service in a directory: write, sync, rename, link, delete; measures its rates.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::disk_facts::{DirectoryFacts, DiskRates, FailedAct, LinkAbility, LinkFacts, Presence};
use stepvault_core::{Error, ErrorKind, Result};

use super::place::{PROBE_PREFIX, ProbePlace};
use crate::beneath::create_new;
use crate::rename::{self, Place};
use crate::{durable, errors, space};

/// Does not fit into an inode, so that blocks are allocated.
const BYTES: usize = 16 << 10;

/// Probes `path`, or the nearest existing directory above it. Leaves nothing behind.
pub fn directory(path: &Path) -> DirectoryFacts {
    let (presence, existing) = match presence(path) {
        Ok(found) => found,
        Err(error) => return failed_with(Presence::There, &error),
    };
    let nothing_failed =
        |link_refused| DirectoryFacts { presence: presence.clone(), failed: None, link_refused };
    if presence == Presence::NotADirectory {
        return nothing_failed(None);
    }
    match try_all(&existing) {
        Ok(link_refused) => nothing_failed(link_refused),
        Err(error) => failed_with(presence, &error),
    }
}

fn failed_with(presence: Presence, error: &Error) -> DirectoryFacts {
    DirectoryFacts {
        presence,
        failed: Some(FailedAct { what: error.to_string(), hint: error.hint_text().map(str::to_owned) }),
        link_refused: None,
    }
}

fn presence(path: &Path) -> Result<(Presence, PathBuf)> {
    for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
        match above.metadata() {
            Ok(facts) if facts.is_dir() && above == path => return Ok((Presence::There, path.to_path_buf())),
            Ok(facts) if facts.is_dir() => {
                let text = above.display().to_string();
                return Ok((Presence::Missing(text), above.to_path_buf()));
            }
            Ok(_) => return Ok((Presence::NotADirectory, above.to_path_buf())),
            // A dangling link is an obstacle like a file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && above.symlink_metadata().is_ok() => {
                return Ok((Presence::NotADirectory, above.to_path_buf()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(errors::io("cannot check the directory", above, error)),
        }
    }
    Ok((Presence::Missing(".".to_owned()), PathBuf::from(".")))
}

/// Returns why a file could not be linked, if everything else worked.
fn try_all(directory: &Path) -> Result<Option<String>> {
    let probe = ProbePlace::create(directory)?;
    let at = |name: &str| probe.path.join(name);
    let fault = |what: &str, error: Errno| errors::io(what, directory, error);
    let tried = |what: &str, outcome: rustix::io::Result<()>| outcome.map_err(|error| fault(what, error));
    let write = |path: &Path| write(path).map_err(|error| errors::io("cannot write", directory, error));
    let (first, second) = (at("a"), at("b"));
    let (one, other) = (Place::path(&first), Place::path(&second));
    write(&first)?;
    tried("cannot rename a file", rename::no_replace(one, other))?;
    write(&first)?;
    tried("cannot replace a file", rename::over(one, other))?;
    let made = rustix::fs::mkdirat(CWD, at("c"), Mode::from_raw_mode(0o700));
    tried("cannot create a directory", made)?;
    let moved = rename::no_replace(Place::path(&at("c")), Place::path(&at("d")));
    tried("cannot rename a directory", moved)?;
    let linked = rustix::fs::linkat(CWD, &second, CWD, at("e"), AtFlags::empty());
    let refused = match linked {
        Ok(()) => None,
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS)) => {
            return Err(fault("cannot link a file", error));
        }
        Err(error) => Some(io::Error::from(error).to_string()),
    };
    durable::fsync_directory(&probe.path)?;
    tried("cannot delete a file", rustix::fs::unlinkat(CWD, &second, AtFlags::empty()))?;
    probe.remove()?;
    durable::fsync_directory(directory)?;
    Ok(refused)
}

fn write(path: &Path) -> io::Result<File> {
    let mut file = create_new(CWD, path, OFlags::RDWR)?;
    file.write_all(&[b'x'; BYTES])?;
    file.sync_all()?;
    Ok(file)
}

/// Setting of the kernel that keeps users from linking files of others.
const PROTECTED: &str = "/proc/sys/fs/protected_hardlinks";

/// Tries to link and clone from `source` into `target`, or into the nearest existing directory above it. `example` is
/// one of the trainer's files, if there is one, because its owner matters as well.
///
/// # Errors
/// When nothing can be written in one of the directories.
pub fn links(source: &Path, target: &Path, example: Option<&Path>) -> Result<LinkFacts> {
    let from = ProbePlace::create(&space::nearest_existing(source))?;
    let into = ProbePlace::create(&space::nearest_existing(target))?;
    let (original, linked) = (from.path.join("original"), into.path.join("linked"));
    let file = write(&original).map_err(|error| errors::io("cannot write", source, error))?;
    let hard_link = ability(rustix::fs::linkat(CWD, &original, CWD, &linked, AtFlags::empty()));
    let clone = create_new(CWD, into.path.join("cloned"), OFlags::RDWR);
    let clone = clone.map_err(|error| errors::io("cannot write", target, error))?;
    let reflink = ability(rustix::fs::ioctl_ficlone(&clone, &file));
    drop((clone, file));
    into.remove()?;
    from.remove()?;
    Ok(LinkFacts { hard_link, reflink, foreign_owner: example.and_then(foreign_owner) })
}

fn ability(tried: rustix::io::Result<()>) -> LinkAbility {
    match tried {
        Ok(()) => LinkAbility::Works,
        Err(Errno::XDEV) => LinkAbility::Refused("different filesystems or mounts".to_owned()),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
            LinkAbility::Refused("the filesystem does not support it".to_owned())
        }
        Err(Errno::PERM | Errno::ACCESS) => LinkAbility::Refused("not permitted".to_owned()),
        Err(error) => LinkAbility::Refused(io::Error::from(error).to_string()),
    }
}

/// Returns the owner of a file that the kernel would not let this user link: the user must own the file, or be allowed
/// to read and write it.
fn foreign_owner(example: &Path) -> Option<u32> {
    let own = rustix::process::geteuid();
    let owner = example.symlink_metadata().ok()?.uid();
    let is_protected = std::fs::read_to_string(PROTECTED).is_ok_and(|text| text.trim() != "0");
    let may_use = || {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, example, flags, Mode::empty()).is_ok()
    };
    (is_protected && !own.is_root() && owner != own.as_raw() && !may_use()).then_some(owner)
}

const WHAT: &str = "cannot measure the disk";
/// Maximum number of bytes written.
const MAX_BYTES: u64 = 256 << 20;
/// Divisor of the free space: at most this fraction is written.
const SHARE_OF_FREE: u64 = 8;
/// Fewer bytes than this give no useful result.
const MIN_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: usize = 1 << 20;
/// Writing ends with the first sync after this time; reading with the first block.
const ENOUGH: Duration = Duration::from_millis(1500);
/// Number of small files that are synced one after another.
const SYNCS: usize = 9;
const ENOUGH_SYNCS: Duration = Duration::from_millis(500);

/// Measures the filesystem of the directory `path`, or of the nearest existing one above. The file that it writes has
/// no name, so nothing is left behind, however the process ends.
///
/// # Errors
/// When nothing can be written, or too little space is free to measure.
pub fn rates(path: &Path) -> Result<DiskRates> {
    let directory = space::nearest_existing(path);
    let free_bytes = space::free(&directory)?.free_bytes;
    let most = MAX_BYTES.min(free_bytes / SHARE_OF_FREE);
    if most < MIN_BYTES {
        return Err(Error::at(ErrorKind::NoSpace, WHAT, &directory)
            .because(format!("{free_bytes} bytes are free, but {} are needed", MIN_BYTES * SHARE_OF_FREE))
            .hint("free some space first"));
    }
    measure(&directory, most).map_err(|error| errors::io(WHAT, &directory, error))
}

fn measure(directory: &Path, most: u64) -> io::Result<DiskRates> {
    let mut file = nameless(directory)?;
    let block = incompressible()?;
    let sync_seconds = sync_seconds(&mut file)?;
    file.seek(SeekFrom::Start(0))?;
    let (bytes, seconds) = write_blocks(&mut file, &block, most)?;
    let read_bytes_per_second = read(&mut file, bytes)?;
    Ok(DiskRates {
        probed_bytes: bytes,
        write_bytes_per_second: per_second(bytes, seconds),
        read_bytes_per_second,
        sync_seconds,
    })
}

/// Creates a file without a name.
fn nameless(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    if let Ok(file) = rustix::fs::openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        return Ok(file.into());
    }
    // Network filesystems do not support unnamed files. The name exists for a moment only.
    let path = directory.join(format!("{PROBE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
    let file = rustix::fs::openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlinkat(CWD, &path, AtFlags::empty())?;
    Ok(file.into())
}

/// Filesystems with compression would write zeros faster than weights.
fn incompressible() -> io::Result<Vec<u8>> {
    let mut block = vec![0; BLOCK_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut block)?;
    Ok(block)
}

/// Returns the median time of several syncs.
fn sync_seconds(file: &mut File) -> io::Result<f64> {
    let began = Instant::now();
    let mut times = Vec::with_capacity(SYNCS);
    while times.len() < SYNCS && (times.is_empty() || began.elapsed() < ENOUGH_SYNCS) {
        let before = Instant::now();
        file.write_all(&[b'x'; 4096])?;
        file.sync_all()?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied();
    Ok(middle.unwrap_or_default().as_secs_f64())
}

/// Writes increasing amounts and syncs each: bytes that are still in memory must not count, and a slow disk must not
/// receive more than it can write in the time.
fn write_blocks(file: &mut File, block: &[u8], most: u64) -> io::Result<(u64, Duration)> {
    let began = Instant::now();
    let (mut bytes, mut stretch) = (0_u64, 1_u64);
    while bytes < most && began.elapsed() < ENOUGH {
        for _ in 0..stretch {
            let length = usize::try_from(most - bytes).unwrap_or(block.len()).min(block.len());
            file.write_all(block.get(..length).unwrap_or(block))?;
            bytes += length as u64;
            if bytes >= most {
                break;
            }
        }
        file.sync_data()?;
        stretch = (stretch * 2).min(32);
    }
    Ok((bytes, began.elapsed()))
}

/// Reads the file after asking the kernel to drop it from the page cache.
fn read(file: &mut File, bytes: u64) -> io::Result<u64> {
    // Where the cache cannot be dropped, as on a memory filesystem, reads from memory are the real rate.
    let _ = rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed);
    file.seek(SeekFrom::Start(0))?;
    let began = Instant::now();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut done = 0_u64;
    while done < bytes && began.elapsed() < ENOUGH {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        done += count as u64;
    }
    Ok(per_second(done, began.elapsed()))
}

fn per_second(bytes: u64, length: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / length.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    fn is_empty(path: &Path) -> bool {
        std::fs::read_dir(path).unwrap().next().is_none()
    }

    #[test]
    fn a_good_directory_passes_and_stays_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let facts = directory(place.path());
        assert_eq!((facts.presence, facts.failed), (Presence::There, None));
        assert!(is_empty(place.path()));
        let missing = directory(&place.path().join("a/b"));
        let above = place.path().display().to_string();
        assert_eq!((missing.presence, missing.failed), (Presence::Missing(above), None));
        assert!(is_empty(place.path()));
    }

    #[test]
    fn what_stands_in_the_way_is_told() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
        for path in ["file", "file/below", "link"] {
            let facts = directory(&place.path().join(path));
            let is_refused = facts.presence == Presence::NotADirectory || facts.failed.is_some();
            assert!(is_refused, "{path}: {facts:?}");
        }
        let proc = directory(Path::new("/proc"));
        assert!(proc.failed.is_some(), "{proc:?}");
    }

    #[test]
    fn one_directory_links_and_nothing_stays() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("target"));
        std::fs::create_dir_all(&source).unwrap();
        std::fs::create_dir_all(&target).unwrap();
        let facts = links(&source, &target, None).unwrap();
        assert_eq!(facts.hard_link, LinkAbility::Works);
        for directory in [source, target] {
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
        }
        assert_eq!(
            ability(Err(Errno::XDEV)),
            LinkAbility::Refused("different filesystems or mounts".to_owned())
        );
    }

    #[test]
    fn a_disk_is_measured_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        let rates = measure(place.path(), 5 << 20).unwrap();
        assert!(rates.probed_bytes <= 5 << 20 && rates.probed_bytes >= 1 << 20, "{rates:?}");
        assert!(rates.write_bytes_per_second > 0 && rates.read_bytes_per_second > 0, "{rates:?}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert_eq!(per_second(300, Duration::from_secs(2)), 150);
        assert!(per_second(1, Duration::ZERO) > 0);
    }
}
