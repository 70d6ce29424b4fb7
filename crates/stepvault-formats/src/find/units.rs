//! Groups paths into steps, before completeness is judged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::timestamp::Timestamp;

use super::areal;
use super::stated::{stated_numbers, stated_step};
use crate::names::NAMES;
use crate::not_checkpoint::{
    holds_weights_alone, is_clutter, is_in_clutter, is_no_checkpoint, is_text, is_tracker, may_hold_state,
};
use crate::profile::pattern::PathParts;
use crate::profile::template::{Values, last_component, parent_prefix};
use crate::profile::{GENERIC, PathGlob, Profile, Series, StepKind, UnitRule};
use crate::step_name;
use crate::temporary::{is_temporary, is_unfinished_file};
use crate::text_file::read_text;
use crate::tree::{Entry, EntryKind, OpenFile, Tree};

/// How the names of stepvault's own directories begin: a restore stages files in one of them, and moves others aside
/// into it.
const OWN: &str = ".stepvault";

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

/// The contents of a directory, by a profile.
pub(crate) struct Collected<'a> {
    /// By series, then by number and path.
    pub(crate) units: Vec<Unit<'a>>,
    /// Paths with a name that is used only while writing, with the step number in the name.
    pub(crate) temporary: Vec<(String, Option<u64>)>,
    pub(crate) ignored: Vec<String>,
}

/// Finds the units of a directory in passes: each entry is assigned; units of several entries are completed and joined; the
/// numbers that their content states are read.
pub(crate) fn collect<'a>(profile: &'a Profile, tree: &Tree, files: &dyn OpenFile) -> Collected<'a> {
    let Assigned { units, loose, temporary, ignored, .. } = assign_entries(profile, tree, files);
    let mut units: Vec<_> = units.into_values().collect();
    complete_units(&mut units, tree, files);
    add_recipe_state(&mut units, tree, files);
    join_by_number(&mut units, &loose, tree);
    if profile.name == GENERIC {
        leave_out_other_numbers(&mut units);
    }
    state_numbers(&mut units, tree, files);
    units.sort_by(|one, other| {
        (index_of(profile, one.series), one.step, one.path()).cmp(&(
            index_of(profile, other.series),
            other.step,
            other.path(),
        ))
    });
    Collected { units, temporary, ignored }
}

/// The entries of a directory, each assigned to a unit or set aside.
#[derive(Default)]
struct Assigned<'a> {
    /// By the index of their series, and by what their entries have in common.
    units: BTreeMap<(usize, String), Unit<'a>>,
    /// Entries with a number that no series matches.
    loose: Vec<(String, u64)>,
    temporary: Vec<(String, Option<u64>)>,
    ignored: Vec<String>,
    /// Directories that belong to one step as a whole, or are set aside, with everything below them.
    taken: BTreeSet<String>,
}

fn assign_entries<'a>(profile: &'a Profile, tree: &Tree, files: &dyn OpenFile) -> Assigned<'a> {
    let mut assigned = Assigned::default();
    for (path, entry) in tree.entries() {
        if is_below(path, &assigned.taken) || assigned.sets_aside(profile, path) {
            continue;
        }
        let Some(choice) = choose(profile, tree, path, entry) else {
            let number = number_of_loose(path, &entry.kind);
            assigned.loose.extend(number.map(|number| (path.to_owned(), number)));
            continue;
        };
        let step = choice.step(path);
        let needs_number = choice.series.unit != Some(UnitRule::ArealRecover) && choice.series.numbered;
        let is_directory = entry.kind == EntryKind::Directory;
        let is_generic = profile.name == GENERIC;
        if needs_number && step.is_none()
            || is_generic && is_directory && !is_step_directory(tree, path, step)
            || is_generic && step.is_none() && is_text_alone(path, tree, files)
        {
            continue;
        }
        if is_directory {
            assigned.taken.insert(path.to_owned());
        }
        assigned.add(choice, path, step);
    }
    assigned
}

impl<'a> Assigned<'a> {
    /// Sets an entry aside that is stepvault's own, is ignored, or has a temporary name.
    fn sets_aside(&mut self, profile: &Profile, path: &str) -> bool {
        if !last_component(path).starts_with(OWN) {
            if profile.ignores(path) {
                self.ignored.push(path.to_owned());
            } else if let Some(Temporary { step }) = temporary(profile, path) {
                self.temporary.push((path.to_owned(), step));
            } else {
                return false;
            }
        }
        self.taken.insert(path.to_owned());
        true
    }

    /// Adds an entry to the unit that it belongs to.
    fn add(&mut self, choice: Choice<'a>, path: &str, step: Option<u64>) {
        let key = areal_key(choice.series, path).unwrap_or(choice.parts.without_rank.clone());
        let unit = self.units.entry((choice.index, key)).or_insert_with(|| Unit {
            series: choice.series,
            members: Vec::new(),
            step,
            rewritten: choice.series.rewritten && step.is_none(),
            files: Vec::new(),
            clutter: Vec::new(),
            beside: Vec::new(),
            fits: false,
            resumable: choice.series.resumable,
            objection: None,
        });
        unit.fits |= choice.fits;
        unit.files.extend(choice.files);
        unit.clutter.extend(choice.clutter);
        unit.members.push(Member { path: path.to_owned(), parts: choice.parts });
    }
}

fn areal_key(series: &Series, path: &str) -> Option<String> {
    match series.unit? {
        UnitRule::ArealRecover => Some(areal::trial_of(path).to_owned()),
        UnitRule::TorchtuneEpoch => None,
    }
}

/// A path whose name is used only while it is written.
struct Temporary {
    /// The step number in the name.
    step: Option<u64>,
}

fn temporary(profile: &Profile, path: &str) -> Option<Temporary> {
    for pattern in &profile.temporary {
        if let Some(parts) = pattern.parts(path) {
            return Some(Temporary { step: parts.step });
        }
    }
    // A directory of another kind may have such a name and hold steps. So only a name that also contains a step
    // number, in a place where steps are, counts.
    let name = last_component(path);
    let says_step = is_unfinished_file(name).then(|| step_name::parse(unfinished_stem(name))).flatten()?;
    let sibling = format!("{}{}", parent_prefix(path), unfinished_stem(name));
    let of_series = profile.series.iter().any(|series| series.path.is_match(&sibling));
    of_series.then_some(Temporary { step: Some(says_step) })
}

/// Returns a name without the ending that marks it as unfinished.
fn unfinished_stem(name: &str) -> &str {
    name.trim_end_matches('~')
        .rsplit_once('.')
        .filter(|(_, ending)| is_unfinished_file(ending))
        .map_or(name, |(stem, _)| stem)
}

struct Choice<'a> {
    index: usize,
    series: &'a Series,
    parts: PathParts,
    files: Vec<UnitFile>,
    clutter: Vec<UnitFile>,
    fits: bool,
}

impl Choice<'_> {
    /// Returns the number in the name of the entry.
    fn step(&self, path: &str) -> Option<u64> {
        match self.parts.step {
            None if self.series.rewritten || self.series.path.has_group("step") => None,
            None => step_name::parse(last_component(path)),
            step => step,
        }
    }
}

/// Returns the series of an entry: the first that matches its path and content; if there is none, the first that
/// matches its path.
fn choose<'a>(profile: &'a Profile, tree: &Tree, path: &str, entry: &Entry) -> Option<Choice<'a>> {
    let is_directory = match entry.kind {
        EntryKind::Directory => true,
        EntryKind::File { .. } => false,
        EntryKind::Symlink { .. } | EntryKind::Other => return None,
    };
    let name = last_component(path);
    let is_excluded = if is_directory { is_tracker } else { is_no_checkpoint };
    let has_number = step_name::parse(name).is_some();
    let mut files = None;
    let mut fallback = None;
    for (index, series) in profile.series.iter().enumerate() {
        let fits_kind = match series.kind {
            StepKind::Directory => is_directory,
            StepKind::File => !is_directory,
            StepKind::Either => true,
        };
        if !fits_kind || is_temporary(name) || profile.name == GENERIC && is_excluded(name) {
            continue;
        }
        let Some(parts) = series.path.parts(path) else {
            continue;
        };
        // A later series may match names without a number.
        let needs_number = series.numbered && series.unit.is_none() && !series.path.has_group("step");
        if needs_number && !has_number {
            continue;
        }
        let (files, _) = files.get_or_insert_with(|| files_of(tree, path, entry));
        let holds = |file: &UnitFile| series.holds.iter().any(|glob| glob.is_match(&file.inside));
        let fits = series.holds.is_empty() || files.iter().any(holds);
        let choice = (index, series, parts, fits);
        if fits {
            fallback = Some(choice);
            break;
        }
        // A series that accepts any name must not claim paths that do not look like its steps.
        if fallback.is_none() && series.numbered && series.path.has_group("step") {
            fallback = Some(choice);
        }
    }
    let (index, series, parts, fits) = fallback?;
    let (files, clutter) = files.unwrap_or_default();
    Some(Choice { index, series, parts, files, clutter, fits })
}

/// Whether a file without an extension is a short text, as one that names the last checkpoint.
pub(super) fn is_text_alone(path: &str, tree: &Tree, files: &dyn OpenFile) -> bool {
    let is_control = |character: char| character.is_control() && !character.is_whitespace();
    !last_component(path).contains('.')
        && tree.file_size_bytes(path).is_some_and(|bytes| bytes > 0)
        && read_text(tree, files, path).is_ok_and(|text| !text.contains(is_control))
}

/// Whether a directory with a number in its name is a step, as far as names tell: it can hold the state of a training, or
/// its name says that it will; and it is no directory of several steps.
fn is_step_directory(tree: &Tree, path: &str, step: Option<u64>) -> bool {
    let names = tree.inside(path).filter_map(|(below, entry)| {
        let name = last_component(below);
        let is_step = step_name::looks_like_a_step(name) && !is_temporary(name);
        let number = step_name::parse(name).filter(|number| is_step && Some(*number) != step)?;
        let is_candidate = entry.kind == EntryKind::Directory || !is_no_checkpoint(name);
        is_candidate.then_some(number)
    });
    let says_step = step_name::looks_like_a_step(last_component(path));
    let holds_steps = || step.is_some() && !says_step && names.take(1).next().is_some();
    let holds_state = || {
        let (files, _) = tree.get(path).map(|entry| files_of(tree, path, entry)).unwrap_or_default();
        files.iter().any(holds_state)
    };
    (says_step || holds_state()) && !holds_steps()
}

/// Whether a file of a step may hold the state of a training.
pub(super) fn holds_state(file: &UnitFile) -> bool {
    file.size_bytes > 0 && may_hold_state(&file.inside)
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

/// Returns whether an entry that no series matches may belong to a step of its number, and that number.
fn number_of_loose(path: &str, kind: &EntryKind) -> Option<u64> {
    let name = last_component(path);
    let is_excluded = match kind {
        EntryKind::Directory => is_clutter(name),
        EntryKind::File { .. } => is_no_checkpoint(name) && !is_text(name),
        EntryKind::Symlink { .. } | EntryKind::Other => true,
    };
    (!is_excluded && !is_temporary(name)).then(|| step_name::parse(name))?
}

/// Puts the entries of each unit in order, and completes what several directories make up. Drops units of which nothing is
/// left then.
fn complete_units(units: &mut Vec<Unit<'_>>, tree: &Tree, files: &dyn OpenFile) {
    units.retain_mut(|unit| {
        unit.members.sort_by(|one, other| (one.parts.rank, &one.path).cmp(&(other.parts.rank, &other.path)));
        match unit.series.unit {
            Some(UnitRule::ArealRecover) => areal::complete_unit(unit, tree, files),
            Some(UnitRule::TorchtuneEpoch) | None => true,
        }
    });
}

const RECIPE_STATE: &str = "recipe_state/recipe_state.pt";
/// Number of epochs that the recipe has finished.
const FINISHED: &str = "epochs_run";
/// Number of epochs of the whole run.
const OF_RUN: &str = "total_epochs";

/// Adds the recipe state to the epoch that it belongs to. No recipe resumes from the weights of the epochs before, and the
/// epoch after it is not complete, unless it is the last one of the run.
///
/// torchtune's epochs: the weights in `epoch_N`, and beside all epochs one `recipe_state/recipe_state.pt`, which each save
/// but the last overwrites after the weights. A recipe resumes from both (`torchtune/training/checkpointing`, 0.6.1; some
/// versions keep a recipe state in each step instead).
fn add_recipe_state(units: &mut [Unit<'_>], tree: &Tree, files: &dyn OpenFile) {
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

/// Makes one unit of all units of the same number in the same directory, and adds the loose entries of that number. The
/// one that the trainer resumes from gives its name to the step.
fn join_by_number(units: &mut Vec<Unit<'_>>, loose: &[(String, u64)], tree: &Tree) {
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
fn leave_out_other_numbers(units: &mut Vec<Unit<'_>>) {
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

/// Adds the other files of the steps without a number in their names, and reads the numbers that they state.
fn state_numbers(units: &mut [Unit<'_>], tree: &Tree, files: &dyn OpenFile) {
    for unit in units.iter_mut().filter(|unit| unit.rewritten) {
        add_companions(unit, tree);
        let members: Vec<&str> = unit.members.iter().map(|member| member.path.as_str()).collect();
        unit.step = stated_step(unit.series, &members, tree, files);
    }
}

/// Adds the other files that belong to a step, behind those that its series names.
fn add_companions(unit: &mut Unit<'_>, tree: &Tree) {
    let mut companions: Vec<Member> = Vec::new();
    for template in &unit.series.with {
        for member in &unit.members {
            let path = template.render(&Values::from_parts(&member.parts, None, &member.path));
            let is_new = |path: &String| {
                let mut known = unit.members.iter().chain(&companions);
                tree.is_file(path) && known.all(|other| other.path != *path)
            };
            companions.extend(path.filter(is_new).map(|path| Member { path, parts: member.parts.clone() }));
        }
    }
    for companion in companions {
        if let Some(entry) = tree.get(&companion.path) {
            unit.files.extend(files_of(tree, &companion.path, entry).0);
            unit.members.push(companion);
        }
    }
}

fn index_of(profile: &Profile, series: &Series) -> usize {
    profile.series.iter().position(|other| other.name == series.name).unwrap_or(usize::MAX)
}
