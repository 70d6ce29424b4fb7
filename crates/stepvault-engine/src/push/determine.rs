//! Determines the step and attempt of a checkpoint from what the tiers hold, what this node has restored, and its
//! launches.

use std::sync::Arc;

use futures::future::join_all;
use stepvault_core::attempts::{
    KnownStep, LaunchPlacement, Placement, place, place_by_launch, place_resumed,
};
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::Writer;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, Result};
use stepvault_local::vault::Vault;

use super::known_steps::{ScannedCheckpoint, known_on, own_parts_on};
use crate::catalog::is_outage;
use crate::launches::Launches;
use crate::resumptions::Resumptions;
use crate::run_remote::RunRemote;

/// Determines the attempts of one writer's steps.
#[derive(Debug, Clone)]
pub struct Placer {
    /// The current writer of steps.
    pub writer: Writer,
    /// The time, by this node's clock, since which this node has been part of the writer's launch.
    pub launch_since: Timestamp,
}

/// A checkpoint whose attempt is to be determined.
#[derive(Debug)]
pub(super) struct AttemptQuery<'a> {
    pub(super) vault: &'a Vault,
    pub(super) run: &'a RunName,
    pub(super) remotes: &'a [RunRemote],
    pub(super) placer: &'a Placer,
    pub(super) checkpoint: &'a ScannedCheckpoint<'a>,
    /// The writer of the checkpoint.
    pub(super) writer: &'a Writer,
    /// The earliest time, by this node's clock, at which it can have been written.
    pub(super) not_before: Option<Timestamp>,
    /// Whether it is known to belong to the writer's launch.
    pub(super) in_launch: bool,
    /// The provisional steps of the vault: when each was written, and its current attempt.
    pub(super) provisional: Vec<(Timestamp, Attempt)>,
}

/// Steps known from the tiers.
#[derive(Debug, Default)]
pub(super) struct KnownSteps {
    pub(super) steps: Vec<KnownStep>,
    /// Whether a remote that answered lacks the checkpoint, or a remote did not answer.
    pub(super) missing_somewhere: bool,
    /// The errors of the remotes that did not answer.
    pub(super) unanswered: Vec<Error>,
    /// Whether at least one remote answered.
    pub(super) answered: bool,
}

impl KnownSteps {
    /// Whether a tier holds the checkpoint of this step.
    pub(super) fn has_content(&self, step: Step) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|entry| entry.id.step == step && entry.same_content)
    }

    /// Whether retention removed this step.
    pub(super) fn is_removed(&self, id: StepId) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|entry| entry.id == id && entry.written_at.is_none())
    }

    /// Adds the entries of another tier. The same step on two tiers is one step; if its content matches on one tier, it
    /// matches.
    pub(super) fn add(&mut self, entries: Vec<KnownStep>) {
        for entry in entries {
            match self.steps.iter_mut().find(|other| other.id == entry.id) {
                Some(other) => {
                    other.same_content |= entry.same_content;
                    other.written_at = other.written_at.max(entry.written_at);
                }
                None => self.steps.push(entry),
            }
        }
    }
}

/// Queries all remotes concurrently for the steps that they know. A step that several nodes write cannot be sealed
/// without the answer; any other is sealed soon, whatever the remotes do.
pub(super) async fn ask_remotes(
    remotes: &[RunRemote],
    checkpoint: &ScannedCheckpoint<'_>,
    writer: &Writer,
    observer: &Arc<dyn Observer>,
) -> KnownSteps {
    let mut known = KnownSteps {
        missing_somewhere: remotes.is_empty(),
        ..KnownSteps::default()
    };
    let answers = join_all(remotes.iter().map(|remote| async move {
        if writer.place.nodes().is_several() {
            return own_parts_on(remote, checkpoint, writer).await;
        }
        let found = remote.answers_soon(known_on(remote, checkpoint)).await?;
        let is_there = found.iter().any(|entry| entry.same_content);
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
                observer.on_event(&Event::Warning {
                    message: &format!("cannot list the steps on {}: {error}", remote.name()),
                });
                known.unanswered.push(error);
            }
        }
    }
    known
}

impl AttemptQuery<'_> {
    fn written_at(&self) -> Timestamp {
        self.checkpoint.tree.newest_mtime()
    }

    /// The time that decides after which restore, and in which launch, it was written.
    fn time(&self) -> Timestamp {
        self.not_before
            .map_or(self.written_at(), |time| time.max(self.written_at()))
    }

    fn is_one_of_several(&self) -> bool {
        self.writer.place.nodes().is_several()
    }

    /// Determines the placement from everything that is known.
    ///
    /// # Errors
    /// When several nodes have to agree and the remote on which they agree is unreachable.
    pub(super) async fn determine(&self, known: &[KnownStep]) -> Result<Placement> {
        if self.writer.goes_by_launch() {
            return self.in_launch(known).await;
        }
        self.alone(known, true).await
    }

    /// Determines the placement from this node's knowledge alone, for use until a remote answers.
    pub(super) async fn foresee(&self, known: &[KnownStep]) -> Result<Placement> {
        if !self.is_one_of_several() {
            return self.alone(known, false).await;
        }
        let same = known
            .iter()
            .filter(|entry| entry.id.step == self.checkpoint.step && entry.same_content);
        if let Some(entry) = same.max_by_key(|entry| entry.id) {
            return Ok(Placement::Known(entry.id));
        }
        let highest = known.iter().map(|entry| entry.id.attempt).max();
        Ok(Placement::New(StepId::new(
            highest.unwrap_or(Attempt::FIRST),
            self.checkpoint.step,
        )))
    }

    /// Places a checkpoint of a single node: by its earlier restores, otherwise by the times of its files.
    async fn alone(&self, known: &[KnownStep], is_final: bool) -> Result<Placement> {
        let (step, written_at) = (self.checkpoint.step, self.written_at());
        let mut resumptions = Resumptions::open(self.vault, self.run).await?;
        let Some(mut resumed) = resumptions.before(self.time()) else {
            return place(known, step, written_at);
        };
        if !is_final {
            let since = self.provisional.iter().filter(|(time, _)| *time >= resumed.since);
            resumed.attempt = resumed.attempt.or(since.map(|(_, attempt)| *attempt).max());
        }
        let placement = place_resumed(known, &resumed, step, written_at)?;
        if let (Placement::New(id), true) = (placement, is_final) {
            resumptions.joined(&resumed, id.attempt).await?;
        }
        Ok(placement)
    }

    /// Places the checkpoint in the attempt of the launch, on which all nodes agree.
    ///
    /// # Errors
    /// When this node does not know the attempt yet and the first remote is unreachable: an attempt chosen by this node
    /// alone could belong to another launch.
    async fn in_launch(&self, known: &[KnownStep]) -> Result<Placement> {
        let unnamed = LaunchName::unnamed();
        let launch = self.writer.launch.as_ref().unwrap_or(&unnamed);
        let Some(remote) = self.remotes.first() else {
            return place(known, self.checkpoint.step, self.written_at());
        };
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let current = self.placer.writer.launch.as_ref().unwrap_or(&unnamed);
        let is_current = launch == current;
        let joined = if is_current {
            launches.join(launch, self.joined_at()).await.map(Some)
        } else {
            self.earlier_launch(&mut launches, launch, current).await
        };
        let attempt = match joined {
            // A single node needs no agreement: its own files distinguish attempts, as without a launcher.
            Err(error) if is_outage(&error) && !self.is_one_of_several() => {
                return self.alone(known, true).await;
            }
            joined => joined?,
        };
        if let (false, Some(attempt)) = (is_current, attempt) {
            return Ok(self.in_attempt_left(known, attempt));
        }
        let (step, written_at) = (self.checkpoint.step, self.written_at());
        let spans = launches.spans();
        let in_latest = is_current && self.in_launch;
        match place_by_launch(known, &spans, step, written_at, in_latest) {
            Some(LaunchPlacement::Placed(placement)) => Ok(placement),
            Some(LaunchPlacement::WentBack(over)) if is_current => {
                let attempt = launches.go_back(launch, over, written_at).await?;
                Ok(Placement::New(StepId::new(attempt, step)))
            }
            Some(LaunchPlacement::WentBack(over)) => Ok(Placement::Stale(over)),
            // For a node that writes alone it belongs to one of its own launches, whichever that was.
            Some(LaunchPlacement::OfUnknownLaunch) if !self.is_one_of_several() => {
                self.alone(known, true).await
            }
            // Older than every launch that this node knows. On a new disk it was still written after the launch began,
            // even if the agent started after the first checkpoint.
            Some(LaunchPlacement::OfUnknownLaunch) => {
                let attempt = spans.first().map_or(Attempt::FIRST, |span| span.attempt);
                Ok(self.in_attempt_left(known, attempt))
            }
            None => place(known, step, written_at),
        }
    }

    /// Returns the next placement for a step whose identity `lost` is taken by something that listings do not show;
    /// `None` if its launch is over.
    pub(super) async fn beyond(&self, lost: StepId, known: &[KnownStep]) -> Result<Option<StepId>> {
        if !self.is_one_of_several() {
            let attempts = known.iter().map(|entry| entry.id.attempt);
            let highest = attempts.fold(lost.attempt, Attempt::max);
            return Ok(Some(StepId::new(highest.next()?, lost.step)));
        }
        let (Some(launch), Some(remote)) = (&self.writer.launch, self.remotes.first()) else {
            return Ok(None);
        };
        if Some(launch) != self.placer.writer.launch.as_ref() {
            return Ok(None);
        }
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let attempt = launches.go_back(launch, lost, self.written_at()).await?;
        Ok(Some(StepId::new(attempt, lost.step)))
    }

    /// The latest time at which this node can have joined the launch.
    fn joined_at(&self) -> Timestamp {
        let since = self.placer.launch_since;
        self.not_before.map_or(since, |time| time.min(since))
    }

    /// Returns the attempt of a launch that is over. A launch that has no attempt yet gets one only while the launch
    /// after it has none, so that a later launch always has a higher attempt.
    async fn earlier_launch(
        &self,
        launches: &mut Launches<'_>,
        launch: &LaunchName,
        current: &LaunchName,
    ) -> Result<Option<Attempt>> {
        if let Some(attempt) = launches.known(launch).await? {
            return Ok(Some(attempt));
        }
        if launches.known(current).await?.is_some() {
            return Ok(None);
        }
        launches.join(launch, self.time()).await.map(Some)
    }

    /// Places the checkpoint in an attempt to which no new steps are added.
    fn in_attempt_left(&self, known: &[KnownStep], attempt: Attempt) -> Placement {
        let id = StepId::new(attempt, self.checkpoint.step);
        let same = known
            .iter()
            .filter(|entry| entry.id.step == id.step && entry.same_content);
        if let Some(entry) = same.max_by_key(|entry| entry.id) {
            return Placement::Known(entry.id);
        }
        if known.iter().any(|entry| entry.id == id) {
            Placement::Stale(id)
        } else {
            Placement::New(id)
        }
    }
}
