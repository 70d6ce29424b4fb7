//! One run on one remote, opened for uploads. A step is uploaded in four phases:
//!
//! 1. *Plan* (`plan`): the files that are left to send, by the journal and by what other nodes have sent, in rounds.
//! 2. *File parts* (`parts`): each is read once and hashed (`read`), and copied inside the store (`copy`) or sent.
//! 3. *Proof* (`parts`): each object holds what was hashed, and (`plan`) the remote lists all of them.
//! 4. *Commit* (`commit`): the part manifest, then the commit once every node's part exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::NodeName;
use stepvault_core::observe::{Observer, Operation, OperationKind};
use stepvault_core::records::VaultMarker;
use stepvault_core::remote_settings::IGNORED_ATTRIBUTES_HINT;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use stepvault_remote::probe::StoreGuarantees;
use stepvault_remote::store::IgnoredAttribute;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::commit::Begun;
use super::digests::SharedDigests;
use crate::cpu_share::CpuShare;
use crate::memory::MemoryBudget;
use crate::observed::ObservedOperation;
use crate::tier::measured::{guarantees, recall_concurrency, remember_concurrency};
use crate::tier::run_remote::RunRemote;

/// Uploads the steps of one run to one remote, whose identity was verified and whose guarantees were measured.
#[derive(Debug, Clone)]
pub struct UploadSession {
    pub(super) remote: RunRemote,
    pub(super) vault: Vault,
    pub(super) marker: VaultMarker,
    pub(super) guarantees: StoreGuarantees,
    pub(super) budget: MemoryBudget,
    pub(super) digests: SharedDigests,
    pub(super) cpu_share: CpuShare,
    /// Limits the parts that are hashed at once: more than the cores would only hold threads.
    pub(super) hashing: Arc<Semaphore>,
    /// Whether the last part that was acknowledged took little time.
    pub(super) acks_fast: watch::Sender<bool>,
    pub(super) observer: Arc<dyn Observer>,
    /// Bytes that the store has copied in this session and that were not sent.
    pub(super) copied_bytes: Arc<AtomicU64>,
    /// Maximum number of file parts that are sent at once.
    pub(super) parts_at_once: usize,
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
        Ok(Self {
            parts_at_once: remote.settings.max_concurrent_requests,
            remote,
            vault,
            marker,
            guarantees,
            budget,
            digests: SharedDigests::default(),
            cpu_share: CpuShare::unlimited(),
            acks_fast: watch::Sender::new(false),
            hashing: Arc::new(Semaphore::new(hashing_threads())),
            observer,
            copied_bytes: Arc::default(),
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

    /// Returns the bytes that the store has copied from earlier steps since this session began and that were not
    /// sent.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes.load(Ordering::Relaxed)
    }

    /// Returns the remote.
    pub fn remote(&self) -> &RunRemote {
        &self.remote
    }

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
        let begun = Instant::now();
        if self.begin(sealed).await? == Begun::AlreadyDurable {
            return Ok(Uploaded::AlreadyDurable);
        }
        let copied_before = self.copied_bytes();
        let location = self.remote.step_location(&record.name, id);
        let transfer = ObservedOperation::start(
            self.observer.as_ref(),
            Operation {
                kind: OperationKind::Upload,
                tier: &self.remote.tier,
                id,
                location: &location,
                files: record.own_files().len() as u64,
                bytes: Some(record.own_bytes()),
            },
        );
        let sent = self.send(sealed, begun).await;
        match &sent {
            Ok(_) => transfer.finished(self.copied_bytes().saturating_sub(copied_before)),
            Err(error) => transfer.failed(error),
        }
        remember_concurrency(&self.remote, &self.vault).await;
        sent
    }

    async fn send(&self, sealed: &SealedStep, unremoved_at: Instant) -> Result<Uploaded> {
        self.send_files(sealed).await?;
        // A written record is held twice and read back; if it is large, one remote does this at a time.
        let manifest_bytes = usize::try_from(sealed.record().manifest_bytes()?).unwrap_or(usize::MAX);
        let _room = self.budget.reserve(manifest_bytes.saturating_mul(4)).await?;
        let manifest = self.finish_manifest(sealed).await?;
        let part = self.write_part(sealed, &manifest).await?;
        drop(manifest);
        self.commit_own(sealed, part, unremoved_at).await
    }
}

fn hashing_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get() * 2)
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
