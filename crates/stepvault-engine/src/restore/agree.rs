//! One step for all nodes of a launch: decided once, by a record that is created once.
//!
//! Nodes that each looked for the newest step by themselves could find different ones, as a commit may come between two
//! looks. The first to decide writes its decision, and everybody goes by what stands there then. A step that is newer than
//! the newest durable one can be chosen where every node says, in this launch, that it still has its own part sealed.

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
use crate::catalog::committed_ids;
use crate::launches::Launches;
use crate::run_remote::RunRemote;

/// The newest parts that a node tells of.
const MOST_STAGED: usize = 16;
/// Between two looks at what the others say.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Agreements on steps that turned out damaged.
const ROUNDS: u32 = 64;

/// A node that restores together with others.
#[derive(Debug, Clone)]
pub struct Together {
    /// Who restores, with whom, in which launch.
    pub writer: Writer,
    /// The launch is no older than this, by this node's clock.
    pub since: Timestamp,
    /// How long to wait for the others' word where a step newer than the newest durable one may be had.
    pub patience: Duration,
}

/// What the nodes go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The step; none when there is nothing to go on from.
    pub(super) step: Option<StepId>,
    /// Whether it is on the remotes; otherwise each node takes its own part from its own vault.
    pub(super) durable: bool,
}

/// A decision about to be made.
struct Agreement<'a> {
    context: &'a RestoreContext,
    request: &'a RestoreRequest,
    together: &'a Together,
    launch: &'a LaunchName,
    /// Where nodes agree.
    remote: &'a RunRemote,
}

/// What the nodes of this launch have agreed on, or agree on now. `None` where there is nothing to agree on: one node, no
/// launch that would tell a restart from the start before, or a step that was asked for by its number.
///
/// # Errors
/// When the remote on which the nodes agree cannot be asked.
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
        Error::new(ErrorKind::NoneValid, "the nodes find no step to agree on")
            .on(agreement.remote.describe(&agreement.remote.keys.unfit_prefix()))
            .because(format!("{ROUNDS} steps in a row turned out damaged"))
            .hint("'stepvault verify' shows what is wrong; --step N takes one without asking the others"),
    )
}

/// As [`agree`], and decides nothing: what would be agreed on by what is known now.
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

/// Tells the other nodes that the step they agreed on is damaged, so that the next start agrees on another.
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
            message: &format!("the other nodes were not told that {id} is damaged: {error}"),
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

    /// A job that is restarted in place, within its launch, decides anew once it has come further.
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

    /// Decides, unless another node is faster; what stands there then. Nothing when the launch has committed a step while
    /// this node waited for the others' word: whoever asks now goes by that.
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

    /// The newest step that is committed and whose records can be read; none when there is no step at all.
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
            match resolve::resolve(self.context, self.request, &candidate).await? {
                Ok(_) => return Ok(Some(id)),
                Err(reasons) => skipped.push(super::passed_over(self.context, &candidate, reasons)),
            }
        }
        match super::nothing_left(self.request, &candidates, &skipped) {
            error if error.kind() == ErrorKind::NotFound => Ok(None),
            error => Err(error),
        }
    }

    /// A step newer than `durable` of which every node says that it has its own part; waits for their word where this
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
            // Asked in this order: what another node has decided counts, whatever came after it.
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
                        "{} did not say within {} s what they still have: going on from what is durable",
                        listed(&silent),
                        self.together.patience.as_secs()
                    ),
                });
                return Ok(Wish::Durable);
            }
            tokio::time::sleep_until(deadline.min(now + BETWEEN_LOOKS)).await;
        }
    }

    /// The newer steps of which this node has a part of its own, of all the nodes that restore now.
    async fn own_parts(&self, durable: Option<StepId>, unfit: &BTreeSet<StepId>) -> Result<BTreeSet<StepId>> {
        let Some(vault) = self.context.vault.clone() else {
            return Ok(BTreeSet::new());
        };
        let run = self.request.run.clone();
        let scan = blocking(move || vault.steps(&run)).await?;
        let place = &self.together.writer.place;
        Ok(scan
            .steps
            .iter()
            .rev()
            .map(SealedStep::record)
            .filter(|record| Some(record.id) > durable && !unfit.contains(&record.id))
            .filter(|record| !self.request.demoted.contains_key(&record.id))
            .filter(|record| record.node == *place.node() && record.nodes() == *place.nodes())
            .map(|record| record.id)
            .take(MOST_STAGED)
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

/// What a node would decide.
enum Wish {
    /// Another node has decided.
    Decided(Box<Resume>),
    /// The launch has committed a step since this node asked.
    Overtaken,
    /// All nodes have their parts of this step.
    Staged(StepId),
    /// The newest durable step.
    Durable,
}
