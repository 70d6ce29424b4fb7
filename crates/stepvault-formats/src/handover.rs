//! What it takes, besides the step itself, for a trainer to go on from a restored step, as a plan.
//!
//! The plan is made of facts alone and changes nothing. Its order is the order of doing: what is in the way is moved
//! aside, the step appears whole, then the pointers are written.

use std::collections::BTreeMap;
use std::io;

use stepvault_core::timestamp::Timestamp;

use crate::detect::{Detection, detect};
use crate::find::{FindOptions, Found, FoundStep, find_steps};
use crate::pointer::{PointerContent, PointerWrite, pointer_after_restore};
use crate::profile::{Profile, ProfileSet, ResumeBy};
use crate::resume::{looks_at, moved_aside_before_restore, resume_text};
use crate::source::ReadAt;
use crate::tree::{Entry, EntryKind, OpenFile, Tree};

/// A step in the directory where its trainer looks for it. All paths are relative to that directory.
#[derive(Debug, Clone, Copy)]
pub struct Restored<'a> {
    /// The directory's own path, absolute, as the trainer sees it.
    pub directory: &'a str,
    /// All that it holds, with the step.
    pub tree: &'a Tree,
    /// The step's path in it, or all of its paths, the first of which it is called by; never empty.
    pub paths: &'a [String],
    /// Whether the user asked for just this step. Otherwise it is the newest of the tiers, and the directory may hold
    /// a newer one that never got there.
    pub asked_for: bool,
    /// The framework, where the user has named it.
    pub profile: Option<&'a Profile>,
}

/// What to do and to say. All paths are relative to the directory of the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoverPlan {
    /// The profile it goes by.
    pub framework: String,
    /// What shows that this framework wrote the directory, in words; empty where the user said so.
    pub why: Vec<String>,
    /// A step that the directory holds and no tier has: complete, and written after the one that is restored. The
    /// trainer is to go on from it.
    pub kept: Option<String>,
    /// What the trainer would fail over or go on from instead, to be moved out of its sight before the step appears.
    pub aside: Vec<String>,
    /// What the trainer reads to find the step.
    pub pointers: Vec<PlannedPointer>,
    /// How to start the trainer so that it goes on.
    pub resume: String,
}

impl HandoverPlan {
    /// Whether there is nothing to be done.
    pub fn is_done(&self) -> bool {
        self.aside.is_empty() && self.pointers.iter().all(|pointer| pointer.is_right)
    }
}

/// A pointer, and whether it says what it should already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPointer {
    /// What it is to be.
    pub write: PointerWrite,
    /// Whether it is that already.
    pub is_right: bool,
}

/// Plans how a restored step is handed over. The same facts always give the same plan.
pub fn plan(restored: &Restored<'_>, profiles: &ProfileSet, files: &dyn OpenFile) -> Option<HandoverPlan> {
    let first = restored.paths.first()?;
    let here = View::here(restored);
    let above = View::above(restored);
    let (profile, why) = if let Some(profile) = restored.profile {
        (profile, Vec::new())
    } else {
        let detection = detect_in(&here, above.as_ref(), profiles, files)?;
        (detection.profile, detection.why)
    };
    let view = above
        .filter(|above| !looks_at(profile, first) && looks_at(profile, &above.path_of(first)))
        .unwrap_or(here);
    let step: Vec<String> = restored.paths.iter().map(|path| view.path_of(path)).collect();
    view.plan(&step, restored.asked_for, (profile, why), files)
}

/// Frameworks name their steps from different directories: `checkpoints/checkpoint_3`, `step-3`. The directory of the
/// steps is looked at as what it is, and as part of the one above, of which nothing else is known.
struct View {
    root: String,
    /// The name of the steps' directory with a slash, when this is the view from above.
    prefix: String,
    tree: Tree,
}

impl View {
    fn here(restored: &Restored<'_>) -> Self {
        Self {
            root: restored.directory.to_owned(),
            prefix: String::new(),
            tree: restored.tree.clone(),
        }
    }

    fn above(restored: &Restored<'_>) -> Option<Self> {
        let (root, name) = restored.directory.trim_end_matches('/').rsplit_once('/')?;
        let prefix = format!("{name}/");
        let mut entries: BTreeMap<String, Entry> = restored
            .tree
            .entries()
            .map(|(path, entry)| (format!("{prefix}{path}"), entry.clone()))
            .collect();
        let own = Entry {
            kind: EntryKind::Directory,
            mtime: Timestamp::default(),
        };
        entries.insert(name.to_owned(), own);
        (!name.is_empty()).then(|| Self {
            root: if root.is_empty() { "/" } else { root }.to_owned(),
            prefix,
            tree: Tree::new(entries),
        })
    }

    fn path_of(&self, inside: &str) -> String {
        format!("{}{inside}", self.prefix)
    }

    /// A path relative to the directory of the steps; nothing outside of it is ever touched.
    fn inside(&self, path: &str) -> Option<String> {
        path.strip_prefix(&self.prefix).map(str::to_owned)
    }

    fn plan(
        &self,
        step: &[String],
        asked_for: bool,
        (profile, why): (&Profile, Vec<String>),
        files: &dyn OpenFile,
    ) -> Option<HandoverPlan> {
        let files = Below {
            files,
            prefix: &self.prefix,
        };
        let found = self.find(profile, &files);
        let newer = if asked_for {
            None
        } else {
            newer_complete(profile, &found, &self.tree, step)
        };
        let paths = newer.map_or(step, |newer| newer.members.as_slice());
        let goes_on_from = newer.map_or(step.first()?, |newer| &newer.path).as_str();
        let pointers = pointer_after_restore(profile, &self.tree, &self.root, paths);
        let mut aside = moved_aside_before_restore(profile, &self.tree, &files, goes_on_from);
        aside.extend(no_pointers(&pointers, &self.tree, &found));
        let kept: Vec<&str> = step.iter().chain(paths).map(String::as_str).collect();
        Some(HandoverPlan {
            framework: profile.name.clone(),
            why,
            kept: newer.and_then(|newer| self.inside(&newer.path)),
            aside: outermost(aside, &kept)
                .iter()
                .filter_map(|path| self.inside(path))
                .collect(),
            pointers: pointers
                .into_iter()
                .filter_map(|write| self.planned(write, &found, goes_on_from))
                .collect(),
            resume: resume_text(profile, &self.root, goes_on_from)
                .unwrap_or_else(|| format!("start the trainer from {}/{goes_on_from}", self.root)),
        })
    }

    fn find(&self, profile: &Profile, files: &dyn OpenFile) -> Found {
        // Nobody writes here while a step is restored: what was written last is over.
        let now = self.tree.files().map(|(_, entry)| entry.mtime).max();
        let options = FindOptions {
            quiet_seconds: 0,
            ..FindOptions::default()
        };
        find_steps(profile, &self.tree, files, now.unwrap_or_default(), &options)
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
        Some(PlannedPointer {
            write: PointerWrite { path, content },
            is_right,
        })
    }
}

/// The more telling of two views, the plain one when they tell the same.
fn detect_in<'a>(
    here: &View,
    above: Option<&View>,
    profiles: &'a ProfileSet,
    files: &dyn OpenFile,
) -> Option<Detection<'a>> {
    let detected = |view: &View| {
        let files = Below {
            files,
            prefix: &view.prefix,
        };
        detect(&view.tree, &files, profiles)
    };
    let plain = detected(here)?;
    let other = above.and_then(detected);
    Some(
        other
            .filter(|other| other.specificity > plain.specificity)
            .unwrap_or(plain),
    )
}

/// The step that the directory holds and that is ahead of the restored one: a higher number, complete, written later.
/// What was written earlier under a higher number belongs to a line of steps that the run has left.
fn newer_complete<'a>(
    profile: &Profile,
    found: &'a Found,
    tree: &Tree,
    step: &[String],
) -> Option<&'a FoundStep> {
    match profile.resume.by {
        ResumeBy::Pointer | ResumeBy::HighestNumber | ResumeBy::NewestMtime | ResumeBy::MetadataTimestamp => {
        }
        // The user decides what it goes on from.
        ResumeBy::NewestCtime | ResumeBy::FixedPath | ResumeBy::Told => return None,
    }
    let is_own = |other: &FoundStep| other.members.iter().any(|member| step.contains(member));
    let number = found
        .steps
        .iter()
        .find(|other| is_own(other))
        .and_then(|own| own.step);
    let is_inside = |path: &str| step.iter().any(|outer| holds(outer, path));
    let written = tree
        .files()
        .filter(|(path, _)| is_inside(path))
        .map(|(_, entry)| entry.mtime)
        .max();
    found
        .steps
        .iter()
        .filter(|other| other.is_complete() && other.resumable && !is_own(other))
        .filter(|other| other.step.is_none() || other.step > number)
        .filter(|other| Some(other.written_at) > written)
        .max_by_key(|other| other.written_at)
}

/// What stands in the place of a pointer and is none: writing the pointer over it would delete it. A copy of a step
/// that is there may go.
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
    writes
        .iter()
        .filter(in_the_way)
        .map(|write| write.path.clone())
        .collect()
}

/// Without what lies below another of them, and without what holds one of `kept` or lies in it.
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
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
