//! What to examine, and what was found; reads the given logs and the kernel's.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::starts::RestartLoopRule;
use stepvault_core::{Clock, Error, ErrorKind, Result, RunName, Timestamp};
use stepvault_diagnose::explain::{Cause, Evidence, LogScan, Scanner, evidence_of};
use stepvault_formats::profile::ProfileSet;
use stepvault_local::log_source::{kernel_log, open};
use stepvault_local::vault::Vault;
use tokio::time::timeout;

use super::on_disk::ResumeOnDisk;
use crate::blocking::blocking;

/// What to examine.
pub struct ExplainRequest {
    /// Directories in which the trainer writes steps.
    pub directories: Vec<PathBuf>,
    /// Logs.
    pub logs: Vec<Log>,
    /// The directories of the trainer's temporary files.
    pub temporary: Vec<PathBuf>,
    /// Whether the run failed on this machine, so that its disks, its memory and its kernel's log are evidence.
    pub is_here: bool,
    /// The local tier.
    pub vault: Option<Vault>,
    /// The runs whose records in the vault are examined.
    pub runs: Vec<RunName>,
    /// Texts that the failure left, each with its source.
    pub records: Vec<(String, String)>,
    /// The known frameworks.
    pub profiles: Arc<ProfileSet>,
    /// The framework to use instead of detecting it.
    pub profile: Option<String>,
    /// The rule by which starts are a restart loop.
    pub restart_loop: RestartLoopRule,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A log.
pub struct Log {
    /// Its name.
    pub name: String,
    /// Its source.
    pub source: LogSource,
}

/// The source of a log.
pub enum LogSource {
    /// A file.
    File(PathBuf),
    /// A stream that is read to its end.
    Input(Box<dyn Read + Send>),
}

/// The gathered evidence.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The evidence, settled.
    pub evidence: Vec<Evidence>,
    /// The step to resume from in each directory that contains one.
    pub on_disk: Vec<ResumeOnDisk>,
    /// Sources that could not be examined, with the cause.
    pub not_looked_at: Vec<NotLookedAt>,
}

/// A source that could not be examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotLookedAt {
    /// A path, a log or a tier.
    pub what: String,
    /// The reason, as text.
    #[serde(rename = "reason")]
    pub why: String,
    /// Whether the caller had named it explicitly.
    #[serde(skip)]
    pub named: bool,
}

impl NotLookedAt {
    /// Returns a source that the caller had named explicitly.
    pub fn named(what: &str, why: impl Into<String>) -> Self {
        Self { what: what.to_owned(), why: why.into(), named: true }
    }
}

/// Time limit for each source.
pub(super) const PLACE_DEADLINE: Duration = Duration::from_secs(10);
pub(super) const STEPS_DEADLINE: Duration = Duration::from_mins(1);
pub(super) const RECORDS_DEADLINE: Duration = Duration::from_secs(20);

impl Gathered {
    pub(super) fn miss(&mut self, what: impl Into<String>, why: &impl ToString, named: bool) {
        let (what, why) = (what.into(), why.to_string());
        self.not_looked_at.push(NotLookedAt { what, why, named });
    }
}

/// Runs the work and stops waiting at the deadline: a thread that hangs in the kernel is abandoned. The error is then
/// [`ErrorKind::Unreachable`].
pub(super) async fn within<T: Send + 'static>(
    deadline: Duration,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    within_grace(deadline, Duration::ZERO, look).await
}

/// Like [`within`], for work that observes the deadline, and is abandoned a little later only if it hangs.
pub(super) async fn within_grace<T: Send + 'static>(
    deadline: Duration,
    grace: Duration,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    timeout(deadline + grace, blocking(look)).await.unwrap_or_else(|_| {
        let seconds = deadline.as_secs();
        Err(Error::new(ErrorKind::Unreachable, format!("it did not finish within {seconds} s")))
    })
}

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

pub(super) async fn gather_logs(logs: Vec<Log>, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
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

const NAME: &str = "the kernel's log";
/// How far back the log is read.
const WITHIN: Duration = Duration::from_hours(24);

/// Reads the log, if permitted. Messages about disks count only for `devices`.
pub(super) async fn gather_kernel_log(devices: Vec<String>, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
    let scanner = Arc::clone(scanner);
    let look = move || match kernel_log(WITHIN) {
        Ok(text) => scanner
            .scan(about(&text, &devices, &scanner).as_slice())
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot read it").caused_by(error)),
        Err(why) => Err(Error::new(ErrorKind::Denied, why)),
    };
    match within(PLACE_DEADLINE, look).await {
        Ok(scan) => {
            let mut evidence = evidence_of(&scan, NAME, 1000, 0);
            for piece in &mut evidence {
                // It may concern other processes than the run's.
                piece.weight /= 2;
                // Users could not look it up at that position.
                piece.position.line = None;
                piece.position.offset_bytes = Some(0);
            }
            gathered.evidence.extend(evidence);
        }
        Err(error) => gathered.miss(NAME, &error, false),
    }
}

/// Returns the lines without those about other disks.
fn about(text: &[u8], devices: &[String], scanner: &Scanner) -> Vec<u8> {
    let mut kept = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let words = String::from_utf8_lossy(line);
        let found = scanner.recognise(words.trim_end());
        let is_of_disks = found.iter().any(|text| matches!(text.cause, Cause::ReadOnly | Cause::DiskFault));
        if !is_of_disks || devices.iter().any(|device| names(&words, device)) {
            kept.extend_from_slice(line);
        }
    }
    kept
}

/// Whether a line names the device, and not one whose name merely begins with it.
fn names(line: &str, device: &str) -> bool {
    line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .any(|word| word == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_disks_do_not_count() {
        let text = "EXT4-fs (sdb1): Remounting filesystem read-only\n\
                    blk_update_request: I/O error, dev sdb, sector 8\n\
                    Aborting journal on device sdb12-8.\n\
                    Out of memory: Killed process 12 (python)\n";
        let about = |devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
            let kept = about(text.as_bytes(), &devices, &Scanner::default());
            String::from_utf8(kept).unwrap().lines().count()
        };
        assert_eq!(about(&[]), 1);
        assert_eq!(about(&["sdb1"]), 2);
        assert_eq!(about(&["sdb1", "sdb"]), 3);
    }
}
