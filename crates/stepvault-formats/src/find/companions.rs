//! Paths without a number that a trainer rewrites at each save: they belong to the newest numbered step.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stepvault_core::timestamp::Timestamp;

use super::found::{Completeness, FoundStep, LONGEST_SAVE_SECONDS, QuietRule};
use super::units::is_text_alone;
use crate::profile::template::{last_component, parent_prefix};
use crate::step_name;
use crate::text_file::read_text;
use crate::tree::{OpenFile, Tree};

/// Returns the step that an alias belongs to, of these, the newest first: the one with the number that the alias states;
/// otherwise the newest one, if the alias holds the best state so far, or was written before it and not nearer to the step
/// before. Before the first step a trainer may write anything: only an alias that says that it is a checkpoint counts.
pub(super) fn saved_with<'a>(alias: &FoundStep, steps: &[&'a FoundStep]) -> Option<&'a FoundStep> {
    let is_beside = |step: &&&FoundStep| parent_prefix(&step.path) == parent_prefix(&alias.path);
    let mut beside = steps.iter().filter(is_beside);
    if !alias.is_complete() {
        return None;
    }
    if alias.step.is_some() {
        return beside.find(|step| step.step == alias.step).copied();
    }
    let newest = beside.next()?;
    // The best state may be an older one.
    if last_component(&alias.path).to_ascii_lowercase().contains("best") {
        return Some(newest);
    }
    let seconds = newest.written_at.seconds_since(alias.written_at);
    let is_nearer = |earlier: &FoundStep| {
        alias.written_at > earlier.written_at && seconds <= alias.written_at.seconds_since(earlier.written_at)
    };
    let is_of_its_save = alias.written_at <= newest.written_at
        && seconds <= LONGEST_SAVE_SECONDS
        && beside.next().map_or_else(|| step_name::says_newest(&alias.path), |earlier| is_nearer(earlier));
    is_of_its_save.then_some(newest)
}

/// Adds the paths of another step to one, in front of its own.
pub(super) fn add(step: &mut FoundStep, other: FoundStep) {
    let written = (other.bytes, other.files, other.written_at);
    add_paths(step, other.members, written, other.content);
    match (&mut step.complete, other.complete) {
        (Completeness::NotYet { reasons }, Completeness::NotYet { reasons: more }) => {
            reasons.extend(more);
        }
        (complete, other @ Completeness::NotYet { .. }) => *complete = other,
        (Completeness::Complete { quiet_rule, .. }, Completeness::Complete { quiet_rule: other, .. }) => {
            if other == QuietRule::Always {
                *quiet_rule = other;
            }
        }
        (Completeness::NotYet { .. }, Completeness::Complete { .. }) => {}
    }
}

/// Adds paths, with the length of their files, their number, and the time of the newest.
fn add_paths(
    step: &mut FoundStep,
    paths: Vec<String>,
    (bytes, files, written_at): (u64, u64, Timestamp),
    content: u64,
) {
    step.bytes = step.bytes.saturating_add(bytes);
    step.files += files;
    step.written_at = step.written_at.max(written_at);
    step.content = step.content.rotate_left(1) ^ content;
    step.members.splice(..0, paths);
}

/// Adds the short texts that name a step, such as TensorFlow's `checkpoint` or `last_checkpoint` of Detectron2, to the
/// newest step that each names: without them the trainer begins anew.
pub(super) fn add_texts(steps: &mut [FoundStep], tree: &Tree, files: &dyn OpenFile) {
    let numbered = |step: &FoundStep| step.step.is_some() && !step.rewritten && step.is_complete();
    if !steps.iter().any(numbered) {
        return;
    }
    let texts =
        tree.entries().filter(|(path, _)| step_name::says_newest(path) && is_text_alone(path, tree, files));
    for (path, entry) in texts {
        let Ok(text) = read_text(tree, files, path) else {
            continue;
        };
        let is_named = |step: &FoundStep| {
            step.members.iter().any(|member| {
                let name = last_component(member);
                let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
                let has_number = step.step.is_some() && step_name::parse(name) == step.step;
                has_number
                    && parent_prefix(member) == parent_prefix(path)
                    && (names(&text, name) || names(&text, stem))
            })
        };
        let named = steps.iter_mut().filter(|step| numbered(step) && is_named(step));
        if let Some(step) = named.max_by_key(|step| step.step) {
            let mut hasher = DefaultHasher::new();
            (path, &text, entry.mtime).hash(&mut hasher);
            let written = (tree.file_size_bytes(path).unwrap_or_default(), 1, entry.mtime);
            add_paths(step, vec![path.to_owned()], written, hasher.finish());
        }
    }
}

/// Whether a text contains a name that no letter, digit or sign of a name continues.
fn names(text: &str, name: &str) -> bool {
    let continues = |character: char| character.is_alphanumeric() || character == '_' || character == '-';
    text.match_indices(name).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + name.len()..].chars().next();
        !before.is_some_and(continues) && !after.is_some_and(continues)
    })
}
