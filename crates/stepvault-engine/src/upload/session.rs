//! One run on one remote, opened for uploads. A step is claimed (`claim`), and then uploaded in four phases:
//!
//! 1. *Plan* (here): the files that are left to send, by the journal and by what other nodes have sent, in rounds.
//! 2. *File parts* (`file`): each is read once and hashed, and copied inside the store (`copy`) or sent.
//! 3. *Proof* (`file`): each object holds what was hashed; and here, the remote lists all of them.
//! 4. *Commit* (`commit`): the part manifest, then the commit once every node's part exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::future::join_all;
use parking_lot::Mutex;
use stepvault_core::file_parts::FileParts;
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::{IGNORED_ATTRIBUTES_HINT, ReadBack};
use stepvault_core::{
    DigestAlgorithm, Error, ErrorKind, Event, NodeName, Observer, Operation, OperationKind, RelativePath,
    RemoteName, Result, StepId,
};
use stepvault_local::journal::{FileProgress, Journal, JournalRecord, JournalState, read_state};
use stepvault_local::seal_record::{SealRecord, SealedFile};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use stepvault_remote::probe::StoreGuarantees;
use stepvault_remote::store::IgnoredAttribute;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::copy::{CommonStore, CopySources};
use super::file::{FileUpload, OtherWriters, SendProgress};
use super::origin::{Origin, SourceStep};
use super::pass::Turns;
use super::read::{SharedDigests, StepDigests};
use crate::blocking::blocking;
use crate::cpu_share::CpuShare;
use crate::memory::MemoryBudget;
use crate::observed::ObservedOperation;
use crate::tier::measured::{guarantees, recall_concurrency, remember_concurrency};
use crate::tier::run_remote::RunRemote;

/// While parts are acknowledged within this time, more of them at once pay off.
const FAST_ACK: Duration = Duration::from_secs(2);

/// Uploads the steps of one run to one remote, whose identity was verified and whose guarantees were measured.
#[derive(Debug, Clone)]
pub struct UploadSession {
    pub(super) remote: RunRemote,
    pub(crate) vault: Vault,
    pub(super) marker: VaultMarker,
    pub(super) guarantees: StoreGuarantees,
    pub(super) budget: MemoryBudget,
    pub(super) digests: SharedDigests,
    pub(super) cpu_share: CpuShare,
    pub(super) observer: Arc<dyn Observer>,
    /// Maximum number of file parts that are sent at once.
    pub(super) parts_at_once: usize,
    /// The store that holds this remote and the one that steps are copied from, if one does.
    common: Option<CommonStore>,
    pub(super) state: Arc<SessionState>,
}

/// What the tasks of a session share.
#[derive(Debug)]
pub(super) struct SessionState {
    /// Limits the parts that are hashed at once: more than the cores would only hold threads.
    pub(super) hashing: Semaphore,
    /// Whether the last part that was acknowledged took little time.
    pub(super) acks_fast: watch::Sender<bool>,
    /// The parts of another remote that are passed on at once.
    pub(super) passing: Arc<Turns>,
    /// Bytes that the store has copied in this session and that were not sent.
    pub(super) copied_bytes: AtomicU64,
    /// Bytes of another remote's steps that were read from the vault.
    pub(super) vault_bytes: AtomicU64,
    /// What may be copied for the step that was last sent ahead, until its upload takes it.
    pub(super) copies_ahead: Mutex<Option<(StepId, Arc<CopySources>)>>,
}

impl SessionState {
    /// Records how long a part took.
    pub(super) fn acknowledged(&self, after: Duration) {
        self.acks_fast.send_replace(after <= FAST_ACK);
    }
}

impl UploadSession {
    /// Checks that the remote holds the same archive as before (or marks it, if this vault has never seen one on it), and
    /// probes which checks the store enforces, unless this vault knows it from the last day. What is uploaded with other
    /// digests than by `algorithm` is read back.
    pub async fn open(
        remote: RunRemote,
        vault: Vault,
        budget: MemoryBudget,
        observer: Arc<dyn Observer>,
        algorithm: DigestAlgorithm,
    ) -> Result<Self> {
        let marker = remote.ensure_marker(&vault).await?;
        Self::open_marked(remote, marker, vault, budget, observer, algorithm).await
    }

    /// Like [`open`](Self::open), after the remote was recognised by its marker.
    pub(crate) async fn open_marked(
        remote: RunRemote,
        marker: VaultMarker,
        vault: Vault,
        budget: MemoryBudget,
        observer: Arc<dyn Observer>,
        algorithm: DigestAlgorithm,
    ) -> Result<Self> {
        let guarantees = guarantees(&remote, &vault, &marker.vault, algorithm).await?;
        let overwrites = match (guarantees.honours_create_only, guarantees.completes_create_only) {
            (true, true) => None,
            (true, false) => Some("an object when it completes an upload in parts"),
            (false, _) => Some("an object"),
        };
        if let Some(what) = overwrites {
            observer.warn(format!(
                    "{}: this store does not refuse to overwrite {what}; two concurrent writers of one step may not \
                     detect each other",
                    remote.store.url()
                ));
        }
        report_ignored(&remote, &guarantees.ignored_attributes, observer.as_ref())?;
        recall_concurrency(&remote, &vault).await;
        let hashing_threads = std::thread::available_parallelism().map_or(2, |cores| cores.get() * 2);
        Ok(Self {
            parts_at_once: remote.settings.max_concurrent_requests,
            common: None,
            remote,
            vault,
            marker,
            guarantees,
            budget,
            digests: SharedDigests::default(),
            cpu_share: CpuShare::unlimited(),
            observer,
            state: Arc::new(SessionState {
                hashing: Semaphore::new(hashing_threads),
                acks_fast: watch::Sender::new(false),
                passing: Arc::default(),
                copied_bytes: AtomicU64::new(0),
                vault_bytes: AtomicU64::new(0),
                copies_ahead: Mutex::default(),
            }),
        })
    }

    /// Checks again that the remote holds the same archive as before, after it was unreachable. The store's checks are
    /// not probed again: that takes some fifteen requests to a store that has just refused too many.
    ///
    /// # Errors
    /// [`Refused`](stepvault_core::ErrorKind::Refused) when it is a different archive,
    /// [`Unreachable`](stepvault_core::ErrorKind::Unreachable) when the vault's marker is missing.
    pub async fn recognise(&self) -> Result<()> {
        self.remote.ensure_marker(&self.vault).await.map(drop)
    }

    /// Shares the digests of parts with the sessions that upload the same steps to other remotes.
    #[must_use]
    pub fn with_digests(self, digests: &SharedDigests) -> Self {
        Self { digests: digests.clone(), ..self }
    }

    /// Begins file parts only within this share of the processors.
    #[must_use]
    pub fn with_cpu_share(self, cpu_share: &CpuShare) -> Self {
        Self { cpu_share: cpu_share.clone(), ..self }
    }

    /// Sends at most this many file parts at once.
    #[must_use]
    pub fn with_parts_at_once(self, parts_at_once: usize) -> Self {
        Self { parts_at_once, ..self }
    }

    /// Lets the store copy the files of steps of another remote, which is in the same store.
    #[must_use]
    pub fn with_common_store(self, common: Option<CommonStore>) -> Self {
        Self { common, ..self }
    }

    /// Returns the bytes that the store has copied from earlier steps since this session began and that were not
    /// sent.
    pub fn copied_bytes(&self) -> u64 {
        self.state.copied_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of another remote's steps that were read from the vault in this session.
    pub fn vault_bytes(&self) -> u64 {
        self.state.vault_bytes.load(Ordering::Relaxed)
    }

    /// Returns the remote.
    pub fn remote(&self) -> &RunRemote {
        &self.remote
    }

    /// Whether the bytes of an object in `parts` parts have to be read back although the store returned a checksum.
    pub(super) fn must_read_back(&self, algorithm: DigestAlgorithm, parts: usize) -> bool {
        let checked = self.guarantees.checks(algorithm, parts);
        // A store may turn out to accept no checksums after it was probed.
        let sends_them = self.remote.store.capabilities().checks_checksums;
        self.remote.settings.read_back == ReadBack::Always || !checked || !sends_them
    }
}

/// Fails, or warns where the settings allow it, if the store ignores attributes that were requested for new objects.
fn report_ignored(remote: &RunRemote, ignored: &[IgnoredAttribute], observer: &dyn Observer) -> Result<()> {
    if ignored.is_empty() {
        return Ok(());
    }
    let why: Vec<String> = ignored.iter().map(ToString::to_string).collect();
    let why = why.join("; ");
    if remote.settings.attributes_required {
        return Err(Error::new(ErrorKind::Usage, "cannot use the remote")
            .on(remote.store.url())
            .because(why)
            .hint(IGNORED_ATTRIBUTES_HINT));
    }
    observer.warn(format!("{}: {why}", remote.store.url()));
    Ok(())
}

/// The outcome of an upload of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uploaded {
    /// It became durable.
    Durable,
    /// It was already durable.
    AlreadyDurable,
    /// This node's part is uploaded, but the step becomes durable only when the parts of these nodes exist too.
    Incomplete {
        /// The nodes, sorted by name.
        missing: Vec<NodeName>,
    },
}

impl Uploaded {
    /// Whether the step is durable.
    pub fn is_durable(&self) -> bool {
        !matches!(self, Self::Incomplete { .. })
    }
}

/// The outcome of one step on one remote.
#[derive(Debug)]
pub struct RemoteOutcome {
    /// The remote.
    pub remote: RemoteName,
    /// Whether the remote is configured as required.
    pub required: bool,
    /// The result of the upload.
    pub result: Result<Uploaded>,
    /// Bytes that the store copied from an earlier step and that were not sent.
    pub copied_bytes: u64,
}

impl RemoteOutcome {
    pub(crate) fn new(remote: &RunRemote, result: Result<Uploaded>, copied_bytes: u64) -> Self {
        Self { remote: remote.name().clone(), required: remote.settings.required, result, copied_bytes }
    }
}

/// Uploads a sealed step to all remotes concurrently. A slow or failing remote does not delay the others.
pub(crate) async fn upload_everywhere(
    vault: &Vault,
    remotes: &[RunRemote],
    step: &SealedStep,
    budget: &MemoryBudget,
    patience: Duration,
    observer: &Arc<dyn Observer>,
) -> Vec<RemoteOutcome> {
    let digests = &SharedDigests::default();
    join_all(remotes.iter().map(|remote| async move {
        let observer = Arc::clone(observer);
        let session = UploadSession::open(
            remote.clone(),
            vault.clone(),
            budget.clone(),
            observer,
            step.record().digest,
        )
        .await;
        let (result, copied_bytes) = match session {
            Ok(session) => {
                let session = session.with_digests(digests);
                let result = upload_and_wait(&session, step, patience).await;
                (result, session.copied_bytes())
            }
            Err(error) => (Err(error), 0),
        };
        RemoteOutcome::new(remote, result, copied_bytes)
    }))
    .await
}

/// Interval between checks for other nodes' parts.
pub(crate) const PARTS_POLL_INTERVAL: Duration = Duration::from_secs(2);

async fn upload_and_wait(session: &UploadSession, step: &SealedStep, patience: Duration) -> Result<Uploaded> {
    let mut uploaded = session.upload(step).await?;
    let deadline = Instant::now() + patience;
    while !uploaded.is_durable() && Instant::now() < deadline {
        tokio::time::sleep_until(deadline.min(Instant::now() + PARTS_POLL_INTERVAL)).await;
        uploaded = session.commit_if_complete(step).await?;
    }
    Ok(uploaded)
}

// One step: begun, sent in rounds, proved and committed.

/// Maximum number of files that are uploaded at once. Each takes some kilobytes of state, and a step may have very many
/// files.
const BATCH_FILES: usize = 4_096;

/// Maximum number of rounds, the first included: a file whose upload the store has lost is sent again in the next.
const MAX_ROUNDS: usize = 3;

impl UploadSession {
    /// Uploads this node's part of a sealed step to this remote: bytes, part manifest, and the commit if no other
    /// node's part is missing. Resumes an interrupted call.
    ///
    /// # Invariants
    /// After `Durable` the step is durable (S1): its commit was read back, every file it lists was proved by the node
    /// that owns the part (S2), and it was not tombstoned meanwhile (S9).
    pub async fn upload(&self, sealed: &SealedStep) -> Result<Uploaded> {
        let (record, id) = (sealed.record(), sealed.id());
        if record.is_provisional() {
            return Err(Error::new(ErrorKind::Failed, format!("cannot upload {id}"))
                .on(sealed.directory().display())
                .because("its attempt is provisional")
                .hint("wait until a remote is reachable: the agent or the next push then determines it"));
        }
        self.upload_from(&Origin::Sealed(sealed.clone())).await
    }

    /// Copies all parts of a step of another remote to this one, with the records that it has there. Resumes an
    /// interrupted call with this vault, which has to hold [`Vault::lock_copies`].
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the step is removed from the other remote meanwhile; otherwise as for
    /// [`upload`](Self::upload).
    ///
    /// # Invariants
    /// As there. Every byte was compared with its manifest, here or by the store's checksum.
    pub async fn copy(&self, step: Arc<SourceStep>) -> Result<Uploaded> {
        self.upload_from(&Origin::Remote(step)).await
    }

    async fn upload_from(&self, origin: &Origin) -> Result<Uploaded> {
        let (record, id) = (origin.record(), origin.id());
        let begun = Instant::now();
        let (is_begun, copies) =
            tokio::try_join!(self.claim_unless_durable(origin), self.copies_for(origin))?;
        if !is_begun {
            return Ok(Uploaded::AlreadyDurable);
        }
        let copied_before = copies.copied_bytes();
        let location = self.remote.step_location(&record.name, id);
        let transfer = ObservedOperation::start(
            self.observer.as_ref(),
            Operation {
                kind: OperationKind::Upload,
                run: self.remote.keys.run(),
                tier: &self.remote.tier,
                id,
                location: &location,
                files: record.own_files().len() as u64,
                bytes: Some(record.own_bytes()),
            },
        );
        let sent = self.send_and_commit(origin, &copies, begun).await;
        match &sent {
            Ok(_) => transfer.finished(copies.copied_bytes().saturating_sub(copied_before)),
            Err(error) => transfer.failed(error),
        }
        remember_concurrency(&self.remote, &self.vault).await;
        sent
    }

    async fn send_and_commit(
        &self,
        origin: &Origin,
        copies: &Arc<CopySources>,
        unremoved_at: Instant,
    ) -> Result<Uploaded> {
        self.send_in_rounds(origin, copies).await?;
        let (run, tier, id) = (self.remote.keys.run(), &self.remote.tier, origin.id());
        self.observer.on_event(&Event::Sent { run, tier, id });
        let sealed = match origin {
            Origin::Sealed(sealed) => sealed,
            Origin::Remote(step) => return self.commit_copy(origin, step).await,
        };
        // A written record is held twice and read back; if it is large, one remote does this at a time.
        let manifest_bytes = usize::try_from(sealed.record().manifest_bytes()?).unwrap_or(usize::MAX);
        let _room = self.budget.reserve(manifest_bytes.saturating_mul(4)).await?;
        let manifest = self.finish_manifest(sealed).await?;
        let part = self.write_part(sealed, manifest).await?;
        self.commit_own(sealed, part, unremoved_at).await
    }

    /// Sends what is left of this node part, until every file of it is proved and listed. Files that the store has lost
    /// are sent again in the next round. A step of several nodes that is not resumed is listed before its commit only.
    async fn send_in_rounds(&self, origin: &Origin, copies: &Arc<CopySources>) -> Result<()> {
        let record = origin.record();
        let mut lost = BTreeSet::new();
        let mut is_resumed = false;
        for round in 1..=MAX_ROUNDS {
            let plan = self.plan(origin, copies, &lost, round == 1).await?;
            // An earlier call has sent some of the step.
            is_resumed |= round == 1 && !plan.state.files.is_empty();
            let mut newly_lost = Vec::new();
            let mut sent = Ok(());
            for batch in plan.files.chunks(BATCH_FILES) {
                let uploads = plan.uploads(batch)?;
                sent = self.send_batch(&uploads).await;
                let was_lost = uploads.iter().filter(|upload| upload.was_lost());
                newly_lost.extend(was_lost.map(|upload| upload.path().clone()));
                if sent.is_err() {
                    break;
                }
            }
            let journal = plan.journal;
            match sent {
                // The commit of a multi-node step lists the files of all node parts.
                Ok(()) if !is_resumed && origin.is_one_of_several() => return Ok(()),
                Ok(()) => {
                    let vanished = self.vanished_files(record).await?;
                    if vanished.is_empty() {
                        return Ok(());
                    }
                    self.forget_vanished(record, &journal, &vanished, round)?;
                    lost.extend(vanished);
                }
                Err(error) if newly_lost.is_empty() || round == MAX_ROUNDS => return Err(error),
                Err(_) => lost.extend(newly_lost),
            }
        }
        Ok(())
    }

    async fn copies_for(&self, origin: &Origin) -> Result<Arc<CopySources>> {
        if let (Origin::Remote(step), Some(common)) = (origin, &self.common) {
            return Ok(Arc::new(CopySources::of_step(&self.remote, common, step)?));
        }
        let record = origin.record();
        let ahead = self.state.copies_ahead.lock().take();
        if let Some((_, copies)) = ahead.filter(|(id, _)| *id == record.id) {
            return Ok(copies);
        }
        let sizes = record.own_files().into_iter().map(|file| file.size_bytes).collect();
        Ok(Arc::new(CopySources::find(&self.remote, &self.vault, record.id, &record.node, sizes).await))
    }

    /// Plans a round: the journal says what an earlier call or round has finished, and `lost` which of that is gone. In
    /// the first round, reports the finished files to the observer.
    async fn plan<'a>(
        &'a self,
        origin: &'a Origin,
        copies: &Arc<CopySources>,
        lost: &'a BTreeSet<RelativePath>,
        is_first_round: bool,
    ) -> Result<UploadPlan<'a>> {
        let record = origin.record();
        let (journal, state) = self.open_journal(origin).await?;
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
            if origin.may_be_present() { self.present_sizes(record).await? } else { BTreeMap::new() };
        let digests = self.digests.of_step(&record.run, record.id, record.digest);
        Ok(UploadPlan {
            session: self,
            origin,
            journal,
            state,
            copies: Arc::clone(copies),
            digests: Some(digests).filter(|_| matches!(origin, Origin::Sealed(_))),
            present,
            files,
            lost,
        })
    }

    pub(super) async fn open_journal(&self, origin: &Origin) -> Result<(Arc<Journal>, JournalState)> {
        let (vault, run, id, remote) =
            (self.vault.clone(), origin.record().run.clone(), origin.id(), self.remote.name().clone());
        let commit = match origin {
            Origin::Sealed(_) => None,
            Origin::Remote(step) => Some(step.commit_sha256()?),
        };
        let opened = blocking(move || match commit {
            None => Journal::open(&vault, &run, id, &remote),
            Some(commit) => Journal::open_copy(&vault, &run, id, &remote, commit),
        });
        let (journal, state) = opened.await?;
        Ok((Arc::new(journal), state))
    }

    /// Returns the objects below the step's data prefix, with their sizes.
    async fn present_sizes(&self, record: &SealRecord) -> Result<BTreeMap<String, u64>> {
        let prefix = self.remote.keys.data_prefix(&record.name, record.id);
        self.remote.list_sizes(&prefix).await
    }

    /// Returns this node's sent files that the remote does not list with their size: one LIST.
    ///
    /// # Invariants
    /// A lifecycle rule or a clean-up job may have deleted files that an earlier call proved: no commit names a file
    /// before it was listed again (S2).
    async fn vanished_files(&self, record: &SealRecord) -> Result<Vec<RelativePath>> {
        let prefix = self.remote.keys.data_prefix(&record.name, record.id);
        let own = record.own_files().into_iter();
        let mut vanished: BTreeMap<&str, &SealedFile> = own.map(|file| (file.path.as_str(), file)).collect();
        let mut listed = self.remote.store.list(&prefix);
        while let Some(object) = listed.try_next().await? {
            if let Some(path) = object.key.strip_prefix(&prefix)
                && vanished.get(path).is_some_and(|file| file.size_bytes == object.size_bytes)
            {
                vanished.remove(path);
            }
        }
        Ok(vanished.into_values().map(|file| file.path.clone()).collect())
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
        let (count, place) = (vanished.len(), self.remote.step_location(&record.name, record.id));
        if round == MAX_ROUNDS {
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
        self.observer.warn(&message);
        for path in vanished {
            journal.append(&JournalRecord::FileForgotten { path: path.clone() })?;
        }
        Ok(())
    }

    fn report_reused(&self, bytes: u64) {
        if bytes > 0 {
            self.observer.on_event(&Event::BytesReused { tier: &self.remote.tier, bytes });
        }
    }
}

/// What one round of an upload sends.
#[derive(Debug)]
struct UploadPlan<'a> {
    session: &'a UploadSession,
    origin: &'a Origin,
    journal: Arc<Journal>,
    state: JournalState,
    copies: Arc<CopySources>,
    /// The digests that all remotes of a sealed step share.
    digests: Option<StepDigests>,
    /// The step's objects that already exist, with their sizes, if other uploads may have sent them.
    present: BTreeMap<String, u64>,
    /// The unfinished files, the largest first, so that no long one is left for the end.
    files: Vec<&'a SealedFile>,
    /// Files to send from their first byte, because the store has lost what was sent of them.
    lost: &'a BTreeSet<RelativePath>,
}

impl UploadPlan<'_> {
    /// Prepares the uploads of one batch.
    fn uploads(&self, files: &[&SealedFile]) -> Result<Vec<Arc<FileUpload>>> {
        let record = self.origin.record();
        let mut uploads = Vec::with_capacity(files.len());
        let mut reused_bytes = 0;
        for &file in files {
            let key = self.session.remote.keys.data(&record.name, record.id, &file.path)?;
            let progress = self.state.files.get(&file.path);
            let progress = progress.filter(|_| !self.lost.contains(&file.path)).cloned();
            let others = match self.present.get(&key) {
                _ if !self.origin.may_be_present() => OtherWriters::None,
                // This node finishes a file that it has begun.
                Some(size) if *size == file.size_bytes && progress.is_none() => OtherWriters::Sent,
                _ => OtherWriters::Possible,
            };
            let layout = FileParts::of(file.size_bytes)?;
            let source = self.origin.source_of(&file.path)?;
            let upload = FileUpload {
                session: self.session.clone(),
                journal: Some(Arc::clone(&self.journal)),
                copies: Arc::clone(&self.copies),
                file: file.clone(),
                key,
                layout,
                algorithm: source.algorithm().unwrap_or(record.digest),
                source,
                // The store may have lost it because its bytes are no longer those of the shared digests.
                digests: self.digests.clone().filter(|_| !self.lost.contains(&file.path)),
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
