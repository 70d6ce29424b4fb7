//! Decides which step a checkpoint is by the launches of its job, on whose attempts the nodes agree on the first remote.

use stepvault_core::launch::LaunchName;
use stepvault_core::placement::{Decision, Evidence, KnownStep, LeftAlone, Line, Placement};
use stepvault_core::{Attempt, Result, StepId, Timestamp};

use super::PlacementQuery;
use crate::launches::Launches;
use crate::tier::run_remote::RunRemote;

impl PlacementQuery<'_> {
    /// Decides by the attempts of launches. All nodes agree on these.
    ///
    /// # Errors
    /// When this node does not know the attempt yet and the first remote is unreachable: an attempt chosen by this node
    /// alone could belong to another launch.
    pub(super) async fn by_launch(&self, known: &[KnownStep], remote: &RunRemote) -> Result<Decision> {
        let unnamed = LaunchName::unnamed();
        let launch = self.writer.launch.as_ref().unwrap_or(&unnamed);
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let current = self.current.writer.launch.as_ref().unwrap_or(&unnamed);
        let is_current = launch == current;
        if is_current {
            launches.join(launch, self.joined_at()).await?;
        } else if let Some(attempt) = self.earlier_launch(&mut launches, launch, current).await? {
            return self.decide_by(Line::Ended(attempt), known);
        }
        let spans = launches.spans();
        let in_latest = is_current && self.origin.in_launch;
        let is_older = !in_latest && spans.iter().all(|span| span.since > self.written_at());
        if is_older && !self.is_one_of_several() {
            let below = spans.first().map(|span| span.attempt);
            return self.by_restores(known, true, below).await;
        }
        let line = Line::Launches { spans: &spans, in_latest };
        let decision = self.decide_by(line, known)?;
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
    pub(super) async fn by_launch_alone(&self, known: &[KnownStep], remote: &RunRemote) -> Result<Decision> {
        let current = self.current.writer.launch.as_ref();
        let launch = self.writer.launch.as_ref();
        let Some(launch) = launch.filter(|launch| Some(*launch) == current) else {
            return self.by_restores(known, true, None).await;
        };
        let mut launches = Launches::open(Some(self.vault), remote).await?;
        let is_of_launch = self.origin.in_launch || self.written_at() >= self.current.launch_since;
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
        let decision = self.decide_by(line, known)?;
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
        let since = self.current.launch_since;
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
