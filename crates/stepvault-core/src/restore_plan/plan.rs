//! The restore plan: the steps to try, newest first, each with its sources.

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

use super::candidate::{Candidate, CandidateState, order};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Attempt, RemoteName, Step, StepId};
use crate::observe::Tier;

/// Maximum number of steps or reasons that a message lists.
const LISTED: usize = 5;

/// What to restore.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoreRequest {
    /// The step; the newest if `None`.
    pub step: Option<Step>,
    /// The attempt; any, newest first, if `None`.
    pub attempt: Option<Attempt>,
    /// Patterns of the files to restore; all if empty. See [`IncludeFilter`](super::IncludeFilter).
    pub include: Vec<String>,
}

/// One step in the order of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedStep {
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// The tiers from which each file is read, in order of preference. Empty for a skipped step.
    #[serde(serialize_with = "tier_texts")]
    pub sources: Vec<Tier>,
    /// Tiers that have a record of the step but cannot provide it, each with the reason.
    pub unusable: Vec<String>,
    /// Why it is skipped.
    pub skipped: Option<String>,
}

/// The steps to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestorePlan {
    /// Newest first, including skipped ones.
    pub attempts: Vec<PlannedStep>,
    /// The first step that is not skipped.
    pub chosen: Option<StepId>,
}

impl RestorePlan {
    /// Returns the steps to try, in order.
    pub fn to_try(&self) -> impl Iterator<Item = &PlannedStep> {
        self.attempts.iter().filter(|planned| planned.skipped.is_none())
    }

    /// Returns the skipped steps with the reasons: the first part of the [`none_valid`] error.
    pub fn skipped(&self) -> impl Iterator<Item = (StepId, &str)> {
        self.attempts
            .iter()
            .filter_map(|planned| Some((planned.id, planned.skipped.as_deref()?)))
    }
}

/// Decides which steps to try. `remotes` are the configured ones, in order.
///
/// # Errors
/// [`ErrorKind::NotFound`] when no tier has a requested step; [`ErrorKind::NoneValid`] when such steps exist but none
/// can be tried.
pub fn plan(
    candidates: Vec<Candidate>,
    request: &RestoreRequest,
    remotes: &[RemoteName],
) -> Result<RestorePlan> {
    let candidates = order(candidates, remotes);
    let wanted = |id: StepId| {
        request.step.is_none_or(|step| id.step == step)
            && request.attempt.is_none_or(|attempt| id.attempt == attempt)
    };
    let (matching, others): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| wanted(candidate.id));
    if matching.is_empty() {
        return Err(not_found(request, &others));
    }
    let attempts: Vec<PlannedStep> = matching.into_iter().flat_map(planned).collect();
    let chosen = attempts
        .iter()
        .find(|planned| planned.skipped.is_none())
        .map(|planned| planned.id);
    let plan = RestorePlan { attempts, chosen };
    if plan.chosen.is_none() {
        return Err(none_valid(plan.skipped()));
    }
    Ok(plan)
}

/// Returns one candidate as steps to try: one, unless its tiers have different commits under the same name.
fn planned(candidate: Candidate) -> Vec<PlannedStep> {
    let mut unusable = Vec::new();
    let mut groups: Vec<(Option<Box<crate::commit::Commit>>, Vec<Tier>)> = Vec::new();
    for entry in candidate.tiers {
        let commit = match entry.state {
            CandidateState::Committed(commit) => Some(commit),
            CandidateState::Sealed => None,
            CandidateState::Unreadable(why) => {
                unusable.push(format!("{}: unreadable: {why}", entry.tier));
                continue;
            }
            CandidateState::Quarantined(why) => {
                unusable.push(format!("{}: quarantined: {why}", entry.tier));
                continue;
            }
        };
        // Files of two commits are never mixed. A copy without a commit joins any group, because each of its parts is
        // verified against the commit that is used.
        let fits = |known: &Option<Box<crate::commit::Commit>>| match (known, &commit) {
            (Some(known), Some(commit)) => known.parts == commit.parts,
            _ => true,
        };
        match groups.iter_mut().find(|(known, _)| fits(known)) {
            Some((known, tiers)) => {
                *known = known.take().or(commit);
                tiers.push(entry.tier);
            }
            None => groups.push((commit, vec![entry.tier])),
        }
    }
    let step = |sources: Vec<Tier>, unusable: Vec<String>, skipped| PlannedStep {
        id: candidate.id,
        name: candidate.name.clone(),
        sources,
        unusable,
        skipped,
    };
    if groups.is_empty() {
        let reason = if unusable.is_empty() {
            "no tier holds it".to_owned()
        } else {
            unusable.join("; ")
        };
        return vec![step(Vec::new(), unusable, Some(reason))];
    }
    groups
        .into_iter()
        .map(|(_, tiers)| step(tiers, unusable.clone(), None))
        .collect()
}

fn not_found(request: &RestoreRequest, others: &[Candidate]) -> Error {
    let asked = match (request.step, request.attempt) {
        (Some(step), Some(attempt)) => Some(StepId::new(attempt, step).to_string()),
        (Some(step), None) => Some(format!("step {step}")),
        (None, Some(attempt)) => Some(format!("attempt {attempt}")),
        (None, None) => None,
    };
    let Some(asked) = asked else {
        return Error::new(ErrorKind::NotFound, "no checkpoint to restore")
            .because("no tier holds a step of this run")
            .hint("check the run's name, the remotes and the local directory; `stepvault list` shows which steps \
             they hold");
    };
    let error = Error::new(ErrorKind::NotFound, "no such checkpoint").on(asked);
    if others.is_empty() {
        return error.because("no tier holds a step of this run");
    }
    let mut known: Vec<String> = others
        .iter()
        .take(LISTED)
        .map(|other| other.id.to_string())
        .collect();
    if others.len() > LISTED {
        known.push(format!("and {} older", others.len() - LISTED));
    }
    error
        .because("no tier holds it")
        .hint(format!("available: {}", known.join(", ")))
}

/// Returns the error for a restore in which every step was skipped or found damaged, with the reason for each.
pub fn none_valid<'a>(failed: impl IntoIterator<Item = (StepId, &'a str)>) -> Error {
    let failed: Vec<String> = failed
        .into_iter()
        .map(|(id, why)| format!("{id}: {why}"))
        .collect();
    let mut listed: Vec<String> = failed.iter().take(LISTED).cloned().collect();
    if failed.len() > LISTED {
        listed.push(format!("and {} more", failed.len() - LISTED));
    }
    Error::new(ErrorKind::NoneValid, "no valid checkpoint to restore")
        .because(listed.join("; "))
        .hint("run `stepvault verify --deep` to read every copy and see what is wrong with it")
}

fn tier_texts<S: Serializer>(tiers: &[Tier], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let mut sequence = serializer.serialize_seq(Some(tiers.len()))?;
    for tier in tiers {
        sequence.serialize_element(&tier.to_string())?;
    }
    sequence.end()
}
