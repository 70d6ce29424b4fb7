//! The state of a step: visible on a remote, durable on one remote or as a whole, given up.
//!
//! Each of these is decided here. A step is identified by step and attempt ([`StepId`]); whether a
//! remote holds the same *bytes* under that identity is a question for [`push`](crate::push) and
//! [`prune`](crate::prune), which compare manifests and the digest of the commit.
//!
//! What the vault has recorded about a remote is a cache, and applies to the place and the attempt that it was recorded
//! for. When in doubt a step counts as not durable, and its local copy stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use stepvault_core::commit::Commit;
use stepvault_core::given_up::GivenUpRecord;
use stepvault_core::records::Claim;
use stepvault_core::retention::{Elsewhere, Needed, StepFacts, Verified};
use stepvault_core::{NodeName, RemoteName, Result, Sha256Digest, Step, StepId, Timestamp};
use stepvault_local::evict::Quarantined;
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};
use stepvault_local::vault::Vault;
use stepvault_remote::store::ObjectInfo;

use super::catalog::{FoundCommit, claimed_ids, committed_ids, known_commits, present_parts, read_commits};
use super::removed::{RemovedSteps, removed_steps};
use super::run_remote::RunRemote;
use crate::blocking::{blocking, in_order};

/// Lists the steps that readers of a remote see: committed, and not removed or being removed.
///
/// The commits are listed first, so that a step whose removal begins meanwhile is left out.
///
/// # Errors
/// When the remote is unreachable.
pub async fn visible_steps(remote: &RunRemote) -> Result<BTreeMap<StepId, ObjectInfo>> {
    let committed = committed_ids(remote).await?;
    Ok(without_removed(committed, &removed_steps(remote).await?))
}

/// Lists the visible steps with their commits. An unreadable commit is part of the result.
///
/// Commits that the vault has read before in the listed version are not read again.
///
/// # Errors
/// When the remote is unreachable.
pub async fn visible_commits(remote: &RunRemote) -> Result<BTreeMap<StepId, FoundCommit>> {
    let listed = committed_ids(remote).await?;
    let (committed, removed) = tokio::try_join!(known_commits(remote, listed), removed_steps(remote))?;
    Ok(without_removed(committed, &removed))
}

pub(crate) fn without_removed<T>(
    mut steps: BTreeMap<StepId, T>,
    removed: &RemovedSteps,
) -> BTreeMap<StepId, T> {
    steps.retain(|id, _| !removed.contains(*id));
    steps
}

/// Returns what the vault recorded of a sealed step on a remote at its current place.
///
/// # Errors
/// When the record cannot be read.
pub fn recorded_state(step: &SealedStep, remote: &RunRemote) -> Result<Option<RemoteState>> {
    let state = step.remote_state(remote.name())?;
    Ok(state.filter(|state| is_at(state, remote)))
}

/// Returns the facts about a step of a remote on which retention depends, as if nobody needed it now. `visible` are all
/// steps there.
///
/// # Invariants
/// S4: a revision supersedes the one before it only where the same nodes wrote both. Another job's was made from other files.
pub(crate) fn step_facts(
    remote: &RemoteName,
    visible: &BTreeMap<StepId, FoundCommit>,
    found: &FoundCommit,
    commit: &Commit,
    abandoned: bool,
) -> StepFacts {
    let before = visible.range(..commit.id).next_back().and_then(|(_, found)| found.commit.as_deref().ok());
    StepFacts {
        id: commit.id,
        amends: amends(commit, before),
        name: commit.name.clone(),
        // Both by the store's clock: when the newest object of an imported step was written.
        created: if commit.is_imported() {
            commit.written_at
        } else {
            Timestamp::from(found.object.modified)
        },
        bytes: commit.data_bytes(),
        reclaimable_bytes: commit.data_bytes(),
        best: commit.best.clone(),
        metrics: commit.metrics.clone(),
        verified: Verified::Yes,
        needed: Needed::default(),
        elsewhere: Elsewhere {
            durable_on: vec![remote.clone()],
            needs_other_nodes: commit.parts.len() > 1,
            ..Elsewhere::default()
        },
        abandoned,
    }
}

/// Whether a commit is a revision that has all files of the commit before it.
///
/// # Invariants
/// S4: the same nodes wrote both. Another job's revision was made from other files, whatever its commit says.
pub(crate) fn amends(commit: &Commit, before: Option<&Commit>) -> bool {
    fn nodes(commit: &Commit) -> BTreeSet<&NodeName> {
        commit.parts.iter().map(|part| &part.node).collect()
    }
    commit.amends && before.is_none_or(|before| nodes(before) == nodes(commit))
}

fn is_at(state: &RemoteState, remote: &RunRemote) -> bool {
    state.url == remote.identity_url()
}

/// Returns the digest of the commit that was read back on a remote; `None` when the step is not durable on it.
///
/// # Errors
/// When the record cannot be read. Callers that remove copies stop then; callers that upload treat the step as not
/// durable, because the upload examines the remote itself.
pub fn durable_commit(step: &SealedStep, remote: &RunRemote) -> Result<Option<Sha256Digest>> {
    Ok(commit_if_durable(recorded_state(step, remote)?))
}

fn commit_if_durable(state: Option<RemoteState>) -> Option<Sha256Digest> {
    state.filter(|state| state.state == UploadState::Durable).and_then(|state| state.commit_sha256)
}

/// Returns whether the vault has recorded that a step is durable on a remote at its current place.
///
/// # Errors
/// As [`durable_commit`].
pub fn is_durable_on(step: &SealedStep, remote: &RunRemote) -> Result<bool> {
    Ok(durable_commit(step, remote)?.is_some())
}

/// Like [`is_durable_on`], for a step in quarantine.
///
/// # Errors
/// As [`durable_commit`].
pub fn is_quarantined_durable_on(step: &Quarantined, remote: &RunRemote) -> Result<bool> {
    let state = step.remote_state(remote.name())?;
    Ok(commit_if_durable(state.filter(|state| is_at(state, remote))).is_some())
}

/// The remotes on which a step is durable, and those on which it is not.
#[derive(Debug)]
pub struct Durability<'a> {
    durable: Vec<&'a RunRemote>,
    missing: Vec<&'a RunRemote>,
}

impl<'a> Durability<'a> {
    /// Divides the remotes by `is_durable_on`. Selective ones do not count.
    ///
    /// # Errors
    /// The first error of `is_durable_on`.
    pub fn of(remotes: &'a [RunRemote], is_durable_on: impl Fn(&RunRemote) -> Result<bool>) -> Result<Self> {
        let (mut durable, mut missing) = (Vec::new(), Vec::new());
        for remote in remotes.iter().filter(|remote| !remote.settings.is_selective()) {
            let list = if is_durable_on(remote)? { &mut durable } else { &mut missing };
            list.push(remote);
        }
        Ok(Self { durable, missing })
    }

    /// Whether the step is durable on every required remote; if none is required, on at least one.
    pub fn is_durable(&self) -> bool {
        !self.durable.is_empty() && self.missing().all(|(_, needed)| !needed)
    }

    /// Whether the step is durable on at least one remote.
    pub fn is_anywhere(&self) -> bool {
        !self.durable.is_empty()
    }

    /// Returns the remotes on which the step is not durable, each with whether the step is not durable for lack of it.
    pub fn missing(&self) -> impl Iterator<Item = (&'a RunRemote, bool)> {
        let mut all = self.durable.iter().chain(&self.missing);
        let some_required = all.any(|remote| remote.settings.required);
        self.missing.iter().map(move |remote| {
            let is_needed = if some_required { remote.settings.required } else { self.durable.is_empty() };
            (*remote, is_needed)
        })
    }
}

/// Compares the steps that the vault takes for durable on a remote with what the remote lists, and forgets that those are
/// durable which it lacks: they are uploaded again. Returns them, the oldest first.
///
/// Takes two LISTs, and none if the vault has no such step. Whether the commit is the one that was acknowledged, and its
/// data are there, is checked before the local copy is evicted.
///
/// # Invariants
/// S1 and S6: what the vault has recorded of a remote is a cache, and is not believed for long.
///
/// # Errors
/// When the remote does not answer soon, or the vault cannot be read or written.
pub async fn forget_lost_steps(vault: &Vault, remote: &RunRemote) -> Result<Vec<StepId>> {
    let (vault, asked) = (vault.clone(), remote.clone());
    // Read before the remote is: each of them was committed before it is listed.
    let durable: Vec<SealedStep> = blocking(move || {
        let mut steps = vault.steps(asked.keys.run())?.steps;
        steps.retain(|step| is_durable_on(step, &asked).unwrap_or(false));
        Ok(steps)
    })
    .await?;
    if durable.is_empty() {
        return Ok(Vec::new());
    }
    let listed = async {
        let committed = committed_ids(remote).await?;
        // Listed after the commits: a step whose removal begins meanwhile is not lost.
        Ok((committed, removed_steps(remote).await?))
    };
    let (committed, removed) = remote.answers_soon(listed).await?;
    let is_lost = |step: &SealedStep| !committed.contains_key(&step.id()) && !removed.contains(step.id());
    let lost: Vec<SealedStep> = durable.into_iter().filter(is_lost).collect();
    let name = remote.name().clone();
    blocking(move || {
        for step in &lost {
            step.forget_remote(&name)?;
        }
        Ok(lost.iter().map(SealedStep::id).collect())
    })
    .await
}

/// Returns the record with the steps that are still given up: those that are not in `held`, the steps that the record's
/// node has sealed again or that are durable by now. Returns `None` if there are none.
pub fn still_given_up(record: &GivenUpRecord, held: &BTreeSet<StepId>) -> Option<GivenUpRecord> {
    record.only(|step| !held.contains(&step.id))
}

/// Claims that are read at once.
const READS_AT_ONCE: usize = 16;
/// Maximum number of claims without a commit that are read for an overview, those of the newest steps.
const MAX_OPEN: usize = 256;

/// A step that is incomplete on a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncompleteStep {
    /// Step and attempt.
    pub id: StepId,
    /// The step's directory or file name.
    pub name: String,
    /// The nodes that make up the step, sorted by name.
    pub nodes: Vec<NodeName>,
    /// The nodes whose parts are missing; empty in the moment before a node commits the step.
    pub missing: Vec<NodeName>,
    /// When the step was begun, by the store's clock.
    pub begun: SystemTime,
}

/// The steps of a remote, for an overview.
#[derive(Debug)]
pub struct StepsOnRemote {
    /// All visible steps, and all that were begun and not committed.
    pub ids: BTreeSet<StepId>,
    /// The commits of the visible steps that were asked for.
    pub commits: BTreeMap<StepId, FoundCommit>,
    /// The newest steps that were asked for, and were begun and not committed, the oldest of them first.
    pub incomplete: Vec<IncompleteStep>,
    /// Number of older ones, whose claims were not read.
    pub more_incomplete: usize,
    /// The steps that were, or are being, removed.
    pub removed: RemovedSteps,
}

/// Lists the steps of a remote for an overview, and reads the commits of all of them, as [`visible_commits`], or those of
/// the steps with one number alone. A step that is committed meanwhile may be among the incomplete ones, with no part
/// missing. Takes two requests for each incomplete step, of which the newest 256 are looked at.
///
/// # Errors
/// When the remote is unreachable. An unreadable claim is skipped, as it names no nodes.
pub async fn visible_and_incomplete(remote: &RunRemote, only: Option<Step>) -> Result<StepsOnRemote> {
    let (mut listed, claims) = tokio::try_join!(committed_ids(remote), claimed_ids(remote))?;
    let mut ids: BTreeSet<StepId> = listed.keys().copied().collect();
    let is_wanted = |id: &StepId| only.is_none_or(|only| id.step == only);
    listed.retain(|id, _| is_wanted(id));
    // Those of one step leave the others in the vault.
    let commits = async {
        if only.is_some() {
            read_commits(remote, listed, |_, _| None).await
        } else {
            known_commits(remote, listed).await
        }
    };
    // Listed after the commits: one that was removed meanwhile is left out.
    let (commits, removed) = tokio::try_join!(commits, removed_steps(remote))?;
    let mut open: Vec<(StepId, ObjectInfo)> = claims.into_iter().collect();
    open.retain(|(id, _)| !ids.contains(id) && !removed.contains(*id));
    ids.retain(|id| !removed.contains(*id));
    ids.extend(open.iter().map(|(id, _)| *id));
    open.retain(|(id, _)| is_wanted(id));
    let more_incomplete = open.len().saturating_sub(MAX_OPEN);
    open.drain(..more_incomplete);
    let found = in_order(READS_AT_ONCE, open, |(id, object)| open_step(remote, id, object)).await?;
    let incomplete = found.into_iter().flatten().collect();
    let commits = without_removed(commits, &removed);
    Ok(StepsOnRemote { ids, commits, incomplete, more_incomplete, removed })
}

async fn open_step(remote: &RunRemote, id: StepId, claimed: ObjectInfo) -> Result<Option<IncompleteStep>> {
    let (claim, present) =
        tokio::try_join!(remote.read_usable_record::<Claim>(&claimed.key), present_parts(remote, id))?;
    Ok(claim.map(|claim| IncompleteStep {
        id,
        name: claim.name,
        missing: claim.nodes.missing(&present),
        nodes: claim.nodes.into(),
        begun: claimed.modified,
    }))
}

#[cfg(test)]
mod tests {
    use stepvault_core::given_up::GivenUpStep;
    use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName};
    use stepvault_core::retention::{KeepRules, Selection};
    use stepvault_core::timestamp::Timestamp;

    use super::*;
    use crate::test_remote::in_directory;

    /// Whether each remote is required, and has the step; then whether the step is durable, and which remotes it lacks.
    type Case<'a> = (&'a [(bool, bool)], bool, &'a [(&'a str, bool)]);

    fn id(step: u64) -> StepId {
        StepId::new(Attempt::FIRST, Step::new(step).unwrap())
    }

    #[tokio::test]
    async fn required_remotes_decide_and_without_any_one_is_enough() {
        let place = tempfile::tempdir().unwrap();
        let bare = in_directory(place.path()).await;
        let remote = |name: &str, required: bool| {
            let mut settings = (*bare.settings).clone();
            settings.name = RemoteName::new(name).unwrap();
            settings.required = required;
            RunRemote::new(bare.store.clone(), settings.into(), bare.keys.run().clone())
        };
        let cases: [Case<'_>; 6] = [
            (&[], false, &[]),
            (&[(true, true), (true, true)], true, &[]),
            (&[(true, true), (true, false)], false, &[("r1", true)]),
            (&[(true, true), (false, false)], true, &[("r1", false)]),
            (&[(true, false), (false, true)], false, &[("r0", true)]),
            (&[(false, false), (false, true)], true, &[("r0", false)]),
        ];
        for (on, is_durable, missing) in cases {
            let remotes: Vec<RunRemote> = on
                .iter()
                .enumerate()
                .map(|(index, (required, _))| remote(&format!("r{index}"), *required))
                .collect();
            let has = |asked: &RunRemote| {
                let index = remotes.iter().position(|remote| remote.name() == asked.name());
                Ok(on[index.unwrap()].1)
            };
            let durability = Durability::of(&remotes, has).unwrap();
            assert_eq!(durability.is_durable(), is_durable, "{on:?}");
            let found: Vec<(&str, bool)> =
                durability.missing().map(|(remote, needed)| (remote.name().as_str(), needed)).collect();
            assert_eq!(found, missing, "{on:?}");
        }
        let mut selective = (*remote("r1", true).settings).clone();
        selective.selection = Some(Selection {
            from: RemoteName::new("r0").unwrap(),
            rules: KeepRules::default(),
            includes_newest: false,
            after_seconds: 0,
        });
        let selective = RunRemote::new(bare.store.clone(), selective.into(), bare.keys.run().clone());
        let remotes = [remote("r0", true), selective];
        let only_on = |name: &'static str| move |asked: &RunRemote| Ok(asked.name().as_str() == name);
        let durability = Durability::of(&remotes, only_on("r0")).unwrap();
        assert!(durability.is_durable() && durability.missing().next().is_none());
        assert!(!Durability::of(&remotes, only_on("r1")).unwrap().is_anywhere());
        let nowhere = [remote("r0", false), remote("r1", false)];
        let durability = Durability::of(&nowhere, |_| Ok(false)).unwrap();
        assert!(!durability.is_durable() && durability.missing().all(|(_, needed)| needed));
    }

    #[test]
    fn a_given_up_step_that_is_held_again_is_not_given_up() {
        let mut record = GivenUpRecord::new(RunName::new("run").unwrap(), NodeName::new("node-0").unwrap());
        for step in [100, 200] {
            record.add(GivenUpStep {
                id: id(step),
                bytes: 1,
                given_up_at: Timestamp::default(),
                durable_on: Vec::new(),
            });
        }
        let still = still_given_up(&record, &BTreeSet::from([id(200)])).unwrap();
        assert_eq!(still.steps.len(), 1);
        assert_eq!(still.steps[0].id, id(100));
        assert_eq!(still_given_up(&record, &BTreeSet::from([id(100), id(200)])), None);
    }
}
