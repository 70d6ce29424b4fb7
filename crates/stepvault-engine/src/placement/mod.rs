//! Gathers what decides which step a checkpoint is: what the tiers hold, what this node has restored, and its launches.
//! [`decide`] decides.

mod by_launch;
mod provisional;
mod remarks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use provisional::written_at;
pub use provisional::{Determined, Outcome, determine_attempts, make_provisional_again, provisional_steps};
pub use remarks::evidence_text;
pub(crate) use remarks::{refused, report};
use stepvault_core::commit::Commit;
use stepvault_core::manifest::{PartManifest, Shape};
use stepvault_core::placement::{Content, Decision, Facts, KnownStep, LeftAlone, Line, Placement, decide};
use stepvault_core::records::Tombstone;
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::{Attempt, Error, ErrorKind, Observer, Result, RunName, Step, StepId, Timestamp, Writer};
use stepvault_formats::step_name;
use stepvault_local::compare::{has_bytes_of_entries, has_bytes_of_entry, has_file_of};
use stepvault_local::seal_record::{AttemptOrigin, AttemptState};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Checkpoint, Tree};
use stepvault_local::vault::Vault;

use crate::blocking::blocking;
use crate::content::{StepFiles, prefix_of, tree_is_of_step, tree_matches_part};
use crate::outage::is_outage;
use crate::seen_checkpoints::Resumptions;
use crate::tier::catalog::{
    claimed_ids, committed_ids, manifests_of, read_commit, read_commits, read_manifests,
};
use crate::tier::removed::{RemovedSteps, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::verify::CommittedParts;

/// The writer of the steps that are saved now.
#[derive(Debug, Clone)]
pub struct CurrentWriter {
    /// The writer.
    pub writer: Writer,
    /// The time, by this node's clock, since which this node has been part of the writer's launch.
    pub launch_since: Timestamp,
}

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
    pub(crate) fn of_sealed(step: &SealedStep) -> Self {
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
async fn ask_remotes(
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
async fn known_in_vault(
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
fn is_overwritten(scanned: &ScannedCheckpoint, sealed: &[SealedStep]) -> bool {
    let checkpoint = &scanned.checkpoint;
    let is_before = |step: &SealedStep| step.record().origin.rewritten && step.name() == checkpoint.name;
    let has_number = step_name::parse(&checkpoint.name) == Some(scanned.step.number());
    checkpoint.origin.rewritten && !has_number && sealed.iter().any(is_before)
}

/// Returns the steps that a remote knows: commits, removed steps whose identities are used up, and claims that were
/// never committed.
async fn known_on(remote: &RunRemote, checkpoint: &ScannedCheckpoint) -> Result<Vec<KnownStep>> {
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
    for (id, found) in read_commits(remote, committed, |_, _| None).await? {
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
    match manifests_of(remote, id).await {
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
fn taken(id: StepId, content: Content) -> KnownStep {
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

/// A checkpoint whose place is to be decided.
#[derive(Debug)]
pub(crate) struct PlacementQuery<'a> {
    pub(crate) vault: &'a Vault,
    pub(crate) run: &'a RunName,
    pub(crate) remotes: &'a [RunRemote],
    pub(crate) current: &'a CurrentWriter,
    pub(crate) checkpoint: &'a ScannedCheckpoint,
    /// The writer of the checkpoint.
    pub(crate) writer: &'a Writer,
    /// The attempt that was given for it.
    pub(crate) attempt: Option<Attempt>,
    /// What is known of its attempt, and identities of it that turned out to be taken.
    pub(crate) origin: &'a AttemptOrigin,
    /// The steps of the run in the vault.
    pub(crate) sealed: &'a [SealedStep],
    /// Whether the remotes may be asked: no earlier step waits for its attempt.
    pub(crate) is_in_order: bool,
    pub(crate) observer: &'a Arc<dyn Observer>,
}

impl PlacementQuery<'_> {
    fn written_at(&self) -> Timestamp {
        self.checkpoint.tree.newest_mtime()
    }

    /// The time that decides after which restore, and in which launch, it was written.
    fn time(&self) -> Timestamp {
        self.origin.not_before.map_or(self.written_at(), |time| time.max(self.written_at()))
    }

    fn is_one_of_several(&self) -> bool {
        self.writer.place.nodes().is_several()
    }

    /// Collects the steps that the remotes and the vault know, and the one as which the checkpoint was `seen` before. The
    /// remotes are only asked if earlier steps are in order.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when the checkpoint was sealed before and retention has removed it.
    pub(crate) async fn known_steps(&self, seen: Option<StepId>) -> Result<KnownSteps> {
        let (scanned, writer) = (self.checkpoint, self.writer);
        let mut known = if self.is_in_order {
            ask_remotes(self.remotes, scanned, writer, self.observer).await
        } else {
            KnownSteps { missing_somewhere: true, ..KnownSteps::default() }
        };
        known.add(known_in_vault(self.sealed, scanned, writer).await?);
        if self.attempt.is_some() || known.has_content(scanned.step) {
            return Ok(known);
        }
        let Some(seen) = seen else {
            return Ok(known);
        };
        if known.is_removed(seen) {
            return Err(refused(&scanned.checkpoint.source, seen, LeftAlone::Removed));
        }
        if !known.steps.iter().any(|entry| entry.id == seen) {
            // It never became durable, or no remote answers.
            let written_at = Some(self.written_at());
            known.add(vec![KnownStep { written_at, ..taken(seen, Content::Same) }]);
        }
        Ok(known)
    }

    /// Decides which step the checkpoint is, from everything that is known. The decision is provisional while a remote is
    /// needed and none has answered: it is made again once one does.
    pub(crate) async fn decide(&self, known: &KnownSteps) -> Result<(Decision, AttemptState)> {
        if self.attempt.is_some() {
            return Ok((self.decide_finally(&known.steps).await?, AttemptState::Given));
        }
        if self.remotes.is_empty() || known.answered || self.is_one_of_several() {
            match self.decide_finally(&known.steps).await {
                Ok(decision) => return Ok((decision, AttemptState::Placed)),
                Err(error) if is_outage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.decide_for_now(&known.steps).await?, AttemptState::Provisional))
    }

    /// Decides by the attempt that was given, by launches, by the restores of this node, or by the steps alone.
    ///
    /// # Errors
    /// When several nodes have to agree and the remote on which they agree is unreachable.
    pub(crate) async fn decide_finally(&self, known: &[KnownStep]) -> Result<Decision> {
        if let Some(attempt) = self.attempt {
            return self.decide_by(Line::Given(attempt), known);
        }
        let known = &self.with_lost(known);
        let by_launch = self.writer.goes_by_launch();
        if let Some(remote) = self.remotes.first().filter(|_| by_launch) {
            match self.by_launch(known, remote).await {
                // A single node needs no agreement: it knows its own restores and launches.
                Err(error) if is_outage(&error) && !self.is_one_of_several() => {
                    return self.by_launch_alone(known, remote).await;
                }
                decided => return decided,
            }
        }
        self.by_restores(known, true, None).await
    }

    /// Decides while no remote has answered. No step of the vault has the identity then.
    async fn decide_for_now(&self, known: &[KnownStep]) -> Result<Decision> {
        let known = &self.with_lost(known);
        let mut decision = if self.is_one_of_several() {
            self.among_several_for_now(known)?
        } else {
            self.by_restores(known, false, None).await?
        };
        if let Placement::New(id) = &mut decision.placement {
            // The identity may be taken by another provisional step.
            while self.sealed.iter().any(|other| other.id() == *id) {
                *id = id.next_revision()?;
            }
        }
        Ok(decision)
    }

    /// Adds the identities that turned out to be taken: listings do not show what took them.
    fn with_lost(&self, known: &[KnownStep]) -> Vec<KnownStep> {
        let is_lost = |id: &&StepId| !self.is_one_of_several() && known.iter().all(|known| known.id != **id);
        let lost = self.origin.lost.iter().filter(is_lost);
        known.iter().copied().chain(lost.map(|id| taken(*id, Content::Unknown))).collect()
    }

    /// Puts together all facts, and decides.
    fn decide_by(&self, line: Line<'_>, known: &[KnownStep]) -> Result<Decision> {
        decide(&Facts {
            known,
            step: self.checkpoint.step,
            written_at: self.written_at(),
            line,
            live: self.origin.live,
            is_one_of_several: self.is_one_of_several(),
            is_overwritten: is_overwritten(self.checkpoint, self.sealed),
            unnumbered: self.checkpoint.checkpoint.origin.unnumbered,
        })
    }

    /// One of several nodes never chooses an attempt: the decision stands only until the nodes can agree.
    fn among_several_for_now(&self, known: &[KnownStep]) -> Result<Decision> {
        let attempts = known.iter().map(|known| known.id.attempt);
        let highest = attempts.max().unwrap_or(Attempt::FIRST);
        let of_number = known.iter().filter(|known| known.id.step == self.checkpoint.step);
        let same: Vec<KnownStep> =
            of_number.filter(|known| known.content == Content::Same).copied().collect();
        self.decide_by(Line::Ended(highest), &same)
    }

    /// Decides by the restores of this node, or by the steps alone; `below` as in [`Line::Restored`].
    async fn by_restores(
        &self,
        known: &[KnownStep],
        is_final: bool,
        below: Option<Attempt>,
    ) -> Result<Decision> {
        let mut resumptions = Resumptions::open(self.vault, self.run).await?;
        let Some(mut resumed) = resumptions.before(self.time()) else {
            return self.decide_by(Line::Steps, known);
        };
        if !is_final {
            let provisional = self.sealed.iter().filter(|step| step.record().is_provisional());
            let since = provisional.filter(|step| written_at(step) >= resumed.since);
            resumed.attempt = resumed.attempt.or(since.map(|step| step.id().attempt).max());
        }
        let decision = self.decide_by(Line::Restored { resumed, below }, known)?;
        if let (Placement::New(id), false, true) = (decision.placement, decision.amends, is_final) {
            resumptions.joined(&resumed, id.attempt).await?;
        }
        Ok(decision)
    }
}
