//! Multipart uploads: one data file in a hidden directory, to which parts are written at their offsets, renamed when
//! complete.
//!
//! `<root>/.stepvault-uploads/<id>/key` holds the key, `…/data` holds the bytes. The upload ID contains the file's
//! size, which determines the offset of each part, so a process needs only the ID to send a part.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use stepvault_core::digest::{PartDigest, is_hex};
use stepvault_core::file_parts::FileParts;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::{self, CreateOutcome};
use stepvault_local::errors::{self, IoAt as _};

use super::layout::{Layout, UPLOADS_DIRECTORY};
use super::placing::{place, taken};
use crate::payload::Payload;
use crate::store::{PartReceipt, PendingUpload};

const KEY_FILE: &str = "key";
const DATA_FILE: &str = "data";
/// Maximum length of a key that is read from an upload's directory.
const MAXIMUM_KEY_FILE_BYTES: u64 = 4096;
/// A directory without its key file that is older than this was left by a crash.
const STALE: Duration = Duration::from_hours(1);

/// An upload, identified by 32 hexadecimal digits, a dash and the file's size.
#[derive(Debug)]
pub(super) struct Upload {
    id: String,
    directory: PathBuf,
    pub(super) parts: FileParts,
}

impl Upload {
    /// Parses an upload ID. It may come from a damaged journal: any other text means that no such upload exists.
    pub(super) fn parse(layout: &Layout, id: &str) -> Result<Self> {
        let unknown = || Error::new(ErrorKind::NotFound, "no such upload").on(format!("{id:?}"));
        let (random, size) = id.split_once('-').ok_or_else(unknown)?;
        if !is_hex(random, 32) || !size.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unknown());
        }
        let parts = FileParts::of(size.parse().map_err(|_| unknown())?)?;
        Ok(Self { id: id.to_owned(), directory: layout.root.join(UPLOADS_DIRECTORY).join(id), parts })
    }

    /// Begins an upload of `size_bytes` to `key`. Durable, so that a restarted agent finds it.
    pub(super) fn start(layout: &Layout, key: &str, size_bytes: u64) -> Result<String> {
        const WHAT: &str = "cannot begin an upload";
        layout.path(key)?;
        let id = format!("{}-{size_bytes}", uuid::Uuid::new_v4().simple());
        let upload = Self::parse(layout, &id)?;
        layout.directory(WHAT, UPLOADS_DIRECTORY)?;
        upload.lay_out(WHAT, layout, key).inspect_err(|_| {
            // The ID is unknown to others. Best effort: `gc` removes the rest.
            let _ = upload.remove();
        })?;
        Ok(upload.id)
    }

    fn lay_out(&self, what: &str, layout: &Layout, key: &str) -> Result<()> {
        durable::create_directories_below(&layout.root, &self.directory)?;
        durable::create_new(&self.directory.join(KEY_FILE), key.as_bytes())?;
        let path = self.data();
        let options = OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
        let file = options.open(&path).at(what, &path)?;
        // Space is allocated as parts arrive: a part that does not fit fails by itself, and the upload can be resumed.
        let sized = file.set_len(self.parts.size_bytes()).and_then(|()| file.sync_all());
        sized.at(what, &path)?;
        durable::fsync_directory(&self.directory)
    }

    /// Writes part `index` at its offset. Durable when this returns.
    pub(super) fn write_part(&self, index: u32, body: &Payload, digest: &PartDigest) -> Result<PartReceipt> {
        let what = format!("cannot upload part {}", index + 1);
        let range = self.parts.range(index);
        let size_bytes = body.size_bytes();
        if index >= self.parts.count()
            || size_bytes != range.end - range.start
            || digest.size_bytes != size_bytes
        {
            return Err(Error::at(ErrorKind::Failed, what, &self.data()).because(format!(
                "the part has {size_bytes} bytes, but a file of {} bytes has {} there",
                self.parts.size_bytes(),
                range.end - range.start
            )));
        }
        let file = self.open(&what)?;
        let mut position = range.start;
        let written = body.blocks().try_for_each(|block| {
            let block = block?;
            let place = position;
            position += block.len() as u64;
            file.write_all_at(&block, place)
        });
        let written = written.and_then(|()| file.sync_data());
        written.at(&what, &self.data())?;
        Ok(PartReceipt { index, tag: digest.crc32c.to_string(), digest: *digest })
    }

    /// Renames the data to its key if all parts are there and the key is unused.
    pub(super) fn complete(
        &self,
        layout: &Layout,
        key: &str,
        parts: &[PartReceipt],
        size_bytes: u64,
    ) -> Result<CreateOutcome> {
        const WHAT: &str = "cannot complete the upload";
        // Checked first, so that a second completion after a lost answer finds the object of the first one.
        if layout.open(WHAT, key)?.is_some() {
            return taken(layout, key);
        }
        let fault = |why: String| Error::at(ErrorKind::Failed, WHAT, &self.data()).because(why);
        if parts.len() != self.parts.count() as usize
            || (0..).zip(parts).any(|(index, part): (u32, _)| part.index != index)
        {
            return Err(fault(format!("{} of {} parts were listed", parts.len(), self.parts.count())));
        }
        let given: u64 = parts.iter().map(|part| part.digest.size_bytes).sum();
        let file = self.open(WHAT)?;
        let length = file.metadata().at(WHAT, &self.data())?.len();
        if [given, length, self.parts.size_bytes()] != [size_bytes; 3] {
            return Err(fault(format!(
                "the file should have {size_bytes} bytes; its parts have {given}, and {length} were written"
            )));
        }
        let outcome = place(WHAT, layout, &file, &self.data(), key)?;
        if outcome == CreateOutcome::Written {
            // The object exists; `gc` would remove the rest of the upload.
            let _ = self.remove();
        }
        Ok(outcome)
    }

    /// Aborts the upload. A missing upload is not an error.
    pub(super) fn abort(&self) -> Result<()> {
        self.remove().at("cannot abort the upload", &self.directory)
    }

    fn remove(&self) -> io::Result<()> {
        let unless_gone = |outcome: io::Result<()>| match outcome {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        };
        // The data first: an upload directory without its key could not be found again.
        unless_gone(std::fs::remove_file(self.data()))?;
        unless_gone(std::fs::remove_file(self.directory.join(KEY_FILE)))?;
        unless_gone(std::fs::remove_dir(&self.directory))
    }

    fn data(&self) -> PathBuf {
        self.directory.join(DATA_FILE)
    }

    pub(super) fn open(&self, what: &str) -> Result<File> {
        let path = self.data();
        OpenOptions::new().read(true).write(true).open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::at(ErrorKind::NotFound, what, &path)
                .because("there is no such upload: it was completed or aborted"),
            _ => errors::io(what, &path, error),
        })
    }
}

/// Returns the incomplete uploads.
pub(super) fn pending(layout: &Layout) -> Result<Vec<PendingUpload>> {
    const WHAT: &str = "cannot list the pending uploads";
    let uploads = layout.root.join(UPLOADS_DIRECTORY);
    if layout.directory(WHAT, UPLOADS_DIRECTORY)?.is_none() {
        return Ok(Vec::new());
    }
    let entries = match std::fs::read_dir(&uploads) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(errors::io(WHAT, &uploads, error)),
    };
    let mut pending = Vec::new();
    for entry in entries {
        let entry = entry.at(WHAT, &uploads)?;
        let Some(upload) = entry.file_name().to_str().and_then(|id| Upload::parse(layout, id).ok()) else {
            continue;
        };
        let path = upload.directory.join(KEY_FILE);
        let Some(key) = durable::read_bounded(&path, MAXIMUM_KEY_FILE_BYTES)? else {
            remove_if_stale(&upload.directory);
            continue;
        };
        let Some(key) = String::from_utf8(key).ok() else {
            continue;
        };
        let initiated = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        pending.push(PendingUpload { key, upload: upload.id, initiated });
    }
    Ok(pending)
}

/// An upload that crashed before it had a key is empty; the kernel refuses to remove a directory that is not empty.
fn remove_if_stale(directory: &std::path::Path) {
    let age = std::fs::metadata(directory).ok().and_then(|metadata| metadata.modified().ok()?.elapsed().ok());
    if age.is_some_and(|age| age > STALE) {
        let _ = std::fs::remove_dir(directory);
    }
}
