//! The journal of an upload: what has been sent already, so that a restarted agent goes on where it was.
//!
//! One JSON object a line, each with a checksum. A line that is torn, or that rot has touched, ends the journal: what
//! stood behind it is sent again, and nothing else is lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};
use serde::{Deserialize, Serialize};
use stepvault_core::codec::FORMAT;
use stepvault_core::digest::{Crc32c, PartDigest, Sha256Digest};
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;
use crate::errors;
use crate::kept;
use crate::sealed::SEAL;
use crate::vault::Vault;

/// Longest journal that is read: 10,000 parts of each of many files; a longer one is begun anew.
const MAX_JOURNAL_BYTES: u64 = 1 << 30;

/// One thing that an upload has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum JournalRecord {
    /// A multipart upload of a file began; parts journalled before belong to another one and do not count.
    UploadStarted {
        /// The file.
        path: RelativePath,
        /// The store's identity of the upload.
        upload: String,
    },
    /// The store acknowledged a part.
    PartDone {
        /// The file.
        path: RelativePath,
        /// The part, counted from 0.
        index: u32,
        /// The store's tag for it.
        tag: String,
        /// Digests of the bytes that were sent.
        digest: PartDigest,
    },
    /// The file is complete and verified on the remote.
    FileDone {
        /// The file.
        path: RelativePath,
        /// Digests of its parts, in order.
        parts: Vec<PartDigest>,
    },
}

/// The first line: which seal the journal belongs to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    seal_sha256: Sha256Digest,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    crc32c: Crc32c,
    entry: T,
}

/// A part that the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartProgress {
    /// The store's tag for it.
    pub tag: String,
    /// Digests of the bytes that were sent.
    pub digest: PartDigest,
}

/// How far a file has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// The multipart upload under way.
    pub upload: Option<String>,
    /// Its acknowledged parts by index.
    pub parts: BTreeMap<u32, PartProgress>,
    /// Once the file is done: digests of its parts, in order.
    pub done: Option<Vec<PartDigest>>,
}

/// What a journal says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalState {
    /// Progress by file; a file without an entry has not been begun.
    pub files: BTreeMap<RelativePath, FileProgress>,
}

impl JournalState {
    fn take(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::UploadStarted { path, upload } => {
                self.files.insert(
                    path,
                    FileProgress {
                        upload: Some(upload),
                        ..FileProgress::default()
                    },
                );
            }
            JournalRecord::PartDone {
                path,
                index,
                tag,
                digest,
            } => {
                self.files
                    .entry(path)
                    .or_default()
                    .parts
                    .insert(index, PartProgress { tag, digest });
            }
            JournalRecord::FileDone { path, parts } => {
                self.files.insert(
                    path,
                    FileProgress {
                        done: Some(parts),
                        ..FileProgress::default()
                    },
                );
            }
        }
    }
}

/// An open journal of one step on one remote. `&self` may be used from many threads at once.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    tail: Mutex<Tail>,
}

#[derive(Debug)]
struct Tail {
    file: File,
    length_bytes: u64,
}

impl Journal {
    /// Opens or begins the journal of a sealed step on a remote, with what it says.
    ///
    /// A torn tail is cut off; a journal of an earlier seal under the same name is begun anew.
    ///
    /// # Errors
    /// `NotFound` when the step is not sealed here.
    pub fn open(
        vault: &Vault,
        run: &RunName,
        id: StepId,
        remote: &RemoteName,
    ) -> Result<(Self, JournalState)> {
        let header = Header {
            format: FORMAT,
            seal_sha256: seal_digest(vault, run, id)?,
        };
        let path = vault.journal_directory(run, id).join(format!("{remote}.jsonl"));
        let file = File::from(open(&path)?);
        let bytes = match durable::read_bounded(&path, MAX_JOURNAL_BYTES) {
            Err(error) if error.kind() == ErrorKind::Damaged => Vec::new(),
            bytes => bytes?.unwrap_or_default(),
        };
        let (state, good_bytes) = read(&bytes, &header);
        file.set_len(good_bytes)
            .map_err(|error| errors::io("cannot cut the journal", &path, error))?;
        let journal = Self {
            path,
            tail: Mutex::new(Tail {
                file,
                length_bytes: good_bytes,
            }),
        };
        if good_bytes == 0 {
            journal.write_line(&header)?;
        }
        Ok((journal, state))
    }

    /// Adds a record. Not synced: a power cut may lose the last records, and then those parts are sent again.
    pub fn append(&self, record: &JournalRecord) -> Result<()> {
        self.write_line(record)
    }

    /// Ends the journal: the step is where it should be.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path)
            .map_err(|error| errors::io("cannot remove the journal", &self.path, error))?;
        // The step's other remotes may still have theirs in it.
        let _ = std::fs::remove_dir(durable::parent_of(&self.path));
        Ok(())
    }

    fn write_line<T: Serialize>(&self, entry: &T) -> Result<()> {
        let line = line_of(entry)?;
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.file.write_all(&line).map_err(|error| {
            // Half a line would hide every later one from the next start.
            let _ = tail.file.set_len(tail.length_bytes);
            errors::io("cannot write the journal", &self.path, error)
        })?;
        tail.length_bytes += line.len() as u64;
        Ok(())
    }
}

/// What the journal of a sealed step on a remote says, without touching it: an upload may be at work on it. Nothing when
/// there is none, or it is not of this seal.
///
/// # Errors
/// `NotFound` when the step is not sealed here.
pub fn read_state(vault: &Vault, run: &RunName, id: StepId, remote: &RemoteName) -> Result<JournalState> {
    let header = Header {
        format: FORMAT,
        seal_sha256: seal_digest(vault, run, id)?,
    };
    let path = vault.journal_directory(run, id).join(format!("{remote}.jsonl"));
    match durable::read_bounded(&path, MAX_JOURNAL_BYTES) {
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(JournalState::default()),
        bytes => Ok(read(&bytes?.unwrap_or_default(), &header).0),
    }
}

/// Opens the file, with its directory. Another remote's journal that ends takes the empty directory with it, at any
/// moment; a few times only, since each time means that one has ended.
fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut tries_left = 64;
    loop {
        let opened = durable::create_directories(durable::parent_of(path)).and_then(|()| {
            rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))
                .map_err(|error| errors::io("cannot open the journal", path, error))
        });
        match opened {
            Err(error) if error.kind() == ErrorKind::NotFound && tries_left > 0 => tries_left -= 1,
            opened => return opened,
        }
    }
}

fn seal_digest(vault: &Vault, run: &RunName, id: StepId) -> Result<Sha256Digest> {
    let path = vault.step_directory(run, id).join(SEAL);
    let seal = durable::read_bounded(&path, kept::MAX_BYTES)?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "cannot open the journal")
            .on(path.display())
            .because("the step is not sealed here")
    })?;
    Ok(Sha256Digest::of(&seal))
}

fn line_of<T: Serialize>(entry: &T) -> Result<Vec<u8>> {
    let fault = |error| Error::new(ErrorKind::Failed, "cannot encode a journal record").caused_by(error);
    let crc32c = Crc32c::of(&serde_json::to_vec(entry).map_err(fault)?);
    let mut line = serde_json::to_vec(&Line { crc32c, entry }).map_err(fault)?;
    line.push(b'\n');
    Ok(line)
}

/// What the journal says and how many of its bytes are good: none when it is not the journal of this seal.
fn read(bytes: &[u8], header: &Header) -> (JournalState, u64) {
    let mut state = JournalState::default();
    let mut good_bytes = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if good_bytes == 0 {
            if parse::<Header>(line).as_ref() != Some(header) {
                break;
            }
        } else {
            let Some(record) = parse(line) else { break };
            state.take(record);
        }
        good_bytes += line.len() as u64;
    }
    (state, good_bytes)
}

fn parse<T: Serialize + for<'de> Deserialize<'de>>(line: &[u8]) -> Option<T> {
    let line: Line<T> = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    let encoded = serde_json::to_vec(&line.entry).ok()?;
    (Crc32c::of(&encoded) == line.crc32c).then_some(line.entry)
}
