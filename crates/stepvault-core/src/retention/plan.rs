//! The retention plan: whether to keep or drop each step, and why.

use std::collections::BTreeMap;

use super::decision::{Decision, RetentionPlan, Verdict, deletion_order};
use super::facts::{StepFacts, TierView, Verified};
use super::guards::{Guards, held, loss, never_given_up_from, refusal};
use super::rules::{KeepRules, LocalLimits, kept_by_rules};
use super::space::evict_for_space;
use crate::{Result, StepId, Tier, Timestamp};

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
        Some(refusal) => {
            steps.into_iter().map(|step| kept(step, vec![refusal.reason.clone()], true)).collect()
        }
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

/// What the rules say of one step, before any guard.
#[derive(Debug)]
pub(super) struct RuleVerdict {
    /// The rules that keep it, in plain words.
    reasons: Vec<String>,
    /// The revision that stands for it, and has all its files.
    superseded_by: Option<StepId>,
}

impl RuleVerdict {
    /// Whether a rule keeps the step.
    pub(super) fn is_kept(&self) -> bool {
        !self.reasons.is_empty()
    }
}

/// Returns what the rules say of each step. `steps` are sorted, oldest first.
pub(super) fn by_rules(
    steps: &[&StepFacts],
    rules: &KeepRules,
    now: Timestamp,
) -> BTreeMap<StepId, RuleVerdict> {
    let revisions = Revisions::of(steps);
    let counted: Vec<&StepFacts> =
        (steps.iter().copied()).filter(|step| revisions.counted(step.id) == step.id).collect();
    let named: BTreeMap<StepId, Vec<String>> = kept_by_rules(&counted, rules, now);
    let verdict = |step: &&StepFacts| {
        let superseded_by = revisions.superseded_by(step.id).filter(|_| !rules.is_unset());
        let reasons = match superseded_by {
            Some(_) => Vec::new(),
            None => named.get(&revisions.counted(step.id)).cloned().unwrap_or_default(),
        };
        (step.id, RuleVerdict { reasons, superseded_by })
    };
    steps.iter().map(verdict).collect()
}

fn decide(steps: &[&StepFacts], view: &TierView, rules: &KeepRules, guards: &Guards) -> Vec<Decision> {
    let mut held = held(view, guards);
    let kept_from = never_given_up_from(&view.steps);
    let mut verdicts = by_rules(steps, rules, view.now);
    let decide_one = |step: &&StepFacts| {
        let guard_reasons = held.remove(&step.id).unwrap_or_default();
        let guarded = !guard_reasons.is_empty();
        let verdict = verdicts.remove(&step.id);
        let superseded_by = verdict.as_ref().and_then(|verdict| verdict.superseded_by);
        let mut reasons = verdict.map(|verdict| verdict.reasons).unwrap_or_default();
        reasons.extend(guard_reasons.iter().cloned());
        if !reasons.is_empty() {
            let loss = loss(step, kept_from).filter(|_| guarded && view.tier == Tier::Local);
            return Decision { loss, held_by: guard_reasons, ..kept(step, reasons, guarded) };
        }
        let mut decision = kept(step, Vec::new(), false);
        decision.drop_for(match superseded_by {
            Some(later) => format!("revision {} has all its files", later.revision),
            None => "no rule keeps it".to_owned(),
        });
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
    let mut drops: Vec<usize> =
        (0..plan.decisions.len()).filter(|index| plan.decisions[*index].verdict == Verdict::Drop).collect();
    drops.sort_by_key(|index| deletion_order(&plan.decisions[*index]));
    let within = drops.len().min(plan.deletions_left);
    for index in drops.split_off(within) {
        let decision = &mut plan.decisions[index];
        decision.verdict = Verdict::Keep;
        decision.reasons = vec!["over --max-delete".to_owned()];
    }
    plan.deletions_left -= within;
}

/// The revisions of the steps on a tier.
struct Revisions<'a> {
    /// By first revision; each list is sorted, oldest first.
    steps: BTreeMap<StepId, Vec<&'a StepFacts>>,
}

impl<'a> Revisions<'a> {
    /// Groups steps, which are sorted.
    fn of(steps: &[&'a StepFacts]) -> Self {
        let mut groups: BTreeMap<StepId, Vec<&StepFacts>> = BTreeMap::new();
        for step in steps {
            groups.entry(step.id.first_revision()).or_default().push(step);
        }
        Self { steps: groups }
    }

    fn of_step(&self, id: StepId) -> &[&'a StepFacts] {
        self.steps.get(&id.first_revision()).map_or(&[], Vec::as_slice)
    }

    /// Returns the revision that stands for the step of `id`: the newest verified one, otherwise the newest.
    fn counted(&self, id: StepId) -> StepId {
        let newest = || self.of_step(id).last().map(|step| step.id);
        self.newest_verified(id).or_else(newest).unwrap_or(id)
    }

    /// Returns the revision that stands for the step, if that has every file of this one: a later one that is verified,
    /// where each between them was made from the one before.
    fn superseded_by(&self, id: StepId) -> Option<StepId> {
        let valid = self.newest_verified(id).filter(|valid| *valid > id)?;
        let is_between = |step: &&&StepFacts| step.id > id && step.id <= valid;
        let mut last = id.revision.number();
        for step in self.of_step(id).iter().filter(is_between) {
            if !step.amends || step.id.revision.number() != last.saturating_add(1) {
                return None;
            }
            last = step.id.revision.number();
        }
        Some(valid)
    }

    fn newest_verified(&self, id: StepId) -> Option<StepId> {
        let mut revisions = self.of_step(id).iter().rev();
        let newest = revisions.find(|step| step.verified == Verified::Yes)?;
        Some(newest.id)
    }
}
