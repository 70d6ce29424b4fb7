//! Measures write, sync and read rates of a disk, bounded in bytes and time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags};
use stepvault_core::disk_facts::DiskRates;
use stepvault_core::{Error, ErrorKind, Result};

use super::place::PROBE_PREFIX;
use crate::errors;
use crate::space;

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
        return Err(Error::new(ErrorKind::NoSpace, WHAT)
            .on(directory.display())
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
    let (bytes, seconds) = write(&mut file, &block, most)?;
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
fn write(file: &mut File, block: &[u8], most: u64) -> io::Result<(u64, Duration)> {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
