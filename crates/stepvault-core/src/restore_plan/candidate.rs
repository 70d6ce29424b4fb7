//! The steps that a tier has, or has a record of.

use crate::commit::Commit;
use crate::ids::{RemoteName, StepId};
use crate::observe::Tier;

/// The state of a step on one tier.
#[derive(Debug, Clone, PartialEq)]
pub enum CandidateState {
    /// Its commit, or a copy of the commit, was read there.
    Committed(Box<Commit>),
    /// Sealed in the local vault; no commit is known yet.
    Sealed,
    /// A record of it cannot be read, for this reason.
    Unreadable(String),
    /// It was found invalid earlier, for this reason.
    Quarantined(String),
}

/// A step on one tier.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateTier {
    /// The tier.
    pub tier: Tier,
    /// The state of the step there.
    pub state: CandidateState,
}

/// A step with every tier that has a record of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The step.
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// The tiers.
    pub tiers: Vec<CandidateTier>,
}

/// Sorts candidates newest first, and the tiers of each in the order of reading: local, then the remotes as
/// configured, then any other. Entries for the same step are merged.
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

/// Ranks a tier; `None`, the local tier, comes first.
fn rank<'a>(tier: &'a Tier, remotes: &[RemoteName]) -> Option<(usize, &'a RemoteName)> {
    match tier {
        Tier::Local => None,
        Tier::Remote(name) => {
            let place = remotes
                .iter()
                .position(|remote| remote == name)
                .unwrap_or(remotes.len());
            // Remotes that are not configured are sorted by name.
            Some((place, name))
        }
    }
}
