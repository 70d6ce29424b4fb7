//! Plans an upload: which files are left to send, and which bytes of them the store already has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::Event;
use stepvault_core::path::RelativePath;
use stepvault_local::journal::{FileProgress, Journal, JournalState, read_state};
use stepvault_local::seal_record::{SealRecord, SealedFile};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use super::copy_sources::CopySources;
use super::digests::StepDigests;
use super::parts::{FileUpload, OtherWriters, SendProgress};
use super::session::UploadSession;
use crate::blocking::blocking;

/// Maximum number of files that are uploaded at once. Each takes some kilobytes of state, and a step may have very many
/// files.
const BATCH_FILES: usize = 4_096;

/// What one round of an upload sends.
#[derive(Debug)]
pub(super) struct UploadPlan<'a> {
    pub(super) session: &'a UploadSession,
    pub(super) sealed: &'a SealedStep,
    pub(super) journal: Arc<Journal>,
    state: JournalState,
    pub(super) copies: Arc<CopySources>,
    digests: StepDigests,
    /// The step's objects that already exist, with their sizes, if other nodes may have sent them.
    present: BTreeMap<String, u64>,
    /// The unfinished files, the largest first, so that no long one is left for the end.
    files: Vec<&'a SealedFile>,
    /// Files to send from their first byte, because the store has lost what was sent of them.
    lost: &'a BTreeSet<RelativePath>,
}

impl UploadSession {
    /// Plans a round: the journal says what an earlier call or round has finished, and `lost` which of that is gone. In
    /// the first round, reports the finished files to the observer.
    pub(super) async fn plan<'a>(
        &'a self,
        sealed: &'a SealedStep,
        copies: &Arc<CopySources>,
        lost: &'a BTreeSet<RelativePath>,
        is_first_round: bool,
    ) -> Result<UploadPlan<'a>> {
        let record = sealed.record();
        let (journal, state) = self.open_journal(sealed).await?;
        let is_done = |file: &&SealedFile| {
            let progress = state.files.get(&file.path);
            progress.is_some_and(|progress| progress.done.is_some())
        };
        let (done, mut files): (Vec<_>, Vec<_>) = record.own_files().into_iter().partition(is_done);
        files.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
        if is_first_round {
            self.report_reused(done.iter().map(|file| file.size_bytes).sum());
        }
        let present =
            if record.is_one_of_several() { self.present_sizes(record).await? } else { BTreeMap::new() };
        Ok(UploadPlan {
            session: self,
            sealed,
            journal,
            state,
            copies: Arc::clone(copies),
            digests: self.digests.of_step(record),
            present,
            files,
            lost,
        })
    }

    pub(super) async fn open_journal(&self, sealed: &SealedStep) -> Result<(Arc<Journal>, JournalState)> {
        let (vault, run, id, remote) =
            (self.vault.clone(), sealed.record().run.clone(), sealed.record().id, self.remote.name().clone());
        let (journal, state) = blocking(move || Journal::open(&vault, &run, id, &remote)).await?;
        Ok((Arc::new(journal), state))
    }

    /// Returns the objects below the step's data prefix, with their sizes.
    pub(super) async fn present_sizes(&self, record: &SealRecord) -> Result<BTreeMap<String, u64>> {
        let prefix = self.remote.keys.data_prefix(&record.name, record.id);
        self.remote.list_sizes(&prefix).await
    }

    fn report_reused(&self, bytes: u64) {
        if bytes > 0 {
            self.observer.on_event(&Event::BytesReused { tier: &self.remote.tier, bytes });
        }
    }
}

impl<'a> UploadPlan<'a> {
    /// Whether an earlier call has sent some of the step.
    pub(super) fn is_resumed(&self) -> bool {
        !self.state.files.is_empty()
    }

    /// Returns the files in batches.
    pub(super) fn batches(&self) -> impl Iterator<Item = &[&'a SealedFile]> {
        self.files.chunks(BATCH_FILES)
    }

    /// Prepares the uploads of one batch.
    pub(super) fn uploads(&self, files: &[&SealedFile]) -> Result<Vec<Arc<FileUpload>>> {
        let record = self.sealed.record();
        let mut uploads = Vec::with_capacity(files.len());
        let mut reused_bytes = 0;
        for &file in files {
            let key = self.session.remote.keys.data(&record.name, record.id, &file.path)?;
            let progress = self.state.files.get(&file.path);
            let progress = progress.filter(|_| !self.lost.contains(&file.path)).cloned();
            let others = match self.present.get(&key) {
                _ if !record.is_one_of_several() => OtherWriters::None,
                // This node finishes a file that it has begun.
                Some(size) if *size == file.size_bytes && progress.is_none() => OtherWriters::Sent,
                _ => OtherWriters::Possible,
            };
            let layout = FileParts::of(file.size_bytes)?;
            let upload = FileUpload {
                session: self.session.clone(),
                journal: Arc::clone(&self.journal),
                copies: Arc::clone(&self.copies),
                file: file.clone(),
                local_path: self.sealed.file_path(&file.path),
                key,
                layout,
                algorithm: record.digest,
                // The store may have lost it because its bytes are no longer those of the shared digests.
                digests: Some(self.digests.clone()).filter(|_| !self.lost.contains(&file.path)),
                others,
                progress: SendProgress::new(layout.count(), progress),
            };
            reused_bytes += upload.resumed_bytes();
            uploads.push(Arc::new(upload));
        }
        if self.lost.is_empty() {
            self.session.report_reused(reused_bytes);
        }
        Ok(uploads)
    }
}

/// Returns the bytes of a sealed step that were not sent to a remote yet, according to the journal. Blocks.
///
/// # Errors
/// When the journal cannot be read.
pub fn missing_bytes(vault: &Vault, step: &SealedStep, remote: &RemoteName) -> Result<u64> {
    let state = read_state(vault, step.run(), step.id(), remote)?;
    let files = step.record().files.iter();
    Ok(files.map(|file| missing_of(file, &state)).sum())
}

fn missing_of(file: &SealedFile, state: &JournalState) -> u64 {
    match state.files.get(&file.path) {
        Some(FileProgress { done: Some(_), .. }) => 0,
        Some(FileProgress { parts, .. }) => {
            let sent = parts.values().map(|part| part.digest.size_bytes).sum();
            file.size_bytes.saturating_sub(sent)
        }
        None => file.size_bytes,
    }
}
