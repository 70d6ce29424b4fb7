//! Chooses one step for all nodes of a launch through a record that is created once.
//!
//! If each node searched for the newest step by itself, nodes could find different ones, because a commit may arrive
//! between two searches. The first node to decide writes its decision, and all nodes follow the record that then
//! exists. A step newer than the newest durable one can be chosen if every node reports, in this launch, that it still
//! has its own part sealed.

use std::collections::BTreeSet;

use stepvault_core::codec::FORMAT;
use stepvault_core::ids::{Attempt, NodeName, StepId};
use stepvault_core::keys::{KeyKind, ResumePoint};
use stepvault_core::launch::LaunchName;
use stepvault_core::nodes::{Writer, listed};
use stepvault_core::observe::Event;
use stepvault_core::records::{Resume, StagedParts, Unfit};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;
use tokio::time::{Duration, Instant};

use super::plan::{Scope, Search, SkippedStep};
use super::{Parts, RestoreContext, RestoreRequest};
use crate::blocking::blocking;
use crate::catalog::{committed_ids, is_outage, outage};
use crate::launches::Launches;
use crate::run_remote::RunRemote;

/// Maximum number of sealed parts that a node reports, the newest first.
const MAX_STAGED: usize = 16;
/// Interval between checks of the other nodes' reports.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of agreements that turn out damaged.
const MAX_ROUNDS: u32 = 64;

/// A node that restores together with others.
#[derive(Debug, Clone)]
pub struct Together {
    /// The restoring writer: its node, the other nodes and the launch.
    pub writer: Writer,
    /// A lower bound of the launch's start, by this node's clock.
    pub since: Timestamp,
    /// How long to wait for the other nodes' reports if a step newer than the newest durable one may be available.
    pub patience: Duration,
}

/// The agreed step to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The step; `None` when there is nothing to resume from.
    pub(super) step: Option<StepId>,
    /// Whether it is on the remotes; otherwise each node restores its own part from its own vault.
    durable: bool,
    /// Newer steps that this node skipped; empty if another node decided.
    pub(super) skipped: Vec<SkippedStep>,
}

impl Agreed {
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
        narrowed.step = Some(id.step);
        narrowed.attempt = Some(id.attempt);
        if !self.durable {
            narrowed.parts = Parts::OwnSealed;
        }
        Ok(narrowed)
    }
}

impl From<Resume> for Agreed {
    fn from(resume: Resume) -> Self {
        Self {
            step: resume.step,
            durable: resume.durable,
            skipped: Vec::new(),
        }
    }
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
/// needed: a single node, no launch that distinguishes a restart from the previous start, or an explicitly requested
/// step.
///
/// # Errors
/// When the remote on which the nodes agree is unreachable.
pub(super) async fn agree(context: &RestoreContext, request: &RestoreRequest) -> Result<Option<Agreed>> {
    let Some(agreement) = Agreement::of(context, request) else {
        return Ok(None);
    };
    let mut launches = Launches::open(context.vault.as_ref(), agreement.remote).await?;
    let attempt = launches.join(agreement.launch, agreement.together.since).await?;
    let unfit = unfit(agreement.remote).await?;
    let mut point = agreement.point(attempt).await?;
    for _ in 0..MAX_ROUNDS {
        if let Some(resume) = agreement.recorded(point).await? {
            if resume.step.is_none_or(|id| !unfit.contains(&id)) {
                return Ok(Some(resume.into()));
            }
            point.round += 1;
            continue;
        }
        match agreement.decide(point, &unfit).await? {
            Decision::Made(agreed) => return Ok(Some(agreed)),
            Decision::ByAnotherNode => {}
            Decision::Overtaken => point = agreement.point(attempt).await?,
        }
    }
    Err(
        Error::new(ErrorKind::NoneValid, "the nodes cannot agree on a step")
            .on(agreement.remote.describe(&agreement.remote.keys.unfit_prefix()))
            .because(format!("{MAX_ROUNDS} steps in a row were damaged"))
            .hint("run 'stepvault verify' to see what is wrong, or restore a step without the other nodes' agreement \
                   with --step N"),
    )
}

/// Like [`agree`], but writes nothing and waits for no node: predicts the agreement from what is known now.
pub(super) async fn predict(context: &RestoreContext, request: &RestoreRequest) -> Result<Option<Agreed>> {
    let Some(agreement) = Agreement::of(context, request) else {
        return Ok(None);
    };
    let launches = Launches::open(context.vault.as_ref(), agreement.remote).await?;
    let unfit = unfit(agreement.remote).await?;
    if let Some(attempt) = launches.known(agreement.launch).await? {
        let mut point = agreement.point(attempt).await?;
        while let Some(resume) = agreement.recorded(point).await? {
            if resume.step.is_none_or(|id| !unfit.contains(&id)) {
                return Ok(Some(resume.into()));
            }
            point.round += 1;
        }
    }
    let durable = agreement.newest_durable(&unfit).await?;
    if let Some(id) = agreement.own_parts(durable.step, &unfit).await?.last() {
        context.observer.on_event(&Event::Warning {
            message: &format!(
                "{id} is sealed on this node and not durable: the nodes restore it if each of them reports its part"
            ),
        });
    }
    Ok(Some(durable))
}

/// Records that the agreed step is damaged, so that the nodes agree on another one at the next start.
pub(super) async fn record_unfit(
    context: &RestoreContext,
    request: &RestoreRequest,
    id: StepId,
    reasons: &[String],
) {
    let Some(agreement) = Agreement::of(context, request) else {
        return;
    };
    let record = Unfit {
        format: FORMAT,
        run: request.run.clone(),
        id,
        node: agreement.together.writer.place.node().clone(),
        reasons: reasons.to_vec(),
    };
    let key = agreement.remote.keys.unfit(id);
    if let Err(error) = agreement.remote.replace_record(&key, &record).await {
        context.observer.on_event(&Event::Warning {
            message: &format!("cannot tell the other nodes that {id} is damaged: {error}"),
        });
    }
}

async fn unfit(remote: &RunRemote) -> Result<BTreeSet<StepId>> {
    let objects = remote.list(&remote.keys.unfit_prefix()).await?;
    Ok(objects
        .iter()
        .filter_map(|object| match remote.keys.classify(&object.key) {
            Some(KeyKind::Unfit(id)) => Some(id),
            _ => None,
        })
        .collect())
}

impl<'a> Agreement<'a> {
    fn of(context: &'a RestoreContext, request: &'a RestoreRequest) -> Option<Self> {
        let together = request.together.as_ref()?;
        let by_number = request.step.is_some() || request.attempt.is_some();
        if by_number || !together.writer.place.nodes().is_several() {
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

    /// Returns the point to agree at. A job that is restarted in place, within its launch, decides again once it has
    /// committed more.
    async fn point(&self, attempt: Attempt) -> Result<ResumePoint> {
        let committed = committed_ids(self.remote).await?;
        Ok(ResumePoint {
            attempt,
            after: committed.into_keys().rfind(|id| id.attempt == attempt),
            round: 0,
        })
    }

    /// Returns the decision that is recorded at a point.
    async fn recorded(&self, point: ResumePoint) -> Result<Option<Resume>> {
        let key = self.remote.keys.resume(point);
        let record = self.remote.read_record::<Resume>(&key).await?;
        Ok(record.map(|(resume, _)| resume))
    }

    /// Makes this node's decision, and records it unless another node was faster.
    async fn decide(&self, point: ResumePoint, unfit: &BTreeSet<StepId>) -> Result<Decision> {
        let durable = self.newest_durable(unfit).await?;
        let decision = self.newest_staged(point, durable, unfit).await?;
        let Decision::Made(agreed) = &decision else {
            return Ok(decision);
        };
        let resume = Resume {
            format: FORMAT,
            run: self.request.run.clone(),
            attempt: point.attempt,
            launch: self.launch.clone(),
            step: agreed.step,
            durable: agreed.durable,
            node: self.together.writer.place.node().clone(),
        };
        let key = self.remote.keys.resume(point);
        match self.remote.create_record(&key, &resume).await {
            Ok(_) => Ok(decision),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(Decision::ByAnotherNode),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest committed step whose records can be read.
    async fn newest_durable(&self, unfit: &BTreeSet<StepId>) -> Result<Agreed> {
        let unfit = unfit.clone();
        let mut search = Search::begin(self.context, self.request, Scope::Durable { unfit }).await?;
        let plan = search.next().await?;
        if plan.is_none() && search.none_left().kind() != ErrorKind::NotFound {
            return Err(search.none_left());
        }
        let (step, skipped) = plan.map(|plan| (plan.id, plan.skipped)).unzip();
        Ok(Agreed {
            step,
            durable: true,
            skipped: skipped.unwrap_or_default(),
        })
    }

    /// Decides between `durable` and a newer step of which every node reports its own part. Waits for the reports only
    /// if this node has such a part itself.
    async fn newest_staged(
        &self,
        point: ResumePoint,
        durable: Agreed,
        unfit: &BTreeSet<StepId>,
    ) -> Result<Decision> {
        let own = self.own_parts(durable.step, unfit).await?;
        if own.is_empty() {
            return Ok(Decision::Made(durable));
        }
        let place = &self.together.writer.place;
        let report = StagedParts {
            format: FORMAT,
            run: self.request.run.clone(),
            attempt: point.attempt,
            node: place.node().clone(),
            after: point.after,
            steps: own.iter().copied().collect(),
        };
        let key = self.remote.keys.staged(point.attempt, place.node());
        self.remote.replace_record(&key, &report).await?;
        let deadline = Instant::now() + self.together.patience;
        let mut common = own;
        let mut silent: Vec<NodeName> = place
            .nodes()
            .iter()
            .filter(|node| *node != place.node())
            .cloned()
            .collect();
        loop {
            // In this order: a decision of another node counts, whatever was committed after it.
            let is_overtaken = self.point(point.attempt).await?.after != point.after;
            if self.recorded(point).await?.is_some() {
                return Ok(Decision::ByAnotherNode);
            }
            if is_overtaken {
                return Ok(Decision::Overtaken);
            }
            let mut still_silent = Vec::new();
            for node in silent {
                match self.report_of(point, &node).await? {
                    Some(steps) => common = common.intersection(&steps).copied().collect(),
                    None => still_silent.push(node),
                }
            }
            silent = still_silent;
            match common.last() {
                None => return Ok(Decision::Made(durable)),
                Some(id) if silent.is_empty() => {
                    return Ok(Decision::Made(Agreed {
                        step: Some(*id),
                        durable: false,
                        skipped: Vec::new(),
                    }));
                }
                Some(_) => {}
            }
            let now = Instant::now();
            if now >= deadline {
                self.context.observer.on_event(&Event::Warning {
                    message: &format!(
                        "{} did not report their sealed steps within {} s: restoring the newest durable step",
                        listed(&silent),
                        self.together.patience.as_secs()
                    ),
                });
                return Ok(Decision::Made(durable));
            }
            tokio::time::sleep_until(deadline.min(now + POLL_INTERVAL)).await;
        }
    }

    /// Returns the steps newer than `durable` of which this node has its own part, for the same set of nodes that
    /// restores now.
    async fn own_parts(&self, durable: Option<StepId>, unfit: &BTreeSet<StepId>) -> Result<BTreeSet<StepId>> {
        let Some(vault) = self.context.vault.clone() else {
            return Ok(BTreeSet::new());
        };
        let run = self.request.run.clone();
        let scan = blocking(move || vault.steps(&run)).await.map_err(outage)?;
        for (path, error) in scan.faults {
            let label = path.file_name().and_then(|name| name.to_str());
            let id = label.and_then(StepId::from_label);
            if id > durable && is_outage(&error) && !self.request.allow_older {
                return Err(outage(error).hint(
                    "retry when the vault is readable, or resume from an older step with --allow-older: this node \
                     cannot tell the others whether it has that step",
                ));
            }
        }
        let place = &self.together.writer.place;
        Ok(scan
            .steps
            .iter()
            .rev()
            .map(SealedStep::record)
            .filter(|record| !record.is_provisional())
            .filter(|record| Some(record.id) > durable && !unfit.contains(&record.id))
            .filter(|record| !self.request.demoted.contains_key(&record.id))
            .filter(|record| record.node == *place.node() && record.nodes() == *place.nodes())
            .map(|record| record.id)
            .take(MAX_STAGED)
            .collect())
    }

    /// Returns the steps of which a node reports its part; `None` before it has reported at this point.
    async fn report_of(&self, point: ResumePoint, node: &NodeName) -> Result<Option<BTreeSet<StepId>>> {
        let key = self.remote.keys.staged(point.attempt, node);
        let record = self.remote.read_record::<StagedParts>(&key).await?;
        let report = record.map(|(report, _)| report);
        Ok(report
            .filter(|report| report.after == point.after)
            .map(|report| report.steps.into_iter().collect()))
    }
}

/// What came of a node's decision.
enum Decision {
    /// It stands, if no other node has recorded another.
    Made(Agreed),
    /// Another node has recorded a decision.
    ByAnotherNode,
    /// The launch has committed a step since this node began: later readers go by that step.
    Overtaken,
}
