//! `AReaL`'s recover state: `{model}/recover_checkpoint` of every model and the one `recover_info` beside the models,
//! overwritten in place at each save, weights first (areal/utils/recover.py, saver.py).

use std::io;

use serde::Deserialize;

use super::units::{Member, Unit, UnitFile, files_of};
use crate::profile::pattern::PathParts;
use crate::profile::template::{last_component, parent_prefix};
use crate::text_file::read_json;
use crate::tree::{OpenFile, Tree, is_inside};

/// The files of `recover_info`, in the order in which they are written.
const INFO_FILES: [&str; 6] = [
    "step_info.json",
    "saver_info.json",
    "evaluator_info.json",
    "stats_logger_info.json",
    "checkpoint_info.json",
    "dataloader_info.pkl",
];

/// The part of `step_info.json` that names the step.
#[derive(Deserialize)]
struct StepInfo {
    global_step: u64,
}

/// The trial's directory for a model's `recover_checkpoint`; empty, or ending in `/`.
pub(super) fn trial_of(path: &str) -> &str {
    let model = parent_prefix(path);
    parent_prefix(model.trim_end_matches('/'))
}

fn info_directory(unit: &Unit<'_>) -> String {
    format!("{}recover_info", trial_of(unit.path()))
}

/// Drops members that are not a model's checkpoint, adds `recover_info`, and reads the step number. Returns false
/// when nothing is left.
pub(super) fn complete_unit(unit: &mut Unit<'_>, tree: &Tree, files: &dyn OpenFile) -> bool {
    // AReaL's own check creates an empty `recover_checkpoint` in every directory beside the models.
    unit.members.retain(|member| {
        let beside_info = last_component(parent_prefix(&member.path).trim_end_matches('/')) == "recover_info";
        !beside_info && tree.below(&member.path).files().next().is_some()
    });
    if unit.members.is_empty() {
        return false;
    }
    let info = info_directory(unit);
    unit.files = unit
        .members
        .iter()
        .filter_map(|member| Some(prefixed(tree, &member.path, tree.get(&member.path)?)))
        .flatten()
        .collect();
    if let Some(entry) = tree.get(&info) {
        unit.files.extend(prefixed(tree, &info, entry));
        unit.members.push(Member { path: info.clone(), parts: PathParts::default() });
    }
    let read: io::Result<StepInfo> = read_json(tree, files, &format!("{info}/step_info.json"));
    unit.step = read.ok().map(|info| info.global_step);
    unit.fits = true;
    true
}

/// Returns the files of a directory by their paths in the tree, because the files of two models have the same names.
fn prefixed(tree: &Tree, path: &str, entry: &crate::tree::Entry) -> Vec<UnitFile> {
    let (mut files, clutter) = files_of(tree, path, entry);
    files.extend(clutter);
    for file in &mut files {
        file.inside = format!("{path}/{}", file.inside);
    }
    files
}

/// Returns the reasons why the pair is not from one save: `recover_info` is written after the weights,
/// `dataloader_info.pkl` last.
pub(super) fn objections(unit: &Unit<'_>) -> Vec<String> {
    let info = format!("{}/", info_directory(unit));
    let (infos, weights): (Vec<_>, Vec<_>) =
        unit.files.iter().partition(|file| file.inside.starts_with(&info));
    let mut reasons: Vec<_> = INFO_FILES
        .iter()
        .filter_map(|name| {
            let file = infos.iter().find(|file| file.inside == format!("{info}{name}"));
            match file.map(|file| file.size_bytes) {
                None => Some(format!("{info}{name} does not exist yet")),
                Some(0) => Some(format!("{info}{name} is empty (0 bytes)")),
                Some(_) => None,
            }
        })
        .collect();
    if !reasons.is_empty() {
        return reasons;
    }
    if unit.step.is_none() {
        reasons.push(format!("{info}step_info.json names no global_step"));
    }
    let mut in_order = |early: Option<&&UnitFile>, late: Option<&&UnitFile>, why: &str| {
        if let (Some(early), Some(late)) = (early, late)
            && early.mtime > late.mtime
        {
            reasons.push(format!("{} was written after {}{why}", early.inside, late.inside));
        }
    };
    let newest_weights = weights.iter().max_by_key(|file| file.mtime);
    let oldest_info = infos.iter().min_by_key(|file| file.mtime);
    in_order(newest_weights, oldest_info, ": the weights are newer than the rest of the step");
    let last = infos.iter().find(|file| file.inside.ends_with("/dataloader_info.pkl"));
    in_order(
        infos.iter().max_by_key(|file| file.mtime),
        last,
        ", which each save writes last: a save is in progress",
    );
    for model in &unit.members {
        let below = |file: &&&UnitFile| is_inside(&file.inside, &model.path);
        let mut shards = weights.iter().filter(below);
        let marker = weights.iter().any(|file| file.inside == format!("{}/.metadata", model.path));
        if shards.any(|file| file.inside.ends_with(".distcp")) && !marker {
            reasons.push(format!("{}/.metadata does not exist yet", model.path));
        }
    }
    reasons
}
