//! Writes the records that make an uploaded step visible: each node's part manifest, then the commit, once.

use stepvault_core::codec::{FORMAT, encode};
use stepvault_core::commit::{Commit, CommittedPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::NodeName;
use stepvault_core::manifest::PartManifest;
use stepvault_core::observe::Event;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::Journal;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};

use super::lane::Lane;
use super::step::Uploaded;
use crate::blocking::blocking;
use crate::catalog::{present_parts, read_found_parts};
use crate::verify::{Depth, check_committed, ensure_part_durable};

/// The parts of a step that were found.
enum Collected {
    /// The parts of these nodes are missing.
    Missing(Vec<NodeName>),
    /// All parts exist; this is the commit that follows from them.
    All(Box<Commit>),
}

impl Lane {
    /// Returns whether the step is committed on this remote with the same files, after proving them again.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the step and attempt hold different files; [`ErrorKind::Damaged`] when the files
    /// are no longer those that were committed.
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
            .name_taken()
        };
        let part = commit
            .parts
            .iter()
            .find(|part| part.node == record.node)
            .ok_or_else(|| {
                conflict("it was committed without this node's part")
                    .hint("declare the nodes that write a step together, with --nodes or nodes = in the configuration")
            })?;
        let manifest = self.read_manifest(&commit, part).await?;
        if !crate::content::record_matches_manifest(record, &manifest) {
            return Err(conflict("it has different files"));
        }
        let step = sealed.clone();
        let known = blocking(move || match step.manifest()? {
            Some(known) => Ok(known),
            None => step.save_manifest(&manifest).map(|()| manifest),
        })
        .await?;
        if Sha256Digest::of(&encode(&known)?) != part.manifest_sha256 {
            return Err(conflict("its files have different digests"));
        }
        // Each node proves its own part: if every node proved all parts, that would take far too many requests.
        ensure_part_durable(&self.remote, &commit, part, &self.observer).await?;
        self.check_not_tombstoned(sealed).await?;
        self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(&bytes)))
            .await?;
        Ok(Some(Uploaded::AlreadyDurable))
    }

    async fn read_manifest(&self, commit: &Commit, part: &CommittedPart) -> Result<PartManifest> {
        crate::catalog::read_part_manifest(&self.remote, commit, part).await
    }

    /// Writes the manifest of this node's part, whose bytes are uploaded and proved.
    pub(super) async fn write_part(&self, sealed: &SealedStep, manifest: &PartManifest) -> Result<()> {
        let record = sealed.record();
        let key = self.remote.keys.part(record.id, &record.node);
        self.remote.create_record(&key, manifest).await?;
        self.save_state(sealed, UploadState::Uploaded, None).await
    }

    /// Commits a step whose parts all exist, or detects that another node has. Call it again while parts are missing.
    ///
    /// # Invariants
    /// No commit is written before every node's part exists; every writer writes the same bytes, so there is one commit
    /// (S2). No writer acknowledges a step that was tombstoned meanwhile (S9).
    pub async fn settle(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let record = sealed.record();
        let key = self.remote.keys.commit(record.id);
        let bytes = match self.remote.read_record::<Commit>(&key).await? {
            Some((commit, bytes)) => {
                self.check_own_part(sealed, &commit).await?;
                bytes
            }
            None => match self.collect_parts(record).await? {
                Collected::Missing(missing) if missing.contains(&record.node) => {
                    return Err(self.own_part_is_gone(sealed).await);
                }
                Collected::Missing(missing) => {
                    // Do not wait for the parts of a step that is being removed.
                    self.check_not_tombstoned(sealed).await?;
                    return Ok(Uploaded::Waiting { missing });
                }
                Collected::All(commit) => self.write_commit(sealed, &commit).await?,
            },
        };
        // A gc that found the step without a commit may have tombstoned it. Check again after the commit, so that a
        // writer that was paused in between cannot acknowledge a step that is being deleted.
        self.check_not_tombstoned(sealed).await?;
        self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(&bytes)))
            .await?;
        let (vault, run, id, name) = (
            self.vault.clone(),
            record.run.clone(),
            record.id,
            self.remote.name().clone(),
        );
        blocking(move || Journal::open(&vault, &run, id, &name)?.0.remove()).await?;
        self.observer.on_event(&Event::Durable {
            tier: &self.remote.tier,
            id: record.id,
        });
        Ok(Uploaded::Durable)
    }

    /// A gc removes a step that lacked parts for too long; its identity is then used up, and no node waits for it any
    /// longer.
    async fn own_part_is_gone(&self, sealed: &SealedStep) -> Error {
        if let Err(tombstoned) = self.check_not_tombstoned(sealed).await {
            return tombstoned;
        }
        let record = sealed.record();
        Error::new(ErrorKind::Failed, "this node's part of the step no longer exists")
            .on(self
                .remote
                .describe(&self.remote.keys.part(record.id, &record.node)))
            .hint("retry the upload: it continues with the files that are left")
    }

    /// Checks that the commit of another node contains this node's part.
    async fn check_own_part(&self, sealed: &SealedStep, commit: &Commit) -> Result<()> {
        let record = sealed.record();
        let step = sealed.clone();
        let own = match blocking(move || step.manifest()).await? {
            Some(manifest) => Sha256Digest::of(&encode(&manifest)?),
            None => {
                return Err(
                    Error::new(ErrorKind::Failed, "cannot find the digests of a step's files")
                        .on(record.id)
                        .hint("push the step again"),
                );
            }
        };
        let parts = &commit.parts;
        if parts
            .iter()
            .any(|part| part.node == record.node && part.manifest_sha256 == own)
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("{} is taken on this remote", record.id),
        )
        .on(self.remote.describe(&self.remote.keys.commit(record.id)))
        .because("it was committed with another part of this node, or without one")
        .hint("push it as a new attempt with --attempt")
        .name_taken())
    }

    /// Returns the commit once all parts exist, otherwise the nodes whose parts are missing.
    async fn collect_parts(&self, record: &SealRecord) -> Result<Collected> {
        let present = present_parts(&self.remote, record.id).await?;
        let nodes = record.nodes();
        let missing = nodes.missing(&present);
        if !missing.is_empty() {
            return Ok(Collected::Missing(missing));
        }
        let parts = read_found_parts(&self.remote, record.id, &nodes).await?;
        Commit::of(parts).map(|commit| Collected::All(Box::new(commit)))
    }

    async fn write_commit(&self, sealed: &SealedStep, commit: &Commit) -> Result<Vec<u8>> {
        let record = sealed.record();
        if record.is_one_of_several() {
            // The other nodes proved their parts, perhaps long ago: check that their files still exist.
            let health = check_committed(&self.remote, commit, Depth::Listed, &self.observer).await?;
            if !health.is_sound() {
                return Err(
                    Error::new(ErrorKind::Damaged, format!("cannot commit {}", record.id))
                        .on(self
                            .remote
                            .describe(&self.remote.keys.step_parts_prefix(record.id)))
                        .because(health.faults.join("; "))
                        .hint("save the step again, as a new attempt"),
                );
            }
        }
        self.check_not_tombstoned(sealed).await?;
        let key = self.remote.keys.commit(record.id);
        self.remote.create_record(&key, commit).await
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
            id: sealed.id(),
            remote: self.remote.name().clone(),
            url: self.remote.store.url().to_owned(),
            vault: self.marker.vault.clone(),
            state,
            commit_sha256,
        };
        blocking(move || step.save_remote_state(&state)).await
    }
}
