//! Removes many steps from a remote at once: their tombstones, then their commits, then their data.
//!
//! A prune of thousands of steps would take an hour if each were removed on its own. Steps are therefore removed in
//! groups, and each phase of a group is complete before the next begins. What makes the removal of one step safe holds
//! for every step of the group:
//!
//! 1. *Tombstones* are written for all of them. From then on no reader sees them, and no writer takes their identities
//!    (S9).
//! 2. *Pins and leases* are listed once, after the last tombstone: one that was taken before its step's tombstone is
//!    seen, and a process that takes one later sees the tombstone (S4).
//! 3. *Part manifests* are read while nothing is deleted yet.
//! 4. *Commits* are deleted, before any data (S5).
//! 5. *Data* is deleted, then the records of the parts, the claims and the pins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use stepvault_core::codec::encode;
use stepvault_core::keys::{KeyKind, PARTS, TOMBSTONES};
use stepvault_core::manifest::PartManifest;
use stepvault_core::{Error, ErrorKind, Observer, Operation, OperationKind, PartDigest, Result, StepId};
use stepvault_remote::store::Created;

use super::PruneReport;
use crate::blocking::in_order;
use crate::observed::ObservedOperation;
use crate::tier::catalog::{MANIFESTS_AT_ONCE_BYTES, PARALLEL_READS, manifests_at_once, pins};
use crate::tier::leases::live_leases;
use crate::tier::removed::tombstone;
use crate::tier::run_remote::RunRemote;
use crate::verify::{Depth, check_remote};

/// Maximum number of steps that are removed at once. Each group lists tombstones, part manifests, pins and leases: with as
/// many steps as a page has objects, the listings of a prune of any number of steps are few beside what it sends for each
/// step.
const STEPS_AT_ONCE: usize = 1_000;
/// Up to this number of steps, one request for each takes fewer than a short listing may take.
const FEW_STEPS: usize = 4;
/// Number of objects in a page of a listing and in a batch of deletions.
const PAGE_OBJECTS: usize = 1_000;
/// Maximum number of batches that are deleted concurrently.
const BATCHES_AT_ONCE: usize = 4;

/// A step to remove.
#[derive(Debug)]
pub(super) struct StepToRemove {
    pub(super) id: StepId,
    /// The name of its checkpoint.
    pub(super) name: String,
    /// Where its files are, for messages.
    pub(super) location: String,
    /// Bytes of its files, if known.
    pub(super) bytes: Option<u64>,
}

/// Whether the tombstones of the steps to remove exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tombstones {
    /// They are written first.
    ToWrite,
    /// An interrupted prune has written them.
    Written,
}

/// What became of the steps of a group so far: removed, or kept for a reason.
type Outcomes = BTreeMap<StepId, Option<String>>;

/// The part manifests of one step, by key, with their sizes.
type PartObjects = Vec<(String, u64)>;

/// Removes steps from a remote, on which the caller holds the pruner's lease.
#[derive(Debug)]
pub(super) struct Erasure<'a> {
    pub(super) remote: &'a RunRemote,
    pub(super) observer: &'a Arc<dyn Observer>,
    /// Number of part manifests in the run, as far as it is known.
    pub(super) known_parts: usize,
    /// Number of tombstones in the run, at most, once all are written.
    pub(super) known_tombstones: usize,
    pub(super) tombstones: Tombstones,
    /// Whether the objects of imported steps are deleted with their records.
    pub(super) manages_imported: bool,
}

impl Erasure<'_> {
    /// Removes steps and adds each, in this order, to the report's removed or spared ones.
    ///
    /// # Invariants
    /// S4, S5 and S9, as the module describes. The first step is removed alone, so that a remote that refuses deletions
    /// hides one step and not a whole group.
    ///
    /// # Errors
    /// When the remote fails; steps that are tombstoned by then are removed by the next prune.
    pub(super) async fn remove(&self, steps: &[StepToRemove], report: &mut PruneReport) -> Result<()> {
        let (first, rest) = steps.split_at(steps.len().min(1));
        for group in first.chunks(1).chain(rest.chunks(STEPS_AT_ONCE)) {
            self.remove_group(group, report).await?;
        }
        Ok(())
    }

    /// Removes a group of steps, and reports each to the observer.
    async fn remove_group(&self, group: &[StepToRemove], report: &mut PruneReport) -> Result<()> {
        let remote = self.remote;
        let mut removals = Vec::with_capacity(group.len());
        for step in group {
            let operation = Operation {
                kind: OperationKind::Removal,
                run: remote.keys.run(),
                tier: &remote.tier,
                id: step.id,
                location: &step.location,
                files: 0,
                bytes: step.bytes,
            };
            removals.push(ObservedOperation::start(self.observer.as_ref(), operation));
        }
        let mut outcomes = Outcomes::new();
        let result = Box::pin(self.erase_group(group, &mut outcomes)).await;
        for removal in removals {
            let id = removal.operation.id;
            match (outcomes.remove(&id), &result) {
                (Some(None), _) => {
                    removal.finished(0);
                    report.removed.push(id);
                }
                (Some(Some(reason)), _) => {
                    removal.skipped(&reason);
                    report.spared.push((id, reason));
                }
                (None, Err(error)) => removal.failed(error),
                (None, Ok(())) => {}
            }
        }
        result
    }

    /// Removes a group of steps, except those that someone pinned or began to read before their tombstones were
    /// written.
    async fn erase_group(&self, group: &[StepToRemove], outcomes: &mut Outcomes) -> Result<()> {
        let remote = self.remote;
        let mut steps: Vec<&StepToRemove> = group.iter().collect();
        if self.tombstones == Tombstones::ToWrite {
            let pinned = pins(remote).await?;
            steps.retain(|step| {
                let is_pinned = pinned.contains(&step.id);
                if is_pinned {
                    outcomes.insert(step.id, Some("it was pinned meanwhile".to_owned()));
                }
                !is_pinned
            });
            self.write_tombstones(&steps).await?;
        }
        if steps.is_empty() {
            return Ok(());
        }
        let (pinned, live) = tokio::try_join!(pins(remote), live_leases(remote))?;
        let mut removable = Vec::new();
        for step in steps {
            let id = step.id;
            // A pinning process checks for the tombstone after it has written the pin, so this pin came first. Nothing
            // is deleted before the commit, so the step is whole, unless it was committed during a gc.
            if pinned.contains(&id)
                && check_remote(remote, id, Depth::Listed, self.observer).await?.is_sound()
            {
                remote.delete(vec![remote.keys.tombstone(id)]).await?;
                outcomes.insert(id, Some("it was pinned meanwhile".to_owned()));
            } else if live.iter().any(|lease| lease.id == Some(id)) {
                let reason = "it is being restored; the next prune deletes it";
                outcomes.insert(id, Some(reason.to_owned()));
            } else {
                removable.push(step);
            }
        }
        let mut parts = self.list_parts(&removable).await?;
        let mut batch: Vec<(StepId, PartObjects)> = Vec::new();
        let mut batch_bytes: u64 = 0;
        for step in removable {
            let of_step = parts.remove(&step.id).unwrap_or_default();
            let bytes: u64 = of_step.iter().map(|(_, bytes)| bytes).sum();
            if !batch.is_empty() && batch_bytes.saturating_add(bytes) > MANIFESTS_AT_ONCE_BYTES {
                self.erase(std::mem::take(&mut batch), outcomes).await?;
                batch_bytes = 0;
            }
            batch_bytes = batch_bytes.saturating_add(bytes);
            batch.push((step.id, of_step));
        }
        self.erase(batch, outcomes).await
    }

    /// Writes the tombstones of steps, and checks that all of them exist.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when a step has a different tombstone; [`ErrorKind::Damaged`] when one is not stored as
    /// it was written.
    async fn write_tombstones(&self, steps: &[&StepToRemove]) -> Result<()> {
        let remote = self.remote;
        let is_listed_later = takes_fewer_requests(self.known_tombstones, steps.len());
        let written = in_order(PARALLEL_READS, steps, |step| async move {
            let tombstone = tombstone(remote, step.id, step.name.clone(), false);
            let key = remote.keys.tombstone(step.id);
            let bytes = Bytes::from(encode(&tombstone)?);
            let size_bytes = bytes.len() as u64;
            if is_listed_later {
                let digest = PartDigest::of(&bytes);
                if let Created::Written(_) = remote.store.create(&key, bytes.into(), &digest).await? {
                    return Ok((step.id, size_bytes));
                }
            }
            remote.create_record(&key, &tombstone).await?;
            Ok((step.id, size_bytes))
        })
        .await?;
        if !is_listed_later {
            return Ok(());
        }
        let listed = remote.list_steps(TOMBSTONES).await?;
        for (id, size_bytes) in written {
            let why = match listed.get(&id) {
                Some(found) if found.size_bytes == size_bytes => continue,
                Some(found) => format!("it has {} bytes instead of {size_bytes}", found.size_bytes),
                None => "it is not listed after it was written".to_owned(),
            };
            return Err(Error::new(ErrorKind::Damaged, "cannot write the tombstone")
                .on(remote.describe(&remote.keys.tombstone(id)))
                .because(why));
        }
        Ok(())
    }

    /// Lists the part manifests of steps: below each step's prefix, or all of the run's where that takes fewer
    /// requests.
    async fn list_parts(&self, steps: &[&StepToRemove]) -> Result<BTreeMap<StepId, PartObjects>> {
        let remote = self.remote;
        let wanted: BTreeSet<StepId> = steps.iter().map(|step| step.id).collect();
        let prefixes = if takes_fewer_requests(self.known_parts, steps.len()) {
            vec![remote.keys.all(PARTS)]
        } else {
            let prefixes = steps.iter().map(|step| remote.keys.step_parts_prefix(step.id));
            prefixes.collect()
        };
        let mut found = BTreeMap::<StepId, PartObjects>::new();
        let mut listed =
            stream::iter(&prefixes).map(|prefix| remote.store.list(prefix)).flatten_unordered(PARALLEL_READS);
        while let Some(object) = listed.try_next().await? {
            if let Some(KeyKind::Part(id, _)) = remote.keys.classify(&object.key)
                && wanted.contains(&id)
            {
                let of_step = found.entry(id).or_default();
                of_step.push((object.key, object.size_bytes));
            }
        }
        Ok(found)
    }

    /// Deletes tombstoned steps: the commits of all of them, then the data of all of them, then their records.
    async fn erase(&self, steps: Vec<(StepId, PartObjects)>, outcomes: &mut Outcomes) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let keys = &self.remote.keys;
        let ids: Vec<StepId> = steps.iter().map(|(id, _)| *id).collect();
        let parts: Vec<(StepId, String, u64)> = steps
            .into_iter()
            .flat_map(|(id, of_step)| of_step.into_iter().map(move |(key, bytes)| (id, key, bytes)))
            .collect();
        let data = self.named_data(&parts).await?;
        let commits = ids.iter().map(|id| keys.commit(*id));
        self.remote.delete(commits.collect()).await?;
        let mut records: Vec<String> = parts.into_iter().map(|(_, key, _)| key).collect();
        records.extend(ids.iter().map(|id| keys.claim(*id)));
        // The pin of a process that was too late and got an error.
        records.extend(ids.iter().map(|id| keys.pin(*id)));
        for objects in [data, records] {
            let deleted = self.delete(&objects).await;
            deleted.map_err(left_behind)?;
        }
        outcomes.extend(ids.into_iter().map(|id| (id, None)));
        Ok(())
    }

    /// Returns the keys of the files that these part manifests name. Other objects below a step's label are not known
    /// to belong to it, and are left to gc, as are the files of a manifest that cannot be read. Imported files stay unless
    /// the run manages them (S7).
    async fn named_data(&self, parts: &[(StepId, String, u64)]) -> Result<Vec<String>> {
        let remote = self.remote;
        let largest_bytes = parts.iter().map(|(_, _, bytes)| *bytes).max().unwrap_or(0);
        let named = in_order(manifests_at_once(largest_bytes), parts, |(id, key, _)| async move {
            let manifest: Option<PartManifest> = remote.read_usable_record(key).await?;
            let Some(manifest) = manifest.filter(|manifest| manifest.id == *id) else {
                self.observer.warn(format!(
                    "{}: the record is unreadable; its files stay until gc deletes them",
                    remote.describe(key)
                ));
                return Ok(Vec::new());
            };
            if manifest.imported.is_some() && !self.manages_imported {
                return Ok(Vec::new());
            }
            let keys = manifest.file_keys();
            manifest.files.iter().map(|file| keys.key(&file.path)).collect()
        });
        let mut keys: Vec<String> = named.await?.into_iter().flatten().collect();
        // Nodes may name the same file.
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    /// Deletes objects in batches, a few of them concurrently.
    async fn delete(&self, keys: &[String]) -> Result<()> {
        stream::iter(keys.chunks(PAGE_OBJECTS))
            .map(|batch| self.remote.store.delete(batch))
            .buffer_unordered(BATCHES_AT_ONCE)
            .try_collect()
            .await
    }
}

/// Whether a listing of that many objects takes fewer requests than one for each of that many steps, so that the requests of
/// a prune grow no faster than its steps.
fn takes_fewer_requests(objects: usize, steps: usize) -> bool {
    objects.div_ceil(PAGE_OBJECTS) + FEW_STEPS < steps
}

/// Adds what to do about steps that are no longer listed and whose files could not all be deleted.
fn left_behind(error: Error) -> Error {
    let cause = error.hint_text().unwrap_or("correct the cause").to_owned();
    error.hint(format!(
        "{cause}; steps are no longer listed, but some of their files are left: `stepvault gc` deletes them in its \
         second run"
    ))
}
