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

use super::candidates::Candidates;
use super::demoted::LastResort;
use super::{RestoreContext, RestoreRequest, resolve};
use crate::blocking::blocking;
use crate::catalog::{committed_ids, is_outage, outage};
use crate::launches::Launches;
use crate::run_remote::RunRemote;

/// Maximum number of sealed parts that a node reports, the newest first.
const MAX_STAGED: usize = 16;
/// Interval between checks of the other nodes' reports.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Maximum number of agreements that turn out damaged.
const ROUNDS: u32 = 64;

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
    pub(super) durable: bool,
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
    for _ in 0..ROUNDS {
        let resume = match agreement.found(point).await? {
            Some(resume) => Some(resume),
            None => agreement.decide(point, &unfit).await?,
        };
        let Some(resume) = resume else {
            point = agreement.point(attempt).await?;
            continue;
        };
        if resume.step.is_none_or(|id| !unfit.contains(&id)) {
            return Ok(Some(Agreed {
                step: resume.step,
                durable: resume.durable,
            }));
        }
        point.round += 1;
    }
    Err(
        Error::new(ErrorKind::NoneValid, "the nodes cannot agree on a step")
            .on(agreement.remote.describe(&agreement.remote.keys.unfit_prefix()))
            .because(format!("{ROUNDS} steps in a row were damaged"))
            .hint("run 'stepvault verify' to see what is wrong, or restore a step without the other nodes' agreement \
                   with --step N"),
    )
}

/// Like [`agree`], but writes nothing: predicts the agreement from what is known now.
pub(super) async fn foresee(context: &RestoreContext, request: &RestoreRequest) -> Result<Option<Agreed>> {
    let Some(agreement) = Agreement::of(context, request) else {
        return Ok(None);
    };
    let launches = Launches::open(context.vault.as_ref(), agreement.remote).await?;
    let Some(attempt) = launches.known(agreement.launch).await? else {
        return Ok(None);
    };
    let unfit = unfit(agreement.remote).await?;
    let mut point = agreement.point(attempt).await?;
    while let Some(resume) = agreement.found(point).await? {
        if resume.step.is_none_or(|id| !unfit.contains(&id)) {
            return Ok(Some(Agreed {
                step: resume.step,
                durable: resume.durable,
            }));
        }
        point.round += 1;
    }
    Ok(None)
}

/// Tells the other nodes that the agreed step is damaged, so that the next start agrees on another.
pub(super) async fn call_unfit(
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

    async fn found(&self, point: ResumePoint) -> Result<Option<Resume>> {
        let key = self.remote.keys.resume(point);
        Ok(self
            .remote
            .read_record::<Resume>(&key)
            .await?
            .map(|(resume, _)| resume))
    }

    /// Writes this node's decision unless another node was faster, and returns the decision that then exists. Returns
    /// `None` if the launch committed a step while this node waited for the others: later readers go by that step.
    async fn decide(&self, point: ResumePoint, unfit: &BTreeSet<StepId>) -> Result<Option<Resume>> {
        let durable = self.newest_durable(unfit).await?;
        let agreed = match self.newest_everywhere(point, durable, unfit).await? {
            Wish::Decided(resume) => return Ok(Some(*resume)),
            Wish::Overtaken => return Ok(None),
            Wish::Staged(id) => Agreed {
                step: Some(id),
                durable: false,
            },
            Wish::Durable => Agreed {
                step: durable,
                durable: true,
            },
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
        match self
            .remote
            .create_record(&self.remote.keys.resume(point), &resume)
            .await
        {
            Ok(_) => Ok(Some(resume)),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.found(point).await?.ok_or(error).map(Some)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the newest committed step whose records can be read; `None` if there is no step.
    async fn newest_durable(&self, unfit: &BTreeSet<StepId>) -> Result<Option<StepId>> {
        let mut candidates = Candidates::gather(self.context, self.request).await?;
        let mut skipped = Vec::new();
        let mut last_resort = LastResort::default();
        while let Some(candidate) =
            last_resort.next(self.context, self.request, &mut candidates, &mut skipped)
        {
            let id = candidate.id;
            if candidate.remotes.is_empty() {
                continue;
            }
            if unfit.contains(&id) {
                skipped.push(super::passed_over(
                    self.context,
                    &candidate,
                    vec!["a node of this run found it damaged".to_owned()],
                ));
                continue;
            }
            let records = resolve::resolve(self.context, self.request, &candidate).await?;
            if !records.groups.is_empty() {
                return Ok(Some(id));
            }
            let (reasons, unread) = (records.reasons, records.unread);
            skipped.push(super::skip(
                self.context,
                self.request,
                &candidate,
                reasons,
                unread,
            )?);
        }
        match super::nothing_left(self.request, &candidates, &skipped) {
            error if error.kind() == ErrorKind::NotFound => Ok(None),
            error => Err(error),
        }
    }

    /// Returns a step newer than `durable` of which every node reports its own part. Waits for the reports only if this
    /// node has such a part itself.
    async fn newest_everywhere(
        &self,
        point: ResumePoint,
        durable: Option<StepId>,
        unfit: &BTreeSet<StepId>,
    ) -> Result<Wish> {
        let own = self.own_parts(durable, unfit).await?;
        if own.is_empty() {
            return Ok(Wish::Durable);
        }
        let place = &self.together.writer.place;
        let word = StagedParts {
            format: FORMAT,
            run: self.request.run.clone(),
            attempt: point.attempt,
            node: place.node().clone(),
            after: point.after,
            steps: own.iter().copied().collect(),
        };
        let key = self.remote.keys.staged(point.attempt, place.node());
        self.remote.replace_record(&key, &word).await?;
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
            let came_further = self.point(point.attempt).await?.after != point.after;
            if let Some(resume) = self.found(point).await? {
                return Ok(Wish::Decided(Box::new(resume)));
            }
            if came_further {
                return Ok(Wish::Overtaken);
            }
            let mut still_silent = Vec::new();
            for node in silent {
                match self.word_of(point, &node).await? {
                    Some(steps) => common = common.intersection(&steps).copied().collect(),
                    None => still_silent.push(node),
                }
            }
            silent = still_silent;
            match common.last() {
                None => return Ok(Wish::Durable),
                Some(id) if silent.is_empty() => return Ok(Wish::Staged(*id)),
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
                return Ok(Wish::Durable);
            }
            tokio::time::sleep_until(deadline.min(now + BETWEEN_LOOKS)).await;
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

    async fn word_of(&self, point: ResumePoint, node: &NodeName) -> Result<Option<BTreeSet<StepId>>> {
        let key = self.remote.keys.staged(point.attempt, node);
        let word = self.remote.read_record::<StagedParts>(&key).await?;
        Ok(word
            .map(|(word, _)| word)
            .filter(|word| word.after == point.after)
            .map(|word| word.steps.into_iter().collect()))
    }
}

/// The decision that a node would make.
enum Wish {
    /// Another node has already decided.
    Decided(Box<Resume>),
    /// The launch has committed a step since this node began.
    Overtaken,
    /// All nodes have their parts of this step.
    Staged(StepId),
    /// The newest durable step.
    Durable,
}
