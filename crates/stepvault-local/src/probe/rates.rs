//! What a disk does in a second: written, synced and read, within a bound of bytes and time.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags};
use stepvault_core::doctor::speed::Rates;
use stepvault_core::{Error, ErrorKind, Result};

use super::place::PROBE_PREFIX;
use crate::errors;
use crate::space;

const WHAT: &str = "cannot measure the disk";
/// Most bytes that are written.
const MAX_BYTES: u64 = 256 << 20;
/// No more than this part of what is free.
const SHARE_OF_FREE: u64 = 8;
/// Less than this tells nothing.
const MIN_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: usize = 1 << 20;
/// Writing ends with the sync after which so much time is gone; reading likewise with the block.
const ENOUGH: Duration = Duration::from_millis(1500);
/// Small files that are synced one after the other.
const SYNCS: usize = 9;
const ENOUGH_SYNCS: Duration = Duration::from_millis(500);

/// Measures the filesystem of the directory `path`, or of the nearest one above that exists. The file that it writes
/// has no name: nothing is left, however the process ends.
///
/// # Errors
/// When nothing can be written, or too little is free to measure with.
pub fn rates(path: &Path) -> Result<Rates> {
    let directory = space::nearest_existing(path);
    let free_bytes = space::free(&directory)?.free_bytes;
    let most = MAX_BYTES.min(free_bytes / SHARE_OF_FREE);
    if most < MIN_BYTES {
        return Err(Error::new(ErrorKind::NoSpace, WHAT)
            .on(directory.display())
            .because(format!(
                "{free_bytes} bytes are free, and {} are needed",
                MIN_BYTES * SHARE_OF_FREE
            ))
            .hint("free some space first"));
    }
    measure(&directory, most).map_err(|error| errors::io(WHAT, &directory, error))
}

fn measure(directory: &Path, most: u64) -> io::Result<Rates> {
    let mut file = nameless(directory)?;
    let block = incompressible()?;
    let sync_seconds = sync_seconds(&mut file)?;
    file.seek(SeekFrom::Start(0))?;
    let (bytes, seconds) = write(&mut file, &block, most)?;
    let read_bytes_per_second = read(&mut file, bytes)?;
    Ok(Rates {
        probed_bytes: bytes,
        write_bytes_per_second: per_second(bytes, seconds),
        read_bytes_per_second,
        sync_seconds,
    })
}

/// A file that no directory names.
fn nameless(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    if let Ok(file) = rustix::fs::openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        return Ok(file.into());
    }
    // Network filesystems have no such files. The name is there for a moment.
    let path = directory.join(format!("{PROBE_PREFIX}{}", uuid::Uuid::new_v4().simple()));
    let file = rustix::fs::openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
    rustix::fs::unlinkat(CWD, &path, AtFlags::empty())?;
    Ok(file.into())
}

/// Filesystems that compress would write zeros faster than any weights.
fn incompressible() -> io::Result<Vec<u8>> {
    let mut block = vec![0; BLOCK_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut block)?;
    Ok(block)
}

/// The middle one of several.
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

/// Writes stretches that grow, and syncs each: what was written and is still in memory does not count, and a slow disk is
/// not given more than it can take in the time.
fn write(file: &mut File, block: &[u8], most: u64) -> io::Result<(u64, Duration)> {
    let began = Instant::now();
    let (mut bytes, mut stretch) = (0_u64, 1_u64);
    while bytes < most && began.elapsed() < ENOUGH {
        for _ in 0..stretch {
            let length = usize::try_from(most - bytes)
                .unwrap_or(block.len())
                .min(block.len());
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

/// Reads it back, after the cache was asked to forget it.
fn read(file: &mut File, bytes: u64) -> io::Result<u64> {
    // Where it cannot forget, as in memory itself, what is read is as fast as it is going to be.
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
        assert!(
            rates.probed_bytes <= 5 << 20 && rates.probed_bytes >= 1 << 20,
            "{rates:?}"
        );
        assert!(
            rates.write_bytes_per_second > 0 && rates.read_bytes_per_second > 0,
            "{rates:?}"
        );
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        assert_eq!(per_second(300, Duration::from_secs(2)), 150);
        assert!(per_second(1, Duration::ZERO) > 0);
    }
}
