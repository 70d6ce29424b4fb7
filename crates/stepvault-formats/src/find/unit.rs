//! A step as the paths and files that make it up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::timestamp::Timestamp;

use crate::names::NAMES;
use crate::not_checkpoint::{
    holds_weights_alone, is_clutter, is_in_clutter, is_no_checkpoint, is_text, may_hold_state,
};
use crate::profile::pattern::PathParts;
use crate::profile::template::{last_component, parent_prefix};
use crate::profile::{PathGlob, Series, UnitRule};
use crate::step_name;
use crate::temporary::is_temporary;
use crate::tree::{Entry, EntryKind, Tree};

/// A path that belongs to a step.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) path: String,
    pub(crate) parts: PathParts,
}

/// A file of a step.
#[derive(Debug, Clone)]
pub(crate) struct UnitFile {
    /// Path inside the member that holds it; its own name when the member is a file.
    pub(crate) inside: String,
    pub(crate) size_bytes: u64,
    pub(crate) mtime: Timestamp,
}

/// A step: its paths and files.
#[derive(Debug, Clone)]
pub(crate) struct Unit<'a> {
    pub(crate) series: &'a Series,
    /// In the order of their ranks, then paths; never empty.
    pub(crate) members: Vec<Member>,
    pub(crate) step: Option<u64>,
    /// Whether its path holds one step after another, so that only the content tells its number.
    pub(crate) rewritten: bool,
    pub(crate) files: Vec<UnitFile>,
    /// What tools left among its files: stored with them, and no part of any judgement.
    pub(crate) clutter: Vec<UnitFile>,
    /// Other entries of the same number.
    pub(crate) beside: Vec<Beside>,
    /// Whether it contains what its series requires.
    pub(crate) fits: bool,
    /// Whether the trainer can resume from it.
    pub(crate) resumable: bool,
    /// Why files beside it show that it is not complete.
    pub(crate) objection: Option<String>,
}

impl Unit<'_> {
    /// Returns the first of its paths.
    pub(crate) fn path(&self) -> &str {
        self.members.first().map_or("", |member| &member.path)
    }

    /// Returns whether one of its files matches.
    pub(crate) fn has(&self, glob: &PathGlob) -> bool {
        self.files.iter().any(|file| glob.is_match(&file.inside))
    }

    /// Whether all of its paths are files.
    pub(crate) fn is_files(&self) -> bool {
        self.members.iter().all(|member| self.is_file(member))
    }

    /// Returns whether this path of the step is a file.
    pub(crate) fn is_file(&self, member: &Member) -> bool {
        let name = last_component(&member.path);
        self.files.iter().any(|file| file.inside == name)
    }

    /// Returns the name of a file without the number of the step, for comparison with other steps.
    pub(crate) fn name_of(&self, file: &UnitFile) -> String {
        match self.step {
            Some(step) => file.inside.replace(&step.to_string(), "#"),
            None => file.inside.clone(),
        }
    }

    pub(crate) fn newest(&self) -> Option<Timestamp> {
        let beside = self.beside.iter().flat_map(|beside| &beside.files);
        self.files.iter().chain(beside).map(|file| file.mtime).max()
    }

    /// Returns the files of the step that are judged, with the path of the entry that they belong to.
    pub(crate) fn judged_files(&self) -> impl Iterator<Item = (&str, &UnitFile)> {
        let own = self.files.iter();
        let beside = self.beside.iter();
        let beside = beside.flat_map(|beside| beside.files.iter().map(|file| (beside.path.as_str(), file)));
        own.map(|file| (self.path(), file)).chain(beside)
    }
}

/// Returns the length of all these files, in bytes.
pub(super) fn total_bytes<'a>(files: impl IntoIterator<Item = &'a UnitFile>) -> u64 {
    let sizes = files.into_iter().map(|file| file.size_bytes);
    sizes.fold(0, u64::saturating_add)
}

/// Returns the modification time of the newest of these files.
pub(super) fn newest_of<'a>(files: impl IntoIterator<Item = &'a UnitFile>) -> Timestamp {
    let times = files.into_iter().map(|file| file.mtime);
    times.max().unwrap_or_default()
}

/// Returns whether a path lies in one of these directories.
pub(crate) fn is_below(path: &str, taken: &BTreeSet<String>) -> bool {
    let mut end = path.len();
    while let Some(slash) = path.get(..end).and_then(|start| start.rfind('/')) {
        if path.get(..slash).is_some_and(|parent| taken.contains(parent)) {
            return true;
        }
        end = slash;
    }
    false
}

/// Returns the files of an entry, by their paths inside it, and apart from them what tools left among them.
pub(super) fn files_of(tree: &Tree, path: &str, entry: &Entry) -> (Vec<UnitFile>, Vec<UnitFile>) {
    if let EntryKind::File { size_bytes, .. } = entry.kind {
        let file = UnitFile { inside: last_component(path).to_owned(), size_bytes, mtime: entry.mtime };
        return (vec![file], Vec::new());
    }
    let files = tree.inside(path).filter_map(|(below, file)| match file.kind {
        EntryKind::File { size_bytes, .. } => Some(UnitFile {
            inside: below.strip_prefix(path)?.trim_start_matches('/').to_owned(),
            size_bytes,
            mtime: file.mtime,
        }),
        _ => None,
    });
    files.partition(|file| !is_in_clutter(&file.inside))
}

/// An entry of a step beside the one that the trainer resumes from.
#[derive(Debug, Clone)]
pub(crate) struct Beside {
    pub(crate) path: String,
    pub(crate) files: Vec<UnitFile>,
}

impl Beside {
    /// Returns why it is not complete.
    pub(super) fn objection(&self, is_unfinished: impl Fn(&str) -> bool) -> Option<String> {
        let path = &self.path;
        if self.files.is_empty() {
            return Some(format!("{path} contains no files yet"));
        }
        let is_file = |file: &UnitFile| file.inside == last_component(path);
        self.files.iter().find_map(|file| {
            if file.inside.split('/').any(&is_unfinished) {
                return Some(format!("{path} contains {}, the name of an unfinished file", file.inside));
            }
            (is_file(file) && file.size_bytes == 0).then(|| format!("{path} is empty (0 bytes)"))
        })
    }
}

/// Returns whether an entry that no series matches may belong to a step of its number, and that number.
pub(super) fn number_of_loose(path: &str, kind: &EntryKind) -> Option<u64> {
    let name = last_component(path);
    let is_excluded = match kind {
        EntryKind::Directory => is_clutter(name),
        EntryKind::File { .. } => is_no_checkpoint(name) && !is_text(name),
        EntryKind::Symlink { .. } | EntryKind::Other => true,
    };
    (!is_excluded && !is_temporary(name)).then(|| step_name::parse(name))?
}

/// Makes one unit of all units of the same number in the same directory, and adds the loose entries of that number. The
/// one that the trainer resumes from gives its name to the step.
pub(super) fn join_by_number(units: &mut Vec<Unit<'_>>, loose: &[(String, u64)], tree: &Tree) {
    let is_joined = |unit: &Unit<'_>| {
        unit.step.is_some() && !unit.rewritten && unit.series.unit != Some(UnitRule::ArealRecover)
    };
    let mut places: BTreeMap<(String, Option<String>, Option<u64>), Vec<Unit<'_>>> = BTreeMap::new();
    for unit in units.extract_if(.., |unit| is_joined(unit)) {
        let place = parent_prefix(unit.path()).to_owned();
        let key = (place, unit.series.counts.clone(), unit.step);
        places.entry(key).or_default().push(unit);
    }
    let mut joined: Vec<Unit<'_>> = places.into_values().filter_map(join).collect();
    let adopted = adopt(&mut joined, loose, tree);
    units.append(&mut joined);
    units.retain(|unit| !is_below(unit.path(), &adopted));
}

/// Leaves out the units whose names have a number but no word for a step, in directories in which others have one: the
/// numbers may count something else.
pub(super) fn leave_out_other_numbers(units: &mut Vec<Unit<'_>>) {
    let is_named = |unit: &Unit<'_>| {
        let own = unit.members.iter().map(|member| &member.path);
        let mut paths = own.chain(unit.beside.iter().map(|beside| &beside.path));
        paths.any(|path| step_name::looks_like_a_step(last_component(path)) || step_name::says_newest(path))
    };
    let is_numbered = |unit: &&Unit<'_>| unit.step.is_some() && !unit.rewritten;
    let named = units.iter().filter(is_numbered).filter(|unit| is_named(unit));
    let places: BTreeSet<String> = named.map(|unit| parent_prefix(unit.path()).to_owned()).collect();
    units
        .retain(|unit| !is_numbered(&unit) || is_named(unit) || !places.contains(parent_prefix(unit.path())));
}

fn join(mut units: Vec<Unit<'_>>) -> Option<Unit<'_>> {
    units.sort_by_cached_key(precedence);
    let mut leading = units.pop()?;
    for unit in units {
        leading.beside.extend(unit.members.iter().map(|member| {
            let name = last_component(&member.path);
            let is_file = unit.is_file(member);
            let files = unit.files.iter().filter(|file| !is_file || file.inside == name);
            Beside { path: member.path.clone(), files: files.cloned().collect() }
        }));
        leading.clutter.extend(unit.clutter);
    }
    leading.beside.sort_by(|one, other| one.path.cmp(&other.path));
    Some(leading)
}

/// Adds the loose entries to the units of their numbers, and returns those that were added.
fn adopt(units: &mut [Unit<'_>], loose: &[(String, u64)], tree: &Tree) -> BTreeSet<String> {
    let mut adopted = BTreeSet::new();
    for (path, number) in loose {
        let place = parent_prefix(path);
        let is_it = |unit: &&mut Unit<'_>| unit.step == Some(*number) && parent_prefix(unit.path()) == place;
        let Some(unit) = units.iter_mut().find(is_it) else {
            continue;
        };
        let Some(entry) = tree.get(path) else { continue };
        let is_known = unit.members.iter().any(|member| member.path == *path);
        if !is_known && !is_below(path, &adopted) {
            let (files, clutter) = files_of(tree, path, entry);
            let path = path.clone();
            adopted.insert(path.clone());
            unit.clutter.extend(clutter);
            unit.beside.push(Beside { path, files });
            unit.beside.sort_by(|one, other| one.path.cmp(&other.path));
        }
    }
    adopted
}

/// Returns what decides which of several entries of one number the trainer resumes from: the highest.
fn precedence(unit: &Unit<'_>) -> (bool, bool, usize, bool, u32, Reverse<usize>, Reverse<String>) {
    let name = last_component(unit.path());
    (
        unit.resumable,
        unit.fits,
        state_kinds(unit),
        !is_secondary(name),
        // Those of about the same size are alike.
        total_bytes(&unit.files).checked_ilog2().unwrap_or_default(),
        Reverse(name.len()),
        Reverse(unit.path().to_owned()),
    )
}

/// Counts the kinds of state that a unit can hold besides weights: 0 for weights alone.
fn state_kinds(unit: &Unit<'_>) -> usize {
    const KINDS: [&str; 6] = ["optim", "sched", "rng", "random_states", "trainer", "scaler"];
    let names = unit.files.iter().map(|file| file.inside.to_ascii_lowercase());
    let state: Vec<String> =
        names.filter(|name| may_hold_state(name) && !holds_weights_alone(last_component(name))).collect();
    let has = |kind: &&&str| state.iter().any(|name| name.contains(**kind));
    // A file's own name says what the file is, not what it holds besides.
    let more = KINDS.iter().filter(|_| !unit.is_files()).filter(has).count();
    usize::from(!state.is_empty()) + more
}

fn is_secondary(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let mut words = lower.split(|character: char| !character.is_ascii_alphabetic());
    words.any(|word| NAMES.secondary.has(word))
}
