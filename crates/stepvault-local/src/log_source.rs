//! Opens logs: the relevant end of files of any size, and the kernel log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use procfs::Current as _;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result, Timestamp};

use crate::errors::{self, IoAt as _};
use crate::survey;

const WHAT: &str = "cannot read the log";
const KERNEL_LOG: &str = "/dev/kmsg";
/// Maximum length of a kernel log record.
const RECORD_BYTES: usize = 8 << 10;
/// Maximum number of records that are read; the kernel's buffer holds fewer.
const MAXIMUM_RECORDS: usize = 1 << 20;
/// Maximum number of bytes that are kept, the latest.
const MAXIMUM_KERNEL_BYTES: usize = 4 << 20;

/// An open log.
#[derive(Debug)]
pub struct OpenLog {
    /// The file, positioned where reading starts.
    pub file: File,
    /// Number of bytes skipped at its beginning.
    pub skipped_bytes: u64,
    /// Time of its last write.
    pub written_at: Timestamp,
}

/// Opens a log at its last `most_bytes`.
///
/// # Errors
/// [`ErrorKind::Usage`] when it does not exist or is not a regular file.
pub fn open(path: &Path, most_bytes: u64) -> Result<OpenLog> {
    // Non-blocking, in case the path is a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => errors::io(WHAT, path, error).with_kind(ErrorKind::Usage),
        error => errors::io(WHAT, path, error),
    })?;
    let mut file = File::from(opened);
    let facts = file.metadata().at(WHAT, path)?;
    if !facts.is_file() {
        return Err(Error::at(ErrorKind::Usage, WHAT, path)
            .because("it is not a regular file")
            .hint("pipe it to '--log -', which reads standard input"));
    }
    let skipped_bytes = facts.len().saturating_sub(most_bytes);
    file.seek(SeekFrom::Start(skipped_bytes)).at(WHAT, path)?;
    Ok(OpenLog { file, skipped_bytes, written_at: survey::mtime(&facts) })
}

/// Returns the kernel's log lines of the last `within`, one per line, or the reason why the log cannot be read.
pub fn kernel_log(within: Duration) -> std::result::Result<Vec<u8>, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, KERNEL_LOG, flags, Mode::empty())
        .map_err(|error| std::io::Error::from(error).to_string())?;
    let mut file = File::from(opened);
    let uptime = procfs::Uptime::current().map_or(Duration::ZERO, |uptime| uptime.uptime_duration());
    let oldest_seconds = uptime.saturating_sub(within).as_secs();
    let mut text = Vec::new();
    let mut record = vec![0; RECORD_BYTES];
    for _ in 0..MAXIMUM_RECORDS {
        let length = match file.read(&mut record) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) => match Errno::from_io_error(&error) {
                // Some records were overwritten before they were read.
                Some(Errno::PIPE | Errno::INTR) => continue,
                // No more records.
                Some(Errno::AGAIN) => break,
                _ => return Err(error.to_string()),
            },
        };
        if let Some((seconds, message)) = message(record.get(..length).unwrap_or_default())
            && seconds >= oldest_seconds
        {
            text.extend_from_slice(message);
            text.push(b'\n');
        }
        if text.len() > MAXIMUM_KERNEL_BYTES {
            text.drain(..MAXIMUM_KERNEL_BYTES / 2);
        }
    }
    Ok(text)
}

/// Parses a record into seconds since boot and text: `6,339,5140900,-;text`, with continuation lines that begin with a
/// space.
fn message(record: &[u8]) -> Option<(u64, &[u8])> {
    let semicolon = record.iter().position(|byte| *byte == b';')?;
    let (head, text) = record.split_at(semicolon);
    let microseconds: u64 = std::str::from_utf8(head).ok()?.split(',').nth(2)?.parse().ok()?;
    let text = text.split(|byte| *byte == b'\n').next()?;
    Some((microseconds / 1_000_000, text.strip_prefix(b";")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_log_the_end_is_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.log");
        std::fs::write(&path, "0123456789").unwrap();
        for (most, skipped, rest) in [(4, 6, "6789"), (100, 0, "0123456789")] {
            let mut log = open(&path, most).unwrap();
            let mut text = String::new();
            log.file.read_to_string(&mut text).unwrap();
            assert_eq!((log.skipped_bytes, text.as_str()), (skipped, rest));
        }
    }

    #[test]
    fn what_is_no_log_is_refused_and_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let missing = open(&place.path().join("none"), 1).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Usage);
        assert!(missing.to_string().ends_with("none: it does not exist"), "{missing}");
        let pipe = place.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [&pipe, &place.path().to_path_buf()] {
            let error = open(path, 1).unwrap_err();
            assert!(error.to_string().ends_with("it is not a regular file"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn records_of_any_bytes_are_read_to_their_end(
            head in "[0-9,;-]{0,40}",
            text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..100),
        ) {
            let record = [head.as_bytes(), b";", &text].concat();
            if let Some((_, message)) = message(&record) {
                proptest::prop_assert!(!message.contains(&b'\n') && message.len() < record.len());
            }
            let _ = message(&text);
        }
    }

    #[test]
    fn records_of_the_kernel_are_understood() {
        let record = b"6,339,5140900,-;Out of memory: Killed process 1; x\n SUBSYSTEM=x\n";
        assert_eq!(message(record), Some((5, &b"Out of memory: Killed process 1; x"[..])));
        for bad in [&b""[..], b";", b"6,3,x,-;y", b"6,3;y", b"\xff,\xff,\xff;y"] {
            assert_eq!(message(bad), None);
        }
        // Must return, whatever this machine permits.
        let _ = kernel_log(Duration::from_mins(1));
    }
}
