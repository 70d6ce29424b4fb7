//! Finds the steps of a directory with a profile, and which of them are complete.

mod areal;
mod below;
mod companions;
mod copies;
mod extent;
mod judge;
mod leftover;
mod links;
mod members;
mod ranks;
mod stated;
mod torchtune;
pub(crate) mod units;
mod usual;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stepvault_core::ids::Step;
use stepvault_core::keys::check_step_name;
use stepvault_core::step_origin::{BestName, MAX_BEST, StepOrigin};
use stepvault_core::timestamp::Timestamp;

use crate::pointer::{PointerFound, read_pointers};
use crate::profile::template::{last_component, parent_prefix};
use crate::profile::{GENERIC, PointerRole, Profile, Series, UnitRule};
use crate::step_name;
use crate::tree::{OpenFile, Tree};
pub use below::{RunBelow, runs_below};
use companions::add_texts;
use copies::leave_out_copies;
pub use copies::says_newest;
pub use extent::Extent;
use judge::{Surroundings, judge, quiet_rule};
pub use leftover::{Leftover, copied_files, leftovers};
pub use links::LinkFound;
use units::{Collected, Member, Unit, collect};
use usual::EarlierFiles;
pub use usual::{StepNames, UsualFiles};

/// A time after every file's: nothing is being written any more.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);

/// How long after a step a trainer may write the same state under a name without a number, in seconds.
pub const LONGEST_SAVE_SECONDS: u64 = 600;

/// The parameters of a search for steps, besides the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindOptions {
    /// How long nothing must have been written when no other proof shows that a save is finished, in seconds.
    pub quiet_seconds: u64,
    /// The number of ranks of the run, if the caller knows it. Fewer ranks are too few, unless a newer step has as
    /// few.
    pub expected_world: Option<u32>,
    /// The number of ranks of the last step that the caller sealed, for the first step of the directory; every other
    /// step is compared with the previous one.
    pub previous_ranks: Option<u32>,
    /// How much of each step the directory holds.
    pub extent: Extent,
}

impl Default for FindOptions {
    fn default() -> Self {
        Self {
            quiet_seconds: 30,
            expected_world: None,
            previous_ranks: None,
            extent: Extent::Whole,
        }
    }
}

/// Whether a step is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    /// The step is complete.
    Complete {
        /// The proof, as text.
        proof: String,
    },
    /// The step is not complete, or nothing proves it yet.
    NotYet {
        /// The reasons, as text; never empty.
        reasons: Vec<String>,
    },
}

/// When a complete step must also be quiet.
///
/// A marker or pointer proves nothing about later writes: a run that went back overwrites steps that still have their
/// old marker, and that the pointer has long since passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuietRule {
    /// Always: nothing else proves that its save is over.
    Always,
    /// Briefly, if the formats of its files prove each of them whole: the step is one file, or the run has since gone on to
    /// a later step, or it has all files that the complete step before it has.
    Briefly,
    /// Once an earlier state of it was sealed: what proved that one does not apply to later changes.
    OnceSealed,
    /// Never: its proof applies to each of its states.
    Never,
}

/// A step that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundStep {
    /// The path that it is named after, relative to the watched directory: of several entries with its number, the one
    /// that the trainer resumes from.
    pub path: String,
    /// All paths that make it up, in the order in which a restore must create them.
    pub members: Vec<String>,
    /// The series of the profile.
    pub series: String,
    /// Its number: the one in its name, otherwise the one that its content states.
    pub step: Option<u64>,
    /// Whether its path holds one step after another: its name has no number, and each new content is a step.
    pub rewritten: bool,
    /// Whether it is complete.
    pub complete: Completeness,
    /// When it must also be quiet.
    pub quiet_rule: QuietRule,
    /// The number of ranks that wrote it, if known.
    pub ranks: Option<u32>,
    /// The length of all its files, in bytes.
    pub bytes: u64,
    /// The number of its files.
    pub files: u64,
    /// The modification time of its newest file. A lower number that was written later belongs to another attempt.
    pub written_at: Timestamp,
    /// Differs for other paths, sizes or times of its files, except what tools leave among them.
    pub content: u64,
    /// False when the trainer cannot resume from it.
    pub resumable: bool,
}

impl FoundStep {
    /// Returns whether it is complete.
    pub fn is_complete(&self) -> bool {
        matches!(self.complete, Completeness::Complete { .. })
    }

    /// Returns the number that its content states now, where its name has none.
    pub fn stated_step(&self, profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> Option<u64> {
        let series = self.series_in(profile).filter(|_| self.rewritten)?;
        stated::stated_step(series, &self.own_members(), tree, files)
    }

    /// Whether the trainer can resume from steps of its series, if not from this one.
    pub fn was_resumable(&self, profile: &Profile) -> bool {
        self.series_in(profile).is_some_and(|series| series.resumable)
    }

    /// Whether one of its paths is overwritten by the next step, which has another path for the rest.
    pub(crate) fn has_shared_path(&self, profile: &Profile) -> bool {
        let unit = self.series_in(profile).and_then(|series| series.unit);
        let has_no_number = |path: &String| step_name::parse(last_component(path)).is_none();
        unit == Some(UnitRule::TorchtuneEpoch) && self.members.len() > 1
            || profile.name == GENERIC && !self.rewritten && self.members.iter().any(has_no_number)
    }

    /// Returns its series; `None` for a temporary name.
    pub(crate) fn series_in<'a>(&self, profile: &'a Profile) -> Option<&'a Series> {
        profile.series.iter().find(|series| series.name == self.series)
    }

    /// Returns the names of the steps that its content states to be the best so far, as [`stated::stated_best`].
    pub(crate) fn stated_best(
        &self,
        profile: &Profile,
        tree: &Tree,
        files: &dyn OpenFile,
    ) -> Option<BTreeSet<String>> {
        stated::stated_best(profile, &self.own_members(), tree, files)
    }

    /// Returns its paths, that it is named after first.
    fn own_members(&self) -> Vec<&str> {
        // A path with a number is another step's.
        let is_own = |path: &&String| !self.rewritten || step_name::parse(last_component(path)).is_none();
        let others = self.members.iter().filter(|path| **path != self.path);
        let others = others.filter(is_own);
        std::iter::once(&self.path)
            .chain(others)
            .map(String::as_str)
            .collect()
    }

    /// Returns its name: that of the path that is created last, if the step is named after it; otherwise one made of the
    /// profile, the series and, unless its paths are rewritten, its number.
    pub fn name(&self, profile: &Profile) -> String {
        let profile = &profile.name;
        match (self.members.last(), self.step) {
            (Some(last), _) if *last == self.path => last_component(last).to_owned(),
            (_, Some(step)) if !self.rewritten => format!("{profile}-{}-{step}", self.series),
            _ => format!("{profile}-{}", self.series),
        }
    }

    /// Returns what is recorded of the profile that found it; only whether its path is rewritten for the generic one.
    pub fn origin(&self, profile: &Profile) -> StepOrigin {
        let is_framework = profile.name != GENERIC;
        StepOrigin {
            rewritten: self.rewritten || self.has_shared_path(profile),
            profile: is_framework.then(|| profile.name.clone()),
            profile_version: profile.version.filter(|_| is_framework).map(str::to_owned),
            series: is_framework.then(|| self.series.clone()),
            ..StepOrigin::default()
        }
    }

    /// Returns the reasons why it is not complete; empty when it is.
    pub fn reasons(&self) -> &[String] {
        match &self.complete {
            Completeness::Complete { .. } => &[],
            Completeness::NotYet { reasons } => reasons,
        }
    }
}

/// The contents of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The steps by series, then by number and path. A temporary name with a number in it is listed as an incomplete
    /// step.
    pub steps: Vec<FoundStep>,
    /// The files and links that the trainer, or its user, reads to find a step.
    pub pointers: Vec<PointerFound>,
    /// Paths with a name that is used only while writing.
    pub temporary: Vec<String>,
    /// Paths that the profile excludes as steps.
    pub ignored: Vec<String>,
    /// Symbolic links to steps that are no pointers of the profile.
    pub links: Vec<LinkFound>,
    /// Paths without a number that hold a copy of a step with one, and what [`copied_files`] returned.
    pub copies: Vec<String>,
    /// For each complete directory that nothing but its files proves whole, by its path: the files that all earlier
    /// complete steps of its series have and it lacks, with `*` in place of a step's number; `None` where there is no
    /// earlier one.
    pub missing: BTreeMap<String, Option<Vec<String>>>,
}

impl Found {
    /// Returns the steps that a step of these calls the best so far, which may be itself: those that its content states,
    /// and those that the trainer's pointer names.
    pub fn best_of(
        &self,
        step: &FoundStep,
        profile: &Profile,
        tree: &Tree,
        files: &dyn OpenFile,
    ) -> Vec<BestName> {
        let mut names = step.stated_best(profile, tree, files).unwrap_or_default();
        let pointers = self.pointers.iter();
        let of_best = pointers.filter(|pointer| pointer.role == PointerRole::Best);
        for target in of_best.filter_map(|pointer| pointer.target.as_ref()) {
            let best = self.steps.iter().find(|other| other.path == *target);
            names.extend(best.map(|other| other.name(profile)));
        }
        let number = |name: &str| {
            let mut steps = self.steps.iter();
            if let Some(found) = steps.find(|other| other.name(profile) == name) {
                return found.step;
            }
            let path = format!("{}{name}", parent_prefix(&step.path));
            let parts = profile
                .series
                .iter()
                .find_map(|series| series.path.parts(&path))?;
            parts.step.or_else(|| step_name::parse(name))
        };
        let names = names.into_iter().filter(|name| check_step_name(name).is_ok());
        let best = names.map(|name| BestName {
            step: number(&name).and_then(|number| Step::new(number).ok()),
            name,
        });
        best.take(MAX_BEST).collect()
    }

    /// Returns the pointer that the trainer resumes by.
    pub fn pointer(&self) -> Option<&PointerFound> {
        self.pointers.iter().find(|pointer| pointer.is_for_resuming())
    }
}

/// Finds the steps of a directory. `now` comes from the clock that stamps the files.
pub fn find_steps(
    profile: &Profile,
    tree: &Tree,
    files: &dyn OpenFile,
    now: Timestamp,
    options: &FindOptions,
) -> Found {
    let Collected {
        mut units,
        temporary,
        ignored,
    } = collect(profile, tree, files);
    let pointers = read_pointers(profile, tree, files, &units);
    units.retain(|unit| !(unit.series.alias && is_known_copy(unit, &pointers)));
    let mut steps = Vec::new();
    let mut missing = BTreeMap::new();
    for series in units.chunk_by(|one, other| one.series.name == other.series.name) {
        let as_before = series
            .first()
            .map_or(&[][..], |unit| &unit.series.complete.as_before);
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
                    let entries = unit.beside.iter().map(|beside| beside.path.as_str());
                    let entries: Vec<&str> = entries.chain([unit.path()]).collect();
                    let files = unit.judged_files().map(|(entry, file)| {
                        let is_itself = file.inside == last_component(entry) && !tree.is_directory(entry);
                        let below = || format!("{entry}/{}", file.inside);
                        if is_itself { entry.to_owned() } else { below() }
                    });
                    let names = StepNames::of_entries(unit.step, &entries, files);
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
        links: links::links(&steps, is_pointer, tree),
        steps,
        pointers,
        temporary: temporary.into_iter().map(|(path, _)| path).collect(),
        ignored,
        copies,
        missing,
    }
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
    let options = FindOptions {
        quiet_seconds: 0,
        ..FindOptions::default()
    };
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
    unit.members.iter().filter(is_own).all(|member| {
        pointers
            .iter()
            .any(|pointer| pointer.path == member.path && pointer.target.is_some())
    })
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
        bytes: stored().map(|file| file.size_bytes).fold(0, u64::saturating_add),
        files: stored().count() as u64,
        written_at: stored().map(|file| file.mtime).max().unwrap_or_default(),
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
    let files = tree
        .get(path)
        .map(|entry| units::files_of(tree, path, entry).0)
        .unwrap_or_default();
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
        bytes: files
            .iter()
            .map(|file| file.size_bytes)
            .fold(0, u64::saturating_add),
        files: files.len() as u64,
        written_at: files.iter().map(|file| file.mtime).max().unwrap_or_default(),
        content: 0,
        resumable: false,
    }
}
