//! The records that make an uploaded step visible: each node's part manifest, then the commit, once.

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

/// The parts of a step as they are found.
enum Collected {
    /// These nodes' parts are not there.
    Missing(Vec<NodeName>),
    /// All are there, and this is the commit that follows from them.
    All(Box<Commit>),
}

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
            .ok_or_else(|| {
                conflict("it was committed without this node's part")
                    .hint("nodes that write one step together have to be declared, with --nodes or nodes = in the configuration")
            })?;
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
        // Each node answers for its own part: all of them proving all parts would be a great many requests.
        ensure_part_durable(&self.remote, &commit, part, &self.observer).await?;
        self.check_not_condemned(sealed).await?;
        self.save_state(sealed, UploadState::Durable, Some(Sha256Digest::of(&bytes)))
            .await?;
        Ok(Some(Uploaded::AlreadyDurable))
    }

    async fn read_manifest(&self, commit: &Commit, part: &CommittedPart) -> Result<PartManifest> {
        crate::catalog::read_part_manifest(&self.remote, commit, part).await
    }

    /// Writes the manifest of this node's part, whose bytes are there and proved.
    pub(super) async fn write_part(&self, sealed: &SealedStep, manifest: &PartManifest) -> Result<()> {
        let record = sealed.record();
        let key = self.remote.keys.part(record.id, &record.node);
        self.remote.create_record(&key, manifest).await?;
        self.save_state(sealed, UploadState::Uploaded, None).await
    }

    /// Commits a step whose parts are all there, or finds that another node has. To be asked again while it waits.
    ///
    /// # Invariants
    /// No commit before every node's part is there; whoever writes it writes the same bytes, so that there is one (S2).
    /// Nobody acknowledges a step that was condemned meanwhile (S9).
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
                Collected::Missing(missing) => return Ok(Uploaded::Waiting { missing }),
                Collected::All(commit) => self.write_commit(sealed, &commit).await?,
            },
        };
        // A sweep that found the step without a commit may have condemned it; asked after the commit as well, so that
        // a writer that was stopped in between cannot acknowledge what is being deleted.
        self.check_not_condemned(sealed).await?;
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

    /// A sweep removes a step that lacked parts for too long; then its name is spent, and nobody waits for it any more.
    async fn own_part_is_gone(&self, sealed: &SealedStep) -> Error {
        if let Err(condemned) = self.check_not_condemned(sealed).await {
            return condemned;
        }
        let record = sealed.record();
        Error::new(
            ErrorKind::Failed,
            "this node's part of the step is not there any more",
        )
        .on(self
            .remote
            .describe(&self.remote.keys.part(record.id, &record.node)))
        .hint("the upload looks what is left, and goes on from there")
    }

    /// Whether another node committed what this node has.
    async fn check_own_part(&self, sealed: &SealedStep, commit: &Commit) -> Result<()> {
        let record = sealed.record();
        let step = sealed.clone();
        let own = match blocking(move || step.manifest()).await? {
            Some(manifest) => Sha256Digest::of(&encode(&manifest)?),
            None => {
                return Err(
                    Error::new(ErrorKind::Failed, "the digests of a step's files are lost")
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
        .hint("push it as a new attempt with --attempt"))
    }

    /// The parts that are there, once all are.
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
            // The others proved their own parts, perhaps long ago: their files have to be there still.
            let health = check_committed(&self.remote, commit, Depth::Listed, &self.observer).await?;
            if !health.is_sound() {
                return Err(
                    Error::new(ErrorKind::Damaged, format!("cannot commit {}", record.id))
                        .on(self
                            .remote
                            .describe(&self.remote.keys.step_parts_prefix(record.id)))
                        .because(health.faults.join("; "))
                        .hint("save the step again as a new attempt"),
                );
            }
        }
        self.check_not_condemned(sealed).await?;
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
            remote: self.remote.name().clone(),
            url: self.remote.store.url().to_owned(),
            vault: self.marker.vault.clone(),
            state,
            commit_sha256,
        };
        blocking(move || step.save_remote_state(&state)).await
    }
}
