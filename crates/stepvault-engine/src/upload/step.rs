//! All files of a step to one remote, then its records.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::codec::encode;
use stepvault_core::manifest::PartManifest;
use stepvault_core::observe::Event;
use stepvault_core::path::RelativePath;
use stepvault_core::records::{Claim, Tombstone};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{Journal, JournalState};
use stepvault_local::sealed::SealedStep;

use super::file::{FileUpload, entry};
use super::lane::Lane;
use crate::blocking::blocking;
use crate::workers::run_bounded;

/// A file whose upload the store has forgotten is begun again this often before the step fails.
const ROUNDS: usize = 3;

/// What an upload of a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uploaded {
    /// It became durable now.
    Durable,
    /// It had been durable already.
    AlreadyDurable,
}

impl Lane {
    /// Brings a sealed step to this remote: bytes, part manifest, commit, read back. Goes on where an earlier call
    /// was cut off.
    ///
    /// # Invariants
    /// After `Ok` the step is durable (S1): its commit was read back, every file it lists was proved (S2), and it
    /// was not condemned meanwhile (S9).
    pub async fn upload(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let record = sealed.record();
        let id = record.id;
        if let Some(known) = self.committed_state(sealed).await? {
            return Ok(known);
        }
        self.check_not_condemned(sealed).await?;
        let claim = Claim {
            format: stepvault_core::codec::FORMAT,
            run: record.run.clone(),
            id,
            name: record.name.clone(),
        };
        self.remote
            .create_record(&self.remote.keys.claim(id), &claim)
            .await?;
        self.observer.on_event(&Event::TransferStarted {
            tier: &self.remote.tier,
            id,
            files: record.files.len() as u64,
            bytes: record.data_bytes(),
        });
        let manifest = self.upload_files(sealed).await?;
        self.commit(sealed, &manifest).await?;
        self.observer.on_event(&Event::TransferFinished {
            tier: &self.remote.tier,
            id,
        });
        self.observer.on_event(&Event::Durable {
            tier: &self.remote.tier,
            id,
        });
        Ok(Uploaded::Durable)
    }

    /// A name that retention or gc has spent is never used again.
    pub(super) async fn check_not_condemned(&self, sealed: &SealedStep) -> Result<()> {
        let id = sealed.record().id;
        let key = self.remote.keys.tombstone(id);
        if self.remote.read_record::<Tombstone>(&key).await?.is_none() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, format!("cannot upload {id}"))
            .on(self.remote.describe(&key))
            .because("the step was removed from this remote before, and its name is not used again")
            .hint("push it as a new attempt with --attempt"))
    }

    async fn upload_files(&self, sealed: &SealedStep) -> Result<PartManifest> {
        let mut lost = BTreeSet::new();
        for round in 1..=ROUNDS {
            let (journal, state) = self.open_journal(sealed).await?;
            let uploads = self.file_uploads(sealed, &journal, &state, &lost)?;
            let jobs = uploads
                .iter()
                .flat_map(|upload| {
                    upload
                        .missing_parts()
                        .into_iter()
                        .map(move |index| (upload, index))
                })
                .map(|(upload, index)| Arc::clone(upload).send_part(index));
            let ended = run_bounded(jobs, self.remote.settings.max_concurrent_requests).await;
            let newly_lost: Vec<RelativePath> = uploads
                .iter()
                .filter(|upload| upload.was_lost())
                .map(|upload| upload.path().clone())
                .collect();
            match ended {
                Ok(()) => break,
                Err(error) if newly_lost.is_empty() || round == ROUNDS => return Err(error),
                Err(_) => lost.extend(newly_lost),
            }
        }
        self.finish_manifest(sealed).await
    }

    async fn open_journal(&self, sealed: &SealedStep) -> Result<(Arc<Journal>, JournalState)> {
        let (vault, run, id, remote) = (
            self.vault.clone(),
            sealed.record().run.clone(),
            sealed.record().id,
            self.remote.name().clone(),
        );
        let (journal, state) = blocking(move || Journal::open(&vault, &run, id, &remote)).await?;
        Ok((Arc::new(journal), state))
    }

    /// The files that are not done, the largest first, so that no long one is left for the end.
    fn file_uploads(
        &self,
        sealed: &SealedStep,
        journal: &Arc<Journal>,
        state: &JournalState,
        lost: &BTreeSet<RelativePath>,
    ) -> Result<Vec<Arc<FileUpload>>> {
        let record = sealed.record();
        let mut uploads = Vec::new();
        let mut reused_bytes = 0;
        let mut files: Vec<_> = record.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
        for file in files {
            let progress = state.files.get(&file.path);
            if progress.is_some_and(|progress| progress.done.is_some()) {
                reused_bytes += file.size_bytes;
                continue;
            }
            let key = self.remote.keys.data(&record.name, record.id, &file.path)?;
            let progress = progress.filter(|_| !lost.contains(&file.path)).cloned();
            let upload = FileUpload::new(
                self,
                journal,
                file.clone(),
                sealed.file_path(&file.path),
                key,
                progress,
            )?;
            reused_bytes += upload.resumed_bytes();
            uploads.push(Arc::new(upload));
        }
        if reused_bytes > 0 && lost.is_empty() {
            self.observer.on_event(&Event::BytesReused {
                tier: &self.remote.tier,
                bytes: reused_bytes,
            });
        }
        Ok(uploads)
    }

    /// The manifest from the journal's digests. The first lane to finish keeps it in the vault; every other lane
    /// has to have sent the same bytes.
    async fn finish_manifest(&self, sealed: &SealedStep) -> Result<PartManifest> {
        let (_, state) = self.open_journal(sealed).await?;
        let record = sealed.record();
        let mut files = Vec::with_capacity(record.files.len());
        for file in &record.files {
            let done = state
                .files
                .get(&file.path)
                .and_then(|progress| progress.done.as_ref());
            let parts = done.ok_or_else(|| {
                Error::new(ErrorKind::Failed, "the upload's journal has lost a file")
                    .on(&file.path)
                    .hint("push the step again")
            })?;
            files.push(entry(file, parts)?);
        }
        let manifest = PartManifest {
            format: stepvault_core::codec::FORMAT,
            run: record.run.clone(),
            id: record.id,
            node: record.node.clone(),
            name: record.name.clone(),
            shape: record.shape,
            files,
            directories: record.directories.clone(),
            symlinks: record.symlinks.clone(),
            members: record.members.clone(),
        };
        let step = sealed.clone();
        blocking(move || match step.manifest()? {
            Some(known) if encode(&known)? != encode(&manifest)? => Err(Error::new(
                ErrorKind::SourceChanged,
                "a sealed step changed between two uploads",
            )
            .on(step.data_root().display())
            .because("the digests of what was sent to two remotes differ")
            .hint("something rewrites the checkpoint's files in place; set local.links = \"copy\"")),
            Some(known) => Ok(known),
            None => step.save_manifest(&manifest).map(|()| manifest),
        })
        .await
    }
}
