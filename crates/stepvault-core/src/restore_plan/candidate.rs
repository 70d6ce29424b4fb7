//! The steps that some tier has, or says it has.

use crate::commit::Commit;
use crate::ids::{RemoteName, StepId};
use crate::observe::Tier;

/// How a step stands on one tier.
#[derive(Debug, Clone, PartialEq)]
pub enum CandidateState {
    /// Its commit was read there, or its copy of the commit.
    Committed(Box<Commit>),
    /// Sealed in the local vault; no commit is known yet.
    Sealed,
    /// A record of it is there and cannot be read; why.
    Unreadable(String),
    /// It was found invalid before; why.
    Quarantined(String),
}

/// A step on one tier.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateTier {
    /// The tier.
    pub tier: Tier,
    /// How it stands there.
    pub state: CandidateState,
}

/// A step, with every tier that knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The step.
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// The tiers.
    pub tiers: Vec<CandidateTier>,
}

/// Puts candidates newest first and each one's tiers in the order to read from them: local, then the remotes as
/// configured, then any other. Entries for the same step are joined.
pub fn order(candidates: Vec<Candidate>, remotes: &[RemoteName]) -> Vec<Candidate> {
    let mut candidates = candidates;
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.id));
    let mut ordered: Vec<Candidate> = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        match ordered.last_mut() {
            Some(last) if last.id == candidate.id => last.tiers.extend(candidate.tiers),
            _ => ordered.push(candidate),
        }
    }
    for candidate in &mut ordered {
        candidate
            .tiers
            .sort_by(|left, right| rank(&left.tier, remotes).cmp(&rank(&right.tier, remotes)));
    }
    ordered
}

/// No place at all comes first.
fn rank<'a>(tier: &'a Tier, remotes: &[RemoteName]) -> Option<(usize, &'a RemoteName)> {
    match tier {
        Tier::Local => None,
        Tier::Remote(name) => {
            let place = remotes
                .iter()
                .position(|remote| remote == name)
                .unwrap_or(remotes.len());
            // The name settles the order of those that are not configured.
            Some((place, name))
        }
    }
}
