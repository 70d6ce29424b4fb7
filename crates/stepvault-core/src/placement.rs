//! Decides which step a checkpoint is, and whether it begins a new attempt.
//!
//! The newest step of a run is the one with the highest number, until there is evidence that the run went back: only
//! then a new attempt begins. Content tells a changed step from a new save: a checkpoint that still has one of a step's
//! files that carry state is that step, and becomes its next revision; a save of a trainer writes all of them anew. The
//! times of files decide nothing alone.

use serde::{Deserialize, Serialize};

use crate::{Attempt, Result, Step, StepId, Timestamp};

/// How a checkpoint compares with what a tier holds under its number. Where tiers differ, the lower value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// It has the same files, or has only lost some of them.
    Same,
    /// Files were added to it or changed in it. At least one that carries state is unchanged, and none is missing.
    Amended,
    /// As [`Self::Amended`], but files of the step are missing.
    AmendedWithLosses,
    /// No file that carries state is the same. Also the content of steps with another number.
    Other,
    /// As [`Self::Other`], but files of the step that carry state are missing: it may be a conversion of the step.
    OtherWithLosses,
    /// Unknown: the step was claimed by an upload that never finished, or its record cannot be read.
    Unknown,
    /// The step was removed, and its name is used up.
    Removed,
}

/// A step of the run that is known to some tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStep {
    /// Its identity.
    pub id: StepId,
    /// The newest modification time of its files; `None` where that is not known.
    pub written_at: Option<Timestamp>,
    /// How the checkpoint at hand compares with it.
    pub content: Content,
    /// Whether it is a revision that has all files of the one before it.
    pub amends: bool,
    /// Whether what the checkpoint lacks of it can be taken from this node's vault.
    pub is_here: bool,
    /// The evidence with which its attempt begins, if it is the first step of one.
    pub began: Option<Evidence>,
    /// Whether nothing told its number: see [`StepOrigin::unnumbered`](crate::step_origin::StepOrigin::unnumbered).
    pub unnumbered: bool,
}

/// An attempt that this node has taken part in, as the launches record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchSpan {
    /// The attempt.
    pub attempt: Attempt,
    /// When this node joined it, by its own clock.
    pub since: Timestamp,
}

/// A restore from which this node's trainer resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumedFrom {
    /// The restored step.
    pub id: StepId,
    /// The time of the restore, by this node's clock.
    pub since: Timestamp,
    /// The attempt of the steps saved since; `None` before the first such save.
    pub attempt: Option<Attempt>,
}

/// A whole save that appeared while an agent was running: all its files that carry state are new, and it has the kinds of
/// files that the run's steps have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveSave {
    /// The save that the agent saw before it, if that was at or below the run's highest number as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Step>,
}

/// Who determines the attempt of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// Nobody: the steps of the run do.
    Steps,
    /// The user, or the environment of this process.
    Given(Attempt),
    /// The restore after which it was written.
    Restored {
        /// The restore.
        resumed: ResumedFrom,
        /// The attempt of the first launch that this node knows, where the checkpoint is older than that: it stays below,
        /// since the launch may have gone back to an earlier step.
        below: Option<Attempt>,
    },
    /// The launches of the job, the latest last; never empty.
    Launches {
        /// The attempts that this node has taken part in.
        spans: &'a [LaunchSpan],
        /// Whether the checkpoint is known to belong to the latest launch; its time is then not used.
        in_latest: bool,
    },
    /// A launch that is over, with this attempt. No step is added to it for which another one stands.
    Ended(Attempt),
}

/// Everything that decides which step a checkpoint is.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What the tiers know. For a step of several nodes, only what this node itself has saved: other nodes' clocks say
    /// nothing about its files.
    pub known: &'a [KnownStep],
    /// The number of the checkpoint.
    pub step: Step,
    /// The newest modification time of its files.
    pub written_at: Timestamp,
    /// Who determines its attempt.
    pub line: Line<'a>,
    /// Set if it was seen live.
    pub live: Option<LiveSave>,
    /// Whether other nodes write parts of it too.
    pub is_one_of_several: bool,
    /// Whether its path held another step of this vault before: the trainer resumes from what stands there now.
    pub is_overwritten: bool,
    /// Whether nothing tells its number, as in [`KnownStep::unnumbered`].
    pub unnumbered: bool,
}

/// What a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It is this known step.
    Known(StepId),
    /// It is stored under this identity: a new step, or the next revision of a known one.
    New(StepId),
    /// It is a new step of a launch that went back without a restart and saved this step again: the nodes of the launch
    /// agree on the attempt with which it continues.
    LaunchWentBack(StepId),
    /// It is left alone, for this reason.
    Left(StepId, LeftAlone),
}

/// Why a checkpoint is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// Retention removed the step, or a newer launch stands in its place.
    Removed,
    /// Files were added to the step or changed in it while others of it are gone: storing it would hide those.
    LostFiles,
    /// Files were added to a part of a step of several nodes or changed in it: the other nodes do not have that state.
    OneOfSeveral,
    /// The attempt was given, and has other files under this number.
    Taken,
}

/// Evidence with which an attempt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// stepvault restored this step, and later ones existed.
    Restored(StepId),
    /// An agent saw this whole save appear before, at or below the highest number.
    SeenAfter(Step),
    /// It was written over a later step at the only path from which the trainer resumes.
    Overwrote,
    /// A new launch of the job began it.
    Launch,
    /// The user gave the attempt.
    Given,
}

/// What a user should know of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// It was written after this step, which has a higher number and stays the newest.
    WrittenAfter(StepId),
    /// Its number is taken by another save, which stays beside it as an earlier revision.
    Replaces(StepId),
}

/// The decision on one checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What it is.
    pub placement: Placement,
    /// The evidence, if an attempt begins, or began, with it.
    pub began: Option<Evidence>,
    /// Whether it is a revision that has all files of the one before it, which is therefore not needed any more.
    pub amends: bool,
    /// The step in the vault that has the files which the checkpoint has lost; the revision takes them.
    pub completes: Option<StepId>,
    /// Whether its number is at or below the highest one of its attempt.
    pub is_below_highest: bool,
    /// What a user should know.
    pub concern: Option<Concern>,
}

impl Decision {
    const fn of(placement: Placement) -> Self {
        Self {
            placement,
            began: None,
            amends: false,
            completes: None,
            is_below_highest: false,
            concern: None,
        }
    }
}

/// Decides which step a checkpoint is. The result does not depend on the order of `known`.
///
/// # Errors
/// When the numbers of attempts or revisions are used up.
pub fn decide(facts: &Facts<'_>) -> Result<Decision> {
    if let Line::Given(attempt) = facts.line {
        return Ok(given(facts, StepId::new(attempt, facts.step)));
    }
    if let Some(same) = newest_with(facts, &[Content::Same]) {
        return Ok(Decision {
            amends: same.amends,
            began: same.began,
            ..Decision::of(Placement::Known(same.id))
        });
    }
    if let Some(amended) = newest_with(facts, &[Content::Amended, Content::AmendedWithLosses]) {
        let id = amended.id;
        if facts.is_one_of_several {
            return Ok(Decision::of(Placement::Left(id, LeftAlone::OneOfSeveral)));
        }
        let has_losses = amended.content == Content::AmendedWithLosses;
        if has_losses && !amended.is_here {
            return Ok(Decision::of(Placement::Left(id, LeftAlone::LostFiles)));
        }
        let placement = Placement::New(next_revision(facts, id)?);
        return Ok(Decision {
            amends: true,
            completes: has_losses.then_some(id),
            began: amended.began,
            is_below_highest: true,
            ..Decision::of(placement)
        });
    }
    match facts.line {
        Line::Restored { resumed, below } => after_restore(facts, &resumed, below),
        Line::Launches { spans, in_latest } => in_launch(facts, spans, in_latest),
        Line::Ended(attempt) => in_ended(facts, attempt),
        Line::Steps | Line::Given(_) => by_number(facts, attempt_at(facts)),
    }
}

/// Returns the steps whose place in the order and whose time contradict each other, as the one with the higher number and
/// the one that was written after it: of the attempt with the newest step, the highest number and the step written last.
pub fn contradiction(steps: impl IntoIterator<Item = (StepId, Timestamp)>) -> Option<(StepId, StepId)> {
    let steps: Vec<(StepId, Timestamp)> = steps.into_iter().collect();
    let (newest, written_at) = steps.iter().max_by_key(|(id, _)| *id)?;
    let same_attempt = steps.iter().filter(|(id, _)| id.attempt == newest.attempt);
    let (last, last_written_at) = same_attempt.max_by_key(|(id, written_at)| (*written_at, *id))?;
    (last.step < newest.step && last_written_at > written_at).then_some((*newest, *last))
}

fn newest_with<'a>(facts: &Facts<'a>, contents: &[Content]) -> Option<&'a KnownStep> {
    let of_number = facts.known.iter().filter(|known| known.id.step == facts.step);
    of_number.filter(|known| contents.contains(&known.content)).max_by_key(|known| known.id)
}

/// Returns the first revision of a step that nothing has used.
fn next_revision(facts: &Facts<'_>, id: StepId) -> Result<StepId> {
    let revisions = facts.known.iter().map(|known| known.id);
    let last = revisions.filter(|known| known.is_revision_of(id)).max();
    last.map_or(Ok(id), |last| last.max(id).next_revision())
}

/// A given attempt never changes, and holds one checkpoint under each number.
fn given(facts: &Facts<'_>, id: StepId) -> Decision {
    let revisions = || facts.known.iter().filter(|known| known.id.is_revision_of(id));
    let same = revisions().filter(|known| known.content == Content::Same);
    if let Some(same) = same.map(|known| known.id).max() {
        return Decision::of(Placement::Known(same));
    }
    if let Some(taken) = revisions().map(|known| known.id).max() {
        return Decision::of(Placement::Left(taken, LeftAlone::Taken));
    }
    let is_first = facts.known.iter().all(|known| known.id.attempt != id.attempt);
    let begins = is_first && id.attempt != Attempt::FIRST;
    Decision { began: begins.then_some(Evidence::Given), ..Decision::of(Placement::New(id)) }
}

/// Returns the attempt that a checkpoint belongs to without any evidence: the current one if it was seen live, otherwise
/// the one that was under way when it was written.
fn attempt_at(facts: &Facts<'_>) -> Attempt {
    let attempts = || facts.known.iter().map(|known| (known.id.attempt, known.written_at));
    let current = attempts().map(|(attempt, _)| attempt).max().unwrap_or(Attempt::FIRST);
    if facts.live.is_some() || facts.is_overwritten {
        return current;
    }
    let begun =
        attempts().filter(|(_, written_at)| written_at.is_some_and(|first| first <= facts.written_at));
    let written = attempts().filter(|(_, written_at)| written_at.is_some());
    let begun = begun.map(|(attempt, _)| attempt).max();
    begun.or(written.map(|(attempt, _)| attempt).min()).unwrap_or(current)
}

/// A restore of a step that had later ones is evidence: everything saved after it continues that step.
fn after_restore(facts: &Facts<'_>, resumed: &ResumedFrom, below: Option<Attempt>) -> Result<Decision> {
    let decision = continue_restored(facts, resumed)?;
    match (decision.placement, below) {
        (Placement::New(id), Some(below)) if !decision.amends && id.attempt >= below => {
            let attempts = facts.known.iter().map(|known| known.id.attempt);
            let before = attempts.filter(|attempt| *attempt < below).max();
            in_ended(facts, before.unwrap_or(resumed.id.attempt))
        }
        _ => Ok(decision),
    }
}

fn continue_restored(facts: &Facts<'_>, resumed: &ResumedFrom) -> Result<Decision> {
    if let Some(attempt) = resumed.attempt {
        return by_number(facts, attempt);
    }
    let newest = facts.known.iter().map(|known| known.id).fold(resumed.id, StepId::max);
    if newest.is_revision_of(resumed.id) {
        return by_number(facts, resumed.id.attempt);
    }
    let id = StepId::new(newest.attempt.next()?, facts.step);
    Ok(Decision { began: Some(Evidence::Restored(resumed.id)), ..Decision::of(Placement::New(id)) })
}

/// A file older than the latest launch was written during the launch before it. It must not become a step of the latest
/// launch, which may have gone back to an earlier step.
fn in_launch(facts: &Facts<'_>, spans: &[LaunchSpan], in_latest: bool) -> Result<Decision> {
    let mut begun = spans.iter().rev();
    let span = begun.find(|span| in_latest || span.since <= facts.written_at);
    let latest = spans.last().map(|span| span.attempt);
    match (span, spans.first()) {
        (Some(span), _) if Some(span.attempt) == latest => {
            let decision = by_number(facts, span.attempt)?;
            Ok(match decision.began {
                // All nodes of the launch continue with the attempt on which they agree.
                Some(Evidence::SeenAfter(_) | Evidence::Overwrote) => Decision {
                    placement: Placement::LaunchWentBack(StepId::new(span.attempt, facts.step)),
                    ..decision
                },
                _ => decision,
            })
        }
        (Some(span), _) => in_ended(facts, span.attempt),
        // Older than every launch that this node knows. For a node that writes alone it belongs to one of its own. On a
        // new disk of one of several it was still written after the launch began.
        (None, Some(first)) if facts.is_one_of_several => in_ended(facts, first.attempt),
        (None, _) => by_number(facts, attempt_at(facts)),
    }
}

/// Places a checkpoint in an attempt of which no more steps are saved.
fn in_ended(facts: &Facts<'_>, attempt: Attempt) -> Result<Decision> {
    let id = StepId::new(attempt, facts.step);
    let taken = facts.known.iter().find(|known| known.id.is_revision_of(id));
    match taken {
        Some(taken) if facts.is_one_of_several => {
            Ok(Decision::of(Placement::Left(taken.id, LeftAlone::Removed)))
        }
        _ => by_number(facts, attempt),
    }
}

/// Places a checkpoint in an attempt by its number alone, unless it is the second whole save that was seen at or below the
/// highest number. Numbers that nothing told are compared with no others.
fn by_number(facts: &Facts<'_>, attempt: Attempt) -> Result<Decision> {
    let id = StepId::new(attempt, facts.step);
    let of_others = || facts.known.iter().filter(|known| known.id.attempt < attempt);
    let of_attempt = || facts.known.iter().filter(|known| known.id.attempt == attempt);
    let numbered = || of_attempt().filter(|known| !known.unnumbered);
    let highest = numbered().map(|known| (known.id, known.written_at)).max();
    let is_below_highest = highest.is_some_and(|(highest, _)| facts.step <= highest.step);
    let seen_before = facts.live.and_then(|live| live.after).filter(|before| *before < facts.step);
    let overwrote = facts.is_overwritten.then_some(Evidence::Overwrote);
    if let (Some(evidence), true) = (seen_before.map(Evidence::SeenAfter).or(overwrote), is_below_highest) {
        let attempts = facts.known.iter().map(|known| known.id.attempt);
        let next = attempts.max().unwrap_or(attempt).next()?;
        return Ok(Decision {
            began: Some(evidence),
            is_below_highest,
            ..Decision::of(Placement::New(StepId::new(next, facts.step)))
        });
    }
    if facts.unnumbered {
        // The trainer overwrote the content before.
        let revisions = of_attempt().filter(|known| known.id.is_revision_of(id));
        let last = revisions.max_by_key(|known| known.id);
        return Ok(Decision {
            amends: last.is_some_and(|last| last.unnumbered && last.content == Content::Other),
            ..Decision::of(Placement::New(next_revision(facts, id)?))
        });
    }
    let revisions = || numbered().filter(|known| known.id.is_revision_of(id));
    let taken = revisions().filter(|known| known.content != Content::Removed).map(|known| known.id).max();
    let removed = revisions().map(|known| known.id).max();
    // What an upload that never finished has claimed is no save.
    let replaced = revisions().filter(|known| known.content < Content::Unknown).map(|known| known.id).max();
    // A trainer may keep a step longer than retention does.
    if let (None, Some(removed), None) = (taken, removed, facts.live) {
        return Ok(Decision::of(Placement::Left(removed, LeftAlone::Removed)));
    }
    let is_conversion = |known: &KnownStep| known.content == Content::OtherWithLosses;
    if facts.live.is_none()
        && let Some(converted) = revisions().find(|known| is_conversion(known))
    {
        return Ok(Decision::of(Placement::Left(converted.id, LeftAlone::LostFiles)));
    }
    let written_after = highest.filter(|(highest, written_at)| {
        facts.step < highest.step && written_at.is_some_and(|written_at| written_at < facts.written_at)
    });
    let is_first = attempt != Attempt::FIRST && numbered().next().is_none();
    let went_back = is_first && of_others().any(|known| known.id.step >= facts.step);
    Ok(Decision {
        began: went_back.then_some(Evidence::Launch),
        is_below_highest,
        concern: replaced
            .map(Concern::Replaces)
            .or(written_after.map(|(highest, _)| Concern::WrittenAfter(highest))),
        ..Decision::of(Placement::New(next_revision(facts, id)?))
    })
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "placement_properties.rs"]
mod properties;
