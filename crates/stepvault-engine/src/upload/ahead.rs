//! Sends file parts of a step while a seal copies the step into the vault, and leaves them to the upload of the sealed step.
//!
//! Only parts of files of several parts are sent: a store shows nothing of such a file before the upload completes it, and
//! the upload begins when the step is sealed. So a step that is not sealed has no claim, no object and no commit on a remote,
//! and S2, S3 and S9 rest on the upload alone.
//! What was sent is in the memory of this process until the journal of the sealed step has it. If the seal fails, it is
//! aborted; if the process is killed, gc aborts it, as it does what any interrupted upload has left.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use stepvault_core::file_parts::FileParts;
use stepvault_core::shares::own_share;
use stepvault_core::{DigestAlgorithm, RelativePath, Result, RunName, StepId, Writer};
use stepvault_local::journal::JournalRecord;
use stepvault_local::seal::{CopiedFile, SealRequest};
use stepvault_local::sealed::SealedStep;
use stepvault_local::source::SourceFile;
use stepvault_local::tree::Tree;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::copy::CopySources;
use super::file::{FileUpload, OtherWriters, SendProgress};
use super::origin::{FileSource, Origin};
use super::read::StepDigests;
use super::session::UploadSession;
use crate::blocking::blocking;

/// Maximum number of files of a step that are sent before its seal. Each takes some kilobytes of state.
const MAX_FILES: usize = 4_096;

/// Shows the seal that is copying a step into the vault, if any, to those who may send its parts. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct CopyInProgress(watch::Sender<Option<CopiedStep>>);

/// A step that is being copied into the vault. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CopiedStep {
    identity: Arc<Identity>,
    /// Its files of several parts; the last one may be unfinished. Closed when the seal has ended.
    files: watch::Receiver<Vec<CopiedFile>>,
}

/// What a seal will record of a step.
#[derive(Debug)]
struct Identity {
    run: RunName,
    id: StepId,
    name: String,
    digest: DigestAlgorithm,
    writer: Writer,
    /// The files that this node sends; `None` for all of them.
    share: Option<BTreeSet<RelativePath>>,
    /// The sizes of its files.
    sizes: BTreeSet<u64>,
}

impl CopyInProgress {
    /// Returns a view of it that sees each change.
    pub fn subscribe(&self) -> watch::Receiver<Option<CopiedStep>> {
        self.0.subscribe()
    }

    /// Returns what shows the files of `tree` while a seal copies them.
    pub fn of_seal(&self, request: &SealRequest, tree: &Tree) -> ShownCopy {
        let (writer, place) = (request.writer.clone(), &request.writer.place);
        let share = (writer.shared && place.nodes().is_several()).then(|| {
            let files: Vec<_> = tree.files.iter().map(|file| (&file.path, file.size_bytes)).collect();
            own_share(&files, place.nodes(), place.node())
        });
        let is_own = |path: &RelativePath| share.as_ref().is_none_or(|share| share.contains(path));
        let own = tree.files.iter().filter(|file| is_own(&file.path));
        let identity = Identity {
            run: request.run.clone(),
            id: request.id,
            name: request.checkpoint.name.clone(),
            digest: request.digest,
            sizes: own.map(|file| file.size_bytes).collect(),
            share,
            writer,
        };
        ShownCopy { shown_in: self.clone(), identity: Arc::new(identity), files: watch::Sender::default() }
    }
}

/// Shows what one seal copies, until it is dropped.
#[derive(Debug)]
pub struct ShownCopy {
    shown_in: CopyInProgress,
    identity: Arc<Identity>,
    files: watch::Sender<Vec<CopiedFile>>,
}

impl ShownCopy {
    /// Shows that more of a file was copied.
    pub fn copied(&self, copy: &CopiedFile) {
        let is_first = self.files.borrow().is_empty();
        self.files.send_modify(|files| {
            let has_room = files.len() < MAX_FILES;
            match files.last_mut() {
                Some(last) if last.place == copy.place => last.copied_bytes = copy.copied_bytes,
                _ if has_room => files.push(copy.clone()),
                _ => {}
            }
        });
        if is_first {
            let (identity, files) = (Arc::clone(&self.identity), self.files.subscribe());
            self.shown_in.0.send_replace(Some(CopiedStep { identity, files }));
        }
    }
}

impl Drop for ShownCopy {
    fn drop(&mut self) {
        self.shown_in.0.send_if_modified(|shown| shown.take().is_some());
    }
}

impl CopiedStep {
    /// Returns its run.
    pub fn run(&self) -> &RunName {
        &self.identity.run
    }

    /// Returns its identity, which is not used yet if the seal fails.
    pub fn id(&self) -> StepId {
        self.identity.id
    }

    /// Returns the algorithm of its digests.
    pub fn digest(&self) -> DigestAlgorithm {
        self.identity.digest
    }

    /// Whether the seal has ended, in one way or the other.
    pub fn has_ended(&self) -> bool {
        self.files.has_changed().is_err()
    }

    /// Whether both are the same seal.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }
}

/// What is sent of one step to one remote before the step is sealed.
#[derive(Debug)]
pub struct UploadAhead {
    session: UploadSession,
    step: CopiedStep,
    copies: Arc<CopySources>,
    digests: StepDigests,
    files: Vec<FileAhead>,
    /// The file and the part that are sent next. They are copied in this order, one after the other.
    next: (usize, u32),
    has_failed: bool,
}

#[derive(Debug)]
struct FileAhead {
    copy: CopiedFile,
    upload: Arc<FileUpload>,
}

impl UploadSession {
    /// Begins to send a step that is being copied into the vault.
    pub async fn send_ahead(&self, step: CopiedStep) -> UploadAhead {
        let Identity { run, id, digest, writer, sizes, .. } = &*step.identity;
        let copies = Arc::new(
            CopySources::find(&self.remote, &self.vault, *id, writer.place.node(), sizes.clone()).await,
        );
        let found = Some((*id, Arc::clone(&copies)));
        *self.state.copies_ahead.lock() = found;
        UploadAhead {
            digests: self.digests.of_step(run, *id, *digest),
            session: self.clone(),
            copies,
            files: Vec::new(),
            next: (0, 0),
            has_failed: false,
            step,
        }
    }
}

impl UploadAhead {
    /// Returns the step.
    pub fn step(&self) -> &CopiedStep {
        &self.step
    }

    /// Whether a part could not be sent: the upload of the sealed step finds out why.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Sends parts as they are copied, until the seal ends, one fails, or `until` is reached. Then waits for those on
    /// their way. `busy` is held while any is.
    pub async fn send<Busy>(&mut self, until: impl Future<Output = ()>, busy: impl Fn() -> Busy) {
        let mut copied = self.step.files.clone();
        let mut running: JoinSet<Result<()>> = JoinSet::new();
        let mut in_flight = None;
        tokio::pin!(until);
        while !self.has_failed {
            while running.len() < self.session.parts_at_once
                && let Some((upload, index)) = self.next_part(&mut copied).await
            {
                running.spawn(async move {
                    if upload.transfer_part(index).await? {
                        upload.progress.close();
                    }
                    Ok(())
                });
            }
            in_flight = (!running.is_empty()).then(|| in_flight.take().unwrap_or_else(&busy));
            tokio::select! {
                // The fixed order lets a simulation be repeated.
                biased;
                () = &mut until => break,
                changed = copied.changed() => if changed.is_err() { break },
                Some(sent) = running.join_next() => self.note(sent),
            }
        }
        while let Some(sent) = running.join_next().await {
            self.note(sent);
        }
        drop(in_flight);
    }

    fn note(&mut self, sent: std::result::Result<Result<()>, tokio::task::JoinError>) {
        let failed = match sent {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let (remote, id) = (self.session.remote.name(), self.step.id());
        tracing::debug!(%remote, %id, error = failed, "a part was not sent before the step was sealed");
        self.has_failed = true;
    }

    /// Returns the next part that is copied and not sent.
    async fn next_part(
        &mut self,
        copied: &mut watch::Receiver<Vec<CopiedFile>>,
    ) -> Option<(Arc<FileUpload>, u32)> {
        match self.try_next_part(copied).await {
            Ok(next) => next,
            Err(error) => {
                self.note(Ok(Err(error)));
                None
            }
        }
    }

    async fn try_next_part(
        &mut self,
        copied: &mut watch::Receiver<Vec<CopiedFile>>,
    ) -> Result<Option<(Arc<FileUpload>, u32)>> {
        loop {
            let (position, index) = self.next;
            let Some(copy) = copied.borrow_and_update().get(position).cloned() else {
                return Ok(None);
            };
            if position == self.files.len() {
                let upload = Arc::new(self.upload_of(&copy)?);
                self.files.push(FileAhead { copy: copy.clone(), upload });
            }
            let upload = Arc::clone(&self.files[position].upload);
            if index == upload.layout.count() || !self.is_own(&copy) {
                self.next = (position + 1, 0);
                continue;
            }
            let is_whole = copy.copied_bytes == copy.file.size_bytes;
            // Whether the store can copy a whole file shows when all of it is there.
            let may_be_copied = index == 0 && upload.may_be_copied_whole();
            if copy.copied_bytes < upload.layout.range(index).end || may_be_copied && !is_whole {
                return Ok(None);
            }
            if may_be_copied {
                let upload = Arc::clone(&upload);
                if blocking(move || upload.seems_unchanged()).await? {
                    self.next = (position + 1, 0);
                    continue;
                }
            }
            if index == 0 {
                upload.progress.read_from(blocking(move || SourceFile::open_unfinished(&copy)).await?);
            }
            self.next = (position, index + 1);
            return Ok(Some((upload, index)));
        }
    }

    fn is_own(&self, copy: &CopiedFile) -> bool {
        let share = self.step.identity.share.as_ref();
        share.is_none_or(|share| share.contains(&copy.file.path))
    }

    fn upload_of(&self, copy: &CopiedFile) -> Result<FileUpload> {
        let Identity { id, name, digest, writer, .. } = &*self.step.identity;
        let layout = FileParts::of(copy.file.size_bytes)?;
        let is_several = writer.place.nodes().is_several();
        Ok(FileUpload {
            session: self.session.clone(),
            journal: None,
            copies: Arc::clone(&self.copies),
            file: copy.file.clone(),
            source: FileSource::Sealed(copy.place.clone()),
            key: self.session.remote.keys.data(name, *id, &copy.file.path)?,
            layout,
            algorithm: *digest,
            digests: Some(self.digests.clone()),
            others: if is_several { OtherWriters::Possible } else { OtherWriters::None },
            progress: SendProgress::new(layout.count(), None),
        })
    }

    /// Hands over to the upload of the sealed step: its journal gets what was sent of the very files that were sealed.
    /// Everything else is aborted, all of it if the step was not sealed. Call it when the seal has ended, and before the
    /// step is uploaded.
    ///
    /// # Errors
    /// When the vault cannot be read or written. The upload sends the step then as if nothing had been sent ahead.
    pub async fn hand_over(self) -> Result<()> {
        let (vault, run, id) = (self.session.vault.clone(), self.step.run().clone(), self.step.id());
        let sealed = blocking(move || vault.step(&run, id)).await;
        let handed = match &sealed {
            Ok(Some(sealed)) => self.write_journal(sealed).await,
            _ => Ok(BTreeSet::new()),
        };
        let kept = handed.as_ref().cloned().unwrap_or_default();
        if self.files.iter().any(|file| !kept.contains(&file.copy.file.path)) {
            self.session.digests.forget(&self.digests);
        }
        for FileAhead { upload, .. } in &self.files {
            let Some(begun) = upload.progress.upload.get().filter(|_| !kept.contains(upload.path())) else {
                continue;
            };
            if let Err(error) = self.session.remote.store.abort_upload(&upload.key, begun).await {
                tracing::debug!(key = upload.key, %error, "an upload is left for gc to abort");
            }
        }
        sealed.and(handed).map(drop)
    }

    /// Returns the files whose parts are now in the journal, as far as they were sent.
    async fn write_journal(&self, sealed: &SealedStep) -> Result<BTreeSet<RelativePath>> {
        let (journal, state) = self.session.open_journal(&Origin::Sealed(sealed.clone())).await?;
        let mut written = BTreeSet::new();
        for FileAhead { copy, upload } in &self.files {
            let path = &copy.file.path;
            let is_sealed = sealed.record().file(path).is_some_and(|file| copy.is_sealed_as(file));
            let Some(begun) = upload.progress.upload.get() else { continue };
            if !is_sealed || sealed.record().digest != self.step.digest() || state.files.contains_key(path) {
                continue;
            }
            journal.append(&JournalRecord::UploadStarted { path: path.clone(), upload: begun.clone() })?;
            for part in upload.progress.receipts().iter().flatten() {
                let (path, tag) = (path.clone(), part.tag.clone());
                let (index, digest) = (part.index, part.digest);
                journal.append(&JournalRecord::PartDone { path, index, tag, digest })?;
            }
            written.insert(path.clone());
        }
        Ok(written)
    }
}
