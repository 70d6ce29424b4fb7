//! The retention plan: whether to keep or drop each step, and why.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::facts::{StepFacts, TierView};
use super::guards::{Guards, Loss, Refusal, held, loss, never_given_up_from, refusal};
use super::policy::{KeepRules, LocalLimits};
use super::rules::kept_by_rules;
use super::space::evict_for_space;
use crate::error::Result;
use crate::ids::StepId;
use crate::observe::Tier;
use crate::timestamp::Timestamp;

/// What happens to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is deleted.
    Drop,
    /// It is deleted although it is not durable on every required remote, because the disk has no space and no other
    /// deletion frees any.
    GiveUp,
}

/// The decision on one step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Decision {
    /// The step.
    #[serde(flatten)]
    pub id: StepId,
    /// The name the trainer gave it.
    pub name: String,
    /// Bytes it takes on the tier.
    pub bytes: u64,
    /// The decision.
    pub verdict: Verdict,
    /// Why, in plain words; never empty.
    pub reasons: Vec<String>,
    /// Whether it is on a branch that a later attempt has abandoned; such steps are deleted first.
    pub abandoned: bool,
    /// Whether a guard holds it: nothing may drop it.
    pub guarded: bool,
    /// Bytes that its removal returns to the filesystem.
    #[serde(skip)]
    pub reclaimable_bytes: u64,
    /// When it was stored on the tier; orders the evictions among several runs.
    #[serde(skip)]
    pub(super) created: Timestamp,
    /// What would be lost by giving it up; `None` if it is never given up, or is not held.
    #[serde(skip)]
    pub(super) loss: Option<Loss>,
    /// The guards that hold it.
    #[serde(skip)]
    pub(super) held_by: Vec<String>,
}

impl Decision {
    pub(super) fn drop_for(&mut self, reason: String) {
        self.verdict = Verdict::Drop;
        self.reasons = vec![reason];
    }

    /// Keeps the guards among the reasons, because they tell what is lost.
    pub(super) fn give_up_for(&mut self, reason: String) {
        self.verdict = Verdict::GiveUp;
        self.reasons = std::iter::once(reason)
            .chain(self.held_by.iter().cloned())
            .collect();
    }
}

/// The decisions on the steps of one run on one tier.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RetentionPlan {
    /// The tier.
    #[serde(serialize_with = "tier_text")]
    #[schemars(with = "String")]
    pub tier: Tier,
    /// Why nothing is deleted at all, with every verdict `keep`; null if steps may be deleted.
    pub refusal: Option<Refusal>,
    /// Every step once, oldest first.
    pub decisions: Vec<Decision>,
    /// Bytes of the deleted steps.
    pub freed_bytes: u64,
    /// Bytes of the kept steps.
    pub kept_bytes: u64,
    /// Warnings for the user: limits that cannot be met.
    pub warnings: Vec<String>,
    /// Number of deletions that `maximum_deletions` still allows.
    #[serde(skip)]
    pub(super) deletions_left: usize,
}

impl RetentionPlan {
    /// Returns the steps to delete in the order of deletion: abandoned branches first, and oldest first within both
    /// groups.
    pub fn deletions(&self) -> Vec<&Decision> {
        let mut drops: Vec<&Decision> = self
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::Drop)
            .collect();
        drops.sort_by_key(|decision| deletion_order(decision));
        drops
    }

    /// Returns the given-up steps in the order of deletion: those with the least loss first, and oldest first among
    /// these.
    pub fn given_up(&self) -> Vec<&Decision> {
        let mut given_up: Vec<&Decision> = self
            .decisions
            .iter()
            .filter(|decision| decision.verdict == Verdict::GiveUp)
            .collect();
        given_up.sort_by_key(|decision| (decision.loss, decision.created, decision.id));
        given_up
    }

    /// Adds earlier decisions on the same steps that were carried out since, so that one plan includes all.
    pub fn add_carried_out(&mut self, decisions: Vec<Decision>) {
        self.decisions
            .retain(|planned| decisions.iter().all(|done| done.id != planned.id));
        self.decisions.extend(decisions);
        self.decisions.sort_by_key(|decision| decision.id);
        self.count_bytes();
    }

    /// Returns the decision on one step.
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
        let going = sum(Verdict::Drop).saturating_add(sum(Verdict::GiveUp));
        (self.freed_bytes, self.kept_bytes) = (going, sum(Verdict::Keep));
    }
}

/// Sorts abandoned branches before the line that led to the newest step, and oldest first.
fn deletion_order(decision: &Decision) -> (bool, StepId) {
    (!decision.abandoned, decision.id)
}

fn tier_text<S: Serializer>(tier: &Tier, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(tier)
}

/// Decides which steps of one run stay on one tier. `limits` apply to the local tier only.
///
/// If the state of the tier forbids deletions (a failed listing, an unreadable record, nothing verified), the plan
/// keeps everything and [`RetentionPlan::refusal`] contains the reason.
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
    let kept_from = never_given_up_from(&view.steps);
    let mut named: BTreeMap<StepId, Vec<String>> = kept_by_rules(steps, rules, view.now);
    let decide_one = |step: &&StepFacts| {
        let guard_reasons = held.remove(&step.id).unwrap_or_default();
        let guarded = !guard_reasons.is_empty();
        let mut reasons = named.remove(&step.id).unwrap_or_default();
        reasons.extend(guard_reasons.iter().cloned());
        if !reasons.is_empty() {
            let loss = loss(step, kept_from).filter(|_| guarded && view.tier == Tier::Local);
            return Decision {
                loss,
                held_by: guard_reasons,
                ..kept(step, reasons, guarded)
            };
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
        reclaimable_bytes: step.reclaimable_bytes,
        created: step.created,
        loss: None,
        held_by: Vec::new(),
    }
}

/// Limits the number of deletions; the remaining ones wait for the next plan.
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
