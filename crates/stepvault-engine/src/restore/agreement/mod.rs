//! Chooses one step for all nodes of a launch through records that are created once.
//!
//! If each node searched for the newest step by itself, nodes could find different ones, because a commit may arrive
//! between two searches; and launchers do not count restarts alike on all nodes. So each start of the nodes has an
//! attempt of its own (see [`Launches::begin`]) in which each node reports itself, with the parts that its vault holds
//! (`reports`). Once all have, the first of them decides, and all follow its record. A step that is newer than the
//! newest durable one is chosen if the nodes hold all of its parts: they upload them (`reports`), and the record of
//! the next round says whether it became durable.

mod reports;

use std::collections::BTreeSet;

use stepvault_core::codec::FORMAT;
use stepvault_core::keys::{DAMAGED, ResumePoint};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::listed;
use stepvault_core::records::{Availability, DamagedStep, Follower, Resume};
use stepvault_core::{Attempt, Error, ErrorKind, NodeName, Result, StepId};
use tokio::time::{Duration, Instant};

use super::plan::{Scope, Search, SkippedStep};
use super::request::{Parts, Restore, RestoreContext, RestoreRequest, Together, WantedSteps};
use crate::launches::Launches;
use crate::tier::catalog::{following_nodes, starting_nodes};
use crate::tier::run_remote::RunRemote;
use reports::HeldParts;

/// Interval between checks of the other nodes' records.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of decisions in one attempt: each after the first follows a damaged step or an upload.
const MAX_ROUNDS: u32 = 64;
/// Maximum number of attempts that other nodes may begin while this node waits for them.
const MAX_BEGINNINGS: u32 = 64;

/// The agreed step to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The step; `None` when there is nothing to resume from.
    pub(super) step: Option<StepId>,
    /// Where the nodes find it.
    availability: Availability,
    /// Newer steps that this node skipped; empty if another node decided.
    pub(super) skipped: Vec<SkippedStep>,
}

impl Agreed {
    /// A step for which this node skipped no other.
    fn on(id: StepId, availability: Availability) -> Self {
        Self { step: Some(id), availability, skipped: Vec::new() }
    }

    /// Narrows a request to the agreed step.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when the nodes agreed that there is nothing to resume from.
    pub(super) fn narrow(&self, request: &RestoreRequest) -> Result<RestoreRequest> {
        let id = self.step.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "no such checkpoint")
                .on(format!("any step of run '{}'", request.run))
                .because("the nodes of this launch found none when it started")
                .hint("run 'stepvault list' to see the current steps; restore one without the other nodes' agreement \
                       with --step N")
        })?;
        let mut narrowed = request.clone();
        narrowed.wanted = WantedSteps::only(id);
        if self.availability == Availability::OwnParts {
            narrowed.parts = Parts::OwnSealed;
        }
        Ok(narrowed)
    }
}

/// What becomes of an attempt in which some nodes do not report themselves in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingNodes {
    /// The others decide.
    AreLeftBehind,
    /// Nothing is decided: they may be training already.
    AreNeeded,
}

/// The attempt that this node has joined.
#[derive(Debug)]
struct Joined {
    attempt: Attempt,
    /// What the others had decided in it before, one decision for each round. Decisions never change.
    decisions: Vec<Resume>,
    missing: MissingNodes,
}

/// An agreement in progress.
struct Agreement<'a> {
    context: &'a RestoreContext,
    request: &'a RestoreRequest,
    together: &'a Together,
    launch: &'a LaunchName,
    /// The remote on which the nodes agree.
    remote: &'a RunRemote,
}

/// Returns what the nodes of this launch have agreed on, or makes them agree now. Returns `None` where no agreement is
/// needed: a single node, no launch, or an explicitly requested step.
///
/// A restore from which the trainer resumes begins a new attempt with the other nodes; any other restore follows what
/// they decided last, and records nothing.
///
/// # Errors
/// When the remote on which the nodes agree is unreachable.
pub(super) async fn agree(restore: Restore<'_>) -> Result<Option<Agreed>> {
    let Some(agreement) = Agreement::of(restore) else {
        return Ok(None);
    };
    let Together { writer, since, .. } = agreement.together;
    let mut launches = Launches::open(restore.context.vault.as_ref(), agreement.remote).await?;
    if !restore.request.resumes {
        return agreement.follow(&launches).await.map(Some);
    }
    // One that comes to a launch for the first time is late, and follows what the others decided without it.
    let was_part = launches.was_part_of(agreement.launch);
    let mut outdated = None;
    for _ in 0..MAX_BEGINNINGS {
        let attempt = launches.begin(agreement.launch, &writer.place, *since, outdated).await?;
        let decisions = agreement.decisions(attempt).await?;
        if let Some(decided) = decisions.last().filter(|_| was_part)
            && agreement.is_outdated(decided).await?
        {
            outdated = Some(attempt);
            continue;
        }
        let held = agreement.held_parts().await?;
        agreement.report(attempt, &held, 0).await?;
        let joined = Joined {
            attempt,
            decisions,
            missing: match outdated {
                None => MissingNodes::AreLeftBehind,
                Some(_) => MissingNodes::AreNeeded,
            },
        };
        if let Some(agreed) = agreement.decide_in(&joined, &held, &launches).await? {
            return Ok(Some(agreed));
        }
        // The other nodes were in this attempt before, and have started again.
    }
    Err(agreement.no_agreement(MAX_BEGINNINGS))
}

/// Like [`agree`], but writes nothing and waits for no node: predicts the agreement from what is known now.
pub(super) async fn predict(restore: Restore<'_>) -> Result<Option<Agreed>> {
    let Some(agreement) = Agreement::of(restore) else {
        return Ok(None);
    };
    let damaged = damaged_steps(agreement.remote).await?;
    let durable = agreement.newest_durable(&damaged).await?;
    let held = agreement.held_parts().await?;
    if let Some(id) = held.newest(durable.step, &damaged) {
        restore.context.observer.warn(format!(
            "{id} is sealed on this node and not durable: the nodes restore it if they hold all of its parts"
        ));
    }
    Ok(Some(durable))
}

/// Records that the agreed step is damaged, so that the nodes agree on another one at the next start.
pub(super) async fn record_damaged(restore: Restore<'_>, id: StepId, reasons: &[String]) {
    let Some(agreement) = Agreement::of(restore) else {
        return;
    };
    let record = DamagedStep {
        format: FORMAT,
        run: restore.request.run.clone(),
        id,
        node: agreement.together.writer.place.node().clone(),
        reasons: reasons.to_vec(),
    };
    let key = agreement.remote.keys.damaged(id);
    if let Err(error) = agreement.remote.replace_record(&key, &record).await {
        restore.context.observer.warn(format!("cannot tell the other nodes that {id} is damaged: {error}"));
    }
}

async fn damaged_steps(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let listed = remote.list_steps(DAMAGED).await?;
    Ok(listed.into_keys().collect())
}

impl<'a> Agreement<'a> {
    fn of(Restore { context, request }: Restore<'a>) -> Option<Self> {
        let together = request.together.as_ref()?;
        if !request.wanted.are_newest() || !together.writer.place.nodes().is_several() {
            return None;
        }
        Some(Self {
            context,
            request,
            together,
            launch: together.writer.launch.as_ref()?,
            remote: context.remotes.first()?,
        })
    }

    /// Returns the durable step that the nodes decided on last, else the newest durable one.
    async fn follow(&self, launches: &Launches<'_>) -> Result<Agreed> {
        let damaged = damaged_steps(self.remote).await?;
        let latest = match launches.known(self.launch).await? {
            Some(attempt) => self.decisions(attempt).await?.pop(),
            None => None,
        };
        match latest.filter(|resume| resume.availability == Availability::Durable) {
            Some(Resume { step: Some(id), .. }) if !damaged.contains(&id) => {
                Ok(Agreed::on(id, Availability::Durable))
            }
            _ => self.newest_durable(&damaged).await,
        }
    }

    /// Returns the decisions that are recorded in an attempt.
    async fn decisions(&self, attempt: Attempt) -> Result<Vec<Resume>> {
        let mut decisions = Vec::new();
        for round in 0..MAX_ROUNDS {
            let Some(resume) = self.recorded(ResumePoint { attempt, round }).await? else {
                break;
            };
            decisions.push(resume);
        }
        Ok(decisions)
    }

    /// Decides together with the other nodes of the attempt. Returns `None` when they have begun a later attempt.
    async fn decide_in(
        &self,
        joined: &Joined,
        held: &HeldParts,
        launches: &Launches<'_>,
    ) -> Result<Option<Agreed>> {
        let attempt = joined.attempt;
        let damaged = damaged_steps(self.remote).await?;
        let place = &self.together.writer.place;
        let decides_first = place.nodes().iter().next() == Some(place.node());
        let forming_until = Instant::now() + self.together.patience;
        let mut skipped = Vec::new();
        let mut known = joined.decisions.iter().cloned();
        for round in 0..MAX_ROUNDS {
            let point = ResumePoint { attempt, round };
            let known = known.next();
            let resume = loop {
                // A decision counts once all nodes are in the attempt: until then the ones that made it may have
                // started again.
                let silent = self.silent_nodes(attempt).await?;
                let is_formed = silent.is_empty();
                let is_late = Instant::now() >= forming_until;
                let recorded = match &known {
                    Some(known) => Some(known.clone()),
                    None => self.recorded(point).await?,
                };
                if (recorded.is_some() || !is_formed)
                    && launches.has_begun_after(self.launch, attempt).await?
                {
                    return Ok(None);
                }
                if let Some(resume) = recorded.filter(|_| is_formed || is_late) {
                    break resume;
                }
                if is_late && !is_formed {
                    self.go_on_without(&silent, joined.missing)?;
                }
                if is_late || is_formed && (round > 0 || decides_first) {
                    let agreed = self.decide(attempt, &damaged).await?;
                    if self.record(point, &agreed).await? {
                        skipped = agreed.skipped;
                    }
                    continue;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            };
            match (resume.availability, resume.step) {
                (_, Some(id)) if damaged.contains(&id) => {}
                (Availability::WhenUploaded, Some(id)) => self.complete(point, id, held, &damaged).await?,
                (availability, step) => {
                    let is_followed = self.follow_together(joined, launches).await?;
                    return Ok(is_followed.then_some(Agreed { step, availability, skipped }));
                }
            }
        }
        Err(self.no_agreement(MAX_ROUNDS))
    }

    /// Says that this node follows the decision of the attempt, and waits until all nodes that have reported themselves in it
    /// say so too. Returns `false` when they have begun a later attempt: a node that reported itself and was restarted
    /// since does not follow.
    ///
    /// A node that joined late cannot know whether the others train from the decision, or have been started again with it and
    /// are about to begin a later attempt: it waits for that as long as they waited for it.
    async fn follow_together(&self, joined: &Joined, launches: &Launches<'_>) -> Result<bool> {
        let attempt = joined.attempt;
        let node = self.together.writer.place.node();
        let follower =
            Follower { format: FORMAT, run: self.request.run.clone(), attempt, node: node.clone() };
        let key = self.remote.keys.follower(attempt, node);
        self.remote.replace_record(&key, &follower).await?;
        let until = Instant::now() + self.together.patience;
        loop {
            let started = starting_nodes(self.remote, attempt).await?;
            let following = following_nodes(self.remote, attempt).await?;
            let silent: Vec<NodeName> = started.difference(&following).cloned().collect();
            if silent.is_empty() && joined.decisions.is_empty() {
                return Ok(true);
            }
            if launches.has_begun_after(self.launch, attempt).await? {
                return Ok(false);
            }
            if Instant::now() >= until {
                if !silent.is_empty() {
                    self.go_on_without(&silent, joined.missing)?;
                }
                return Ok(true);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether a newer step has become durable since the other nodes decided, as when this node brought the last parts of
    /// it. To one that was part of the launch before, they may train from the decided step, or have started again to
    /// resume from the newer one.
    async fn is_outdated(&self, decided: &Resume) -> Result<bool> {
        let damaged = damaged_steps(self.remote).await?;
        Ok(self.newest_durable(&damaged).await?.step > decided.step)
    }

    /// Leaves silent nodes behind with a warning.
    ///
    /// # Errors
    /// When they are needed.
    fn go_on_without(&self, silent: &[NodeName], missing: MissingNodes) -> Result<()> {
        if missing == MissingNodes::AreLeftBehind {
            self.context.observer.warn(format!(
                "{} did not start within {} s: going on without the steps that only they may hold",
                listed(silent),
                self.together.patience.as_secs()
            ));
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unreachable, "cannot agree with the other nodes on a step")
            .on(format!("run '{}'", self.request.run))
            .because(format!(
                "they decided without this node, a newer step has become durable since, and {} did not start again \
                 within {} s",
                listed(silent),
                self.together.patience.as_secs()
            ))
            .hint("restart the job on all nodes: they will agree on the newer step")
            .lasting();
        Err(error)
    }

    fn no_agreement(&self, times: u32) -> Error {
        Error::new(ErrorKind::NoneValid, "the nodes cannot agree on a step")
            .on(self.remote.describe(&self.remote.keys.all(DAMAGED)))
            .because(format!("{times} decisions in a row did not hold"))
            .hint("run 'stepvault verify --deep' to see what is wrong, or restore a step without the other nodes' agreement \
                   with --step N")
    }

    /// Returns the decision that is recorded at a point.
    async fn recorded(&self, point: ResumePoint) -> Result<Option<Resume>> {
        let key = self.remote.keys.resume(point);
        let record = self.remote.read_record::<Resume>(&key).await?;
        Ok(record.map(|(resume, _)| resume))
    }

    /// Records a decision; returns `false` when another node was faster.
    async fn record(&self, point: ResumePoint, agreed: &Agreed) -> Result<bool> {
        let resume = Resume {
            format: FORMAT,
            run: self.request.run.clone(),
            attempt: point.attempt,
            launch: self.launch.clone(),
            step: agreed.step,
            availability: agreed.availability,
            node: self.together.writer.place.node().clone(),
        };
        let key = self.remote.keys.resume(point);
        self.remote.create_unless_taken(&key, &resume).await
    }

    /// Returns the newest committed step whose records can be read.
    async fn newest_durable(&self, damaged: &BTreeSet<StepId>) -> Result<Agreed> {
        let scope = Scope::Durable(damaged.clone());
        let mut search =
            Search::begin(Restore { context: self.context, request: self.request }, scope).await?;
        let plan = search.next().await?;
        if plan.is_none() && search.none_left().kind() != ErrorKind::NotFound {
            return Err(search.none_left());
        }
        let (step, skipped) = plan.map(|plan| (plan.id, plan.skipped)).unzip();
        Ok(Agreed { step, availability: Availability::Durable, skipped: skipped.unwrap_or_default() })
    }
}
