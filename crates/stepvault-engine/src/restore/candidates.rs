//! Lists the steps that any tier holds: the candidates of a restore.

use std::collections::BTreeMap;
use std::fmt::Display;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use stepvault_core::{Error, ErrorKind, Result, StepId, Tier};
use stepvault_local::sealed::SealedStep;
use stepvault_remote::store::ObjectInfo;
use tokio::time::sleep;

use super::request::{Restore, RestoreContext};
use crate::blocking::sealed_steps;
use crate::outage::{is_outage, outage};
use crate::tier::catalog::claimed_ids;
use crate::tier::removed::removed_steps;
use crate::tier::run_remote::{ANSWER_PATIENCE, RunRemote};
use crate::tier::step_state::visible_steps;

/// A step that at least one tier holds.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) id: StepId,
    pub(super) local: Option<SealedStep>,
    /// Remotes that list a commit of it, in the configured order.
    pub(super) remotes: Vec<RunRemote>,
    pub(super) faults: Faults,
}

/// Why a step, or one version of it, cannot be restored from its tiers.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// The proven faults, each with its tier.
    pub(super) proven: Vec<String>,
    /// The tiers that may hold the step intact but could not be read.
    pub(super) unread: Vec<String>,
    /// Number of the unread ones that are so because an object is archived.
    pub(super) archived: usize,
    /// Whether damage is among the proven faults, and not only that a tier holds another node's part, or other files.
    pub(super) is_damaged: bool,
    /// Whether damage of the local copy is among the proven faults.
    pub(super) local_is_damaged: bool,
}

/// What came of something that may fail for faults of the tiers: another version, or an older step, is tried then.
pub(super) type OrFaults<T> = std::result::Result<T, Faults>;

impl Faults {
    /// Adds the error of reading from a tier. Only an error about the tier's content is a proven fault: anything else, such
    /// as a refusal, an object in an archived class, or an answer that is not the store's, may pass.
    ///
    /// # Errors
    /// The given error, if it is an interruption.
    pub(super) fn add(&mut self, tier: &Tier, error: Error) -> Result<()> {
        match error {
            error if error.kind() == ErrorKind::Interrupted => return Err(error),
            error if is_proof(&error) => self.add_proven(tier, error),
            error => {
                self.archived += usize::from(error.kind() == ErrorKind::Archived);
                self.unread.push(format!("{tier}: {}", error.text_with_hint()));
            }
        }
        Ok(())
    }

    /// Adds damage that a tier is proven to have.
    pub(super) fn add_proven(&mut self, tier: &Tier, damage: impl Display) {
        self.proven.push(format!("{tier}: {damage}"));
        self.is_damaged = true;
        self.local_is_damaged |= *tier == Tier::Local;
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.proven.extend(other.proven);
        self.unread.extend(other.unread);
        self.archived += other.archived;
        self.is_damaged |= other.is_damaged;
        self.local_is_damaged |= other.local_is_damaged;
    }
}

/// Whether an error proves that the tier does not hold the step intact.
fn is_proof(error: &Error) -> bool {
    use ErrorKind::{Damaged, NotFound, SourceChanged};
    !is_outage(error) && matches!(error.kind(), Damaged | NotFound | SourceChanged)
}

/// Lists the steps of all remotes at once, in their order. Once one of them has answered, the others have as long to answer
/// as [`ANSWER_PATIENCE`] from the start: the restore can do without them.
async fn list_all(remotes: &[RunRemote]) -> Vec<Result<BTreeMap<StepId, ObjectInfo>>> {
    let patience = sleep(ANSWER_PATIENCE);
    tokio::pin!(patience);
    let one = async |index: usize, remote: &RunRemote| (index, visible_now(remote).await);
    let mut pending: FuturesUnordered<_> =
        remotes.iter().enumerate().map(|(index, remote)| one(index, remote)).collect();
    let mut listed: Vec<Option<Result<_>>> = remotes.iter().map(|_| None).collect();
    loop {
        let has_answer = listed.iter().flatten().any(Result::is_ok);
        let (index, answer) = tokio::select! {
            biased;
            next = pending.next() => match next {
                Some(next) => next,
                None => break,
            },
            () = &mut patience, if has_answer => break,
        };
        if let Some(place) = listed.get_mut(index) {
            *place = Some(answer);
        }
    }
    let answers = remotes.iter().zip(listed);
    answers.map(|(remote, answer)| answer.unwrap_or_else(|| Err(remote.no_answer()))).collect()
}

/// Number of claims whose commits are looked up, those of the newest steps.
const LOOKED_UP: usize = 4;

/// Returns the visible steps, also a new one that a listing which lags behind does not show yet: each commit has a claim
/// before it, and the commits of claims that are newer than all listed steps are looked up by their names.
async fn visible_now(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    let (mut visible, claimed) = tokio::try_join!(visible_steps(remote), claimed_ids(remote))?;
    let newest = visible.keys().next_back().copied();
    let is_newer = |id: &&StepId| newest.is_none_or(|newest| **id > newest);
    let mut found = Vec::new();
    for id in claimed.keys().rev().take_while(is_newer).take(LOOKED_UP) {
        found.extend(remote.store.head(&remote.keys.commit(*id)).await?.map(|head| (*id, head.info)));
    }
    if !found.is_empty() {
        let removed = removed_steps(remote).await?;
        visible.extend(found.into_iter().filter(|(id, _)| !removed.contains(*id)));
    }
    Ok(visible)
}

/// All candidates, and the unreachable tiers.
#[derive(Debug)]
pub(super) struct Candidates {
    by_step: BTreeMap<StepId, Candidate>,
    pub(super) unreachable: Vec<(Tier, Error)>,
}

impl Candidates {
    /// Lists the steps of all tiers that the request allows.
    ///
    /// # Errors
    /// When the vault cannot be read and no older step is allowed. An unreachable remote is part of the result.
    pub(super) async fn list(restore: Restore<'_>) -> Result<Self> {
        let Restore { context, request } = restore;
        let mut candidates = Self { by_step: BTreeMap::new(), unreachable: Vec::new() };
        candidates.list_local(restore).await?;
        let listings = list_all(&context.remotes).await;
        for (remote, listing) in context.remotes.iter().zip(listings) {
            match listing {
                Ok(visible) => {
                    for id in visible.into_keys() {
                        candidates.entry(id).remotes.push(remote.clone());
                    }
                }
                Err(error) => candidates.add_unreachable(context, remote.tier.clone(), error),
            }
        }
        candidates.by_step.retain(|id, _| request.wanted.contain(*id));
        Ok(candidates)
    }

    fn add_unreachable(&mut self, context: &RestoreContext, tier: Tier, error: Error) {
        context.observer.warn(format!("{tier} is unreachable and may hold newer steps: {error}"));
        self.unreachable.push((tier, error));
    }

    async fn list_local(&mut self, Restore { context, request }: Restore<'_>) -> Result<()> {
        let Some(vault) = &context.vault else {
            return Ok(());
        };
        let scan = match sealed_steps(vault, &request.run).await {
            Err(error) if request.allow_older && is_outage(&error) => {
                self.add_unreachable(context, Tier::Local, outage(error));
                return Ok(());
            }
            scan => scan.map_err(outage)?,
        };
        for step in scan.steps {
            let id = step.id();
            self.entry(id).local = Some(step);
        }
        for (path, error) in scan.faults {
            let label = path.file_name().and_then(|name| name.to_str());
            if let Some(id) = label.and_then(StepId::from_label) {
                self.entry(id).faults.add(&Tier::Local, error)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, id: StepId) -> &mut Candidate {
        self.by_step.entry(id).or_insert_with(|| Candidate {
            id,
            local: None,
            remotes: Vec::new(),
            faults: Faults::default(),
        })
    }

    /// Removes and returns the newest candidate.
    pub(super) fn pop_newest(&mut self) -> Option<Candidate> {
        self.by_step.pop_last().map(|(_, candidate)| candidate)
    }
}
