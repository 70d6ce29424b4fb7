//! Reads the given logs.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_diagnose::explain::{LogScan, Scanner, evidence_of};
use stepvault_local::log_source::open;

use super::gathered::{Gathered, Log, LogSource, within_grace};
use crate::blocking::blocking;

/// Maximum number of bytes that are read of a file, from its end.
const MAXIMUM_BYTES: u64 = 256 << 20;
/// Time limit for reading a file.
const READ_DEADLINE: Duration = Duration::from_mins(1);
/// Additional time to wait: a read that hangs does not check the limit.
const GRACE: Duration = Duration::from_secs(10);
/// A log last written this long before the newest one concerns an earlier time.
const EARLIER_SECONDS: u64 = 3600;
const EARLIER_RECENCY: u32 = 500;

/// A log that was read.
struct ReadLog {
    name: String,
    scan: LogScan,
    skipped_bytes: u64,
    /// `None` for a log that is still being written.
    written_at: Option<Timestamp>,
    /// Why only a part of it was read.
    cut: Option<String>,
}

pub(super) async fn gather(logs: Vec<Log>, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
    let mut read = Vec::new();
    for Log { name, source } in logs {
        let (scanner, called) = (Arc::clone(scanner), name.clone());
        let outcome = match source {
            LogSource::File(path) => {
                within_grace(READ_DEADLINE, GRACE, move || read_file(called, &path, &scanner)).await
            }
            LogSource::Input(input) => blocking(move || read_input(called, input, &scanner)).await,
        };
        match outcome {
            Ok(log) => read.push(log),
            Err(error) => gathered.miss(name, &error, true),
        }
    }
    let newest = read.iter().filter_map(|log| log.written_at).max();
    for log in read {
        let is_earlier = newest
            .zip(log.written_at)
            .is_some_and(|(newest, written)| newest.seconds_since(written) > EARLIER_SECONDS);
        let recency = if is_earlier { EARLIER_RECENCY } else { 1000 };
        gathered.evidence.extend(evidence_of(&log.scan, &log.name, recency, log.skipped_bytes));
        if let Some(why) = log.cut {
            gathered.miss(log.name, &why, false);
        }
    }
}

fn read_file(name: String, path: &Path, scanner: &Scanner) -> Result<ReadLog> {
    let log = open(path, MAXIMUM_BYTES)?;
    let mut reader =
        Timed { inner: log.file.take(MAXIMUM_BYTES), until: Instant::now() + READ_DEADLINE, is_late: false };
    let scan = scanner
        .scan(&mut reader)
        .map_err(|error| stepvault_local::errors::io("cannot read the log", path, error))?;
    let mut cut = Vec::new();
    if log.skipped_bytes > 0 {
        cut.push(format!("only its last {} MiB were read", MAXIMUM_BYTES >> 20));
    }
    if reader.is_late {
        cut.push(format!("only {} bytes of it were read within {} s", scan.bytes, READ_DEADLINE.as_secs()));
    }
    Ok(ReadLog {
        name,
        scan,
        skipped_bytes: log.skipped_bytes,
        written_at: Some(log.written_at),
        cut: (!cut.is_empty()).then(|| cut.join("; ")),
    })
}

fn read_input(name: String, input: Box<dyn Read + Send>, scanner: &Scanner) -> Result<ReadLog> {
    let scan = scanner
        .scan(input)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot read the log").on(&name).caused_by(error))?;
    Ok(ReadLog { name, scan, skipped_bytes: 0, written_at: None, cut: None })
}

/// A reader that ends when its time is up.
struct Timed<R> {
    inner: R,
    until: Instant,
    is_late: bool,
}

impl<R: Read> Read for Timed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            self.is_late = true;
            return Ok(0);
        }
        self.inner.read(buffer)
    }
}
