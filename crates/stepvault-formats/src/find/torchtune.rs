//! torchtune's epochs: the weights in `epoch_N`, and beside all epochs one `recipe_state/recipe_state.pt`, which each save
//! but the last overwrites after the weights. A recipe resumes from both (`torchtune/training/checkpointing`, 0.6.1; some
//! versions keep a recipe state in each step instead).

use super::stated::stated_numbers;
use super::unit::{Member, Unit, files_of};
use crate::profile::UnitRule;
use crate::profile::pattern::PathParts;
use crate::profile::template::{last_component, parent_prefix};
use crate::tree::{OpenFile, Tree};

const RECIPE_STATE: &str = "recipe_state/recipe_state.pt";
/// Number of epochs that the recipe has finished.
const FINISHED: &str = "epochs_run";
/// Number of epochs of the whole run.
const OF_RUN: &str = "total_epochs";

/// Adds the recipe state to the epoch that it belongs to. No recipe resumes from the weights of the epochs before, and the
/// epoch after it is not complete, unless it is the last one of the run.
pub(super) fn add_recipe_state(units: &mut [Unit<'_>], tree: &Tree, files: &dyn OpenFile) {
    let is_epoch = |unit: &&mut Unit<'_>| {
        let is_named_so = last_component(unit.path()).starts_with("epoch_");
        unit.series.unit == Some(UnitRule::TorchtuneEpoch) && unit.step.is_some() && is_named_so
    };
    let epochs: Vec<&mut Unit<'_>> = units.iter_mut().filter(is_epoch).collect();
    let Some(directory) = epochs.first().map(|unit| parent_prefix(unit.path()).to_owned()) else {
        return;
    };
    let path = format!("{directory}{RECIPE_STATE}");
    let Some(entry) = tree.get(&path).filter(|_| tree.is_file(&path)) else {
        return;
    };
    let [finished, of_run] = stated_numbers(&path, [FINISHED, OF_RUN], tree, files);
    for unit in epochs {
        // The first epoch is 0.
        let until_its_end = unit.step.and_then(|epoch| epoch.checked_add(1));
        if finished.is_some() && finished == until_its_end {
            unit.files.extend(files_of(tree, &path, entry).0);
            unit.members.push(Member { path: path.clone(), parts: PathParts::default() });
        } else if finished > until_its_end {
            unit.resumable = false;
        } else if of_run != until_its_end {
            unit.objection = Some(if finished.is_some() {
                format!("{path} is of an earlier epoch: it is written after the weights")
            } else {
                format!("{path} cannot be read: it is being written, or its save was interrupted")
            });
        }
    }
}
