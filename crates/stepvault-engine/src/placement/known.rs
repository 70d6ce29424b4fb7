//! Collects what the tiers know of a run, as far as placing a new checkpoint needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use stepvault_core::commit::Commit;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::manifest::{PartManifest, Shape, SymlinkEntry};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::path::RelativePath;
use stepvault_core::placement::{Content, KnownStep};
use stepvault_core::records::Tombstone;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::not_checkpoint::may_hold_state;
use stepvault_formats::step_name;
use stepvault_local::compare::{has_bytes_of_entries, has_bytes_of_entry, has_file_of};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Checkpoint, Tree};

use crate::blocking::blocking;
use crate::content::{FileFacts, files_of_manifest, files_of_tree, tree_is_of_step, tree_matches_part};
use crate::outage::is_outage;
use crate::tier::catalog::{claimed_ids, committed_ids, read_commit, read_commits, read_manifests};
use crate::tier::removed::{RemovedSteps, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::verify::CommittedParts;

/// A checkpoint, to be compared with what the tiers hold.
#[derive(Debug, Clone)]
pub struct ScannedCheckpoint {
    /// Where its files are, and the name under which it is stored.
    pub checkpoint: Checkpoint,
    /// Its number.
    pub step: Step,
    /// Its files.
    pub tree: Arc<Tree>,
    /// The step as which the vault has seen these very files, unchanged since.
    pub proven: Option<StepId>,
}

impl ScannedCheckpoint {
    /// Returns a checkpoint with these files as a step of this number; `proven` as which the vault has seen the very files.
    pub fn new(checkpoint: &Checkpoint, step: Step, tree: Arc<Tree>, proven: Option<StepId>) -> Self {
        Self { checkpoint: checkpoint.clone(), step, tree, proven }
    }

    /// Returns a sealed step as a checkpoint, as it was sealed.
    pub(super) fn of_sealed(step: &SealedStep) -> Self {
        let record = step.record();
        let checkpoint = Checkpoint {
            members: record.members.clone(),
            origin: record.origin.clone(),
            ..Checkpoint::of_path(&step.checkpoint_path(), &record.name)
        };
        Self { checkpoint, step: step.id().step, tree: Arc::new(step.tree()), proven: None }
    }

    fn is_proven(&self, id: StepId) -> bool {
        self.proven == Some(id)
    }

    fn files(&self) -> StepFiles<'_> {
        let Checkpoint { origin, name, members, .. } = &self.checkpoint;
        let prefix = prefix_of(origin, name, self.tree.shape, !members.is_empty());
        StepFiles::of_tree(&prefix, &self.tree)
    }
}

/// Steps known from the tiers.
#[derive(Debug, Default)]
pub(crate) struct KnownSteps {
    pub(crate) steps: Vec<KnownStep>,
    /// Whether a remote that answered lacks the checkpoint, or a remote did not answer.
    pub(crate) missing_somewhere: bool,
    /// The errors of the remotes that did not answer.
    pub(crate) unanswered: Vec<Error>,
    /// Whether at least one remote answered.
    pub(crate) answered: bool,
}

impl KnownSteps {
    /// Whether a tier holds the checkpoint of this step.
    pub(crate) fn has_content(&self, step: Step) -> bool {
        self.with_content(step).is_some()
    }

    /// Returns the newest step of this number that is the checkpoint.
    pub(crate) fn with_content(&self, step: Step) -> Option<&KnownStep> {
        let same = |entry: &&KnownStep| entry.id.step == step && entry.content == Content::Same;
        self.steps.iter().filter(same).max_by_key(|entry| entry.id)
    }

    /// Whether retention removed this step.
    pub(crate) fn is_removed(&self, id: StepId) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|entry| entry.id == id && entry.content == Content::Removed)
    }

    /// Adds the entries of another tier. The same step on two tiers is one step; if its content matches on one tier, it
    /// matches.
    pub(crate) fn add(&mut self, entries: Vec<KnownStep>) {
        let mut places: BTreeMap<StepId, usize> =
            self.steps.iter().enumerate().map(|(place, step)| (step.id, place)).collect();
        for entry in entries {
            if let Some(other) = places.get(&entry.id).and_then(|place| self.steps.get_mut(*place)) {
                other.content = other.content.min(entry.content);
                other.amends |= entry.amends;
                other.is_here |= entry.is_here;
                other.began = other.began.or(entry.began);
                other.unnumbered |= entry.unnumbered;
                other.written_at = other.written_at.max(entry.written_at);
            } else {
                places.insert(entry.id, self.steps.len());
                self.steps.push(entry);
            }
        }
    }
}

/// Queries all remotes concurrently for the steps that they know. A step that several nodes write cannot be sealed
/// without the answer; any other is sealed soon, also while no remote answers.
pub(crate) async fn ask_remotes(
    remotes: &[RunRemote],
    checkpoint: &ScannedCheckpoint,
    writer: &Writer,
    observer: &Arc<dyn Observer>,
) -> KnownSteps {
    let mut known = KnownSteps { missing_somewhere: remotes.is_empty(), ..KnownSteps::default() };
    let answers = join_all(remotes.iter().map(|remote| async move {
        if writer.place.nodes().is_several() {
            return own_parts_on(remote, checkpoint, writer).await;
        }
        let found = remote.answers_soon(known_on(remote, checkpoint)).await?;
        let is_there = found.iter().any(|entry| entry.content == Content::Same);
        Ok((found, is_there))
    }))
    .await;
    for (remote, found) in remotes.iter().zip(answers) {
        match found {
            Ok((found, is_there)) => {
                known.missing_somewhere |= !is_there;
                known.answered = true;
                known.add(found);
            }
            Err(error) => {
                known.missing_somewhere = true;
                observer.warn(format!("cannot list the steps on {}: {error}", remote.name()));
                known.unanswered.push(error);
            }
        }
    }
    known
}

/// Returns the steps that the vault knows. Where several nodes write a step, one that is written again is a new one even
/// if its bytes are equal, because the nodes would not agree otherwise.
///
/// # Errors
/// When files of the checkpoint or of the vault cannot be read.
pub(crate) async fn known_in_vault(
    steps: impl IntoIterator<Item = &SealedStep>,
    scanned: &ScannedCheckpoint,
    writer: &Writer,
) -> Result<Vec<KnownStep>> {
    let compares_bytes = !writer.place.nodes().is_several();
    let mut known = Vec::new();
    for step in steps {
        let record = step.record();
        let mut entry = KnownStep {
            is_here: has_same_paths(step, scanned),
            ..stored(step.id(), Content::Other, record.written_at, &record.origin)
        };
        if step.id().step == scanned.step {
            let (step, scanned) = (step.clone(), scanned.clone());
            entry.content = blocking(move || {
                let stored = ScannedCheckpoint::of_sealed(&step);
                let is_proven = scanned.is_proven(step.id());
                scanned.files().compare(&stored.files(), is_proven, |path, stored, is_timed_alike| {
                    let mut files = step.record().files.iter();
                    let counts = compares_bytes || is_timed_alike;
                    let sealed = files.find(|file| file.path == *stored).filter(|_| counts);
                    let (source, shape) = (&scanned.checkpoint.source, scanned.tree.shape);
                    sealed.map_or(Ok(false), |sealed| has_file_of(&step, sealed, source, shape, path))
                })
            })
            .await?;
        }
        known.push(entry);
    }
    Ok(known)
}

/// Whether the files of a sealed step have the same paths inside it as those of a checkpoint have.
fn has_same_paths(step: &SealedStep, scanned: &ScannedCheckpoint) -> bool {
    let (record, checkpoint) = (step.record(), &scanned.checkpoint);
    let has_members = !record.members.is_empty();
    record.shape == Shape::Directory
        && record.shape == scanned.tree.shape
        && has_members != checkpoint.members.is_empty()
        && (has_members
            || record.name == checkpoint.name && record.origin.directory == checkpoint.origin.directory)
}

/// Whether the path of a checkpoint, which holds one step after another, held one of these steps before.
pub(crate) fn is_overwritten(scanned: &ScannedCheckpoint, sealed: &[SealedStep]) -> bool {
    let checkpoint = &scanned.checkpoint;
    let is_before = |step: &SealedStep| step.record().origin.rewritten && step.name() == checkpoint.name;
    let has_number = step_name::parse(&checkpoint.name) == Some(scanned.step.number());
    checkpoint.origin.rewritten && !has_number && sealed.iter().any(is_before)
}

/// Returns the steps that a remote knows: commits, removed steps whose identities are used up, and claims that were
/// never committed.
pub(crate) async fn known_on(remote: &RunRemote, checkpoint: &ScannedCheckpoint) -> Result<Vec<KnownStep>> {
    let (mut committed, claimed) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    // Listed after the commits: one that was removed meanwhile is known as removed.
    let removed = removed_steps(remote).await?;
    // A step that is being removed is not known as committed, whether its commit still exists or not.
    committed.retain(|id, _| !removed.contains(*id));
    let visible: BTreeSet<StepId> = committed.keys().copied().collect();
    let to_read = ids_to_read(visible.iter().copied(), checkpoint.step);
    let unread = visible.difference(&to_read).map(|id| taken(*id, Content::Other));
    let mut known: Vec<KnownStep> = unread.collect();
    committed.retain(|id, _| to_read.contains(id));
    for (id, found) in read_commits(remote, committed, None).await? {
        known.push(match found.commit {
            // Manifests may be large: one is in memory at a time.
            Ok(commit) => {
                let content = if id.step == checkpoint.step {
                    content(remote, &commit, checkpoint).await?
                } else {
                    Content::Other
                };
                KnownStep {
                    written_at: Some(commit.written_at),
                    amends: commit.amends,
                    began: commit.began,
                    unnumbered: commit.unnumbered,
                    ..taken(id, content)
                }
            }
            // A damaged commit still occupies its identity; reporting it is up to verify.
            Err(error) if error.kind() == ErrorKind::Damaged => taken(id, Content::Unknown),
            Err(error) => return Err(error),
        });
    }
    for id in removed_names(&removed, checkpoint.step) {
        let by_gc = id.step == checkpoint.step && was_removed_by_gc(remote, id).await?;
        let content = if by_gc { Content::Unknown } else { Content::Removed };
        known.push(taken(id, content));
    }
    for id in claimed.into_keys() {
        if !visible.contains(&id) && !removed.contains(id) {
            // Claimed by an upload that never finished, on this or a lost node.
            known.push(taken(id, Content::Unknown));
        }
    }
    Ok(known)
}

/// Returns what a remote knows of this node's own parts of multi-node steps: the parts of the same step, and the latest
/// one of each attempt. Parts of other nodes and their clocks decide nothing here. The second value is whether the
/// checkpoint belongs to a committed step.
async fn own_parts_on(
    remote: &RunRemote,
    checkpoint: &ScannedCheckpoint,
    writer: &Writer,
) -> Result<(Vec<KnownStep>, bool)> {
    let (committed, claimed) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    let ids: BTreeSet<StepId> = committed.keys().copied().chain(claimed.into_keys()).collect();
    let mut known = Vec::new();
    for id in ids_to_read(ids.into_iter(), checkpoint.step) {
        known.extend(own_part(remote, id, checkpoint, writer, committed.contains_key(&id)).await?);
    }
    // Listed last, as in `known_on`.
    for id in removed_names(&removed_steps(remote).await?, checkpoint.step) {
        known.retain(|entry| entry.id != id);
        known.push(taken(id, Content::Removed));
    }
    let is_committed =
        known.iter().any(|entry| entry.content == Content::Same && committed.contains_key(&entry.id));
    Ok((known, is_committed))
}

/// Returns what is known of a step by this node's own part of it; `None` if it has none.
async fn own_part(
    remote: &RunRemote,
    id: StepId,
    checkpoint: &ScannedCheckpoint,
    writer: &Writer,
    is_committed: bool,
) -> Result<Option<KnownStep>> {
    let key = remote.keys.part(id, writer.place.node());
    let manifest = match remote.read_record::<PartManifest>(&key).await {
        Ok(Some((manifest, _))) => manifest,
        Ok(None) => return Ok(None),
        Err(error) if is_outage(&error) => return Err(error),
        // An unreadable part still occupies its identity.
        Err(_) => return Ok(Some(taken(id, Content::Unknown))),
    };
    let content = if id.step != checkpoint.step {
        Content::Other
    } else if tree_matches_part(&checkpoint.tree, &manifest)
        || is_committed && is_of_committed(remote, id, checkpoint, &manifest).await?
    {
        if checkpoint.is_proven(id) || has_bytes_of_part(checkpoint, &manifest).await? {
            Content::Same
        } else {
            Content::Other
        }
    } else {
        compare_with(checkpoint, &manifest, false).await?
    };
    Ok(Some(stored(id, content, manifest.written_at, &manifest.origin)))
}

/// Whether the files that this node wrote of a step have the bytes that they had then.
async fn has_bytes_of_part(scanned: &ScannedCheckpoint, own: &PartManifest) -> Result<bool> {
    let (source, shape) = (scanned.checkpoint.source.clone(), scanned.tree.shape);
    let files = own.files.clone();
    blocking(move || has_bytes_of_entries(&files, &source, shape)).await
}

/// Compares the checkpoint with what a manifest lists. Files whose times differ count as different ones, unless
/// `compares_bytes`.
async fn compare_with(
    scanned: &ScannedCheckpoint,
    manifest: &PartManifest,
    compares_bytes: bool,
) -> Result<Content> {
    let (scanned, manifest) = (scanned.clone(), manifest.clone());
    blocking(move || {
        let (stored, is_proven) = (StepFiles::of_manifest(&manifest), scanned.is_proven(manifest.id));
        scanned.files().compare(&stored, is_proven, |path, stored, is_timed_alike| {
            let mut files = manifest.files.iter();
            let counts = compares_bytes || is_timed_alike;
            let entry = files.find(|file| file.path == *stored).filter(|_| counts);
            let (source, shape) = (&scanned.checkpoint.source, scanned.tree.shape);
            entry.map_or(Ok(false), |entry| has_bytes_of_entry(entry, source, shape, path))
        })
    })
    .await
}

/// Whether the checkpoint is a committed step: this node's own part, with or without the others' parts, as a restore
/// places them. The times have to match too: a checkpoint that is written again is a new one even if its bytes are
/// equal, because otherwise the nodes would not agree.
async fn is_of_committed(
    remote: &RunRemote,
    id: StepId,
    checkpoint: &ScannedCheckpoint,
    own: &PartManifest,
) -> Result<bool> {
    let parts = async {
        let commit = read_commit(remote, id).await?;
        read_manifests(remote, &commit).await
    };
    match parts.await {
        Ok(parts) => Ok(tree_is_of_step(&checkpoint.tree, own, &parts)),
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the removed steps that matter for placing a checkpoint of `step`: all that still have a tombstone, and of
/// the retired ones those with its number and one of the highest attempt.
fn removed_names(removed: &RemovedSteps, step: Step) -> BTreeSet<StepId> {
    let mut names = removed.tombstoned.clone();
    names.extend(removed.retired.of_step(step));
    names.extend(removed.retired.last());
    names
}

/// Whether gc removed what an unfinished upload left, rather than retention a step. Another checkpoint of that step is
/// then a new attempt, as if the claim still existed. Once the tombstone is gone, the two cases cannot be
/// distinguished.
async fn was_removed_by_gc(remote: &RunRemote, id: StepId) -> Result<bool> {
    let tombstone: Option<Tombstone> = remote.read_usable_record(&remote.keys.tombstone(id)).await?;
    Ok(tombstone.is_some_and(|tombstone| tombstone.by_gc))
}

/// Returns what is known of a step whose record is not read.
pub(crate) fn taken(id: StepId, content: Content) -> KnownStep {
    KnownStep { id, written_at: None, content, amends: false, is_here: false, began: None, unnumbered: false }
}

/// Returns what is known of a step by a record of it.
fn stored(id: StepId, content: Content, written_at: Timestamp, origin: &StepOrigin) -> KnownStep {
    let StepOrigin { amends, began, unnumbered, .. } = *origin;
    KnownStep { written_at: Some(written_at), amends, began, unnumbered, ..taken(id, content) }
}

/// Returns the commits whose times decide: those of the same step, and the first and last of each attempt.
fn ids_to_read(ids: impl Iterator<Item = StepId>, step: Step) -> BTreeSet<StepId> {
    let mut bounds: BTreeMap<Attempt, (StepId, StepId)> = BTreeMap::new();
    let mut wanted = BTreeSet::new();
    for id in ids {
        if id.step == step {
            wanted.insert(id);
        }
        let (first, last) = bounds.entry(id.attempt).or_insert((id, id));
        *first = (*first).min(id);
        *last = (*last).max(id);
    }
    wanted.extend(bounds.into_values().flat_map(|(first, last)| [first, last]));
    wanted
}

/// Compares the checkpoint with a committed step.
async fn content(remote: &RunRemote, commit: &Commit, checkpoint: &ScannedCheckpoint) -> Result<Content> {
    let manifests = match read_manifests(remote, commit).await {
        Ok(manifests) => manifests,
        Err(error) if error.kind() == ErrorKind::Damaged => return Ok(Content::Unknown),
        Err(error) => return Err(error),
    };
    let Ok([manifest]) = <[PartManifest; 1]>::try_from(manifests) else {
        // A multi-node step never equals a single-node step.
        return Ok(Content::Other);
    };
    compare_with(checkpoint, &manifest, true).await
}

// Compares a checkpoint with the files that a tier holds under its number.

/// Returns what the paths of a step's files begin with, below the directory that the trainer writes to. A step may be one
/// directory first, and several paths once another one has its number.
fn prefix_of(origin: &StepOrigin, name: &str, shape: Shape, has_members: bool) -> String {
    if has_members {
        return String::new();
    }
    let directory = origin.directory.iter().map(RelativePath::as_str);
    let name = (shape == Shape::Directory).then_some(name);
    directory.chain(name).flat_map(|part| [part, "/"]).collect()
}

/// The files and links of a checkpoint or of a stored step, by their full paths.
#[derive(Debug)]
struct StepFiles<'a> {
    files: BTreeMap<String, FileFacts<'a>>,
    links: BTreeMap<String, &'a str>,
}

impl<'a> StepFiles<'a> {
    fn new(prefix: &str, files: impl Iterator<Item = FileFacts<'a>>, links: &'a [SymlinkEntry]) -> Self {
        let links = links.iter();
        Self {
            files: files.map(|file| (format!("{prefix}{}", file.0), file)).collect(),
            links: links.map(|link| (format!("{prefix}{}", link.path), link.target.as_str())).collect(),
        }
    }

    fn of_tree(prefix: &str, tree: &'a Tree) -> Self {
        Self::new(prefix, files_of_tree(tree), &tree.symlinks)
    }

    fn of_manifest(manifest: &'a PartManifest) -> Self {
        let PartManifest { origin, name, shape, members, symlinks, .. } = manifest;
        Self::new(
            &prefix_of(origin, name, *shape, !members.is_empty()),
            files_of_manifest(manifest),
            symlinks,
        )
    }

    /// Returns how this checkpoint compares with what is stored. `has_same_bytes` compares a file of it with a stored one
    /// of the same size, and gets whether their times are equal too, which proves nothing. It is not called for those if
    /// the checkpoint `is_proven` to be what was stored.
    ///
    /// A save of a trainer writes its files anew; a few may get the bytes or even the times that they had. So the step is
    /// amended if as many files that carry state have their times as have other bytes, or if none has other bytes.
    fn compare(
        &self,
        stored: &StepFiles<'_>,
        is_proven: bool,
        mut has_same_bytes: impl FnMut(&RelativePath, &RelativePath, bool) -> Result<bool>,
    ) -> Result<Content> {
        let has_state = stored.files.keys().any(|path| may_hold_state(path));
        let is_state = |path: &str| !has_state || may_hold_state(path);
        let (mut untouched, mut changed, mut is_changed) = (0_usize, 0_usize, false);
        for (path, (file, size_bytes, mtime)) in &self.files {
            let Some((other, other_size_bytes, other_mtime)) = stored.files.get(path) else {
                is_changed = true;
                continue;
            };
            let is_timed_alike = other_mtime == mtime;
            let is_same = other_size_bytes == size_bytes
                && (is_timed_alike && is_proven || has_same_bytes(file, other, is_timed_alike)?);
            if !is_same {
                changed += usize::from(is_state(path));
                is_changed = true;
            } else if is_timed_alike {
                untouched += usize::from(is_state(path));
            }
        }
        is_changed |= (self.links.iter()).any(|(path, target)| stored.links.get(path) != Some(target));
        if !is_changed {
            return Ok(Content::Same);
        }
        let lost = || stored.files.keys().filter(|path| !self.files.contains_key(*path));
        let keeps_state = lost().all(|path| !is_state(path)) || untouched > 0;
        Ok(if untouched >= changed && keeps_state {
            if lost().next().is_some() { Content::AmendedWithLosses } else { Content::Amended }
        } else if lost().any(|path| is_state(path)) {
            Content::OtherWithLosses
        } else {
            Content::Other
        })
    }
}

// Checks whether remotes hold a checkpoint of this node.

/// Returns the identity under which all given remotes hold a checkpoint: commits and manifests were read back now, and the data was proved by the store's checksums or byte for byte. Returns `None` when
/// a remote does not hold it, or when no remote is given.
///
/// # Errors
/// When a remote is unreachable, as nothing is known then.
pub async fn held_by_all(
    remotes: &[RunRemote],
    checkpoint: &ScannedCheckpoint,
    observer: &Arc<dyn Observer>,
) -> Result<Option<StepId>> {
    let mut common: Option<BTreeSet<StepId>> = None;
    for remote in remotes {
        let found = known_on(remote, checkpoint).await?;
        let same = found.iter().filter(|known| known.content == Content::Same).map(|known| known.id);
        common = Some(match common {
            None => same.collect(),
            Some(before) => same.filter(|id| before.contains(id)).collect(),
        });
    }
    let Some(id) = common.and_then(|ids| ids.last().copied()) else {
        return Ok(None);
    };
    for remote in remotes {
        let commit = read_commit(remote, id).await?;
        match CommittedParts::all(remote, &commit, observer).ensure_durable().await {
            Ok(()) => {}
            // Damaged, or being removed since it was listed.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Refused) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use stepvault_core::manifest::Shape;
    use stepvault_local::tree::TreeFile;

    use super::*;

    /// Returns a directory with files of these names, sizes and times.
    fn tree(files: &[(&str, u64, i64)]) -> Tree {
        let file = |(path, size_bytes, seconds): &(&str, u64, i64)| TreeFile {
            path: RelativePath::new(*path).unwrap(),
            size_bytes: *size_bytes,
            mode: 0o644,
            mtime: Timestamp::from_seconds(*seconds),
            ctime: Timestamp::from_seconds(*seconds),
            device: 1,
            inode: 1,
            allocated_bytes: *size_bytes,
        };
        Tree {
            shape: Shape::Directory,
            files: files.iter().map(file).collect(),
            directories: Vec::new(),
            symlinks: Vec::new(),
        }
    }

    const STORED: [(&str, u64, i64); 4] =
        [("args.bin", 5, 100), ("config.json", 2, 100), ("model.pt", 50, 100), ("optimizer.pt", 90, 100)];

    /// Compares with [`STORED`]; files of equal size have the same bytes if they are listed.
    fn compared(files: &[(&str, u64, i64)], same_bytes: &[&str]) -> Content {
        let (present, stored) = (tree(files), tree(&STORED));
        let stored = StepFiles::of_tree("step_1/", &stored);
        let same = |path: &RelativePath, _: &RelativePath, is_timed_alike| {
            Ok(is_timed_alike || same_bytes.contains(&path.as_str()))
        };
        StepFiles::of_tree("step_1/", &present).compare(&stored, false, same).unwrap()
    }

    #[test]
    fn sizes_and_times_prove_nothing() {
        let files = tree(&STORED);
        let files = StepFiles::of_tree("step_1/", &files);
        let compared = |is_proven, same: bool| files.compare(&files, is_proven, |_, _, _| Ok(same)).unwrap();
        assert_eq!(compared(false, false), Content::Other);
        assert_eq!(compared(false, true), Content::Same);
        assert_eq!(compared(true, false), Content::Same);
    }

    #[test]
    fn what_is_added_to_a_step_or_changed_in_it_amends_it() {
        let with = |more: &[(&'static str, u64, i64)]| [&STORED[..], more].concat();
        assert_eq!(compared(&STORED, &[]), Content::Same);
        assert_eq!(compared(&STORED[..3], &[]), Content::Same);
        assert_eq!(compared(&with(&[("README.md", 9, 900)]), &[]), Content::Amended);
        assert_eq!(compared(&with(&[("ema.pt", 50, 900)]), &[]), Content::Amended);
        let converted = [STORED[0], STORED[1], ("model.pt", 25, 900), STORED[3]];
        assert_eq!(compared(&converted, &[]), Content::Amended);
        let lost = [STORED[0], ("README.md", 9, 900)];
        assert_eq!(compared(&lost, &[]), Content::AmendedWithLosses);
    }

    #[test]
    fn a_save_writes_its_files_anew_though_some_get_the_bytes_that_they_had() {
        let anew = STORED.map(|(path, size_bytes, _)| (path, size_bytes, 900));
        assert_eq!(compared(&anew, &["args.bin", "config.json"]), Content::Other);
        // Frozen weights that are linked into each step.
        let frozen = [STORED[0], anew[1], anew[2], anew[3]];
        assert_eq!(compared(&frozen, &["config.json"]), Content::Other);
        assert_eq!(compared(&anew[..3], &[]), Content::OtherWithLosses);
        let other = [("model.safetensors", 50, 900)];
        assert_eq!(compared(&other, &[]), Content::OtherWithLosses);
    }

    #[test]
    fn a_copy_without_times_is_the_step() {
        let copied = STORED.map(|(path, size_bytes, _)| (path, size_bytes, 900));
        let all = ["args.bin", "config.json", "model.pt", "optimizer.pt"];
        assert_eq!(compared(&copied, &all), Content::Same);
        let noted = [&copied[..], &[("README.md", 9, 900)]].concat();
        assert_eq!(compared(&noted, &all), Content::Amended);
    }

    #[test]
    fn a_step_of_one_path_and_of_several_have_the_same_files() {
        let one = tree(&[("model.pt", 50, 100)]);
        let several = tree(&[("step_1/model.pt", 50, 100), ("step_1_hf/model.safetensors", 50, 900)]);
        let one = StepFiles::of_tree("step_1/", &one);
        let several = StepFiles::of_tree("", &several);
        assert_eq!(several.compare(&one, true, |_, _, _| Ok(false)).unwrap(), Content::Amended);
    }
}
