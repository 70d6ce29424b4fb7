//! Finds the steps of a directory with a profile, and which of them are complete.

mod areal;
mod below;
mod companions;
mod copies;
mod found;
mod judge;
mod leftover;
mod members;
mod ranks;
mod stated;
mod torchtune;
pub(crate) mod unit;
pub(crate) mod units;
mod usual;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stepvault_core::timestamp::Timestamp;

use crate::pointer::{PointerFound, read_pointers};
use crate::profile::template::last_component;
use crate::profile::{GENERIC, Profile, UnitRule};
use crate::tree::{OpenFile, Tree};
pub use below::{RunBelow, runs_below};
use companions::add_texts;
use copies::leave_out_copies;
pub use found::{
    Completeness, Extent, FindOptions, Found, FoundStep, LONGEST_SAVE_SECONDS, LinkFound, QuietRule,
};
use judge::{Surroundings, judge, quiet_rule};
pub use leftover::{Leftover, copied_files, leftovers};
use unit::{Member, Unit, newest_of, total_bytes};
use units::{Collected, collect};
use usual::EarlierFiles;
pub use usual::{StepNames, UsualFiles};

/// A time after every file's: nothing is being written any more.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);

/// Finds the steps of a directory. `now` comes from the clock that stamps the files.
pub fn find_steps(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    now: Timestamp,
    options: &FindOptions,
) -> Found {
    let Collected { mut units, temporary, ignored } = collect(profile, tree, files);
    let pointers = read_pointers(profile, tree, files, &units);
    units.retain(|unit| !(unit.series.alias && is_known_copy(unit, &pointers)));
    let mut steps = Vec::new();
    let mut missing = BTreeMap::new();
    for series in units.chunk_by(|one, other| one.series.name == other.series.name) {
        let as_before = series.first().map_or(&[][..], |unit| &unit.series.complete.as_before);
        // A directory may hold thousands of steps, so no step is compared with all others.
        let mut had: Vec<Option<&str>> = vec![None; as_before.len()];
        let mut earlier_ranks = None;
        let mut before = None;
        let mut usual = EarlierFiles::default();
        let followers = followers(series);
        for (index, unit) in series.iter().enumerate() {
            let later = series.get(index..).unwrap_or_default();
            let first_later = later.partition_point(|other| other.step <= unit.step);
            let surroundings = Surroundings {
                profile,
                tree,
                pointers: &pointers,
                now,
                options,
                had: &had,
                earlier_ranks,
                before,
                later: later.get(first_later..).unwrap_or_default(),
                follower: followers.get(index).copied().flatten(),
            };
            let (complete, ranks) = judge(unit, &surroundings);
            let quiet_rule = quiet_rule(unit, &surroundings);
            if matches!(complete, Completeness::Complete { .. }) {
                if is_compared(unit, quiet_rule, options.extent) {
                    let names = names_of(unit, tree);
                    missing.insert(unit.path().to_owned(), usual.lacking(unit.step, &names));
                    // The name of a lone file may be another one in each step.
                    if !unit.is_files() || !unit.beside.is_empty() {
                        usual.add(names);
                    }
                }
                for (glob, had) in as_before.iter().zip(&mut had) {
                    if unit.has(glob) {
                        *had = Some(unit.path());
                    }
                }
                earlier_ranks = ranks.or(earlier_ranks);
                before = Some(unit);
            }
            steps.push(found_step(unit, complete, ranks, quiet_rule));
        }
    }
    let copies = leave_out_copies(profile, &mut steps, tree, files);
    if profile.name == GENERIC {
        add_texts(&mut steps, tree, files);
    }
    steps.extend(temporary.iter().filter_map(|(path, step)| {
        let step = (*step)?;
        Some(temporary_step(tree, path, step))
    }));
    let is_pointer = |path: &str| pointers.iter().any(|pointer| pointer.path == path);
    Found {
        links: found::links(&steps, is_pointer, tree),
        steps,
        pointers,
        temporary: temporary.into_iter().map(|(path, _)| path).collect(),
        ignored,
        copies,
        missing,
    }
}

/// Returns the names of a unit's files, as other steps are compared with them.
fn names_of(unit: &Unit<'_>, tree: &Tree) -> StepNames {
    let entries = unit.beside.iter().map(|beside| beside.path.as_str());
    let entries: Vec<&str> = entries.chain([unit.path()]).collect();
    let files = unit.judged_files().map(|(entry, file)| {
        let is_itself = file.inside == last_component(entry) && !tree.is_directory(entry);
        if is_itself { entry.to_owned() } else { format!("{entry}/{}", file.inside) }
    });
    StepNames::of_entries(unit.step, &entries, files)
}

/// Returns for each of these units, which are sorted by number, the first one with a higher number that was written after
/// it. Takes one pass: a directory may hold thousands of steps.
fn followers<'a>(series: &'a [Unit<'a>]) -> Vec<Option<&'a Unit<'a>>> {
    let mut followers = vec![None; series.len()];
    // Units with higher numbers than those at hand, the lowest number last, and each written before the one in front of
    // it. A unit that was not is never the first that was written after something.
    let mut newer: Vec<(Option<Timestamp>, &Unit<'_>)> = Vec::new();
    let mut end = series.len();
    for group in series.chunk_by(|one, other| one.step == other.step).rev() {
        let begin = end - group.len();
        for (follower, unit) in followers[begin..end].iter_mut().zip(group) {
            let written = unit.newest();
            let count = newer.partition_point(|(other, _)| *other > written);
            *follower = newer[..count].last().map(|(_, unit)| *unit);
        }
        for unit in group.iter().rev() {
            let written = unit.newest();
            newer.truncate(newer.partition_point(|(other, _)| *other > written));
            newer.push((written, unit));
        }
        end = begin;
    }
    followers
}

/// Whether a profile finds an entry that is, or is about to be, a step; whether or not it is still being written.
pub(crate) fn finds_steps(profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> bool {
    let options = FindOptions { quiet_seconds: 0, ..FindOptions::default() };
    let found = find_steps(profile, tree, files, END_OF_TIME, &options);
    let counts = |step: &FoundStep| profile.name != GENERIC || step.is_complete();
    found.steps.iter().any(counts)
}

/// Whether nothing but the files of a step shows that its save is over, and other steps show which files that takes.
fn is_compared(unit: &Unit<'_>, rule: QuietRule, extent: Extent) -> bool {
    let is_unproved = matches!(rule, QuietRule::Always | QuietRule::Briefly);
    unit.members.len() == 1
        && !unit.rewritten
        && is_unproved
        && unit.series.unit != Some(UnitRule::ArealRecover)
        && !extent.is_part()
}

/// Returns whether every file of an alias is only another name for a step's bytes.
fn is_known_copy(unit: &Unit<'_>, pointers: &[PointerFound]) -> bool {
    let is_own = |member: &&Member| unit.series.path.is_match(&member.path);
    unit.members
        .iter()
        .filter(is_own)
        .all(|member| pointers.iter().any(|pointer| pointer.path == member.path && pointer.target.is_some()))
}

fn found_step(
    unit: &Unit<'_>,
    complete: Completeness,
    ranks: Option<u32>,
    quiet_rule: QuietRule,
) -> FoundStep {
    let stored = || unit.judged_files().map(|(_, file)| file).chain(&unit.clutter);
    let beside = unit.beside.iter().map(|beside| beside.path.clone());
    let own = unit.members.iter().map(|member| member.path.clone());
    FoundStep {
        path: unit.path().to_owned(),
        members: beside.chain(own).collect(),
        series: unit.series.name.clone(),
        step: unit.step,
        rewritten: unit.rewritten,
        complete,
        quiet_rule,
        ranks,
        bytes: total_bytes(stored()),
        files: stored().count() as u64,
        written_at: newest_of(stored()),
        content: content_of(unit),
        resumable: unit.resumable,
    }
}

/// Returns a number that differs if files of a step, clutter aside, have other paths, sizes or times.
fn content_of(unit: &Unit<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (entry, file) in unit.judged_files() {
        (entry, &file.inside, file.size_bytes, file.mtime).hash(&mut hasher);
    }
    hasher.finish()
}

fn temporary_step(tree: &Tree, path: &str, step: u64) -> FoundStep {
    let files = tree.get(path).map(|entry| unit::files_of(tree, path, entry).0).unwrap_or_default();
    FoundStep {
        path: path.to_owned(),
        members: vec![path.to_owned()],
        series: "temporary".to_owned(),
        step: Some(step),
        rewritten: false,
        complete: Completeness::NotYet {
            reasons: vec!["it has a temporary name, and a finished step is renamed".to_owned()],
        },
        quiet_rule: QuietRule::Always,
        ranks: None,
        bytes: total_bytes(&files),
        files: files.len() as u64,
        written_at: newest_of(&files),
        content: 0,
        resumable: false,
    }
}
