//! The records that make an uploaded step visible: the part manifest, then the commit, once.

use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::manifest::PartManifest;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::Journal;
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};

use super::lane::Lane;
use super::step::Uploaded;
use crate::blocking::blocking;
use crate::verify::ensure_durable;

impl Lane {
    /// Whether the step is committed here, with the same files, which are proved anew.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when other files stand under the same step and attempt; [`ErrorKind::Damaged`] when
    /// what stands there is no longer what was committed.
    pub(super) async fn committed_state(&self, sealed: &SealedStep) -> Result<Option<Uploaded>> {
        let record = sealed.record();
        let key = self.remote.keys.commit(record.id);
        let Some((commit, bytes)) = self.remote.read_record::<Commit>(&key).await? else {
            return Ok(None);
        };
        let conflict = |why: &str| {
            Error::new(
                ErrorKind::Conflict,
                format!("{} is taken on this remote", record.id),
            )
            .on(self.remote.describe(&key))
            .because(why)
            .hint("push it as a new attempt with --attempt")
        };
        let part = commit
            .parts
            .iter()
            .find(|part| part.node == record.node)
            .ok_or_else(|| conflict("it was committed without this node's part"))?;
        let manifest = self.read_manifest(&commit, part).await?;
        if !crate::content::record_matches_manifest(record, &manifest) {
            return Err(conflict("its files are others"));
        }
        let step = sealed.clone();
        let known = blocking(move || match step.manifest()? {
            Some(known) => Ok(known),
            None => step.save_manifest(&manifest).map(|()| manifest),
        })
        .await?;
        if Sha256Digest::of(&encode(&known)?) != part.manifest_sha256 {
            return Err(conflict("the digests of its files are others"));
        }
        ensure_durable(&self.remote, &commit, &self.observer).await?;
        self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(&bytes)))
            .await?;
        Ok(Some(Uploaded::AlreadyDurable))
    }

    async fn read_manifest(&self, commit: &Commit, part: &CommittedPart) -> Result<PartManifest> {
        crate::catalog::read_part_manifest(&self.remote, commit, part).await
    }

    /// Writes the part manifest and the commit, reads both back, and makes sure that the step was not condemned
    /// while it was under way.
    pub(super) async fn commit(&self, sealed: &SealedStep, manifest: &PartManifest) -> Result<()> {
        let record = sealed.record();
        let part_key = self.remote.keys.part(record.id, &record.node);
        let manifest_bytes = self.remote.create_record(&part_key, manifest).await?;
        self.save_state(sealed, UploadState::Uploaded, None).await?;
        let commit = Commit {
            format: FORMAT,
            run: record.run.clone(),
            id: record.id,
            name: record.name.clone(),
            shape: record.shape,
            parts: vec![CommittedPart {
                node: record.node.clone(),
                manifest_sha256: Sha256Digest::of(&manifest_bytes),
                manifest_bytes: manifest_bytes.len() as u64,
                data_bytes: manifest.data_bytes(),
                file_count: manifest.files.len() as u64,
            }],
            written_at: record.written_at,
            metrics: record.metrics.clone(),
        };
        // A sweep that found the step without a commit may have condemned it; asked before and after, so that a
        // writer that was stopped in between cannot acknowledge what is being deleted.
        self.check_not_condemned(sealed).await?;
        let commit_bytes = self
            .remote
            .create_record(&self.remote.keys.commit(record.id), &commit)
            .await?;
        self.check_not_condemned(sealed).await?;
        self.save_state(
            sealed,
            UploadState::Durable,
            Some(Sha256Digest::of(&commit_bytes)),
        )
        .await?;
        let (vault, run, id, name) = (
            self.vault.clone(),
            record.run.clone(),
            record.id,
            self.remote.name().clone(),
        );
        blocking(move || Journal::open(&vault, &run, id, &name)?.0.remove()).await
    }

    async fn save_state(
        &self,
        sealed: &SealedStep,
        state: UploadState,
        commit_sha256: Option<Sha256Digest>,
    ) -> Result<()> {
        let step = sealed.clone();
        let state = RemoteState {
            format: FORMAT,
            remote: self.remote.name().clone(),
            url: self.remote.store.url().to_owned(),
            vault: self.marker.vault.clone(),
            state,
            commit_sha256,
        };
        blocking(move || step.save_remote_state(&state)).await
    }
}
