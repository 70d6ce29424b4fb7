//! Gathers what decides which step a checkpoint is: what the tiers hold, what this node has restored, and its launches.
//! [`decide`] decides.

mod known;
mod provisional;

use std::sync::Arc;

pub(crate) use known::{KnownSteps, ask_remotes, is_overwritten, known_in_vault, taken};
pub use known::{ScannedCheckpoint, held_by_all};
pub use provisional::{Determined, Outcome, determine_attempts, make_provisional_again, provisional_steps};
pub(crate) use provisional::{left_alone, written_at};
use stepvault_core::Result;
use stepvault_core::ids::{Attempt, RunName, StepId};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::placement::{
    Concern, Content, Decision, Evidence, Facts, KnownStep, LeftAlone, Line, Placement, decide,
};
use stepvault_core::timestamp::Timestamp;
use stepvault_local::seal_record::AttemptOrigin;
use stepvault_local::vault::Vault;

use crate::launches::Launches;
use crate::outage::is_outage;
use crate::seen_checkpoints::Resumptions;
use crate::tier::run_remote::RunRemote;

/// Determines the attempts of one writer's steps.
#[derive(Debug, Clone)]
pub struct Placer {
    /// The current writer of steps.
    pub writer: Writer,
    /// The time, by this node's clock, since which this node has been part of the writer's launch.
    pub launch_since: Timestamp,
}

/// A checkpoint whose place is to be decided.
#[derive(Debug)]
pub(crate) struct PlacementQuery<'a> {
    pub(crate) vault: &'a Vault,
    pub(crate) run: &'a RunName,
    pub(crate) remotes: &'a [RunRemote],
    pub(crate) placer: &'a Placer,
    pub(crate) checkpoint: &'a ScannedCheckpoint,
    /// The writer of the checkpoint.
    pub(crate) writer: &'a Writer,
    /// The attempt that was given for it.
    pub(crate) attempt: Option<Attempt>,
    /// What is known of its attempt, and identities of it that turned out to be taken.
    pub(crate) origin: &'a AttemptOrigin,
    /// Whether its path held another step of this vault before.
    pub(crate) is_overwritten: bool,
    /// The provisional steps of the vault: when each was written, and its current attempt.
    pub(crate) provisional: Vec<(Timestamp, Attempt)>,
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

    fn decide_in(&self, known: &[KnownStep], line: Line<'_>) -> Result<Decision> {
        decide(&Facts {
            known,
            step: self.checkpoint.step,
            written_at: self.written_at(),
            line,
            live: self.origin.live,
            is_one_of_several: self.is_one_of_several(),
            is_overwritten: self.is_overwritten,
            unnumbered: self.checkpoint.checkpoint.origin.unnumbered,
        })
    }

    /// Decides from everything that is known. `is_final` is false while no remote has answered: the decision is then made
    /// again once one does.
    ///
    /// # Errors
    /// When several nodes have to agree and the remote on which they agree is unreachable.
    pub(crate) async fn decide(&self, known: &[KnownStep], is_final: bool) -> Result<Decision> {
        if let Some(attempt) = self.attempt {
            return self.decide_in(known, Line::Given(attempt));
        }
        let mut known = known.to_vec();
        if !self.is_one_of_several() {
            // Listings do not show what took them.
            let lost = self.origin.lost.iter();
            let lost = lost.filter(|id| known.iter().all(|known| known.id != **id));
            let lost: Vec<KnownStep> = lost.map(|id| taken(*id, Content::Unknown)).collect();
            known.extend(lost);
        }
        let known = known.as_slice();
        if !is_final && self.is_one_of_several() {
            return self.among_several_for_now(known);
        }
        let by_launch = is_final && self.writer.goes_by_launch();
        if let Some(remote) = self.remotes.first().filter(|_| by_launch) {
            match self.by_launch(known, remote).await {
                // A single node needs no agreement: it knows its own restores and launches.
                Err(error) if is_outage(&error) && !self.is_one_of_several() => {
                    return self.by_launch_alone(known, remote).await;
                }
                decided => return decided,
            }
        }
        self.by_restores(known, is_final, None).await
    }

    /// One of several nodes never chooses an attempt: the decision stands only until the nodes can agree.
    fn among_several_for_now(&self, known: &[KnownStep]) -> Result<Decision> {
        let attempts = known.iter().map(|known| known.id.attempt);
        let highest = attempts.max().unwrap_or(Attempt::FIRST);
        let of_number = known.iter().filter(|known| known.id.step == self.checkpoint.step);
        let same: Vec<KnownStep> =
            of_number.filter(|known| known.content == Content::Same).copied().collect();
        self.decide_in(&same, Line::Ended(highest))
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
            return self.decide_in(known, Line::Steps);
        };
        if !is_final {
            let since = self.provisional.iter().filter(|(time, _)| *time >= resumed.since);
            resumed.attempt = resumed.attempt.or(since.map(|(_, attempt)| *attempt).max());
        }
        let decision = self.decide_in(known, Line::Restored { resumed, below })?;
        if let (Placement::New(id), false, true) = (decision.placement, decision.amends, is_final) {
            resumptions.joined(&resumed, id.attempt).await?;
        }
        Ok(decision)
    }

    /// Decides by the attempts of launches, on which all nodes agree.
    ///
    /// # Errors
    /// When this node does not know the attempt yet and the first remote is unreachable: an attempt chosen by this node
    /// alone could belong to another launch.
    async fn by_launch(&self, known: &[KnownStep], remote: &RunRemote) -> Result<Decision> {
        let unnamed = LaunchName::unnamed();
        let launch = self.writer.launch.as_ref().unwrap_or(&unnamed);
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let current = self.placer.writer.launch.as_ref().unwrap_or(&unnamed);
        let is_current = launch == current;
        if is_current {
            launches.join(launch, self.joined_at()).await?;
        } else if let Some(attempt) = self.earlier_launch(&mut launches, launch, current).await? {
            return self.decide_in(known, Line::Ended(attempt));
        }
        let spans = launches.spans();
        let in_latest = is_current && self.origin.in_launch;
        let is_older = !in_latest && spans.iter().all(|span| span.since > self.written_at());
        if is_older && !self.is_one_of_several() {
            let below = spans.first().map(|span| span.attempt);
            return self.by_restores(known, true, below).await;
        }
        let line = Line::Launches { spans: &spans, in_latest };
        let decision = self.decide_in(known, line)?;
        let over = match decision.placement {
            Placement::LaunchWentBack(over) => over,
            Placement::New(id) if self.origin.lost.contains(&id) => id,
            _ => return Ok(decision),
        };
        let placement = if is_current {
            let attempt = launches.go_back(launch, over, self.written_at()).await?;
            Placement::New(StepId::new(attempt, over.step))
        } else {
            Placement::Left(over, LeftAlone::Removed)
        };
        Ok(Decision { placement, ..decision })
    }

    /// Decides by the launches that the vault of a single node knows, while the remote with the attempts of launches is
    /// away. The attempt of a new launch is remembered, so that its later saves stay in it.
    async fn by_launch_alone(&self, known: &[KnownStep], remote: &RunRemote) -> Result<Decision> {
        let current = self.placer.writer.launch.as_ref();
        let launch = self.writer.launch.as_ref();
        let Some(launch) = launch.filter(|launch| Some(*launch) == current) else {
            return self.by_restores(known, true, None).await;
        };
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let is_of_launch = self.origin.in_launch || self.written_at() >= self.placer.launch_since;
        if !launches.is_latest(launch) {
            let decision = self.by_restores(known, true, None).await?;
            let Placement::New(id) = decision.placement else {
                return Ok(decision);
            };
            if decision.amends || !is_of_launch {
                return Ok(decision);
            }
            let went_back = decision.began.is_none() && decision.is_below_highest;
            let attempt = if went_back { id.attempt.next()? } else { id.attempt };
            launches.remember(launch, attempt, self.joined_at()).await?;
            if !went_back {
                return Ok(decision);
            }
            return Ok(Decision {
                placement: Placement::New(StepId::new(attempt, id.step)),
                began: Some(Evidence::Launch),
                concern: None,
                ..decision
            });
        }
        let spans = launches.spans();
        let line = Line::Launches { spans: &spans, in_latest: is_of_launch };
        let decision = self.decide_in(known, line)?;
        let Placement::LaunchWentBack(id) = decision.placement else {
            return Ok(decision);
        };
        let attempts = known.iter().map(|known| known.id.attempt);
        let attempt = attempts.fold(id.attempt, Attempt::max).next()?;
        launches.remember(launch, attempt, self.written_at()).await?;
        Ok(Decision { placement: Placement::New(StepId::new(attempt, id.step)), ..decision })
    }

    /// The latest time at which this node can have joined the launch.
    fn joined_at(&self) -> Timestamp {
        let since = self.placer.launch_since;
        self.origin.not_before.map_or(since, |time| time.min(since))
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
}

/// Returns what a user should know of a decision: that an attempt begins, and where numbers and times contradict each
/// other.
pub(crate) fn remarks(decision: &Decision) -> Vec<String> {
    let Placement::New(id) = decision.placement else {
        return Vec::new();
    };
    let step = id.step;
    let began = decision.began.filter(|_| !decision.amends).map(|evidence| {
        format!("attempt {} begins with step {step}: {}", id.attempt, evidence_text(&evidence))
    });
    let concern = decision.concern.map(|concern| match concern {
        Concern::WrittenAfter(newest) => format!(
            "step {step} was written after {newest}, which has the higher number and stays the newest; to resume from step \
             {step}, use 'stepvault restore --step {step}'"
        ),
        Concern::Replaces(other) => format!(
            "step {step} is another save than {other}, which stays beside it; if the run went back, push it with --attempt, \
             or use 'stepvault restore --step {step}'"
        ),
    });
    began.into_iter().chain(concern).collect()
}

/// Returns the evidence with which an attempt begins, in words.
pub fn evidence_text(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Restored(id) => format!("{id} was restored, and later steps existed"),
        Evidence::SeenAfter(step) => {
            format!("the agent saw the trainer save step {step} and this one below the highest number")
        }
        Evidence::Overwrote => "it was written over a step with that number or a higher one".to_owned(),
        Evidence::Launch => "a new launch saved it at or below the highest number".to_owned(),
        Evidence::Given => "the attempt was given".to_owned(),
    }
}

/// Reports the remarks on a decision.
pub(crate) fn report(decision: &Decision, observer: &Arc<dyn Observer>) {
    for message in remarks(decision) {
        match decision.concern {
            Some(_) => observer.warn(message),
            None => observer.info(message),
        }
    }
}
