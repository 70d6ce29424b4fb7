//! Newer content at a path that a trainer rewrites at each save: a restore leaves it in place, as it does with newer
//! steps that have no path in common with the restored one.

use stepvault_core::timestamp::Timestamp;

use super::{Below, HandoffPlan, Restored, chosen};
use crate::check::check_step;
use crate::find::{FindOptions, FoundStep, find_steps};
use crate::profile::ProfileSet;
use crate::resume::resume_text;
use crate::tree::OpenFile;

/// Returns the handoff to what stands at one of the step's own paths instead of the step: content that states a higher number,
/// was written later, and is proved whole by the formats of its files. `of_step` is the step's number and when it was
/// written; the tree of `restored` is the directory as it is. The same facts always give the same plan.
pub fn kept_in_place(
    restored: &Restored<'_>,
    of_step: (u64, Timestamp),
    profiles: &ProfileSet,
    files: &dyn OpenFile,
) -> Option<HandoffPlan> {
    if restored.overrides_newer {
        return None;
    }
    let chosen = chosen(restored, profiles, files)?;
    let (profile, view) = (chosen.profile, &chosen.view);
    let paths: Vec<String> = restored.paths.iter().map(|path| view.path_of(path)).collect();
    let files = Below {
        files,
        prefix: &view.prefix,
    };
    // Nobody writes here while a step is restored, so the last write is finished.
    let now = view.tree.files().map(|(_, entry)| entry.mtime).max();
    let options = FindOptions {
        quiet_seconds: 0,
        ..FindOptions::default()
    };
    let found = find_steps(profile, &view.tree, &files, now.unwrap_or_default(), &options);
    let is_at_its_paths = |step: &&FoundStep| step.members.iter().any(|member| paths.contains(member));
    let there = found.steps.iter().filter(is_at_its_paths);
    let there = there.max_by_key(|step| step.step)?;
    let path = &there.path;
    let was_skipped = there.step.is_some_and(|step| restored.skipped.contains(&step));
    let is_newer = there.step > Some(of_step.0) && there.written_at > of_step.1 && !was_skipped;
    let is_kept = (there.rewritten || there.has_shared_path(profile))
        && there.is_complete()
        && is_newer
        && check_step(there, &view.tree, &files).is_proved();
    is_kept.then(|| HandoffPlan {
        framework: profile.name.clone(),
        why: chosen.why.clone(),
        kept: view.inside(path),
        kept_has_its_path: true,
        aside: Vec::new(),
        pointers: Vec::new(),
        resume: resume_text(profile, &view.root, path)
            .unwrap_or_else(|| format!("start the trainer from {}/{path}", view.root)),
    })
}
