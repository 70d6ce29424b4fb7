//! Sends a file of a step: each part is read once, hashed, and copied inside the store or sent; then its object is completed
//! and proved. A file whose digests are known, because another remote has it, is copied inside the store unread if it can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use stepvault_core::digest::{ContentDigest, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::manifest::FileEntry;
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{FileProgress, Journal, JournalRecord};
use stepvault_local::seal_record::SealedFile;
use stepvault_local::source::SourceFile;
use stepvault_remote::payload::{Payload, Sending};
use stepvault_remote::store::{Created, ObjectInfo, PartReceipt, StoredChecksum};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::copy::{CopyOf, CopySources};
use super::origin::FileSource;
use super::read::{ReadPart, StepDigests};
use super::session::UploadSession;
use crate::blocking::{blocking, run_bounded};
use crate::local_digest::{digest_parts, digest_range};

/// One file that is being uploaded.
#[derive(Debug)]
pub(super) struct FileUpload {
    pub(super) session: UploadSession,
    /// `None` for a step that is not sealed yet.
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) copies: Arc<CopySources>,
    pub(super) file: SealedFile,
    pub(super) source: FileSource,
    pub(super) key: String,
    pub(super) layout: FileParts,
    pub(super) algorithm: DigestAlgorithm,
    /// The digests that all remotes of the step share; `None` to hash the file for this upload.
    pub(super) digests: Option<StepDigests>,
    /// Whether another node may have sent this file.
    pub(super) others: OtherWriters,
    pub(super) progress: SendProgress,
}

/// How far a file is. Its parts are sent by several tasks.
#[derive(Debug)]
pub(super) struct SendProgress {
    /// Open from the first part to the last, so that hashing and sending use the same descriptor.
    pub(super) source: Arc<Mutex<Option<Arc<SourceFile>>>>,
    pub(super) upload: OnceCell<String>,
    receipts: Mutex<Vec<Option<PartReceipt>>>,
    remaining: AtomicU32,
    /// Whether the store has lost the upload that the journal names, so that the file has to start again.
    lost: AtomicBool,
    /// Whether some of it was copied inside the store.
    was_copied: AtomicBool,
    /// Whether nothing is left to do for it.
    finished: AtomicBool,
}

impl SendProgress {
    /// Continues from what the journal has of a file in parts.
    pub(super) fn new(count: u32, journaled: Option<FileProgress>) -> Self {
        let mut receipts = vec![None; count as usize];
        let mut upload = OnceCell::new();
        if let Some(FileProgress { upload: Some(begun), parts, .. }) = journaled.filter(|_| count > 1) {
            upload = OnceCell::new_with(Some(begun));
            for (index, part) in parts {
                if let Some(slot) = receipts.get_mut(index as usize) {
                    *slot = Some(PartReceipt { index, tag: part.tag, digest: part.digest });
                }
            }
        }
        let remaining = receipts.iter().filter(|slot| slot.is_none()).count();
        Self {
            source: Arc::default(),
            upload,
            receipts: Mutex::new(receipts),
            remaining: AtomicU32::new(u32::try_from(remaining).unwrap_or(u32::MAX)),
            lost: AtomicBool::new(false),
            was_copied: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Returns the parts still to send or copy.
    fn missing_parts(&self) -> Vec<u32> {
        let receipts = self.receipts();
        let unsent = (0_u32..).zip(receipts.iter()).filter(|(_, receipt)| receipt.is_none());
        unsent.map(|(index, _)| index).collect()
    }

    /// Records a part that was sent; returns whether it was the last one.
    fn part_sent(&self, index: u32, receipt: PartReceipt) -> bool {
        if let Some(slot) = self.receipts().get_mut(index as usize) {
            *slot = Some(receipt);
        }
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Reads the file through this descriptor.
    pub(super) fn read_from(&self, source: SourceFile) {
        *self.source.lock() = Some(Arc::new(source));
    }

    /// Closes the file: a step may have more files than a process may open.
    pub(super) fn close(&self) {
        self.source.lock().take();
    }

    pub(super) fn receipts(&self) -> MutexGuard<'_, Vec<Option<PartReceipt>>> {
        self.receipts.lock()
    }

    fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}

/// The digests of a file, by which its object is proved.
#[derive(Debug)]
pub(super) struct FileDigests {
    whole: FileDigest,
    /// Of its parts, in order.
    contents: Vec<ContentDigest>,
    /// Those of its parts with their checksums; empty for a file of another remote, whose manifest has none.
    parts: Vec<PartDigest>,
}

impl FileDigests {
    fn of_parts(parts: Vec<PartDigest>) -> Self {
        let contents = parts.iter().map(|part| part.content).collect();
        Self { whole: FileDigest::from_parts(&parts), contents, parts }
    }

    /// Returns those of a manifest; `None` for a file that has only the checksum of its store.
    fn of_entry(entry: &FileEntry) -> Option<Self> {
        let contents = entry.digests()?.parts.clone();
        Some(Self { whole: entry.digest()?, contents, parts: Vec::new() })
    }
}

/// Whether other nodes may have uploaded a file under the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtherWriters {
    /// No other node writes the step.
    None,
    /// Other nodes may have a file at this path too: their objects must not be removed.
    Possible,
    /// Another node, or an earlier try of this one, has sent a file of that size: it is compared instead of sent.
    Sent,
}

/// What is left to do for a file, by one task each.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Another writer has sent it: its bytes are compared.
    Compare,
    /// Send or copy a part. The task of the last one completes and proves the file.
    Part(u32),
    /// All parts were sent, and the file was not completed.
    Complete,
}

impl UploadSession {
    /// Copies inside the store what it already has, and sends the rest of these files.
    pub(super) async fn send_batch(&self, uploads: &[Arc<FileUpload>]) -> Result<()> {
        let (mut unchanged, left) = (uploads.to_vec(), uploads.to_vec());
        unchanged.retain(|upload| upload.may_be_copied_whole());
        let copies = unchanged.into_iter().map(FileUpload::copy_if_unchanged);
        run_bounded(copies, self.remote.settings.max_concurrent_requests).await?;
        let missing = left.into_iter().flat_map(|upload| {
            let work = upload.work().into_iter();
            work.map(move |work| Arc::clone(&upload).run(work))
        });
        run_bounded(missing, self.parts_at_once).await
    }
}

impl FileUpload {
    pub(super) fn path(&self) -> &RelativePath {
        &self.file.path
    }

    pub(super) fn was_lost(&self) -> bool {
        self.progress.lost.load(Ordering::Relaxed)
    }

    /// Whether to find out, before anything is read or sent, whether the store has the file already: for a multi-part file
    /// on stores that copy whole objects only, and for each file whose digests are known.
    pub(super) fn may_be_copied_whole(&self) -> bool {
        let capabilities = self.session.remote.store.capabilities();
        let is_begun = self.others == OtherWriters::Sent || self.progress.upload.get().is_some();
        let is_known = matches!(self.source, FileSource::Remote(_));
        capabilities.copies
            && (is_known || !capabilities.copies_parts && self.layout.count() > 1)
            && !is_begun
            && !self.copies.is_idle()
    }

    /// Lets the store copy the file if it has the same bytes; otherwise leaves it to be sent.
    async fn copy_if_unchanged(self: Arc<Self>) -> Result<()> {
        let known = if let FileSource::Remote(file) = &self.source {
            FileDigests::of_entry(&file.entry).filter(|known| self.copies.has_file(&known.whole))
        } else {
            let this = Arc::clone(&self);
            blocking(move || this.digests_if_unchanged()).await?
        };
        if let Some(digests) = known
            && self.copy_whole(&digests).await?
        {
            self.progress.finished.store(true, Ordering::Relaxed);
            self.record_done(&digests)?;
        }
        Ok(())
    }

    /// Returns whether the remote has a file with the first and the last part of this one: changes mostly show there.
    pub(super) fn seems_unchanged(&self) -> Result<bool> {
        let source = SourceFile::open(&self.source.sealed_path()?, &self.file)?;
        for index in [0, self.layout.count() - 1] {
            let digest = digest_range(&source, self.layout.range(index), self.algorithm)?;
            if self.copies.source_of_part(self.layout.size_bytes(), index, &digest).is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the digests of the file if the remote has a file with all of them.
    fn digests_if_unchanged(&self) -> Result<Option<FileDigests>> {
        if !self.seems_unchanged()? {
            return Ok(None);
        }
        let parts = digest_parts(&self.source.sealed_path()?, &self.file, self.algorithm)?;
        Ok(Some(FileDigests::of_parts(parts)).filter(|digests| self.copies.has_file(&digests.whole)))
    }

    /// Returns what is left to do.
    fn work(&self) -> Vec<Work> {
        if self.progress.finished.load(Ordering::Relaxed) {
            return Vec::new();
        }
        if self.others == OtherWriters::Sent {
            return vec![Work::Compare];
        }
        match self.progress.missing_parts() {
            missing if missing.is_empty() => vec![Work::Complete],
            missing => missing.into_iter().map(Work::Part).collect(),
        }
    }

    /// Returns the bytes of the parts that the journal lists as sent.
    pub(super) fn resumed_bytes(&self) -> u64 {
        if self.others == OtherWriters::Sent {
            return self.layout.size_bytes();
        }
        let missing = self.progress.missing_parts().into_iter();
        self.layout.size_bytes() - missing.map(|index| range_length(self.layout, index)).sum::<u64>()
    }

    /// Does one of the things that are left.
    async fn run(self: Arc<Self>, work: Work) -> Result<()> {
        match work {
            Work::Compare => {
                self.session.cpu_share.turn(range_length(self.layout, 0)).await;
                self.compare_with_present().await
            }
            Work::Part(index) => match self.send_part(index).await {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    Err(self.changed_since_hashed(index).await.unwrap_or(error))
                }
                sent => sent,
            },
            Work::Complete => self.complete().await,
        }
    }

    async fn send_part(&self, index: u32) -> Result<()> {
        if self.layout.count() == 1 {
            self.session.cpu_share.turn(self.layout.size_bytes()).await;
            return self.send_whole().await;
        }
        if self.transfer_part(index).await? {
            self.complete().await?;
        }
        Ok(())
    }

    /// Sends or copies one of several parts; returns whether it was the last one. No reader sees anything of the file
    /// before it is completed.
    pub(super) async fn transfer_part(&self, index: u32) -> Result<bool> {
        self.session.cpu_share.turn(range_length(self.layout, index)).await;
        let start = || async {
            let store = &self.session.remote.store;
            let upload = store.start_upload(&self.key, self.layout.size_bytes(), self.algorithm).await?;
            let (path, started) = (self.file.path.clone(), upload.clone());
            self.record(&JournalRecord::UploadStarted { path, upload: started })?;
            Ok(upload)
        };
        let upload = self.progress.upload.get_or_try_init(start).await?;
        let ReadPart { body, mut digest, room, passed } = self.read_part(index).await?;
        let in_flight = self.in_flight();
        let copied = self.copy_part(upload, index, &digest).await;
        let is_copy = copied.is_some();
        let receipt = if let Some(receipt) = copied {
            // Releases its memory for other parts.
            drop(body);
            receipt
        } else {
            let body = body.reporting_to(&in_flight.sending);
            let begun = Instant::now();
            let mut receipt = self.send_bytes(upload, index, body, &digest).await?;
            self.session.state.acknowledged(begun.elapsed());
            if let Some(passed) = &passed {
                digest = passed.found().ok_or_else(|| self.acknowledged_early())?;
                receipt.digest = digest;
            }
            receipt
        };
        drop((room, passed));
        self.record(&JournalRecord::PartDone {
            path: self.file.path.clone(),
            index,
            tag: receipt.tag.clone(),
            digest,
        })?;
        in_flight.acknowledged();
        self.report_bytes(digest.size_bytes, is_copy);
        Ok(self.progress.part_sent(index, receipt))
    }

    /// Returns the error for a part that a store acknowledged before it was sent.
    fn acknowledged_early(&self) -> Error {
        Error::new(ErrorKind::Damaged, "a store acknowledged a part before its last byte")
            .on(self.session.remote.describe(&self.key))
    }

    fn record(&self, record: &JournalRecord) -> Result<()> {
        self.journal.as_ref().map_or(Ok(()), |journal| journal.append(record))
    }

    /// Lets the store copy one part; returns `None` when its bytes have to be sent.
    async fn copy_part(&self, upload: &str, index: u32, digest: &PartDigest) -> Option<PartReceipt> {
        let store = &self.session.remote.store;
        let source = self
            .copies
            .source_of_part(self.layout.size_bytes(), index, digest)
            .filter(|_| store.capabilities().copies_parts)
            .filter(|_| self.session.remote.may_copy_parts.load(Ordering::Relaxed))?;
        let start = self.layout.range(index).start;
        match store.copy_part(source, &self.key, upload, index, start, digest).await {
            Ok(receipt) => Some(receipt),
            Err(error) => {
                self.copy_failed((CopyOf::Part, source), &error);
                None
            }
        }
    }

    /// Sends a part's bytes, and frees their memory before it returns.
    async fn send_bytes(
        &self,
        upload: &str,
        index: u32,
        body: Payload,
        digest: &PartDigest,
    ) -> Result<PartReceipt> {
        let store = &self.session.remote.store;
        let request = || async {
            let answer = store.upload_part(&self.key, upload, index, body.clone(), digest).await;
            answer.map_err(|error| body.source_fault().unwrap_or(error))
        };
        let mut sent = request().await;
        if refused_as_damaged(&sent) {
            sent = request().await;
        }
        let is_missing = |error: &Error| error.kind() == ErrorKind::NotFound && body.source_fault().is_none();
        if sent.as_ref().is_err_and(is_missing) {
            self.progress.set_lost();
        }
        sent
    }

    async fn send_whole(&self) -> Result<()> {
        let ReadPart { body, digest, room: _room, passed } = self.read_whole().await?;
        let in_flight = self.in_flight();
        let body = body.reporting_to(&in_flight.sending);
        let digests = FileDigests::of_parts(vec![digest]);
        self.check_source(&digests)?;
        if self.copy_whole(&digests).await? {
            return self.record_done(&digests);
        }
        let store = &self.session.remote.store;
        let mut was_refused = false;
        let created = if !self.session.guarantees.honours_create_only && self.is_taken().await? {
            Created::Exists
        } else {
            let create = || async {
                let created = store.create(&self.key, body.clone(), &digest).await;
                created.map_err(|error| body.source_fault().unwrap_or(error))
            };
            let begun = Instant::now();
            let mut created = create().await;
            was_refused = refused_as_damaged(&created);
            if was_refused {
                created = create().await;
            }
            if passed.is_some() {
                self.session.state.acknowledged(begun.elapsed());
            }
            created?
        };
        let written = created.written();
        if let Err(error) = self.prove(created, &digests).await {
            if error.kind() != ErrorKind::Damaged {
                return Err(error);
            }
            let is_ours = self.is_own_object(written).await?;
            if !is_ours && was_refused {
                return Err(self.key_taken(&error).because(format!(
                    "the store rejected the bytes as damaged in transit but kept them, or another upload wrote the \
                     object meanwhile ({error})"
                )));
            }
            if !is_ours {
                return Err(self.key_taken(&error));
            }
            // The write was damaged: retry once on a free key.
            self.session.remote.delete(vec![self.key.clone()]).await?;
            let created = self.session.remote.store.create(&self.key, body, &digest).await?;
            self.prove(created, &digests).await?;
        }
        in_flight.acknowledged();
        self.report_bytes(digest.size_bytes, false);
        self.record_done(&digests)
    }

    /// Lets the store copy the whole file and proves the result; returns false when its bytes have to be sent.
    async fn copy_whole(&self, digests: &FileDigests) -> Result<bool> {
        let Some(source) = self.copies.source_of_file(&digests.whole) else {
            return Ok(false);
        };
        let created = match self.copies.copy(&self.session.remote, source, &self.key).await {
            Ok(created) => created,
            Err(error) => {
                self.copy_failed((CopyOf::File, source), &error);
                return Ok(false);
            }
        };
        let written = created.written();
        let proved = match created {
            // Some stores answer a copy without a checksum but return it on HEAD.
            Created::Written(head) if head.checksum == StoredChecksum::None => {
                self.prove(Created::Exists, digests).await
            }
            created => self.prove(created, digests).await,
        };
        match proved {
            Ok(()) => {
                self.report_bytes(digests.whole.size_bytes, true);
                Ok(true)
            }
            Err(error) if error.kind() != ErrorKind::Damaged => Err(error),
            Err(error) if !self.is_own_object(written).await? => Err(self.key_taken(&error)),
            Err(error) => {
                self.copy_failed((CopyOf::File, source), &error);
                self.session.remote.delete(vec![self.key.clone()]).await?;
                Ok(false)
            }
        }
    }

    fn copy_failed(&self, copy: (CopyOf, &str), error: &Error) {
        self.copies.failed(&self.session.remote, &*self.session.observer, copy, error);
    }

    fn in_flight(&self) -> InFlight {
        let (observer, tier) = (Arc::clone(&self.session.observer), self.session.remote.tier.clone());
        let report = {
            let (observer, tier) = (Arc::clone(&observer), tier.clone());
            move |change_bytes| {
                observer.on_event(&Event::BytesInFlight { tier: &tier, change_bytes });
            }
        };
        InFlight { sending: Arc::new(Sending::new(report)), observer, tier }
    }

    /// Completes the file from its parts, and proves it.
    ///
    /// # Invariants
    /// Only for a sealed step, whose bytes are on this machine's disk before any object of them exists, or for one that is
    /// committed on another remote (S2).
    async fn complete(&self) -> Result<()> {
        let (Some(upload), Some(_)) = (self.progress.upload.get(), &self.journal) else {
            return Err(Error::new(ErrorKind::Failed, "cannot complete a file")
                .on(&self.file.path)
                .because("its step is not sealed, or nothing of it was sent"));
        };
        if matches!(self.source, FileSource::Sealed(_)) {
            let source = self.open().await?;
            blocking(move || source.check_unchanged()).await?;
            self.progress.close();
        }
        let receipts: Vec<PartReceipt> = self.progress.receipts().iter().flatten().cloned().collect();
        let digests = FileDigests::of_parts(receipts.iter().map(|receipt| receipt.digest).collect());
        let store = &self.session.remote.store;
        if let Err(error) = self.check_source(&digests) {
            let _ = store.abort_upload(&self.key, upload).await;
            return Err(error);
        }
        // If completion replaces an existing object, a late writer must not replace the bytes of a durable step.
        let completed = if !self.session.guarantees.completes_create_only && self.is_taken().await? {
            Ok(Created::Exists)
        } else {
            store.complete_upload(&self.key, upload, &receipts, &digests.whole).await
        };
        if matches!(completed, Ok(Created::Exists)) {
            // Its parts are useless now; gc removes them if this fails.
            let _ = store.abort_upload(&self.key, upload).await;
        }
        let written = completed.as_ref().ok().and_then(Created::written);
        let proved = match completed {
            // The head that completion returned is outdated; what counts is the object that exists now.
            Ok(Created::Written(_) | Created::Exists) => self.prove(Created::Exists, &digests).await,
            // Either completed before with the answer lost, or gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let proved = self.prove(Created::Exists, &digests).await;
                if proved.as_ref().is_err_and(|missing| missing.kind() == ErrorKind::NotFound) {
                    self.progress.set_lost();
                    return Err(error);
                }
                proved
            }
            // A store that did not say what it copied has found out now.
            Err(error)
                if error.kind() == ErrorKind::Damaged && self.progress.was_copied.load(Ordering::Relaxed) =>
            {
                self.copies.stop();
                let _ = store.abort_upload(&self.key, upload).await;
                self.progress.set_lost();
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        match proved {
            Ok(()) => {}
            Err(error) if error.kind() != ErrorKind::Damaged => return Err(error),
            Err(error) if !self.is_own_object(written).await? => return Err(self.key_taken(&error)),
            Err(error) => {
                if self.progress.was_copied.load(Ordering::Relaxed) {
                    self.copies.stop();
                }
                self.session.remote.delete(vec![self.key.clone()]).await?;
                self.progress.set_lost();
                return Err(error);
            }
        }
        self.record_done(&digests)
    }

    /// Whether an object exists under the key. Checked where the store would overwrite it.
    async fn is_taken(&self) -> Result<bool> {
        Ok(self.session.remote.store.head(&self.key).await?.is_some())
    }

    /// Accepts the existing object as this file if its bytes are the same.
    async fn compare_with_present(&self) -> Result<()> {
        let digests = match &self.source {
            FileSource::Remote(file) => match FileDigests::of_entry(&file.entry) {
                Some(digests) => digests,
                None => return self.compare_checksum(&file.entry).await,
            },
            FileSource::Sealed(path) => {
                let (path, file, algorithm) = (path.clone(), self.file.clone(), self.algorithm);
                FileDigests::of_parts(blocking(move || digest_parts(&path, &file, algorithm)).await?)
            }
        };
        match self.prove(Created::Exists, &digests).await {
            Ok(()) => self.record_done(&digests),
            Err(error) if error.kind() == ErrorKind::Damaged => Err(self.key_taken(&error)),
            Err(error) => {
                if error.kind() == ErrorKind::NotFound {
                    self.progress.set_lost();
                }
                Err(error)
            }
        }
    }

    /// Accepts the existing object as a file that has only a checksum, if its bytes have it: they are read.
    async fn compare_checksum(&self, entry: &FileEntry) -> Result<()> {
        let found = self.session.remote.digest_object(&self.key, entry.size_bytes, self.algorithm).await?;
        if entry.first_difference(&found).is_some() {
            let other = Error::new(ErrorKind::Damaged, "the object has another checksum").on(&self.key);
            return Err(self.key_taken(&other));
        }
        self.record_done(&FileDigests::of_parts(found))
    }

    /// Checks that what was read of another remote's file is that file, before it gets its name here. Otherwise all of it is
    /// sent again: no part shows by itself that it is wrong.
    fn check_source(&self, digests: &FileDigests) -> Result<()> {
        let FileSource::Remote(file) = &self.source else { return Ok(()) };
        if file.entry.first_difference(&digests.parts).is_none() {
            return Ok(());
        }
        self.progress.set_lost();
        Err(file.differs("its bytes are not those saved"))
    }

    /// Reports uploaded bytes to the observer.
    fn report_bytes(&self, bytes: u64, is_copy: bool) {
        let tier = &self.session.remote.tier;
        if is_copy {
            self.progress.was_copied.store(true, Ordering::Relaxed);
            self.session.state.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.copies.count(bytes);
            self.session.observer.on_event(&Event::BytesCopied { tier, bytes });
        } else {
            self.session.observer.on_event(&Event::BytesMoved { tier, bytes });
        }
    }

    fn record_done(&self, digests: &FileDigests) -> Result<()> {
        let (tier, path) = (&self.session.remote.tier, &self.file.path);
        self.record(&JournalRecord::FileDone { path: path.clone(), parts: digests.parts.clone() })?;
        self.session.observer.on_event(&Event::FileDone { tier, path });
        Ok(())
    }
}

/// A part that is being sent. Dropped before it is acknowledged, it reports that its bytes are given up.
struct InFlight {
    sending: Arc<Sending>,
    observer: Arc<dyn Observer>,
    tier: Tier,
}

impl InFlight {
    fn acknowledged(&self) {
        let change_bytes = self.sending.end().cast_signed().wrapping_neg();
        self.observer.on_event(&Event::BytesInFlight { tier: &self.tier, change_bytes });
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let bytes = self.sending.end();
        if bytes > 0 {
            let tier = &self.tier;
            self.observer.on_event(&Event::BytesGivenUp { tier, bytes });
        }
    }
}

/// Whether the store received bytes other than those sent: damage in transit, for which one retry may help.
fn refused_as_damaged<T>(sent: &Result<T>) -> bool {
    sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::Damaged)
}

fn range_length(layout: FileParts, index: u32) -> u64 {
    let range = layout.range(index);
    range.end - range.start
}

// Proves what was sent: each object when it is complete.

impl FileUpload {
    /// Proves that the object holds the file: by the store's checksum if it can be trusted, otherwise byte for byte.
    async fn prove(&self, created: Created, digests: &FileDigests) -> Result<()> {
        let (remote, key) = (&self.session.remote, &self.key);
        let subject = remote.describe(key);
        let damaged = |why: &str| {
            Error::new(ErrorKind::Damaged, "an uploaded object differs from what was sent")
                .on(&subject)
                .because(why)
        };
        let head = match created {
            Created::Written(head) => head,
            Created::Exists => remote.store.head(key).await?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "an uploaded object is missing").on(&subject)
            })?,
        };
        let FileDigests { whole, contents, .. } = digests;
        if head.info.size_bytes != whole.size_bytes {
            return Err(damaged(&format!(
                "it has {} bytes, but {} were sent",
                head.info.size_bytes, whole.size_bytes
            )));
        }
        match head.checksum.proves(whole, contents) {
            Some(false) => return Err(damaged("the store's checksum differs")),
            Some(true) if !self.session.must_read_back(self.algorithm, contents.len()) => return Ok(()),
            _ => {}
        }
        let found = remote.digest_object(key, whole.size_bytes, self.algorithm).await?;
        if found.iter().map(|part| part.content).eq(contents.iter().copied()) {
            return Ok(());
        }
        Err(damaged("the bytes read back differ"))
    }

    /// Whether the object under the key was written by this upload and may therefore be deleted: objects created by
    /// another writer must not be (S1).
    async fn is_own_object(&self, written: Option<ObjectInfo>) -> Result<bool> {
        let Some(written) = written else {
            return Ok(false);
        };
        let found = self.session.remote.store.head(&self.key).await?;
        Ok(found.is_none_or(|head| match (&head.info.version, &written.version) {
            (Some(found), Some(written)) => found == written,
            _ => true,
        }))
    }

    /// Returns the error for a key that holds different bytes. They must not be deleted: their writer may have proved
    /// them already and be about to commit them, or have named them in a part.
    fn key_taken(&self, found: &Error) -> Error {
        if self.others == OtherWriters::None || matches!(self.source, FileSource::Remote(_)) {
            return Error::new(ErrorKind::Conflict, "cannot upload a file: its key is taken")
                .on(self.session.remote.describe(&self.key))
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
}
