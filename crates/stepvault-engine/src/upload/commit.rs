//! Writes and proves the records that end an upload: each node's part manifest, and the commit, which makes the step visible,
//! once.

use std::time::Duration;

use stepvault_core::codec::{FORMAT, encode, sha256_of};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::manifest::{EntryDigests, PartManifest};
use stepvault_core::observe::Saved;
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, Event, NodeName, RemoteName, Result, Sha256Digest, StepId,
};
use stepvault_local::journal::{Journal, JournalState};
use stepvault_local::seal_record::SealRecord;
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};
use tokio::time::Instant;

use super::origin::{Origin, SourceStep};
use super::read::changed_between_uploads;
use super::session::{UploadSession, Uploaded};
use crate::blocking::blocking;
use crate::tier::catalog::read_found_parts;
use crate::tier::removed::{RECENT_REMOVAL_CHECK, ensure_not_removed};
use crate::tier::run_remote::WrittenRecord;
use crate::verify::{CommittedParts, Depth};

/// How long a node that finds all parts of a step waits for another one to commit it.
const PATIENCE: Duration = Duration::from_secs(1);

impl UploadSession {
    /// Builds the manifest from the journal's digests. The first remote to be finished stores it in the vault; to
    /// every other, the same bytes must have been sent.
    pub(super) async fn finish_manifest(&self, sealed: &SealedStep) -> Result<PartManifest> {
        let (_, state) = self.open_journal(&Origin::Sealed(sealed.clone())).await?;
        let record = sealed.record();
        let own = record.own_files();
        let mut files = Vec::with_capacity(own.len());
        for file in own {
            let done = state.files.get(&file.path).and_then(|progress| progress.done.as_ref());
            let parts = done.ok_or_else(|| {
                Error::new(ErrorKind::Failed, "the upload journal lacks a file")
                    .on(&file.path)
                    .hint("push the step again")
            })?;
            files.push(file.entry(parts)?);
        }
        drop(state);
        let manifest = record.part_manifest(files);
        let step = sealed.clone();
        blocking(move || match step.manifest()? {
            Some(known) if known != manifest => Err(changed_between_uploads(&step.data_root().display())),
            Some(known) => Ok(known),
            None => step.save_manifest(&manifest).map(|()| manifest),
        })
        .await
    }

    /// Returns the error for a step whose identity another writer uses, as the record at `key` shows.
    pub(super) fn conflict(&self, key: &str, id: StepId, why: &str) -> Error {
        Error::new(ErrorKind::Conflict, format!("{id} is taken on this remote"))
            .on(self.remote.describe(key))
            .because(why)
            .hint("push it as a new attempt with --attempt")
    }

    /// Proves a record as a file of one part is proved: by the store's answer if its checksums can be trusted, otherwise
    /// byte for byte.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the key holds a different record.
    pub(super) async fn prove_record(&self, written: WrittenRecord) -> Result<()> {
        if written.is_proved() && !self.must_read_back(DigestAlgorithm::Sha256, 1) {
            return Ok(());
        }
        written.confirm(&self.remote).await.map(drop)
    }

    /// Writes the part manifests of a step that was copied, whose bytes are proved, and commits it unless it was removed
    /// from either remote meanwhile.
    ///
    /// # Invariants
    /// As [`commit_if_complete`](Self::commit_if_complete): S2 and S9.
    pub(super) async fn commit_copy(&self, origin: &Origin, step: &SourceStep) -> Result<Uploaded> {
        let sent = match step.commit.trusted_files() {
            0 => JournalState::default(),
            _ => self.open_journal(origin).await?.1,
        };
        let (commit, manifests) = step.completed(|path| {
            let done = sent.files.get(path)?.done.as_ref()?;
            Some(EntryDigests::of_parts(done))
        })?;
        for (part, manifest) in commit.parts.iter().zip(manifests.iter()) {
            let length = usize::try_from(part.manifest_bytes).unwrap_or(usize::MAX);
            let _room = self.budget.reserve(length.saturating_mul(4)).await?;
            let key = self.remote.keys.part(step.commit.id, &part.node);
            let written = self.remote.write_record(&key, manifest).await?;
            self.prove_record(written).await?;
        }
        tokio::try_join!(step.ensure_present(), ensure_not_removed(&self.remote, step.commit.id))?;
        self.write_commit(origin, &commit).await
    }

    /// Writes the manifest of this node's part, whose bytes are uploaded and proved, and returns what a commit says of
    /// it.
    pub(super) async fn write_part(&self, sealed: &SealedStep, manifest: PartManifest) -> Result<FoundPart> {
        let record = sealed.record();
        let key = self.remote.keys.part(record.id, &record.node);
        let bytes = encode(&manifest)?;
        let part = FoundPart::of(&manifest, Sha256Digest::of(&bytes), bytes.len() as u64);
        // It may be long, and is read from its bytes now.
        drop(manifest);
        let written = self.remote.write_encoded::<PartManifest>(&key, bytes).await?;
        self.prove_record(written).await?;
        self.save_state(sealed, UploadState::Uploaded, None).await?;
        Ok(part)
    }

    /// Commits the step whose part this call has written: like [`commit_if_complete`](Self::commit_if_complete), but a
    /// step of this node alone needs no look at what exists, since its part was just proved, and a commit that exists
    /// is found by its creation. `unremoved_at` is when the step was found not to be removed.
    ///
    /// # Invariants
    /// As there: S2 and S9.
    pub(super) async fn commit_own(
        &self,
        sealed: &SealedStep,
        part: FoundPart,
        unremoved_at: Instant,
    ) -> Result<Uploaded> {
        // A store that overwrites would replace a commit.
        if sealed.record().is_one_of_several() || !self.guarantees.honours_create_only {
            return self.commit_after(sealed, Duration::ZERO).await;
        }
        let commit = Commit::of(vec![part])?;
        if unremoved_at.elapsed() > RECENT_REMOVAL_CHECK {
            ensure_not_removed(&self.remote, sealed.id()).await?;
        }
        match self.write_commit(&Origin::Sealed(sealed.clone()), &commit).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.commit_after(sealed, Duration::ZERO).await
            }
            committed => committed,
        }
    }

    /// Commits a step whose parts all exist, or detects that another node has. Call it again while parts are missing.
    ///
    /// The node whose part came last commits the step: others commit it only if that node has not within a second. If
    /// every node did at once, each would read the manifests of all.
    ///
    /// # Invariants
    /// No commit is written before every node's part exists; every writer writes the same bytes, so there is one commit
    /// (S2). No writer acknowledges a step that was tombstoned meanwhile (S9).
    pub async fn commit_if_complete(&self, sealed: &SealedStep) -> Result<Uploaded> {
        self.commit_after(sealed, PATIENCE).await
    }

    /// Returns that the step is durable if a node has committed it.
    async fn committed_by_another(&self, sealed: &SealedStep) -> Result<Option<Uploaded>> {
        let key = self.remote.keys.commit(sealed.id());
        let Some((commit, bytes)) = self.remote.read_record::<Commit>(&key).await? else {
            return Ok(None);
        };
        self.check_own_part(sealed, &commit).await?;
        self.acknowledge(&Origin::Sealed(sealed.clone()), async { Ok(bytes) }).await.map(Some)
    }

    /// Like [`commit_if_complete`](Self::commit_if_complete), with so much time for another node to commit it.
    async fn commit_after(&self, sealed: &SealedStep, patience: Duration) -> Result<Uploaded> {
        let record = sealed.record();
        if let Some(durable) = self.committed_by_another(sealed).await? {
            return Ok(durable);
        }
        let (missing, largest_bytes) = self.missing_parts(record).await?;
        if missing.is_empty() && !patience.is_zero() {
            tokio::time::sleep(patience).await;
            if let Some(durable) = self.committed_by_another(sealed).await? {
                return Ok(durable);
            }
        }
        match missing {
            missing if missing.contains(&record.node) => Err(self.own_part_is_gone(sealed).await),
            missing if !missing.is_empty() => {
                // Do not wait for the parts of a step that is being removed.
                ensure_not_removed(&self.remote, sealed.id()).await?;
                Ok(Uploaded::Incomplete { missing })
            }
            _ => {
                let nodes = record.nodes();
                let parts = read_found_parts(&self.remote, record.id, &nodes, largest_bytes).await?;
                let commit = Commit::of(parts)?;
                if record.is_one_of_several() {
                    self.ensure_parts_exist(record, &commit).await?;
                }
                ensure_not_removed(&self.remote, record.id).await?;
                self.write_commit(&Origin::Sealed(sealed.clone()), &commit).await
            }
        }
    }

    /// Records a step as durable, once its commit is read back, unless it was removed meanwhile. `commit` reads it back,
    /// and exists before this call.
    async fn acknowledge(
        &self,
        origin: &Origin,
        commit: impl Future<Output = Result<Vec<u8>>>,
    ) -> Result<Uploaded> {
        let id = origin.id();
        // A gc that found the step without a commit may have tombstoned it. Check again after the commit, so that a
        // writer that was paused in between cannot acknowledge a step that is being deleted.
        let (commit, not_removed) = tokio::join!(commit, ensure_not_removed(&self.remote, id));
        let commit = match (commit, not_removed) {
            (Ok(commit), not_removed) => not_removed.map(|()| commit)?,
            // Of a removed step, the commit may be gone.
            (Err(error), not_removed) => return Err(not_removed.err().unwrap_or(error)),
        };
        let durable_on = match origin {
            Origin::Sealed(sealed) => {
                self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(&commit))).await?
            }
            Origin::Remote(_) => Vec::new(),
        };
        let record = origin.record();
        let (vault, run, remote) = (self.vault.clone(), record.run.clone(), self.remote.name().clone());
        let end_journal = match origin {
            Origin::Sealed(_) => Journal::remove,
            Origin::Remote(_) => Journal::remove_copy,
        };
        blocking(move || end_journal(&vault, &run, id, &remote)).await?;
        let saved =
            Saved { written_at: record.written_at, bytes: record.own_bytes(), durable_on: &durable_on };
        self.observer.on_event(&Event::Durable {
            run: self.remote.keys.run(),
            tier: &self.remote.tier,
            id,
            saved: (!durable_on.is_empty()).then_some(saved),
        });
        Ok(Uploaded::Durable)
    }

    /// A gc removes a step that lacked parts for too long; its identity is then used up, and no node waits for it any
    /// longer.
    async fn own_part_is_gone(&self, sealed: &SealedStep) -> Error {
        if let Err(tombstoned) = ensure_not_removed(&self.remote, sealed.id()).await {
            return tombstoned;
        }
        let record = sealed.record();
        Error::new(ErrorKind::Failed, "this node's part of the step no longer exists")
            .on(self.remote.describe(&self.remote.keys.part(record.id, &record.node)))
            .hint("retry the upload: it continues with the files that are left")
    }

    /// Checks that the commit of another node contains this node's part.
    async fn check_own_part(&self, sealed: &SealedStep, commit: &Commit) -> Result<()> {
        let record = sealed.record();
        let step = sealed.clone();
        let own = match blocking(move || step.manifest()).await? {
            Some(manifest) => sha256_of(&manifest)?,
            None => {
                return Err(Error::new(ErrorKind::Failed, "cannot find the digests of a step's files")
                    .on(record.id)
                    .hint("push the step again"));
            }
        };
        let parts = &commit.parts;
        if parts.iter().any(|part| part.node == record.node && part.manifest_sha256 == own) {
            return Ok(());
        }
        let why = "it was committed with another part of this node, or without one";
        let key = self.remote.keys.commit(record.id);
        Err(self.conflict(&key, record.id, why).name_taken())
    }

    /// Returns the nodes whose parts are missing, and the length of the longest manifest of the others'.
    async fn missing_parts(&self, record: &SealRecord) -> Result<(Vec<NodeName>, u64)> {
        let prefix = self.remote.keys.step_parts_prefix(record.id);
        let listed = self.remote.list_kind(&prefix, |kind| kind.node().cloned()).await?;
        let largest_bytes = listed.iter().map(|(_, object)| object.size_bytes).max().unwrap_or(0);
        let present = listed.into_iter().map(|(node, _)| node).collect();
        Ok((record.nodes().missing(&present), largest_bytes))
    }

    /// Checks that the files of the other nodes, which proved them perhaps long ago, still exist.
    async fn ensure_parts_exist(&self, record: &SealRecord, commit: &Commit) -> Result<()> {
        let parts = CommittedParts::all(&self.remote, commit, &self.observer);
        let health = parts.check(Depth::Listed).await?;
        if health.is_sound() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Damaged, format!("cannot commit {}", record.id))
            .on(self.remote.describe(&self.remote.keys.step_parts_prefix(record.id)))
            .because(health.faults.join("; "))
            .hint("save the step again, as a new attempt"))
    }

    async fn write_commit(&self, origin: &Origin, commit: &Commit) -> Result<Uploaded> {
        let key = self.remote.keys.commit(origin.id());
        let written = self.remote.write_record(&key, commit).await?;
        self.acknowledge(origin, written.confirm(&self.remote)).await
    }

    /// Records the state of a step in the vault. Returns the remotes on which it is durable; none if nothing is new.
    pub(super) async fn save_state(
        &self,
        sealed: &SealedStep,
        state: UploadState,
        commit_sha256: Option<Sha256Digest>,
    ) -> Result<Vec<RemoteName>> {
        let step = sealed.clone();
        let state = RemoteState {
            format: FORMAT,
            id: sealed.id(),
            remote: self.remote.name().clone(),
            url: self.remote.identity_url(),
            vault: self.marker.vault.clone(),
            state,
            commit_sha256,
        };
        blocking(move || {
            let before = step.remote_state(&state.remote).unwrap_or_default();
            step.save_remote_state(&state)?;
            let was_durable = before.is_some_and(|before| before.state == UploadState::Durable);
            if was_durable || state.state != UploadState::Durable {
                return Ok(Vec::new());
            }
            // Only traces need it.
            Ok(step.durable_remotes().unwrap_or_default())
        })
        .await
    }
}
