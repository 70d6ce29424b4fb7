//! Uploads all files of a step to one remote, then its records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::ids::NodeName;
use stepvault_core::launch::LaunchName;
use stepvault_core::manifest::PartManifest;
use stepvault_core::observe::Event;
use stepvault_core::path::RelativePath;
use stepvault_core::records::Claim;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::journal::{Journal, JournalRecord, JournalState};
use stepvault_local::seal_record::{SealRecord, SealedFile};
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use super::file::{FileUpload, Others, Way, entry};
use super::lane::Lane;
use crate::blocking::blocking;
use crate::catalog::removal_record;
use crate::workers::run_bounded;

/// How often a file whose upload the store has lost is restarted before the step fails.
const ROUNDS: usize = 3;
/// Maximum number of files that are uploaded at once. Each takes some kilobytes of state, and a step may have very many
/// files.
const BATCH_FILES: usize = 4_096;

/// The outcome of an upload of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uploaded {
    /// It became durable.
    Durable,
    /// It was already durable.
    AlreadyDurable,
    /// This node's part is uploaded, but the step becomes durable only when the parts of these nodes exist too.
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
    /// Uploads this node's part of a sealed step to this remote: bytes, part manifest, and the commit if no other
    /// node's part is missing. Resumes an interrupted call.
    ///
    /// # Invariants
    /// After `Durable` the step is durable (S1): its commit was read back, every file it lists was proved by the node
    /// that owns the part (S2), and it was not tombstoned meanwhile (S9).
    pub async fn upload(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let record = sealed.record();
        let id = record.id;
        if record.is_provisional() {
            return Err(Error::new(ErrorKind::Failed, format!("cannot upload {id}"))
                .on(sealed.directory().display())
                .because("its attempt is provisional")
                .hint("wait until a remote is reachable: the agent or the next push then determines it"));
        }
        if let Some(known) = self.committed_state(sealed).await? {
            return Ok(known);
        }
        self.check_not_tombstoned(sealed).await?;
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
        self.upload_files(sealed).await?;
        // A written record is held twice and read back; if it is large, one remote does this at a time.
        let manifest_bytes = usize::try_from(sealed.record().manifest_bytes()?).unwrap_or(usize::MAX);
        let _room = self.budget.reserve(manifest_bytes.saturating_mul(4)).await?;
        let manifest = self.finish_manifest(sealed).await?;
        self.write_part(sealed, &manifest).await?;
        drop(manifest);
        self.settle(sealed).await
    }

    /// Records which nodes make up the step and which launch it belongs to, or checks the claim of another node.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when this step was begun by different nodes, under a different name or in a different
    /// launch.
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
        // Nodes that are declared differently would not agree on another attempt either.
        let is_declared_alike = found.nodes == claim.nodes || !record.is_one_of_several();
        let (why, hint) = if found.nodes != claim.nodes {
            (
                format!(
                    "it was begun as a step of {}, but on this node it is a step of {}",
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
                    "it was begun in {}, but on this node it belongs to {}",
                    name(&found.launch),
                    name(&claim.launch)
                ),
                "set the same STEPVAULT_LAUNCH on all nodes, or push it as a new attempt",
            )
        } else {
            (
                format!(
                    "it was begun under the name '{}', but on this node its name is '{}'",
                    found.name, claim.name
                ),
                "push it as a new attempt with --attempt",
            )
        };
        let conflict = Error::new(
            ErrorKind::Conflict,
            format!("{} is taken on this remote", record.id),
        )
        .on(self.remote.describe(&key))
        .because(why)
        .hint(hint);
        Err(if is_declared_alike {
            conflict.name_taken()
        } else {
            conflict
        })
    }

    /// Refuses an identity that retention or gc has used up: it is never reused.
    pub(super) async fn check_not_tombstoned(&self, sealed: &SealedStep) -> Result<()> {
        let id = sealed.record().id;
        let Some(key) = removal_record(&self.remote, id).await? else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Refused, format!("cannot upload {id}"))
            .on(self.remote.describe(&key))
            .because("the step was removed from this remote before, and its identity is never reused")
            .hint("push it as a new attempt with --attempt"))
    }

    async fn upload_files(&self, sealed: &SealedStep) -> Result<()> {
        let mut lost = BTreeSet::new();
        let mut is_resumed = false;
        let copying = Arc::new(self.copying(sealed.record()).await);
        for round in 1..=ROUNDS {
            let (journal, state) = self.open_journal(sealed).await?;
            is_resumed |= round == 1 && !state.files.is_empty();
            let sent = self.sent_by_others(sealed.record()).await?;
            let way = Way {
                lane: self.clone(),
                journal: Arc::clone(&journal),
                copying: Arc::clone(&copying),
            };
            let files = self.missing_files(sealed.record(), &state, round == 1);
            let mut newly_lost = Vec::new();
            let mut ended = Ok(());
            for batch in files.chunks(BATCH_FILES) {
                let uploads = self.file_uploads(sealed, batch, &way, &state, &lost, &sent)?;
                ended = self.send_files(&uploads).await;
                newly_lost.extend(
                    uploads
                        .iter()
                        .filter(|upload| upload.was_lost())
                        .map(|upload| upload.path().clone()),
                );
                if ended.is_err() {
                    break;
                }
            }
            match ended {
                // For a multi-node step, all files are listed before the commit anyway.
                Ok(()) if !is_resumed && sealed.record().is_one_of_several() => return Ok(()),
                Ok(()) => {
                    let vanished = self.vanished_files(sealed.record()).await?;
                    if vanished.is_empty() {
                        return Ok(());
                    }
                    self.forget_vanished(sealed.record(), &journal, &vanished, round)?;
                    lost.extend(vanished);
                }
                Err(error) if newly_lost.is_empty() || round == ROUNDS => return Err(error),
                Err(_) => lost.extend(newly_lost),
            }
        }
        Ok(())
    }

    /// Copies inside the store what it already has, and sends the rest of these files.
    async fn send_files(&self, uploads: &[Arc<FileUpload>]) -> Result<()> {
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
        run_bounded(jobs, self.remote.settings.max_concurrent_requests).await
    }

    /// Returns the objects of the step that already exist, for steps whose nodes may share files: those are sent once.
    async fn sent_by_others(&self, record: &SealRecord) -> Result<BTreeMap<String, u64>> {
        if !record.is_one_of_several() {
            return Ok(BTreeMap::new());
        }
        self.listed_sizes(record).await
    }

    /// Returns the objects below the step's data prefix, with their sizes.
    async fn listed_sizes(&self, record: &SealRecord) -> Result<BTreeMap<String, u64>> {
        let prefix = self.remote.keys.data_prefix(&record.name, record.id);
        self.remote.list_sizes(&prefix).await
    }

    /// Returns this node's sent files that the remote does not list with their size: one LIST.
    ///
    /// # Invariants
    /// A lifecycle rule or a clean-up job may have deleted files that an earlier call proved: no commit names a file
    /// before it was listed again (S2).
    async fn vanished_files(&self, record: &SealRecord) -> Result<Vec<RelativePath>> {
        let listed = self.listed_sizes(record).await?;
        let mut vanished = Vec::new();
        for file in record.own_files() {
            let key = self.remote.keys.data(&record.name, record.id, &file.path)?;
            if listed.get(&key) != Some(&file.size_bytes) {
                vanished.push(file.path.clone());
            }
        }
        Ok(vanished)
    }

    /// Removes files from the journal, so that the next round sends them again. Creation stays conditional: an object
    /// of a different size under a file's key belongs to another writer, and the round ends with a conflict.
    ///
    /// # Errors
    /// In the last round: files are then deleted as fast as they are sent.
    fn forget_vanished(
        &self,
        record: &SealRecord,
        journal: &Journal,
        vanished: &[RelativePath],
        round: usize,
    ) -> Result<()> {
        let (count, place) = (vanished.len(), self.remote.place(&record.name, record.id));
        if round == ROUNDS {
            return Err(Error::new(ErrorKind::Failed, format!("cannot commit {}", record.id))
                .on(place)
                .because(format!(
                    "{count} uploaded files are missing or have a different size each time they are listed"
                ))
                .hint(
                    "look for a lifecycle rule or a clean-up job that deletes objects; run 'stepvault doctor' to \
                     check whether the store changes unusual names in listings",
                ));
        }
        let message = format!(
            "{}: {count} uploaded files of {} are missing from {place} or have a different size: sending them again \
             (look for a lifecycle rule or a clean-up job that deletes objects)",
            self.remote.name(),
            record.id
        );
        self.observer.on_event(&Event::Warning { message: &message });
        for path in vanished {
            journal.append(&JournalRecord::FileForgotten { path: path.clone() })?;
        }
        Ok(())
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

    /// Returns the unfinished files, the largest first, so that no long one is left for the end. In the first round it
    /// reports the finished ones to the observer.
    fn missing_files<'a>(
        &self,
        record: &'a SealRecord,
        state: &JournalState,
        is_first_round: bool,
    ) -> Vec<&'a SealedFile> {
        let is_done = |file: &&SealedFile| {
            let progress = state.files.get(&file.path);
            progress.is_some_and(|progress| progress.done.is_some())
        };
        let (done, mut missing): (Vec<_>, Vec<_>) = record.own_files().into_iter().partition(is_done);
        if is_first_round {
            self.tell_of_reused(done.iter().map(|file| file.size_bytes).sum());
        }
        missing.sort_by_key(|file| std::cmp::Reverse(file.size_bytes));
        missing
    }

    fn tell_of_reused(&self, bytes: u64) {
        if bytes > 0 {
            self.observer.on_event(&Event::BytesReused {
                tier: &self.remote.tier,
                bytes,
            });
        }
    }

    /// Prepares the uploads of some unfinished files.
    fn file_uploads(
        &self,
        sealed: &SealedStep,
        files: &[&SealedFile],
        way: &Way,
        state: &JournalState,
        lost: &BTreeSet<RelativePath>,
        sent: &BTreeMap<String, u64>,
    ) -> Result<Vec<Arc<FileUpload>>> {
        let record = sealed.record();
        let mut uploads = Vec::with_capacity(files.len());
        let mut reused_bytes = 0;
        for &file in files {
            let progress = state.files.get(&file.path);
            let key = self.remote.keys.data(&record.name, record.id, &file.path)?;
            let progress = progress.filter(|_| !lost.contains(&file.path)).cloned();
            let others = match sent.get(&key) {
                _ if !record.is_one_of_several() => Others::None,
                // This node finishes a file that it has begun.
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
        if lost.is_empty() {
            self.tell_of_reused(reused_bytes);
        }
        Ok(uploads)
    }

    /// Builds the manifest from the journal's digests. The first lane to finish stores it in the vault; every other
    /// lane must have sent the same bytes.
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
                Error::new(ErrorKind::Failed, "the upload journal lacks a file")
                    .on(&file.path)
                    .hint("push the step again")
            })?;
            files.push(entry(file, parts)?);
        }
        drop(state);
        let manifest = record.part_manifest(files);
        let step = sealed.clone();
        blocking(move || match step.manifest()? {
            Some(known) if known != manifest => Err(Error::new(
                ErrorKind::SourceChanged,
                "a sealed step changed between two uploads",
            )
            .on(step.data_root().display())
            .because("the digests of the bytes sent to two remotes differ")
            .hint("set local.links = \"copy\": a process rewrites the checkpoint's files in place")),
            Some(known) => Ok(known),
            None => step.save_manifest(&manifest).map(|()| manifest),
        })
        .await
    }
}
