//! All files of a step to one remote, then its records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::codec::encode;
use stepvault_core::ids::NodeName;
use stepvault_core::launch::LaunchName;
use stepvault_core::manifest::PartManifest;
use stepvault_core::observe::Event;
use stepvault_core::path::RelativePath;
use stepvault_core::records::{Claim, Tombstone};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{Journal, JournalState};
use stepvault_local::seal_record::SealRecord;
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use super::file::{FileUpload, Others, Way, entry};
use super::lane::Lane;
use crate::blocking::blocking;
use crate::workers::run_bounded;

/// A file whose upload the store has forgotten is begun again this often before the step fails.
const ROUNDS: usize = 3;

/// What an upload of a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uploaded {
    /// It became durable now.
    Durable,
    /// It had been durable already.
    AlreadyDurable,
    /// This node's part is there, and the step is not durable before these nodes' parts are there too.
    Waiting {
        /// The nodes, sorted by name.
        missing: Vec<NodeName>,
    },
}

impl Uploaded {
    /// Whether the step is durable.
    pub fn is_durable(&self) -> bool {
        !matches!(self, Self::Waiting { .. })
    }
}

impl Lane {
    /// Brings this node's part of a sealed step to this remote: bytes, part manifest, and the commit when no other
    /// node's part is missing. Goes on where an earlier call was cut off.
    ///
    /// # Invariants
    /// After `Durable` the step is durable (S1): its commit was read back, every file it lists was proved by the node
    /// whose part it is (S2), and it was not condemned meanwhile (S9).
    pub async fn upload(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let record = sealed.record();
        let id = record.id;
        if let Some(known) = self.committed_state(sealed).await? {
            return Ok(known);
        }
        self.check_not_condemned(sealed).await?;
        self.claim(record).await?;
        let own = record.own_files();
        let bytes = own.iter().map(|file| file.size_bytes).sum();
        let (tier, begun) = (&self.remote.tier, Instant::now());
        let place = &self.remote.place(&record.name, id);
        let copied_before = self.copied_bytes();
        self.observer.on_event(&Event::TransferStarted {
            tier,
            id,
            place,
            files: own.len() as u64,
            bytes,
        });
        let sent = self.send(sealed).await;
        let seconds = begun.elapsed().as_secs_f64();
        self.observer.on_event(&match &sent {
            Ok(_) => Event::TransferFinished {
                tier,
                id,
                place,
                bytes,
                copied_bytes: self.copied_bytes().saturating_sub(copied_before),
                seconds,
            },
            Err(error) => Event::TransferFailed {
                tier,
                id,
                place,
                bytes,
                seconds,
                error,
            },
        });
        sent
    }

    async fn send(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let manifest = self.upload_files(sealed).await?;
        self.write_part(sealed, &manifest).await?;
        self.settle(sealed).await
    }

    /// Fixes which nodes the step is whole with and which launch it is of, or finds that somebody has.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when this step was begun by other nodes, under another name or in another launch.
    async fn claim(&self, record: &SealRecord) -> Result<()> {
        let claim = Claim {
            format: stepvault_core::codec::FORMAT,
            run: record.run.clone(),
            id: record.id,
            name: record.name.clone(),
            nodes: record.nodes(),
            launch: record.launch.clone(),
        };
        let key = self.remote.keys.claim(record.id);
        let Err(error) = self.remote.create_record(&key, &claim).await else {
            return Ok(());
        };
        if error.kind() != ErrorKind::Conflict {
            return Err(error);
        }
        let Some((found, _)) = self.remote.read_record::<Claim>(&key).await? else {
            return Err(error);
        };
        let (why, hint) = if found.nodes != claim.nodes {
            (
                format!(
                    "it was begun as a step of {}, and here it is one of {}",
                    found.nodes, claim.nodes
                ),
                "declare the same nodes everywhere, with --nodes or nodes = in the configuration",
            )
        } else if found.launch != claim.launch {
            let name = |launch: &Option<LaunchName>| {
                launch
                    .as_ref()
                    .map_or_else(|| "no launch".to_owned(), |launch| format!("launch '{launch}'"))
            };
            (
                format!(
                    "it was begun in {}, and here it is of {}",
                    name(&found.launch),
                    name(&claim.launch)
                ),
                "let all nodes have the same launch identity, with STEPVAULT_LAUNCH; or push it as a new attempt",
            )
        } else {
            (
                format!(
                    "it was begun under the name '{}', and here it is '{}'",
                    found.name, claim.name
                ),
                "push it as a new attempt with --attempt",
            )
        };
        Err(Error::new(
            ErrorKind::Conflict,
            format!("{} is taken on this remote", record.id),
        )
        .on(self.remote.describe(&key))
        .because(why)
        .hint(hint))
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
        let copying = Arc::new(self.copying(sealed.record()).await);
        for round in 1..=ROUNDS {
            let (journal, state) = self.open_journal(sealed).await?;
            let sent = self.sent_by_others(sealed.record()).await?;
            let way = Way {
                lane: self.clone(),
                journal,
                copying: Arc::clone(&copying),
            };
            let uploads = self.file_uploads(sealed, &way, &state, &lost, &sent)?;
            let unchanged = uploads
                .iter()
                .filter(|upload| upload.may_be_copied_whole())
                .map(|upload| Arc::clone(upload).copy_if_unchanged());
            run_bounded(unchanged, self.remote.settings.max_concurrent_requests).await?;
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

    /// What stands there of the step already, where nodes may have files in common: those are sent once.
    async fn sent_by_others(&self, record: &SealRecord) -> Result<BTreeMap<String, u64>> {
        if !record.is_one_of_several() {
            return Ok(BTreeMap::new());
        }
        let prefix = self.remote.keys.data_prefix(&record.name, record.id);
        let objects = self.remote.list(&prefix).await?;
        Ok(objects
            .into_iter()
            .map(|object| (object.key, object.size_bytes))
            .collect())
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
        way: &Way,
        state: &JournalState,
        lost: &BTreeSet<RelativePath>,
        sent: &BTreeMap<String, u64>,
    ) -> Result<Vec<Arc<FileUpload>>> {
        let record = sealed.record();
        let mut uploads = Vec::new();
        let mut reused_bytes = 0;
        let mut files = record.own_files();
        files.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
        for file in files {
            let progress = state.files.get(&file.path);
            if progress.is_some_and(|progress| progress.done.is_some()) {
                reused_bytes += file.size_bytes;
                continue;
            }
            let key = self.remote.keys.data(&record.name, record.id, &file.path)?;
            let progress = progress.filter(|_| !lost.contains(&file.path)).cloned();
            let others = match sent.get(&key) {
                _ if !record.is_one_of_several() => Others::None,
                // One that this node has begun is its own to finish.
                Some(size) if *size == file.size_bytes && progress.is_none() => Others::Sent,
                _ => Others::Possible,
            };
            let upload = FileUpload::new(
                way,
                file.clone(),
                sealed.file_path(&file.path),
                key,
                progress,
                others,
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
        let own = record.own_files();
        let mut files = Vec::with_capacity(own.len());
        for file in own {
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
        let manifest = record.part_manifest(files);
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
