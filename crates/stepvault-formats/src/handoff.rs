//! The plan of what a trainer needs, besides the step itself, to resume from a restored step.
//!
//! The plan is computed from facts alone and changes nothing. Its order is the order of execution: files in the way
//! are moved aside, the whole step is put in place, then the pointers are written.

use std::collections::BTreeSet;
use std::io;

use stepvault_core::timestamp::Timestamp;

use crate::check::check_step;
use crate::detect::{Detection, detect};
use crate::find::{Completeness, FindOptions, Found, FoundStep, find_steps};
use crate::pointer::{PointerContent, PointerWrite, pointer_after_restore};
use crate::profile::{GENERIC, Profile, ProfileSet, ResumeBy, last_component};
use crate::resume::{looks_at, moved_aside_before_restore, resume_text};
use crate::step_name::{looks_like_a_step, without_numbers};
use crate::tree::{Entry, EntryKind, OpenFile, ReadAt, Tree, is_inside};

/// A step in the directory where its trainer looks for it. All paths are relative to that directory.
#[derive(Debug, Clone, Copy)]
pub struct Restored<'a> {
    /// The directory's own path, absolute, as the trainer sees it.
    pub directory: &'a str,
    /// All contents of the directory, including the step.
    pub tree: &'a Tree,
    /// The paths of the step in the directory, never empty.
    pub paths: &'a [String],
    /// Whether the trainer resumes from this step even if the directory holds a newer one: the user selected it, or the
    /// nodes agreed on it. Otherwise the trainer keeps a newer complete step that was never sealed.
    pub overrides_newer: bool,
    /// Steps that the search for a valid step has skipped. The trainer must not resume from what the directory has of
    /// them.
    pub skipped: &'a BTreeSet<u64>,
    /// The framework, if the user named it.
    pub profile: Option<&'a Profile>,
}

/// The actions and texts of the handoff. All paths are relative to the directory of the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPlan {
    /// The name of the profile.
    pub framework: String,
    /// The evidence that this framework wrote the directory, as text; empty when the user named it.
    pub why: Vec<String>,
    /// A step that only the directory holds and no tier: complete, and written after the restored one. The trainer
    /// resumes from it.
    pub kept: Option<String>,
    /// Whether `kept` has one of the restored step's own paths, so that nothing is restored.
    pub kept_has_its_path: bool,
    /// Paths that the trainer would fail on or resume from instead. They are moved out of its sight before the step
    /// appears.
    pub aside: Vec<String>,
    /// The files and links that the trainer reads to find the step.
    pub pointers: Vec<PlannedPointer>,
    /// How to start the trainer so that it resumes.
    pub resume: String,
}

impl HandoffPlan {
    /// Returns whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.aside.is_empty() && self.pointers.iter().all(|pointer| pointer.is_right)
    }
}

/// A pointer, and whether it already names the right step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPointer {
    /// The content it must have.
    pub write: PointerWrite,
    /// Whether it already has that content.
    pub is_right: bool,
}

/// Plans the handoff of a restored step to its trainer. The same facts always give the same plan.
pub fn plan(restored: &Restored<'_>, profiles: &ProfileSet, files: &dyn OpenFile) -> Option<HandoffPlan> {
    let Chosen { profile, why, view } = chosen(restored, profiles, files)?;
    let step: Vec<String> = restored.paths.iter().map(|path| view.path_of(path)).collect();
    view.plan(&step, restored, (profile, why), files)
}

/// Returns the handoff to what stands at one of the step's own paths instead of the step, which a restore leaves in place
/// as it does with newer steps that have no path in common with the restored one: content that states a higher number,
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
    let files = view.files(files);
    let found = view.find_named(profile, &files);
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
        resume: view.resume(profile, path),
    })
}

/// The framework of a directory, and the view from which it sees the step.
struct Chosen<'a> {
    profile: &'a Profile,
    why: Vec<String>,
    view: View,
}

fn chosen<'a>(restored: &Restored<'a>, profiles: &'a ProfileSet, files: &dyn OpenFile) -> Option<Chosen<'a>> {
    restored.paths.first()?;
    let here = View::of(restored.directory, restored.tree);
    let above = View::above(restored.directory, restored.tree);
    let (profile, why) = if let Some(profile) = restored.profile {
        (profile, Vec::new())
    } else {
        let detection = detect_in(&here, above.as_ref(), profiles, files)?;
        (detection.profile, detection.why)
    };
    let sees =
        |place: &dyn Fn(&String) -> String| restored.paths.iter().any(|path| looks_at(profile, &place(path)));
    let view =
        above.filter(|above| !sees(&String::clone) && sees(&|path| above.path_of(path))).unwrap_or(here);
    Some(Chosen { profile, why, view })
}

/// A directory in which a trainer is about to start although no step of its run exists on any tier.
#[derive(Debug, Clone, Copy)]
pub struct FirstStart<'a> {
    /// The directory's own path, absolute, as the trainer sees it.
    pub directory: &'a str,
    /// All contents of the directory.
    pub tree: &'a Tree,
    /// Whether the trainer must resume from none of its steps, the whole ones included.
    pub from_scratch: bool,
    /// The framework, if the user named it.
    pub profile: Option<&'a Profile>,
}

/// Returns the paths, relative to the directory, that the trainer must not find when it starts: steps that are not
/// complete or whose files are damaged, all steps if it starts from scratch, and the pointers to them. The same facts
/// always give the same paths.
pub fn in_the_way_of_a_first_start(
    start: &FirstStart<'_>,
    profiles: &ProfileSet,
    files: &dyn OpenFile,
) -> Vec<String> {
    let here = View::of(start.directory, start.tree);
    let above = View::above(start.directory, start.tree);
    let Some(profile) =
        start.profile.or_else(|| Some(detect_in(&here, above.as_ref(), profiles, files)?.profile))
    else {
        return Vec::new();
    };
    let views = std::iter::once(here).chain(above);
    let mut aside = views.map(|view| view.in_the_way(profile, files, start.from_scratch));
    aside.find(|paths| !paths.is_empty()).unwrap_or_default()
}

/// Frameworks name their steps relative to different directories: `checkpoints/checkpoint_3`, `step-3`. So the
/// directory of the steps is viewed as itself and as part of its parent, of which nothing else is known.
struct View {
    root: String,
    /// The name of the steps' directory with a slash, in the view from the parent.
    prefix: String,
    tree: Tree,
}

impl View {
    fn of(directory: &str, tree: &Tree) -> Self {
        Self { root: directory.to_owned(), prefix: String::new(), tree: tree.clone() }
    }

    fn above(directory: &str, tree: &Tree) -> Option<Self> {
        let (root, name) = directory.trim_end_matches('/').rsplit_once('/')?;
        let prefix = format!("{name}/");
        let own = Entry { kind: EntryKind::Directory, mtime: Timestamp::default() };
        (!name.is_empty()).then(|| Self {
            root: if root.is_empty() { "/" } else { root }.to_owned(),
            prefix,
            tree: tree.clone().under(name, own),
        })
    }

    fn path_of(&self, inside: &str) -> String {
        format!("{}{inside}", self.prefix)
    }

    /// Opens the files of the view.
    fn files<'a>(&'a self, files: &'a dyn OpenFile) -> Below<'a> {
        Below { files, prefix: &self.prefix }
    }

    /// Returns a path relative to the directory of the steps. Nothing outside of it is ever touched.
    fn inside(&self, path: &str) -> Option<String> {
        path.strip_prefix(&self.prefix).map(str::to_owned)
    }

    fn plan(
        &self,
        step: &[String],
        restored: &Restored<'_>,
        (profile, why): (&Profile, Vec<String>),
        files: &dyn OpenFile,
    ) -> Option<HandoffPlan> {
        let files = self.files(files);
        let found = self.find(profile, &files, step);
        let newer = if restored.overrides_newer {
            None
        } else {
            newer_complete(profile, &found, &self.tree, (step, restored.skipped))
        };
        let mut paths = newer.map_or(step, |newer| newer.members.as_slice()).to_vec();
        let own = newer.or_else(|| own_step(&found, step));
        let goes_on_from = own.map_or(step.first()?, |own| &own.path).as_str();
        paths.sort_by_key(|path| path != goes_on_from);
        let pointers = pointer_after_restore(profile, &self.tree, &self.root, &paths);
        let mut aside = moved_aside_before_restore(profile, &self.tree, &files, goes_on_from);
        aside.extend(no_pointers(&pointers, &self.tree, &found));
        aside.extend(abandoned(profile, &found, goes_on_from, restored));
        let kept: Vec<&str> = step.iter().chain(&paths).map(String::as_str).collect();
        Some(HandoffPlan {
            framework: profile.name.clone(),
            why,
            kept: newer.and_then(|newer| self.inside(&newer.path)),
            kept_has_its_path: false,
            aside: outermost(aside, &kept).iter().filter_map(|path| self.inside(path)).collect(),
            pointers: pointers
                .into_iter()
                .filter_map(|write| self.planned(write, &found, goes_on_from))
                .collect(),
            resume: self.resume(profile, goes_on_from),
        })
    }

    /// Returns how to start the trainer so that it resumes from a step.
    fn resume(&self, profile: &Profile, step: &str) -> String {
        resume_text(profile, &self.root, step)
            .unwrap_or_else(|| format!("start the trainer from {}/{step}", self.root))
    }

    /// Finds the steps of the directory by their names.
    fn find_named(&self, profile: &Profile, files: &dyn OpenFile) -> Found {
        // Nobody writes here while a step is restored, so the last write is finished.
        let now = self.tree.files().map(|(_, entry)| entry.mtime).max();
        let options = FindOptions { quiet_seconds: 0, ..FindOptions::default() };
        find_steps(profile, &self.tree, files, now.unwrap_or_default(), &options)
    }

    /// Finds the steps of the directory. One whose files are damaged is not complete, whatever its names say; those
    /// before `step`, the restored one, are not read: the trainer does not prefer them.
    fn find(&self, profile: &Profile, files: &dyn OpenFile, step: &[String]) -> Found {
        let mut found = self.find_named(profile, files);
        let is_own = |other: &FoundStep| other.members.iter().any(|member| step.contains(member));
        let own = found.steps.iter().find(|other| is_own(other));
        let number = own.and_then(|own| own.step);
        for other in &mut found.steps {
            let is_earlier = number.is_some() && other.step.is_some() && other.step < number;
            if is_earlier || is_own(other) || !other.is_complete() {
                continue;
            }
            let reasons = check_step(other, &self.tree, files).damage();
            if !reasons.is_empty() {
                other.complete = Completeness::NotYet { reasons };
            }
        }
        found
    }

    fn in_the_way(&self, profile: &Profile, files: &dyn OpenFile, from_scratch: bool) -> Vec<String> {
        let files = self.files(files);
        let found = self.find(profile, &files, &[]);
        let is_step =
            |step: &FoundStep| profile.name != GENERIC || looks_like_a_step(last_component(&step.path));
        let steps = found.steps.iter().filter(|step| is_step(step));
        let steps: Vec<&FoundStep> = steps.filter(|step| from_scratch || !step.is_complete()).collect();
        let is_gone = |target: &String| steps.iter().any(|step| step.path == *target);
        let pointers = found.pointers.iter();
        let pointers = pointers.filter(|pointer| pointer.target.as_ref().is_some_and(is_gone));
        let members = steps.iter().flat_map(|step| step.members.iter().cloned());
        let aside = members.chain(pointers.map(|pointer| pointer.path.clone())).collect();
        let aside = outermost(aside, &[]);
        aside.iter().filter_map(|path| self.inside(path)).collect()
    }

    fn planned(&self, write: PointerWrite, found: &Found, step: &str) -> Option<PlannedPointer> {
        let there = found.pointers.iter().find(|pointer| pointer.path == write.path);
        let kind = self.tree.get(&write.path).map(|entry| &entry.kind);
        let is_right = match (&write.content, kind) {
            (PointerContent::Text(text), Some(EntryKind::File { .. })) => {
                there.is_some_and(|pointer| pointer.says == *text)
            }
            (PointerContent::Symlink(target), Some(EntryKind::Symlink { target: there })) => target == there,
            (PointerContent::CopyOf(_), Some(EntryKind::File { .. })) => {
                there.is_some_and(|pointer| pointer.target.as_deref() == Some(step))
            }
            _ => false,
        };
        let content = match write.content {
            PointerContent::CopyOf(of) => PointerContent::CopyOf(self.inside(&of)?),
            other => other,
        };
        let path = self.inside(&write.path)?;
        Some(PlannedPointer { write: PointerWrite { path, content }, is_right })
    }
}

/// Returns the step that has the most of these paths.
fn own_step<'a>(found: &'a Found, paths: &[String]) -> Option<&'a FoundStep> {
    let common = |step: &&FoundStep| step.members.iter().filter(|path| paths.contains(path)).count();
    // Of several, the first.
    let steps = found.steps.iter().rev().filter(|step| common(step) > 0);
    steps.max_by_key(common)
}

/// Returns the view with the more specific detection, the plain one on a tie.
fn detect_in<'a>(
    here: &View,
    above: Option<&View>,
    profiles: &'a ProfileSet,
    files: &dyn OpenFile,
) -> Option<Detection<'a>> {
    let detected = |view: &View| detect(&view.tree, &view.files(files), profiles);
    let plain = detected(here)?;
    let other = above.and_then(detected);
    Some(other.filter(|other| other.specificity > plain.specificity).unwrap_or(plain))
}

/// Returns the step in the directory that is ahead of the restored one: a higher number, complete, written later. An
/// earlier step with a higher number belongs to a branch that the run has left.
fn newer_complete<'a>(
    profile: &Profile,
    found: &'a Found,
    tree: &Tree,
    (step, skipped): (&[String], &BTreeSet<u64>),
) -> Option<&'a FoundStep> {
    // The user decides which step to resume from.
    if matches!(profile.resume.by, ResumeBy::NewestCtime | ResumeBy::FixedPath | ResumeBy::Told) {
        return None;
    }
    let is_own = |other: &FoundStep| other.members.iter().any(|member| step.contains(member));
    let number = found.steps.iter().find(|other| is_own(other)).and_then(|own| own.step);
    let is_inside = |path: &str| step.iter().any(|outer| holds(outer, path));
    let written = tree.files().filter(|(path, _)| is_inside(path)).map(|(_, entry)| entry.mtime).max();
    found
        .steps
        .iter()
        .filter(|other| other.is_complete() && other.resumable && !is_own(other))
        .filter(|other| other.step.is_none_or(|other| Some(other) > number && !skipped.contains(&other)))
        .filter(|other| Some(other.written_at) > written)
        .max_by_key(|other| other.written_at)
}

/// Returns the paths of the later steps that the run has left behind, whatever the framework resumes by: those that are
/// not complete or were skipped, and if the step overrides newer ones, all of them. The trainer could take one of them for
/// its newest step, refuse to write over it, or mix its next save of that step with the files of an earlier launch.
fn abandoned(profile: &Profile, found: &Found, goes_on_from: &str, restored: &Restored<'_>) -> Vec<String> {
    let own = found.steps.iter().find(|step| step.path == goes_on_from);
    let number = own.and_then(|own| own.step);
    let is_left = |step: &FoundStep| {
        let was_skipped = step.step.is_some_and(|step| restored.skipped.contains(&step));
        !step.is_complete() || was_skipped || restored.overrides_newer && number.is_some()
    };
    // Those before are no later save's, and none that the trainer prefers. On most nodes of several they lack the proof.
    let is_later = |step: &FoundStep| step.step.is_some() && (number.is_none() || step.step >= number);
    // The generic profile takes every name with a number for a step.
    let is_named_alike = |step: &FoundStep| {
        profile.name != GENERIC || without_numbers(&step.path) == without_numbers(goes_on_from)
    };
    found
        .steps
        .iter()
        .filter(|step| is_later(step) && is_left(step) && is_named_alike(step))
        .flat_map(|step| step.members.iter().cloned())
        .collect()
}

/// Returns the paths that occupy the place of a pointer but are not pointers: writing the pointer would delete them.
/// A copy of an existing step may be overwritten.
fn no_pointers(writes: &[PointerWrite], tree: &Tree, found: &Found) -> Vec<String> {
    let is_copy = |path: &str| {
        let mut pointers = found.pointers.iter();
        pointers.any(|pointer| pointer.path == path && pointer.target.is_some())
    };
    let in_the_way = |write: &&PointerWrite| match tree.get(&write.path).map(|entry| &entry.kind) {
        Some(EntryKind::Directory | EntryKind::Other) => true,
        Some(EntryKind::File { .. }) => {
            !matches!(write.content, PointerContent::Text(_)) && !is_copy(&write.path)
        }
        Some(EntryKind::Symlink { .. }) | None => false,
    };
    writes.iter().filter(in_the_way).map(|write| write.path.clone()).collect()
}

/// Drops paths that lie below another one, and paths that contain one of `kept` or lie in it.
fn outermost(mut paths: Vec<String>, kept: &[&str]) -> Vec<String> {
    paths.sort();
    paths.dedup();
    let all = paths.clone();
    paths.retain(|path| {
        let in_another = all.iter().any(|other| other != path && holds(other, path));
        let touches_kept = kept.iter().any(|kept| holds(path, kept) || holds(kept, path));
        !in_another && !touches_kept
    });
    paths
}

fn holds(outer: &str, inner: &str) -> bool {
    inner == outer || is_inside(inner, outer)
}

/// Opens the files of a view.
struct Below<'a> {
    files: &'a dyn OpenFile,
    prefix: &'a str,
}

impl OpenFile for Below<'_> {
    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let inside = path.strip_prefix(self.prefix).ok_or(io::ErrorKind::NotFound)?;
        self.files.open(inside)
    }
}
