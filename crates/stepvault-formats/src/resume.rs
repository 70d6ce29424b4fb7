//! Imitates how a framework's own scan finds the step that it resumes from.

use std::collections::BTreeSet;

use serde::Deserialize;
use stepvault_core::timestamp::Timestamp;

use crate::find::units::{collect, is_below};
use crate::pointer::{PointerFound, read_pointers};
use crate::profile::template::{Values, last_component, parent_prefix};
use crate::profile::{Effect, Hazard, PathPattern, Profile, ResumeBy, StepKind, UnitRule};
use crate::text_file::read_json;
use crate::tree::{EntryKind, OpenFile, Tree};

/// What a framework resumes from by its own rule, which is often less careful than ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// From this step, a path relative to the watched directory.
    Step(String),
    /// From no step: it starts from scratch.
    Nothing,
    /// It fails.
    Fails {
        /// The path that it fails on.
        path: String,
        /// The reason, as text.
        words: String,
    },
    /// The method depends on facts that a listing does not show, or the user names the step.
    Unknown,
}

/// Returns what the framework would resume from if it started now.
pub fn resumed_by_framework(profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> Resumed {
    if let Some((path, words)) = stumbling_blocks(profile, tree).next() {
        return Resumed::Fails { path: path.to_owned(), words: words.to_owned() };
    }
    match profile.resume.by {
        ResumeBy::Pointer => by_pointer(profile, tree, files),
        ResumeBy::HighestNumber | ResumeBy::MetadataTimestamp => candidates(profile, tree, files)
            .into_iter()
            .max_by(|one, other| one.rank.cmp(&other.rank))
            .map_or(Resumed::Nothing, |candidate| Resumed::Step(candidate.path)),
        ResumeBy::NewestMtime => match newest(profile, tree) {
            None => Resumed::Nothing,
            Some(path) => Resumed::Step(pointed_to(profile, tree, files, &path).unwrap_or(path)),
        },
        ResumeBy::FixedPath => {
            let units = collect(profile, tree, files).units;
            let unit =
                units.iter().find(|unit| unit.series.unit == Some(UnitRule::ArealRecover) || unit.rewritten);
            unit.map_or(Resumed::Nothing, |unit| Resumed::Step(unit.path().to_owned()))
        }
        ResumeBy::NewestCtime | ResumeBy::Told => Resumed::Unknown,
    }
}

/// Returns the paths, relative to the watched directory, that must be moved aside before a step is restored, because
/// the framework would fail on them or resume from them instead. `step` is the path of the step.
pub fn moved_aside_before_restore(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    step: &str,
) -> Vec<String> {
    let mut aside: Vec<String> = stumbling_blocks(profile, tree).map(|(path, _)| path.to_owned()).collect();
    let values = Values::of(profile, None, step);
    let pointers: Vec<_> =
        profile.pointer.iter().filter_map(|pointer| pointer.path.render(values.as_ref()?)).collect();
    let restored = rank_by_name(profile, step);
    for candidate in candidates(profile, tree, files) {
        let preferred = match profile.resume.by {
            ResumeBy::HighestNumber => match (&candidate.rank, restored) {
                (Rank::Number(number), Some(restored)) => *number >= restored,
                _ => true,
            },
            // Times that a restore sets are older than those of existing files.
            ResumeBy::NewestMtime | ResumeBy::MetadataTimestamp => true,
            ResumeBy::Pointer | ResumeBy::NewestCtime | ResumeBy::FixedPath | ResumeBy::Told => false,
        };
        let is_restored = candidate.path == step || pointers.contains(&candidate.path);
        if preferred && !is_restored && !aside.contains(&candidate.path) {
            aside.push(candidate.path);
        }
    }
    aside
}

/// Returns the text for the user on how to resume from a restored step. `root` is the watched directory's path.
pub fn resume_text(profile: &Profile, root: &str, step: &str) -> Option<String> {
    profile.resume.text.render(&Values::of(profile, Some(root), step)?)
}

/// Returns whether the framework would treat this path, relative to the watched directory, as a step that it can
/// resume from.
pub(crate) fn looks_at(profile: &Profile, path: &str) -> bool {
    match profile.resume.by {
        ResumeBy::HighestNumber | ResumeBy::MetadataTimestamp => {
            scan(profile).iter().any(|pattern| pattern.is_match(path))
        }
        // These scans search for pointers to a step.
        ResumeBy::Pointer
        | ResumeBy::NewestMtime
        | ResumeBy::NewestCtime
        | ResumeBy::FixedPath
        | ResumeBy::Told => profile.series.iter().any(|series| series.path.is_match(path)),
    }
}

/// Returns the paths that the framework's own scan fails on, and why.
fn stumbling_blocks<'a>(profile: &'a Profile, tree: &'a Tree) -> impl Iterator<Item = (&'a str, &'a str)> {
    tree.entries().filter_map(|(path, _)| {
        let fails = |hazard: &&Hazard| hazard.effect == Effect::Fails && hazard.path.is_match(path);
        profile.hazard.iter().find(fails).map(|hazard| (path, hazard.words.as_str()))
    })
}

/// A path that the framework's scan treats as a step, and its sort key.
struct Candidate {
    path: String,
    rank: Rank,
}

/// The sort key of a candidate.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Time(Timestamp),
    Number(u64),
    Metadata(String, u64),
}

/// The part of Levanter's `metadata.json` that determines the order.
#[derive(Deserialize)]
struct LevanterMetadata {
    timestamp: String,
    step: u64,
}

fn scan(profile: &Profile) -> Vec<&PathPattern> {
    if profile.resume.scan.is_empty() {
        let resumable = profile.series.iter().filter(|series| series.resumable);
        resumable.map(|series| &series.path).collect()
    } else {
        profile.resume.scan.iter().collect()
    }
}

fn rank_by_name(profile: &Profile, path: &str) -> Option<u64> {
    scan(profile).into_iter().find_map(|pattern| pattern.parts(path)?.step)
}

fn candidates(profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> Vec<Candidate> {
    let patterns = scan(profile);
    let directories = profile.series.iter().all(|series| series.kind == StepKind::Directory);
    let mut taken = BTreeSet::new();
    tree.entries()
        .filter(|(_, entry)| !directories || entry.kind == EntryKind::Directory)
        .filter(|(path, _)| patterns.iter().any(|pattern| pattern.is_match(path)))
        // The scan does not look inside a step: a chunk of an array may have a number as its name.
        .filter(|(path, _)| {
            !is_below(path, &taken) && meets_needs(profile, tree, path) && taken.insert((*path).to_owned())
        })
        .filter_map(|(path, entry)| {
            let rank = match profile.resume.by {
                ResumeBy::NewestMtime => Rank::Time(followed_mtime(tree, path, entry.mtime)),
                ResumeBy::MetadataTimestamp => {
                    let metadata = read_json(tree, files, &format!("{path}/metadata.json"));
                    let LevanterMetadata { timestamp, step } = metadata.ok()?;
                    Rank::Metadata(timestamp, step)
                }
                _ => Rank::Number(rank_by_name(profile, path)?),
            };
            Some(Candidate { path: path.to_owned(), rank })
        })
        .collect()
}

fn meets_needs(profile: &Profile, tree: &Tree, path: &str) -> bool {
    let needs = &profile.resume.needs;
    needs.is_empty()
        || tree.below(path).entries().any(|(inside, _)| needs.iter().any(|glob| glob.is_match(inside)))
}

/// Returns the time of a link's target.
fn followed_mtime(tree: &Tree, path: &str, mtime: Timestamp) -> Timestamp {
    let Some(EntryKind::Symlink { target }) = tree.get(path).map(|entry| &entry.kind) else {
        return mtime;
    };
    let beside = format!("{}{}", parent_prefix(path), last_component(target));
    tree.get(&beside).map_or(mtime, |entry| entry.mtime)
}

fn newest(profile: &Profile, tree: &Tree) -> Option<String> {
    let patterns = scan(profile);
    tree.entries()
        .filter(|(path, _)| patterns.iter().any(|pattern| pattern.is_match(path)))
        .max_by_key(|(path, entry)| followed_mtime(tree, path, entry.mtime))
        .map(|(path, _)| path.to_owned())
}

fn by_pointer(profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> Resumed {
    let units = collect(profile, tree, files).units;
    let pointers = read_pointers(profile, tree, files, &units);
    let Some(pointer) = pointers.iter().find(|pointer| pointer.is_for_resuming()) else {
        return Resumed::Nothing;
    };
    match &pointer.target {
        Some(target) => Resumed::Step(target.clone()),
        None if pointer.dangling => Resumed::Fails {
            path: pointer.path.clone(),
            words: format!("it names {:?}, and no such step exists", pointer.says),
        },
        None => Resumed::Unknown,
    }
}

/// Returns the step that a pointer at this path names.
fn pointed_to(profile: &Profile, tree: &Tree, files: &dyn OpenFile, path: &str) -> Option<String> {
    let units = collect(profile, tree, files).units;
    let named = |pointer: PointerFound| (pointer.path == path).then_some(pointer.target).flatten();
    read_pointers(profile, tree, files, &units).into_iter().find_map(named)
}
