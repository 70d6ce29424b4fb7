//! Uploads one file to one remote: reads it once, hashes the buffer that is sent, and proves the object afterwards.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepvault_core::digest::{FileDigest, PartDigest, PartHasher, Sha256Digest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::manifest::FileEntry;
use stepvault_core::observe::Event;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{FileProgress, Journal, JournalRecord};
use stepvault_local::seal_record::SealedFile;
use stepvault_local::source::SourceFile;
use stepvault_remote::payload::Payload;
use stepvault_remote::store::{Created, ObjectHead, ObjectInfo, PartReceipt};
use tokio::sync::OnceCell;

use super::copying::Copying;
use super::lane::Lane;
use crate::blocking::blocking;
use crate::memory::Buffer;

/// Context shared by all files of one upload.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) lane: Lane,
    pub(super) journal: Arc<Journal>,
    pub(super) copying: Arc<Copying>,
}

/// One file that is being uploaded.
#[derive(Debug)]
pub(super) struct FileUpload {
    pub(super) lane: Lane,
    journal: Arc<Journal>,
    pub(super) copying: Arc<Copying>,
    pub(super) file: SealedFile,
    pub(super) local_path: std::path::PathBuf,
    pub(super) key: String,
    pub(super) cut: FileParts,
    /// Open from the first part to the last, so that hashing and sending use the same descriptor.
    source: Arc<Mutex<Option<Arc<SourceFile>>>>,
    pub(super) upload: OnceCell<String>,
    receipts: Mutex<Vec<Option<PartReceipt>>>,
    remaining: AtomicU32,
    /// Whether the store has lost the upload that the journal names, so that the file has to start again.
    lost: AtomicBool,
    /// Whether another node may have sent this file.
    pub(super) others: Others,
    /// Whether some of it was copied inside the store.
    pub(super) was_copied: AtomicBool,
    /// Whether nothing is left to do for it.
    pub(super) finished: AtomicBool,
}

/// Whether other nodes may have uploaded a file under the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// No other node writes the step.
    None,
    /// Other nodes may have a file at this path too: their objects must not be removed.
    Possible,
    /// Another node, or an earlier try of this one, has sent a file of that size: it is compared instead of sent.
    Sent,
}

impl FileUpload {
    pub(super) fn new(
        way: &Way,
        file: SealedFile,
        local_path: std::path::PathBuf,
        key: String,
        progress: Option<FileProgress>,
        others: Others,
    ) -> Result<Self> {
        let cut = FileParts::of(file.size_bytes)?;
        let mut receipts = vec![None; cut.count() as usize];
        let mut upload = OnceCell::new();
        if let Some(FileProgress {
            upload: Some(begun),
            parts,
            ..
        }) = progress.filter(|_| cut.count() > 1)
        {
            upload = OnceCell::new_with(Some(begun));
            for (index, part) in parts {
                if let Some(slot) = receipts.get_mut(index as usize) {
                    *slot = Some(PartReceipt {
                        index,
                        tag: part.tag,
                        digest: part.digest,
                    });
                }
            }
        }
        let remaining = receipts.iter().filter(|slot| slot.is_none()).count();
        Ok(Self {
            lane: way.lane.clone(),
            journal: Arc::clone(&way.journal),
            copying: Arc::clone(&way.copying),
            file,
            local_path,
            key,
            cut,
            source: Arc::default(),
            upload,
            receipts: Mutex::new(receipts),
            remaining: AtomicU32::new(u32::try_from(remaining).unwrap_or(u32::MAX)),
            lost: AtomicBool::new(false),
            others,
            was_copied: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        })
    }

    pub(super) fn path(&self) -> &RelativePath {
        &self.file.path
    }

    pub(super) fn was_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the parts still to send or copy. If all parts were sent but the file was never completed, the last part
    /// is sent again: that is cheaper than a separate code path.
    pub(super) fn missing_parts(&self) -> Vec<u32> {
        if self.finished.load(Ordering::Relaxed) {
            return Vec::new();
        }
        if self.others == Others::Sent {
            return vec![0];
        }
        let receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<u32> = (0..self.cut.count())
            .filter(|index| receipts[*index as usize].is_none())
            .collect();
        if !missing.is_empty() {
            return missing;
        }
        self.remaining.store(1, Ordering::Relaxed);
        vec![self.cut.count() - 1]
    }

    /// Returns the bytes of the parts that the journal lists as sent.
    pub(super) fn resumed_bytes(&self) -> u64 {
        if self.others == Others::Sent {
            return self.cut.size_bytes();
        }
        let missing: u64 = self
            .missing_parts()
            .iter()
            .map(|index| range_length(self.cut, *index))
            .sum();
        self.cut.size_bytes() - missing
    }

    /// Sends one part; the task that sends the last part completes and proves the file.
    pub(super) async fn send_part(self: Arc<Self>, index: u32) -> Result<()> {
        if self.others == Others::Sent {
            return self.compare_with_sent().await;
        }
        if self.cut.count() == 1 {
            return self.send_whole().await;
        }
        let upload = self
            .upload
            .get_or_try_init(|| async {
                let upload = self
                    .lane
                    .remote
                    .store
                    .start_upload(&self.key, self.cut.size_bytes())
                    .await?;
                self.journal.append(&JournalRecord::UploadStarted {
                    path: self.file.path.clone(),
                    upload: upload.clone(),
                })?;
                Ok(upload)
            })
            .await?;
        let (body, digest) = self.read_part(index).await?;
        let copied = self.copy_part(upload, index, &digest).await;
        let is_copy = copied.is_some();
        let receipt = if let Some(receipt) = copied {
            // Releases its memory for other parts.
            drop(body);
            receipt
        } else {
            self.send_bytes(upload, index, body.into_payload(), &digest)
                .await?
        };
        self.journal.append(&JournalRecord::PartDone {
            path: self.file.path.clone(),
            index,
            tag: receipt.tag.clone(),
            digest,
        })?;
        self.tell(digest.size_bytes, is_copy);
        {
            let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
            receipts[index as usize] = Some(receipt);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete(upload).await?;
        }
        Ok(())
    }

    /// Sends a part's bytes, and frees their memory before it returns.
    async fn send_bytes(
        &self,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let store = &self.lane.remote.store;
        let mut sent = store
            .upload_part(&self.key, upload, index, body.clone(), digest)
            .await;
        if refused_as_damaged(&sent) {
            sent = store.upload_part(&self.key, upload, index, body, digest).await;
        }
        if sent
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            self.lost.store(true, Ordering::Relaxed);
        }
        sent
    }

    async fn source(&self) -> Result<Arc<SourceFile>> {
        let (slot, path, file) = (
            Arc::clone(&self.source),
            self.local_path.clone(),
            self.file.clone(),
        );
        blocking(move || {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(source) = slot.as_ref() {
                return Ok(Arc::clone(source));
            }
            let source = Arc::new(SourceFile::open(&path, &file)?);
            *slot = Some(Arc::clone(&source));
            Ok(source)
        })
        .await
    }

    async fn read_part(&self, index: u32) -> Result<(Buffer, PartDigest)> {
        let range = self.cut.range(index);
        let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let buffer = self.lane.budget.take(size).await?;
        let source = self.source().await?;
        blocking(move || read_and_digest(&source, range.start, buffer)).await
    }

    async fn send_whole(&self) -> Result<()> {
        let size = usize::try_from(self.cut.size_bytes()).unwrap_or(usize::MAX);
        let buffer = self.lane.budget.take(size).await?;
        let (path, file) = (self.local_path.clone(), self.file.clone());
        let (body, digest) = blocking(move || {
            let source = SourceFile::open(&path, &file)?;
            let read = read_and_digest(&source, 0, buffer)?;
            source.check_unchanged()?;
            Ok(read)
        })
        .await?;
        let body = body.into_payload();
        let parts = [digest];
        let file_digest = FileDigest::from_parts(&parts);
        if self.copy_whole(&file_digest, &parts).await? {
            return self.done(&parts);
        }
        let store = &self.lane.remote.store;
        let mut was_refused = false;
        let created = if !self.lane.trust.honours_create_only && self.is_taken().await? {
            Created::Exists
        } else {
            let mut created = store.create(&self.key, body.clone(), &digest).await;
            was_refused = refused_as_damaged(&created);
            if was_refused {
                created = store.create(&self.key, body.clone(), &digest).await;
            }
            created?
        };
        let written = created.written();
        if let Err(error) = self.prove_created(created, &file_digest, &parts).await {
            if error.kind() != ErrorKind::Damaged {
                return Err(error);
            }
            let is_ours = self.stands_as_written(written).await?;
            if !is_ours && was_refused {
                return Err(self.not_ours(&error).because(format!(
                    "the store rejected the bytes as damaged in transit but kept them, or another upload wrote the \
                     object meanwhile ({error})"
                )));
            }
            if !is_ours {
                return Err(self.not_ours(&error));
            }
            // The write was damaged: retry once on a free key.
            self.lane.remote.delete(vec![self.key.clone()]).await?;
            let created = self.lane.remote.store.create(&self.key, body, &digest).await?;
            self.prove_created(created, &file_digest, &parts).await?;
        }
        self.tell(digest.size_bytes, false);
        self.done(&parts)
    }

    async fn complete(&self, upload: &str) -> Result<()> {
        let source = self.source().await?;
        blocking(move || source.check_unchanged()).await?;
        // Close it now: a step may have more files than a process may open.
        self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        let receipts: Vec<PartReceipt> = {
            let receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
            receipts.iter().flatten().cloned().collect()
        };
        let parts: Vec<PartDigest> = receipts.iter().map(|receipt| receipt.digest).collect();
        let digest = FileDigest::from_parts(&parts);
        let store = &self.lane.remote.store;
        // If completion replaces an existing object, a late writer must not replace the bytes of a durable step.
        let completed = if !self.lane.trust.completes_create_only && self.is_taken().await? {
            Ok(Created::Exists)
        } else {
            store.complete_upload(&self.key, upload, &receipts, &digest).await
        };
        if matches!(completed, Ok(Created::Exists)) {
            // Its parts are useless now; gc removes them if this fails.
            let _ = store.abort_upload(&self.key, upload).await;
        }
        let written = completed.as_ref().ok().and_then(Created::written);
        let proved = match completed {
            // The head that completion returned is outdated; what counts is the object that exists now.
            Ok(Created::Written(_) | Created::Exists) => self.prove(None, &digest, &parts).await,
            // Either completed before with the answer lost, or gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let proved = self.prove(None, &digest, &parts).await;
                if proved
                    .as_ref()
                    .is_err_and(|missing| missing.kind() == ErrorKind::NotFound)
                {
                    self.lost.store(true, Ordering::Relaxed);
                    return Err(error);
                }
                proved
            }
            Err(error) => return Err(error),
        };
        match proved {
            Ok(()) => {}
            Err(error) if error.kind() != ErrorKind::Damaged => return Err(error),
            Err(error) if !self.stands_as_written(written).await? => return Err(self.not_ours(&error)),
            Err(error) => {
                if self.was_copied.load(Ordering::Relaxed) {
                    self.copying.stop();
                }
                self.lane.remote.delete(vec![self.key.clone()]).await?;
                self.lost.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        self.done(&parts)
    }

    /// Whether an object exists under the key. Checked where the store would overwrite it.
    async fn is_taken(&self) -> Result<bool> {
        Ok(self.lane.remote.store.head(&self.key).await?.is_some())
    }

    /// Whether the object under the key was written by this upload and may therefore be deleted: objects created by
    /// another writer must not be (S1).
    pub(super) async fn stands_as_written(&self, written: Option<ObjectInfo>) -> Result<bool> {
        let Some(written) = written else {
            return Ok(false);
        };
        let found = self.lane.remote.store.head(&self.key).await?;
        Ok(
            found.is_none_or(|head| match (&head.info.version, &written.version) {
                (Some(found), Some(written)) => found == written,
                _ => true,
            }),
        )
    }

    /// Accepts the existing object as this file if its bytes are the same.
    async fn compare_with_sent(&self) -> Result<()> {
        let (path, file) = (self.local_path.clone(), self.file.clone());
        let parts = blocking(move || crate::local_digest::digest_parts(&path, &file)).await?;
        match self.prove(None, &FileDigest::from_parts(&parts), &parts).await {
            Ok(()) => self.done(&parts),
            Err(error) if error.kind() == ErrorKind::Damaged => Err(self.not_ours(&error)),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.lost.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    /// Reports uploaded bytes to the observer.
    pub(super) fn tell(&self, bytes: u64, is_copy: bool) {
        let tier = &self.lane.remote.tier;
        if is_copy {
            self.was_copied.store(true, Ordering::Relaxed);
            self.lane.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.lane.observer.on_event(&Event::BytesCopied { tier, bytes });
        } else {
            self.lane.observer.on_event(&Event::BytesMoved { tier, bytes });
        }
    }

    pub(super) fn done(&self, parts: &[PartDigest]) -> Result<()> {
        self.journal.append(&JournalRecord::FileDone {
            path: self.file.path.clone(),
            parts: parts.to_vec(),
        })?;
        self.lane.observer.on_event(&Event::FileDone {
            tier: &self.lane.remote.tier,
            path: &self.file.path,
        });
        Ok(())
    }

    /// Returns the error for a key that holds different bytes. They must not be deleted: their writer may have proved
    /// them already and be about to commit them, or have named them in a part.
    pub(super) fn not_ours(&self, found: &Error) -> Error {
        if self.others == Others::None {
            return Error::new(ErrorKind::Conflict, "cannot upload a file: its key is taken")
                .on(self.lane.remote.describe(&self.key))
                .because(format!("another upload wrote it ({found})"))
                .hint("push it as a new attempt with --attempt")
                .name_taken();
        }
        Error::new(ErrorKind::Conflict, "cannot upload a file: another node has a different file under the same path")
            .on(&self.file.path)
            .because(found)
            .hint(
                "let the trainer write this file on one node only or under a different name on each node, or give \
                 each node its own run",
            )
    }

    pub(super) async fn prove_created(
        &self,
        created: Created,
        digest: &FileDigest,
        parts: &[PartDigest],
    ) -> Result<()> {
        let head = match created {
            Created::Written(head) => Some(head),
            Created::Exists => None,
        };
        self.prove(head, digest, parts).await
    }

    /// Proves that the object holds the file: by the store's checksum if it can be trusted, otherwise byte for byte.
    pub(super) async fn prove(
        &self,
        head: Option<ObjectHead>,
        digest: &FileDigest,
        parts: &[PartDigest],
    ) -> Result<()> {
        prove_object(&self.lane, &self.key, head, digest, parts).await
    }
}

/// Whether the store received bytes other than those sent: damage in transit, for which one retry may help.
fn refused_as_damaged<T>(sent: &Result<T>) -> bool {
    sent.as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::Damaged)
}

/// Returns the manifest entry of a file whose part digests are known.
pub(super) fn entry(file: &SealedFile, parts: &[PartDigest]) -> Result<FileEntry> {
    let entry = FileEntry::from_parts(file.path.clone(), file.mode, file.mtime, parts)?;
    Ok(entry.with_holes(file.hole_bytes))
}

async fn prove_object(
    lane: &Lane,
    key: &str,
    head: Option<ObjectHead>,
    digest: &FileDigest,
    parts: &[PartDigest],
) -> Result<()> {
    let subject = lane.remote.describe(key);
    let damaged = |why: &str| {
        Error::new(
            ErrorKind::Damaged,
            "an uploaded object differs from what was sent",
        )
        .on(&subject)
        .because(why)
    };
    let head =
        match head {
            Some(head) => head,
            None => lane.remote.store.head(key).await?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "an uploaded object is missing").on(&subject)
            })?,
        };
    if head.info.size_bytes != digest.size_bytes {
        return Err(damaged(&format!(
            "it has {} bytes, but {} were sent",
            head.info.size_bytes, digest.size_bytes
        )));
    }
    let sha256: Vec<Sha256Digest> = parts.iter().map(|part| part.sha256).collect();
    match head.checksum.proves(digest, &sha256) {
        Some(false) => return Err(damaged("the store's checksum differs")),
        Some(true) if !lane.must_read_back(parts.len()) => return Ok(()),
        _ => {}
    }
    let part_size_bytes = FileParts::of(digest.size_bytes)?.part_size_bytes();
    let found = lane
        .remote
        .digest_object(key, digest.size_bytes, part_size_bytes)
        .await?;
    if found == parts {
        return Ok(());
    }
    Err(damaged("the bytes read back differ"))
}

fn range_length(cut: FileParts, index: u32) -> u64 {
    let range = cut.range(index);
    range.end - range.start
}

fn read_and_digest(source: &SourceFile, offset: u64, mut buffer: Buffer) -> Result<(Buffer, PartDigest)> {
    let mut hasher = PartHasher::default();
    // Blocks are small enough to be in the cache when they are hashed.
    buffer.fill(|position, block| {
        source.read_at(offset + position, block)?;
        hasher.update(block);
        Ok(())
    })?;
    Ok((buffer, hasher.finish()))
}
