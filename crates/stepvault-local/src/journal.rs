//! The journal of an upload: records what has been sent, so that a restarted agent resumes there.
//!
//! One JSON object per line, each with a checksum. A torn or damaged line ends the journal: what followed it is sent
//! again, and nothing else is lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use stepvault_core::codec::FORMAT;
use stepvault_core::{
    Crc32c, Error, ErrorKind, PartDigest, RelativePath, RemoteName, Result, RunName, Sha256Digest, StepId,
    Timestamp,
};

use crate::errors::{self, IoAt as _};
use crate::lock::{self, Lock};
use crate::sealed::SEAL;
use crate::survey::mtime;
use crate::vault::{Vault, entries, file_name};
use crate::{durable, notes};

/// Maximum length of a journal that is read: 10,000 parts of each of many files. A longer one is discarded.
const MAX_JOURNAL_BYTES: u64 = 1 << 30;

/// The ending of a journal's name.
pub(crate) const ENDING: &str = ".jsonl";
/// Follows the remote's name in the name of a copy's journal. No remote's name contains it.
const COPY: &str = "+copy";

/// One completed action of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum JournalRecord {
    /// A multipart upload of a file began. Parts journalled earlier belong to another upload and do not count.
    UploadStarted {
        /// The file.
        path: RelativePath,
        /// The store's upload ID.
        upload: String,
    },
    /// The store acknowledged a part.
    PartDone {
        /// The file.
        path: RelativePath,
        /// The part, counted from 0.
        index: u32,
        /// The store's tag for the part.
        tag: String,
        /// Digests of the sent bytes.
        digest: PartDigest,
    },
    /// The file is complete and verified on the remote.
    FileDone {
        /// The file.
        path: RelativePath,
        /// Digests of its parts, in order. Empty for a step of another remote, whose manifests have them.
        parts: Vec<PartDigest>,
    },
    /// Earlier records of the file no longer hold: the file is sent again.
    FileForgotten {
        /// The file.
        path: RelativePath,
    },
}

/// The first line: identifies the seal that the journal belongs to, or the commit of a step that is copied.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    seal_sha256: Sha256Digest,
}

impl Header {
    fn of(vault: &Vault, run: &RunName, id: StepId) -> Result<Self> {
        let path = vault.step_directory(run, id).join(SEAL);
        let seal = durable::read_bounded(&path, notes::MAX_BYTES)?.ok_or_else(|| {
            Error::at(ErrorKind::NotFound, "cannot open the journal", &path)
                .because("the step is not sealed here")
        })?;
        Ok(Self { format: FORMAT, seal_sha256: Sha256Digest::of(&seal) })
    }
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    crc32c: Crc32c,
    entry: T,
}

/// A part that the store acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartProgress {
    /// The store's tag for it.
    pub tag: String,
    /// Digests of the sent bytes.
    pub digest: PartDigest,
}

/// Progress of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileProgress {
    /// Upload ID of the multipart upload in progress.
    pub upload: Option<String>,
    /// Acknowledged parts by index.
    pub parts: BTreeMap<u32, PartProgress>,
    /// Digests of the parts in order, once the file is done.
    pub done: Option<Vec<PartDigest>>,
}

/// Content of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalState {
    /// Progress by file; a file without an entry has not been started.
    pub files: BTreeMap<RelativePath, FileProgress>,
}

impl JournalState {
    fn take(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::UploadStarted { path, upload } => {
                self.files.insert(path, FileProgress { upload: Some(upload), ..FileProgress::default() });
            }
            JournalRecord::PartDone { path, index, tag, digest } => {
                self.files.entry(path).or_default().parts.insert(index, PartProgress { tag, digest });
            }
            JournalRecord::FileForgotten { path } => {
                self.files.remove(&path);
            }
            JournalRecord::FileDone { path, parts } => {
                self.files.insert(path, FileProgress { done: Some(parts), ..FileProgress::default() });
            }
        }
    }
}

/// An open journal of one step on one remote. `&self` may be used from several threads at once.
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

impl Vault {
    /// Discards the upload progress of a step on a remote. Returns `false` when no upload was in progress.
    pub fn forget_uploads(&self, run: &RunName, id: StepId, remote: &RemoteName) -> Result<bool> {
        durable::remove_file(&self.journal_path(run, id, remote))
    }

    fn journal_path(&self, run: &RunName, id: StepId, remote: &RemoteName) -> PathBuf {
        self.journal_directory(run, id).join(format!("{remote}{ENDING}"))
    }

    fn copy_journal_path(&self, run: &RunName, id: StepId, remote: &RemoteName) -> PathBuf {
        self.journal_directory(run, id).join(format!("{remote}{COPY}{ENDING}"))
    }

    /// Excludes other processes from copying steps of the run to the remote with this vault, whose journals are theirs
    /// alone. The kernel releases the lock when the process ends.
    ///
    /// # Errors
    /// `Held` when another process copies them.
    pub fn lock_copies(&self, run: &RunName, remote: &RemoteName) -> Result<CopyLock> {
        let directory = self.run_directory(run).join("journal");
        self.create_directories(&directory)?;
        let path = directory.join(format!("{remote}{COPY}.lock"));
        let lock = lock::take(&path)?;
        lock.map(CopyLock).ok_or_else(|| {
            lock::held("cannot copy the run", &path)
                .hint("let it finish, or end it: the lock goes with it and never needs to be removed by hand")
        })
    }
}

/// The right to copy the steps of one run to one remote with a vault.
#[derive(Debug)]
pub struct CopyLock(#[expect(dead_code, reason = "held until dropped")] Lock);

impl Journal {
    /// Opens or creates the journal of a sealed step on a remote and returns its content.
    ///
    /// Truncates a torn tail, and discards a journal that belongs to an earlier seal of the same name.
    ///
    /// # Errors
    /// `NotFound` when the step is not sealed in this vault.
    pub fn open(
        vault: &Vault,
        run: &RunName,
        id: StepId,
        remote: &RemoteName,
    ) -> Result<(Self, JournalState)> {
        Self::open_at(vault, vault.journal_path(run, id, remote), &Header::of(vault, run, id)?)
    }

    /// Like [`open`](Self::open), for a step that is copied from another remote, where it has the commit with this digest.
    /// Only the holder of [`Vault::lock_copies`] opens it.
    pub fn open_copy(
        vault: &Vault,
        run: &RunName,
        id: StepId,
        remote: &RemoteName,
        commit: Sha256Digest,
    ) -> Result<(Self, JournalState)> {
        let path = vault.copy_journal_path(run, id, remote);
        Self::open_at(vault, path, &Header { format: FORMAT, seal_sha256: commit })
    }

    /// Removes the journal of a sealed step on a remote, because the upload is complete.
    pub fn remove(vault: &Vault, run: &RunName, id: StepId, remote: &RemoteName) -> Result<()> {
        remove_at(&vault.journal_path(run, id, remote))
    }

    /// Like [`remove`](Self::remove), for a step that was copied from another remote.
    pub fn remove_copy(vault: &Vault, run: &RunName, id: StepId, remote: &RemoteName) -> Result<()> {
        remove_at(&vault.copy_journal_path(run, id, remote))
    }

    fn open_at(vault: &Vault, path: PathBuf, header: &Header) -> Result<(Self, JournalState)> {
        let file = File::from(open(vault, &path)?);
        let (state, good_bytes) = read(&path, header)?;
        file.set_len(good_bytes).at("cannot truncate the journal", &path)?;
        let journal = Self { path, tail: Mutex::new(Tail { file, length_bytes: good_bytes }) };
        if good_bytes == 0 {
            journal.write_line(header)?;
        }
        Ok((journal, state))
    }

    /// Appends a record without syncing it: a power cut may lose the last records, and those parts are then sent again.
    pub fn append(&self, record: &JournalRecord) -> Result<()> {
        self.write_line(record)
    }

    fn write_line<T: Serialize>(&self, entry: &T) -> Result<()> {
        let line = line_of(entry)?;
        let mut tail = self.tail.lock();
        tail.file.write_all(&line).map_err(|error| {
            // A partial line would hide every later one from the next process.
            let _ = tail.file.set_len(tail.length_bytes);
            errors::io("cannot write the journal", &self.path, error)
        })?;
        tail.length_bytes += line.len() as u64;
        Ok(())
    }
}

/// Reads the journal of a sealed step on a remote without changing it: an upload may be writing to it. Returns an empty
/// state when there is no journal, or when it belongs to another seal.
///
/// # Errors
/// `NotFound` when the step is not sealed in this vault.
pub fn read_state(vault: &Vault, run: &RunName, id: StepId, remote: &RemoteName) -> Result<JournalState> {
    let path = vault.journal_path(run, id, remote);
    Ok(read(&path, &Header::of(vault, run, id)?)?.0)
}

/// Opens the file and creates its directory. The journal of another remote may remove the empty directory at any moment
/// when it ends, so this retries a few times.
fn open(vault: &Vault, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut tries_left = 64;
    loop {
        let opened = vault.create_directories(durable::parent_of(path)).and_then(|()| {
            rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))
                .at("cannot open the journal", path)
        });
        match opened {
            Err(error) if error.kind() == ErrorKind::NotFound && tries_left > 0 => tries_left -= 1,
            opened => return opened,
        }
    }
}

fn remove_at(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(errors::io("cannot remove the journal", path, error));
        }
        _ => {}
    }
    // Fails when other remotes still have journals of the step in it.
    let _ = std::fs::remove_dir(durable::parent_of(path));
    Ok(())
}

fn line_of<T: Serialize>(entry: &T) -> Result<Vec<u8>> {
    let fault = |error| Error::new(ErrorKind::Failed, "cannot encode a journal record").caused_by(error);
    let entry = to_raw_value(entry).map_err(fault)?;
    let crc32c = Crc32c::of(entry.get().as_bytes());
    let mut line = serde_json::to_vec(&Line { crc32c, entry }).map_err(fault)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns the content and the number of valid bytes; both are empty when there is no journal, it is too long, or it
/// belongs to another seal. Holds at most one line in memory.
fn read(path: &Path, header: &Header) -> Result<(JournalState, u64)> {
    let fault = |error| errors::io("cannot read the journal", path, error);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::NOENT) => return Ok((JournalState::default(), 0)),
        Err(error) => return Err(fault(error.into())),
    };
    if file.metadata().map_err(fault)?.len() > MAX_JOURNAL_BYTES {
        return Ok((JournalState::default(), 0));
    }
    read_lines(BufReader::new(file), header).map_err(fault)
}

fn read_lines(lines: impl BufRead, header: &Header) -> std::io::Result<(JournalState, u64)> {
    let mut state = JournalState::default();
    let mut good_bytes = 0;
    // The file grows meanwhile if an upload is writing to it.
    let mut lines = lines.take(MAX_JOURNAL_BYTES);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        if good_bytes == 0 {
            if parse::<Header>(&line).as_ref() != Some(header) {
                break;
            }
        } else {
            let Some(record) = parse(&line) else { break };
            state.take(record);
        }
        good_bytes += line.len() as u64;
        line.clear();
    }
    Ok((state, good_bytes))
}

fn parse<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Option<T> {
    let line: Line<&RawValue> = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    let entry = line.entry.get();
    (Crc32c::of(entry.as_bytes()) == line.crc32c).then(|| serde_json::from_str(entry).ok())?
}

// Unfinished uploads, as their journals show them. Reads the journals without changing them.

/// Maximum number of journals that are read, those of the newest steps.
const MAXIMUM_JOURNALS: usize = 64;

/// An unfinished upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The step.
    pub id: StepId,
    /// The destination.
    pub remote: RemoteName,
    /// Time of the last record.
    pub written_at: Timestamp,
    /// Number of files that are done.
    pub files_done: u64,
    /// Number of files of the step.
    pub files: u64,
    /// Number of acknowledged parts of files that are not done.
    pub parts_done: u64,
}

impl Vault {
    /// Returns the unfinished uploads of a run, the newest steps first.
    pub fn unfinished_uploads(&self, run: &RunName) -> Result<Vec<UnfinishedUpload>> {
        let mut found = Vec::new();
        for step in self.steps(run)?.steps.iter().rev() {
            for path in entries(&self.journal_directory(run, step.id()))? {
                let name = file_name(&path).strip_suffix(ENDING);
                let Some(remote) = name.and_then(|name| RemoteName::new(name).ok()) else {
                    continue;
                };
                // The upload may end while its journal is read.
                let (Ok(facts), Ok(state)) = (path.metadata(), read_state(self, run, step.id(), &remote))
                else {
                    continue;
                };
                let done = |file: &&FileProgress| file.done.is_some();
                let begun = state.files.values();
                found.push(UnfinishedUpload {
                    id: step.id(),
                    remote,
                    written_at: mtime(&facts),
                    files_done: begun.clone().filter(done).count() as u64,
                    files: step.record().files.len() as u64,
                    parts_done: begun.map(|file| file.parts.len() as u64).sum(),
                });
                if found.len() == MAXIMUM_JOURNALS {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }
}
