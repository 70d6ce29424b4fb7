//! Selects the steps of the watched directory that a clean-up may remove once they are durable elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::find::{Found, FoundStep};
use crate::profile::Profile;
use crate::profile::template::last_component;
use crate::tree::{OpenFile, Tree};

/// Returns the steps that a clean-up of the watched directory may remove without taking anything from the trainer:
/// complete steps older than the newest complete one of their series, except a step that a pointer names, that the
/// trainer loads at its end, or that is overwritten in place. When the data that protects steps cannot be read, or the
/// trainer would fail without a step that it has not deleted itself, no step is returned.
pub fn prunable<'a>(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    found: &'a Found,
) -> Vec<&'a FoundStep> {
    let Some(protected) = protected(profile, tree, files, found) else {
        return Vec::new();
    };
    let mut newest = BTreeMap::new();
    for step in found.steps.iter().filter(|step| step.is_complete()) {
        let of_series = newest.entry(&step.series).or_insert(step.step);
        *of_series = step.step.max(*of_series);
    }
    let older = |step: &&FoundStep| newest.get(&step.series).is_some_and(|newest| *newest > step.step);
    let in_place = profile.overwrites_finished_files();
    found
        .steps
        .iter()
        .filter(|step| step.is_complete() && step.step.is_some() && !(in_place && step.members.len() > 1))
        .filter(older)
        .filter(|step| !protected.contains(&step.path))
        .collect()
}

/// Returns the paths of steps that must stay, or `None` when they cannot be determined.
fn protected(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    found: &Found,
) -> Option<BTreeSet<String>> {
    if profile.own_rotation {
        return None;
    }
    let mut protected = BTreeSet::new();
    for pointer in &found.pointers {
        match &pointer.target {
            Some(target) => protected.insert(target.clone()),
            // It names a step that we do not know.
            None if pointer.dangling => return None,
            None => false,
        };
    }
    if !profile.best.is_empty() {
        protected.extend(best_steps(profile, tree, files, found)?);
    }
    Some(protected)
}

/// Returns the paths of the steps that any step names as the best.
fn best_steps(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    found: &Found,
) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for step in &found.steps {
        match step.stated_best(profile, tree, files) {
            Some(best) => names.extend(best),
            // The save was cut off: its file names nothing and protects nothing.
            None if !step.is_complete() => {}
            None => return None,
        }
    }
    let paths = found.steps.iter().map(|step| &step.path);
    let is_named = |path: &&String| names.contains(last_component(path));
    Some(paths.filter(is_named).cloned().collect())
}
