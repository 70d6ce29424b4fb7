//! The plan: for each step keep or drop, and why.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::facts::{StepFacts, TierView};
use super::guards::{Guards, Refusal, held, refusal};
use super::policy::{KeepRules, LocalLimits};
use super::rules::kept_by_rules;
use super::space::evict_for_space;
use crate::error::Result;
use crate::ids::StepId;
use crate::observe::Tier;
use crate::timestamp::Timestamp;

/// What happens to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It goes.
    Drop,
}

/// One step's fate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// Bytes it takes on the tier.
    pub bytes: u64,
    /// Keep or drop.
    pub verdict: Verdict,
    /// Why, in plain words; never empty.
    pub reasons: Vec<String>,
    /// It lies on a branch that a later attempt has left behind; such steps go first.
    pub abandoned: bool,
    /// A guard holds it: nothing may drop it.
    pub guarded: bool,
    /// When it came to the tier: orders the evictions among several runs.
    #[serde(skip)]
    pub(super) created: Timestamp,
}

impl Decision {
    pub(super) fn drop_for(&mut self, reason: String) {
        self.verdict = Verdict::Drop;
        self.reasons = vec![reason];
    }
}

/// What is to happen to the steps of one run on one tier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetentionPlan {
    /// The tier.
    #[serde(serialize_with = "tier_text")]
    pub tier: Tier,
    /// Why nothing is deleted at all; every verdict is then `Keep`.
    pub refusal: Option<Refusal>,
    /// Every step once, oldest first.
    pub decisions: Vec<Decision>,
    /// Bytes of the steps that go.
    pub freed_bytes: u64,
    /// Bytes of the steps that stay.
    pub kept_bytes: u64,
    /// What a person should know: limits that cannot be met.
    pub warnings: Vec<String>,
    /// Deletions that `maximum_deletions` still allows.
    #[serde(skip)]
    pub(super) deletions_left: usize,
}

impl RetentionPlan {
    /// The steps to delete in the order to delete them: abandoned branches first, and oldest first in either group.
    pub fn deletions(&self) -> Vec<&Decision> {
        let mut drops: Vec<&Decision> = self
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::Drop)
            .collect();
        drops.sort_by_key(|decision| deletion_order(decision));
        drops
    }

    /// What the plan says of one step.
    pub fn decision(&self, id: StepId) -> Option<&Decision> {
        self.decisions
            .binary_search_by_key(&id, |decision| decision.id)
            .ok()
            .map(|index| &self.decisions[index])
    }

    pub(super) fn count_bytes(&mut self) {
        let sum = |verdict| {
            let those = self
                .decisions
                .iter()
                .filter(|decision| decision.verdict == verdict);
            those.fold(0_u64, |sum, decision| sum.saturating_add(decision.bytes))
        };
        (self.freed_bytes, self.kept_bytes) = (sum(Verdict::Drop), sum(Verdict::Keep));
    }
}

/// Abandoned branches before the line that led to the newest step, oldest first.
fn deletion_order(decision: &Decision) -> (bool, StepId) {
    (!decision.abandoned, decision.id)
}

fn tier_text<S: Serializer>(tier: &Tier, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(tier)
}

/// Decides what stays of one run on one tier. `limits` count for the local tier only.
///
/// A state of the tier that forbids deletions (a failed listing, an unreadable record, nothing verified) gives a
/// plan that keeps everything and says so in [`RetentionPlan::refusal`].
///
/// # Errors
/// [`ErrorKind::Refused`](crate::ErrorKind::Refused) for rules that would delete everything.
pub fn plan(
    view: &TierView,
    rules: &KeepRules,
    limits: &LocalLimits,
    guards: &Guards,
) -> Result<RetentionPlan> {
    rules.check()?;
    let refusal = refusal(view);
    let mut steps: Vec<&StepFacts> = view.steps.iter().collect();
    steps.sort_by_key(|step| step.id);
    let decisions = match &refusal {
        Some(refusal) => steps
            .into_iter()
            .map(|step| kept(step, vec![refusal.reason.clone()], true))
            .collect(),
        None => decide(&steps, view, rules, guards),
    };
    let mut plan = RetentionPlan {
        tier: view.tier.clone(),
        refusal,
        decisions,
        freed_bytes: 0,
        kept_bytes: 0,
        warnings: Vec::new(),
        deletions_left: guards.maximum_deletions.map_or(usize::MAX, |most| most as usize),
    };
    cap_deletions(&mut plan);
    plan.count_bytes();
    if view.tier == Tier::Local {
        evict_for_space(std::slice::from_mut(&mut plan), limits, view.free_bytes);
    }
    Ok(plan)
}

fn decide(steps: &[&StepFacts], view: &TierView, rules: &KeepRules, guards: &Guards) -> Vec<Decision> {
    let mut held = held(view, guards);
    let mut named: BTreeMap<StepId, Vec<String>> = kept_by_rules(steps, rules, view.now);
    let decide_one = |step: &&StepFacts| {
        let guard_reasons = held.remove(&step.id).unwrap_or_default();
        let guarded = !guard_reasons.is_empty();
        let mut reasons = named.remove(&step.id).unwrap_or_default();
        reasons.extend(guard_reasons);
        if !reasons.is_empty() {
            return kept(step, reasons, guarded);
        }
        let mut decision = kept(step, Vec::new(), false);
        decision.drop_for("no rule keeps it".to_owned());
        if step.abandoned {
            decision.reasons.push("on an abandoned branch".to_owned());
        }
        decision
    };
    steps.iter().map(decide_one).collect()
}

fn kept(step: &StepFacts, reasons: Vec<String>, guarded: bool) -> Decision {
    Decision {
        id: step.id,
        name: step.name.clone(),
        bytes: step.bytes,
        verdict: Verdict::Keep,
        reasons,
        abandoned: step.abandoned,
        guarded,
        created: step.created,
    }
}

/// Lets only the first so many deletions happen; the rest waits for the next plan.
fn cap_deletions(plan: &mut RetentionPlan) {
    let mut drops: Vec<usize> = (0..plan.decisions.len())
        .filter(|index| plan.decisions[*index].verdict == Verdict::Drop)
        .collect();
    drops.sort_by_key(|index| deletion_order(&plan.decisions[*index]));
    let within = drops.len().min(plan.deletions_left);
    for index in drops.split_off(within) {
        let decision = &mut plan.decisions[index];
        decision.verdict = Verdict::Keep;
        decision.reasons = vec!["over --max-delete".to_owned()];
    }
    plan.deletions_left -= within;
}
