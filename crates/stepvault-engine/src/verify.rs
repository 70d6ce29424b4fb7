//! Verifies that a tier holds what was saved.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::{Error, ErrorKind, Event, Observer, Result, Sha256Digest, StepId};
use stepvault_local::sealed::SealedStep;
use stepvault_remote::store::StoredChecksum;

use crate::blocking::blocking;
use crate::local_digest::{check_local, ensure_manifest};
use crate::outage::{is_outage, outage};
use crate::tier::catalog::{manifests_at_once, read_commit, read_manifests_of};
use crate::tier::removed::ensure_not_removed;
use crate::tier::run_remote::RunRemote;

/// How thoroughly a step is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Records are read, and every file must be listed with its size.
    Listed,
    /// The store's own checksum of every file is compared as well, if it keeps one.
    Checksums,
    /// Every byte is read back and hashed.
    Deep,
    /// Like [`Depth::Checksums`], and one file in `one_in` is read back; the selection rotates with the turn.
    Sample {
        /// Reads back one file in this many.
        one_in: u32,
        /// The number of the turn: different turns read different files, and `one_in` consecutive turns read all.
        turn: u32,
    },
}

impl Depth {
    fn reads_back(self, id: StepId, file: &FileEntry) -> bool {
        match self {
            Self::Listed | Self::Checksums => false,
            Self::Deep => true,
            Self::Sample { one_in, turn } => {
                let digest = Sha256Digest::of(format!("{}\n{}", id.label(), file.path).as_bytes());
                let [a, b, c, d, ..] = *digest.as_bytes();
                let first = u32::from_be_bytes([a, b, c, d]);
                let one_in = one_in.max(1);
                first % one_in == turn % one_in
            }
        }
    }
}

/// The result of verifying one step on one tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default, JsonSchema)]
pub struct StepHealth {
    /// The faults; empty when there are none.
    pub faults: Vec<String>,
    /// Files proved by their bytes or by the store's checksum.
    pub proved_files: u64,
    /// Files of which only existence and size are known: the store keeps no checksum and they were not read back.
    pub unproved_files: u64,
    /// Bytes read back.
    pub read_bytes: u64,
}

impl StepHealth {
    /// Whether no fault was found.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    fn proved_file(read_bytes: u64) -> Self {
        Self { proved_files: 1, read_bytes, ..Self::default() }
    }

    fn fault(text: String) -> Self {
        Self { faults: vec![text], ..Self::default() }
    }

    /// Returns the error of a check as a fault of what was checked.
    ///
    /// # Errors
    /// The given error, if it says nothing about the content of the tier.
    fn of_error(error: Error) -> Result<Self> {
        if is_outage(&error) {
            return Err(error);
        }
        Ok(Self::fault(error.to_string()))
    }

    fn add(mut self, other: Self) -> Self {
        self.faults.extend(other.faults);
        self.proved_files += other.proved_files;
        self.unproved_files += other.unproved_files;
        self.read_bytes += other.read_bytes;
        self
    }
}

/// Verifies one step on a remote.
///
/// # Errors
/// Only when the remote is unreachable; faults of the step are part of the result.
pub async fn check_remote(
    remote: &RunRemote,
    id: StepId,
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    check_commit(remote, read_commit(remote, id).await, depth, observer).await
}

async fn check_commit(
    remote: &RunRemote,
    commit: Result<Commit>,
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    match commit {
        Ok(commit) => CommittedParts::all(remote, &commit, observer).check(depth).await,
        Err(error) => StepHealth::of_error(error),
    }
}

/// Maximum number of steps that are checked concurrently.
const STEPS_AT_ONCE: usize = 16;

/// Verifies steps on a remote, a few at once, and calls `add` with the result of each in their order.
///
/// # Errors
/// When the remote is unreachable, after the results of the steps before.
pub async fn check_steps(
    remote: &RunRemote,
    ids: &[StepId],
    depth: Depth,
    observer: &Arc<dyn Observer>,
    mut add: impl FnMut(StepId, StepHealth),
) -> Result<()> {
    for group in ids.chunks(STEPS_AT_ONCE) {
        let read = stream::iter(group).map(|id| read_commit(remote, *id)).buffered(STEPS_AT_ONCE);
        let commits: Vec<Result<Commit>> = read.collect().await;
        let at_once = steps_at_once(commits.iter().filter_map(|commit| commit.as_ref().ok()));
        let checked = stream::iter(group.iter().zip(commits)).map(|(id, commit)| async move {
            check_commit(remote, commit, depth, observer).await.map(|health| (*id, health))
        });
        let mut checked = pin!(checked.buffered(at_once));
        while let Some((id, health)) = checked.try_next().await? {
            add(id, health);
        }
    }
    Ok(())
}

/// Returns how many of these steps are checked concurrently: the manifests that are in memory at once are bounded.
pub(crate) fn steps_at_once<'a>(commits: impl Iterator<Item = &'a Commit>) -> usize {
    let manifests_bytes = commits.map(|commit| commit.parts.iter().map(|part| part.manifest_bytes).sum());
    manifests_at_once(manifests_bytes.max().unwrap_or(0)).min(STEPS_AT_ONCE)
}

/// All parts of a committed step, or one node's, to be compared with what the remote holds. The commit has been read.
pub(crate) struct CommittedParts<'a> {
    remote: &'a RunRemote,
    commit: &'a Commit,
    parts: &'a [CommittedPart],
    observer: &'a Arc<dyn Observer>,
}

impl<'a> CommittedParts<'a> {
    pub(crate) fn all(remote: &'a RunRemote, commit: &'a Commit, observer: &'a Arc<dyn Observer>) -> Self {
        Self { remote, commit, parts: &commit.parts, observer }
    }

    /// Narrows the check to one node's part.
    pub(crate) fn only(self, part: &'a CommittedPart) -> Self {
        let parts = std::slice::from_ref(part);
        Self { parts, ..self }
    }

    /// Verifies the parts: one LIST, and for [`Depth::Checksums`] a HEAD for each file.
    ///
    /// # Errors
    /// As [`check_remote`].
    pub(crate) async fn check(&self, depth: Depth) -> Result<StepHealth> {
        let (remote, commit) = (self.remote, self.commit);
        let manifests = match read_manifests_of(remote, commit, self.parts).await {
            Ok(manifests) => manifests,
            Err(error) => return StepHealth::of_error(error),
        };
        if let Some(why) = contradicts(commit, &manifests) {
            return Ok(StepHealth::fault(why));
        }
        let prefixes: BTreeSet<String> = manifests.iter().map(PartManifest::listed_prefix).collect();
        let mut listed = BTreeMap::new();
        for prefix in prefixes {
            listed.extend(remote.list_sizes(&prefix).await?);
        }
        let files = manifests.iter().flat_map(|manifest| {
            let keys = manifest.file_keys();
            manifest.files.iter().map(move |file| (file, keys.key(&file.path), manifest.imported.is_some()))
        });
        let mut health = stream::iter(files)
            .map(|(file, key, is_imported)| self.check_file(file, key, is_imported, &listed, depth))
            .buffer_unordered(remote.settings.max_concurrent_requests.max(1))
            .try_fold(StepHealth::default(), |health, file| async { Ok(health.add(file)) })
            .await?;
        health.faults.sort();
        Ok(health)
    }

    /// Proves the parts: by the store's own checksums, and by reading files back where the store keeps none.
    ///
    /// # Errors
    /// As [`check_remote`].
    pub(crate) async fn prove(&self) -> Result<StepHealth> {
        let health = self.check(Depth::Checksums).await?;
        if health.is_sound() && health.unproved_files > 0 {
            return self.check(Depth::Deep).await;
        }
        Ok(health)
    }

    /// Proves the parts for a caller that is about to call the step, or this node's part of it, durable.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when the remote no longer holds what was committed; [`ErrorKind::Refused`] when the step is
    /// being removed from it.
    ///
    /// # Invariants
    /// Every step called durable was proved (S1, S2), however long ago it was committed, and was not tombstoned (S9).
    pub(crate) async fn ensure_durable(&self) -> Result<()> {
        let (remote, id) = (self.remote, self.commit.id);
        let health = self.prove().await?;
        if health.is_sound() {
            // Everything that the commit names was durable before it was written; whether the commit itself is, is
            // unknown.
            remote.store.sync(&[remote.keys.commit(id)]).await?;
            return ensure_not_removed(remote, id).await;
        }
        Err(Error::new(ErrorKind::Damaged, format!("{id} is damaged on this remote"))
            .on(remote.describe(&remote.keys.commit(id)))
            .because(health.faults.join("; "))
            .hint("push it again as a new attempt, with --attempt"))
    }

    async fn check_file(
        &self,
        file: &FileEntry,
        key: Result<String>,
        is_imported: bool,
        listed: &BTreeMap<String, u64>,
        depth: Depth,
    ) -> Result<StepHealth> {
        let (remote, path, key) = (self.remote, &file.path, key?);
        let unproved = StepHealth { unproved_files: 1, ..StepHealth::default() };
        let missing = || StepHealth::fault(format!("{path} is missing"));
        let Some(size_bytes) = listed.get(&key) else {
            return Ok(missing());
        };
        if *size_bytes != file.size_bytes {
            return Ok(StepHealth::fault(format!(
                "{path} has {size_bytes} bytes instead of {}",
                file.size_bytes
            )));
        }
        if depth.reads_back(self.commit.id, file) {
            return self.read_back(&key, file).await;
        }
        if depth == Depth::Listed {
            return Ok(unproved);
        }
        let Some(head) = remote.store.head(&key).await? else {
            return Ok(missing());
        };
        let proof = head.checksum.proves_entry(file);
        // Other programs divide a file into other parts.
        let is_of_parts = is_imported && matches!(head.checksum, StoredChecksum::CompositeSha256 { .. });
        Ok(match proof.filter(|is_same| *is_same || !is_of_parts) {
            Some(true) => StepHealth::proved_file(0),
            Some(false) => {
                StepHealth::fault(format!("{path}: the store's checksum differs from the recorded one"))
            }
            None => unproved,
        })
    }

    async fn read_back(&self, key: &str, file: &FileEntry) -> Result<StepHealth> {
        let found = match self.remote.digest_object(key, file.size_bytes, file.algorithm()).await {
            Ok(found) => found,
            Err(error) => return StepHealth::of_error(error),
        };
        self.observer.on_event(&Event::BytesMoved { tier: &self.remote.tier, bytes: file.size_bytes });
        Ok(match (file.first_difference(&found), file.trusted_checksum()) {
            (None, _) => StepHealth::proved_file(file.size_bytes),
            (Some(byte), None) => StepHealth::fault(format!(
                "{} has different bytes than were saved, from byte {byte}",
                file.path
            )),
            (Some(_), Some(checksum)) => StepHealth::fault(format!(
                "{} has other bytes than those of the store's {checksum} when it was imported",
                file.path
            )),
        })
    }
}

/// Returns why a commit does not follow from these manifests, if they are all of its parts'. No digest covers the
/// commit's times and metrics, on which retention depends.
fn contradicts(commit: &Commit, manifests: &[PartManifest]) -> Option<String> {
    if manifests.len() != commit.parts.len() {
        return None;
    }
    let parts = manifests
        .iter()
        .zip(&commit.parts)
        .map(|(manifest, part)| FoundPart::of(manifest, part.manifest_sha256, part.manifest_bytes));
    match Commit::of(parts.collect()) {
        Ok(due) if due == *commit => None,
        Ok(_) => Some("the commit does not match its part manifests".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Verifies one sealed step: always by sizes and times, and by bytes depending on the depth.
///
/// # Errors
/// Only when the vault cannot be read; faults of the step are part of the result.
pub async fn check_sealed(
    step: &SealedStep,
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let (step, observer) = (step.clone(), Arc::clone(observer));
    blocking(move || {
        let mut health = StepHealth::default();
        for file in &step.record().files {
            match stepvault_local::source::SourceFile::open(&step.file_path(&file.path), file) {
                Ok(_) => health.unproved_files += 1,
                Err(error) if is_outage(&error) => return Err(outage(error)),
                Err(error) => health.faults.push(error.to_string()),
            }
        }
        if !health.is_sound() || matches!(depth, Depth::Listed | Depth::Checksums) {
            return Ok(health);
        }
        let manifest: PartManifest = match ensure_manifest(&step, observer.as_ref()) {
            Ok(manifest) => manifest,
            Err(error) if is_outage(&error) => return Err(outage(error)),
            Err(error) => return Ok(StepHealth::fault(error.to_string())),
        };
        let id = step.id();
        let wanted = |file: &FileEntry| depth.reads_back(id, file);
        health.faults = check_local(&step, &manifest, &wanted, observer.as_ref())?;
        let read: Vec<&FileEntry> = manifest.files.iter().filter(|file| wanted(file)).collect();
        health.proved_files = read.len() as u64;
        health.unproved_files = health.unproved_files.saturating_sub(health.proved_files);
        health.read_bytes = read.iter().map(|file| file.size_bytes).sum();
        Ok(health)
    })
    .await
}
