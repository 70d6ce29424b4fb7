//! Branches of training that a later attempt has abandoned.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Attempt, Step, StepId};
use crate::step_origin::BestName;

/// Returns the steps of earlier attempts at or above the step at which some later attempt began.
///
/// A run that failed at 300 and went back to 100 has abandoned 200 and 300; 100 is still its ancestor.
pub fn abandoned_steps(ids: impl IntoIterator<Item = StepId>) -> BTreeSet<StepId> {
    let ids: Vec<StepId> = ids.into_iter().collect();
    let mut begins: BTreeMap<Attempt, Step> = BTreeMap::new();
    for id in &ids {
        let begin = begins.entry(id.attempt).or_insert(id.step);
        *begin = (*begin).min(id.step);
    }
    // For each attempt, the lowest step at which any later one began.
    let mut cuts = BTreeMap::new();
    let mut lowest: Option<Step> = None;
    for (attempt, begin) in begins.iter().rev() {
        if let Some(cut) = lowest {
            cuts.insert(*attempt, cut);
        }
        lowest = Some(lowest.map_or(*begin, |cut| cut.min(*begin)));
    }
    ids.into_iter().filter(|id| cuts.get(&id.attempt).is_some_and(|cut| id.step >= *cut)).collect()
}

/// Returns the step that another one, `named_by`, names as the best: the newest of that name that is older, and from which
/// the run did not go back; without one of that name, the newest of that number. That may be `named_by` itself.
pub fn best_step<'a>(
    named_by: StepId,
    best: &BestName,
    steps: impl Iterator<Item = (StepId, &'a str)>,
) -> Option<StepId> {
    let steps: Vec<(StepId, &str)> = steps.filter(|(id, _)| *id <= named_by).collect();
    let abandoned = abandoned_steps(steps.iter().map(|(id, _)| *id));
    let live = || steps.iter().filter(|(id, _)| !abandoned.contains(id));
    let of_name = live().filter(|(_, name)| *name == best.name);
    let of_number = live().filter(|(id, _)| Some(id.step) == best.step);
    let newest = of_name.map(|(id, _)| *id).max();
    newest.or_else(|| of_number.map(|(id, _)| *id).max())
}
