//! Verifies that a tier holds what was saved.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::commit::{Commit, CommittedPart, FoundPart};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::StepId;
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::observe::{Event, Observer};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;

use crate::blocking::blocking;
use crate::local_digest::{check_local, ensure_manifest};
use crate::outage::{is_outage, outage};
use crate::tier::catalog::{read_commit, read_manifests_of};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::ensure_not_removed;

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
                let first = u32::from_be_bytes([
                    digest.as_bytes()[0],
                    digest.as_bytes()[1],
                    digest.as_bytes()[2],
                    digest.as_bytes()[3],
                ]);
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

    fn unproved_file() -> Self {
        Self {
            unproved_files: 1,
            ..Self::default()
        }
    }

    fn proved_file(read_bytes: u64) -> Self {
        Self {
            proved_files: 1,
            read_bytes,
            ..Self::default()
        }
    }

    fn fault(text: String) -> Self {
        Self {
            faults: vec![text],
            ..Self::default()
        }
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
    let commit = match read_commit(remote, id).await {
        Ok(commit) => commit,
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => return Ok(StepHealth::fault(error.to_string())),
    };
    check_committed(remote, &commit, depth, observer).await
}

/// Verifies one step whose commit has been read.
pub async fn check_committed(
    remote: &RunRemote,
    commit: &Commit,
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    check_parts(remote, commit, &commit.parts, depth, observer).await
}

/// Verifies one node's part of a step by the store's listing and its checksums: one LIST and a HEAD for each file; no
/// data is read back.
pub(crate) async fn check_part(
    remote: &RunRemote,
    commit: &Commit,
    part: &CommittedPart,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let parts = std::slice::from_ref(part);
    check_parts(remote, commit, parts, Depth::Checksums, observer).await
}

async fn check_parts(
    remote: &RunRemote,
    commit: &Commit,
    parts: &[CommittedPart],
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let manifests = match read_manifests_of(remote, commit, parts).await {
        Ok(manifests) => manifests,
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => return Ok(StepHealth::fault(error.to_string())),
    };
    if let Some(why) = contradicts(commit, &manifests) {
        return Ok(StepHealth::fault(why));
    }
    let prefix = remote.keys.data_prefix(&commit.name, commit.id);
    let listed = remote.list_sizes(&prefix).await?;
    let files = manifests.iter().flat_map(|manifest| &manifest.files);
    let mut health = stream::iter(files)
        .map(|file| check_file(remote, commit, file, &listed, depth, observer))
        .buffer_unordered(remote.settings.max_concurrent_requests.max(1))
        .try_fold(StepHealth::default(), |mut health, check| async move {
            health.faults.extend(check.faults);
            health.proved_files += check.proved_files;
            health.unproved_files += check.unproved_files;
            health.read_bytes += check.read_bytes;
            Ok(health)
        })
        .await?;
    health.faults.sort();
    Ok(health)
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

/// Proves one step whose commit has been read: by the store's own checksums, and by reading files back where the store
/// keeps none.
pub async fn prove_committed(
    remote: &RunRemote,
    commit: &Commit,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    prove_parts(remote, commit, &commit.parts, observer).await
}

async fn prove_parts(
    remote: &RunRemote,
    commit: &Commit,
    parts: &[CommittedPart],
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let health = check_parts(remote, commit, parts, Depth::Checksums, observer).await?;
    if health.is_sound() && health.unproved_files > 0 {
        return check_parts(remote, commit, parts, Depth::Deep, observer).await;
    }
    Ok(health)
}

/// Like [`prove_committed`], for callers that are about to call the step durable.
///
/// # Errors
/// [`ErrorKind::Damaged`] when the remote no longer holds what was committed; [`ErrorKind::Refused`] when the step is
/// being removed from it.
///
/// # Invariants
/// Every step called durable was proved (S1, S2), however long ago it was committed, and was not tombstoned (S9).
pub(crate) async fn ensure_durable(
    remote: &RunRemote,
    commit: &Commit,
    observer: &Arc<dyn Observer>,
) -> Result<()> {
    let health = prove_committed(remote, commit, observer).await?;
    durable_or_damaged(remote, commit, &health).await
}

/// Like [`ensure_durable`], for one node's part of a step.
pub(crate) async fn ensure_part_durable(
    remote: &RunRemote,
    commit: &Commit,
    part: &CommittedPart,
    observer: &Arc<dyn Observer>,
) -> Result<()> {
    let health = prove_parts(remote, commit, std::slice::from_ref(part), observer).await?;
    durable_or_damaged(remote, commit, &health).await
}

async fn durable_or_damaged(remote: &RunRemote, commit: &Commit, health: &StepHealth) -> Result<()> {
    if health.is_sound() {
        // Everything that the commit names was durable before it was written; whether the commit itself is, is unknown.
        remote.store.sync(&[remote.keys.commit(commit.id)]).await?;
        return ensure_not_removed(remote, commit.id).await;
    }
    Err(Error::new(
        ErrorKind::Damaged,
        format!("{} is damaged on this remote", commit.id),
    )
    .on(remote.describe(&remote.keys.commit(commit.id)))
    .because(health.faults.join("; "))
    .hint("push it again as a new attempt, with --attempt"))
}

async fn check_file(
    remote: &RunRemote,
    commit: &Commit,
    file: &FileEntry,
    listed: &BTreeMap<String, u64>,
    depth: Depth,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let key = remote.keys.data(&commit.name, commit.id, &file.path)?;
    match listed.get(&key) {
        None => return Ok(StepHealth::fault(format!("{} is missing", file.path))),
        Some(size) if *size != file.size_bytes => {
            return Ok(StepHealth::fault(format!(
                "{} has {size} bytes instead of {}",
                file.path, file.size_bytes
            )));
        }
        Some(_) => {}
    }
    if depth.reads_back(commit.id, file) {
        return read_back(remote, &key, file, observer).await;
    }
    if depth == Depth::Listed {
        return Ok(StepHealth::unproved_file());
    }
    let Some(head) = remote.store.head(&key).await? else {
        return Ok(StepHealth::fault(format!("{} is missing", file.path)));
    };
    Ok(match head.checksum.proves(&file.digest(), &file.parts_content) {
        Some(true) => StepHealth::proved_file(0),
        Some(false) => StepHealth::fault(format!(
            "{}: the store's checksum differs from the recorded one",
            file.path
        )),
        None => StepHealth::unproved_file(),
    })
}

async fn read_back(
    remote: &RunRemote,
    key: &str,
    file: &FileEntry,
    observer: &Arc<dyn Observer>,
) -> Result<StepHealth> {
    let found = match remote
        .digest_object(key, file.size_bytes, file.content.algorithm())
        .await
    {
        Ok(found) => found,
        Err(error) if is_outage(&error) => return Err(error),
        Err(error) => return Ok(StepHealth::fault(error.to_string())),
    };
    observer.on_event(&Event::BytesMoved {
        tier: &remote.tier,
        bytes: file.size_bytes,
    });
    let wrong = found
        .iter()
        .map(|part| part.content)
        .zip(&file.parts_content)
        .position(|(found, expected)| found != *expected)
        .or((found.len() != file.parts_content.len()).then_some(found.len()));
    Ok(match wrong {
        None => StepHealth::proved_file(file.size_bytes),
        Some(part) => StepHealth::fault(format!(
            "{} has different bytes than were saved, from byte {}",
            file.path,
            part as u64 * file.part_size_bytes
        )),
    })
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
            Err(error) => return Ok(StepHealth::fault(Error::to_string(&error))),
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
