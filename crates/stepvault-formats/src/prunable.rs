//! Selects the steps of the watched directory that a clean-up may remove once they are durable elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::find::{Found, FoundStep};
use crate::profile::template::last_component;
use crate::profile::{Profile, Protects};
use crate::text_file::read_json;
use crate::tree::{OpenFile, Tree};

/// The part of `trainer_state.json` that names the best step.
#[derive(Deserialize)]
struct TrainerState {
    best_model_checkpoint: Option<String>,
}

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
    let mut protected = BTreeSet::new();
    for pointer in &found.pointers {
        match &pointer.target {
            Some(target) => protected.insert(target.clone()),
            // It names a step that we do not know.
            None if pointer.dangling => return None,
            None => false,
        };
    }
    for rule in &profile.protects {
        match rule {
            Protects::HfBestModel => protected.extend(best_models(tree, files, found)?),
            Protects::OwnRotation => return None,
        }
    }
    Some(protected)
}

/// Returns the steps that any step's `trainer_state.json` names as the best. The file holds a path as the trainer saw
/// it, of which only the last component is usable here.
fn best_models(tree: &Tree, files: &dyn OpenFile, found: &Found) -> Option<Vec<String>> {
    let mut best = Vec::new();
    for step in &found.steps {
        let path = format!("{}/trainer_state.json", step.path);
        if !tree.is_file(&path) {
            continue;
        }
        let state: TrainerState = match read_json(tree, files, &path) {
            Ok(state) => state,
            // The save was cut off: its file names nothing and protects nothing.
            Err(_) if !step.is_complete() => continue,
            Err(_) => return None,
        };
        let Some(named) = state.best_model_checkpoint else {
            continue;
        };
        let name = last_component(named.trim_end_matches('/')).to_owned();
        best.extend(
            found
                .steps
                .iter()
                .map(|step| &step.path)
                .filter(|path| last_component(path) == name)
                .cloned(),
        );
    }
    Some(best)
}
