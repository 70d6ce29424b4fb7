//! Finds the steps of a directory with a profile, and which of them are complete.

mod areal;
mod below;
mod companions;
mod copies;
mod found;
mod judge;
mod leftover;
mod stated;
pub(crate) mod unit;
pub(crate) mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

pub use self::below::{RunBelow, runs_below};
use self::companions::add_texts;
use self::copies::leave_out_copies;
pub use self::found::{
    Completeness, Extent, FindOptions, Found, FoundStep, LONGEST_SAVE_SECONDS, LinkFound, QuietRule,
};
use self::judge::{Surroundings, judge};
pub use self::leftover::{Leftover, copied_files, leftovers};
use self::unit::{Member, Unit, newest_of, total_bytes};
use self::units::{Collected, collect};
use stepvault_core::timestamp::Timestamp;

use crate::pointer::{PointerFound, read_pointers};
use crate::profile::template::last_component;
use crate::profile::{GENERIC, Profile, UnitRule};
use crate::step_name::without_numbers;
use crate::tree::{OpenFile, Tree, is_inside};

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
            if let Completeness::Complete { quiet_rule, .. } = complete {
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
            steps.push(found_step(unit, complete, ranks));
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

fn found_step(unit: &Unit<'_>, complete: Completeness, ranks: Option<u32>) -> FoundStep {
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
        ranks: None,
        bytes: total_bytes(&files),
        files: files.len() as u64,
        written_at: newest_of(&files),
        content: 0,
        resumable: false,
    }
}

/// The fewest hexadecimal digits in a row that make a name one of a kind: a digest, an identifier or a time.
const UNIQUE_DIGITS: usize = 8;

/// The names of a step's files, for comparison with other steps.
#[derive(Debug, Clone, Default)]
pub struct StepNames {
    files: Vec<FileName>,
    /// Every form of every name.
    forms: BTreeSet<String>,
}

/// The two forms of a name: a number in it may be the step's own, or the same in every step.
#[derive(Debug, Clone)]
struct FileName {
    own: String,
    /// With `*` in place of the step's number.
    general: String,
}

impl StepNames {
    /// Returns the names of a step's files from their paths inside the step. Names that no two steps share are left out.
    pub fn new<'a>(step: Option<u64>, paths: impl IntoIterator<Item = &'a str>) -> Self {
        let names = paths
            .into_iter()
            .map(|path| FileName { own: path.to_owned(), general: without_step(path, step) });
        let files: Vec<FileName> = names.filter(|name| !is_unique(&name.general)).collect();
        let forms = files.iter().flat_map(|name| [&name.own, &name.general]);
        let forms = forms.cloned().collect();
        Self { files, forms }
    }

    /// Returns the names of the files of a step of several entries, which end with the one that it is named after, from
    /// the paths of the files. The numbers in the names of entries are left out.
    pub fn of_entries(step: Option<u64>, entries: &[&str], paths: impl Iterator<Item = String>) -> Self {
        let (mut names, mut counts) = (Vec::new(), BTreeMap::new());
        for path in paths {
            let name = match entries.iter().find(|entry| is_inside(&path, entry)) {
                Some(entry) => {
                    let inside = path.get(entry.len() + 1..).unwrap_or_default();
                    if Some(entry) == entries.last() {
                        inside.to_owned()
                    } else {
                        format!("{}/{inside}", without_numbers(last_component(entry)))
                    }
                }
                None => without_numbers(last_component(&path)),
            };
            // Those of several ranks differ in their numbers alone.
            let same = counts.entry(name.clone()).or_insert(0_u32);
            names.push(if *same == 0 { name } else { format!("{name} ({same})") });
            *same += 1;
        }
        Self::new(step, names.iter().map(String::as_str))
    }

    fn has(&self, name: &FileName) -> bool {
        self.forms.contains(&name.own) || self.forms.contains(&name.general)
    }
}

/// The files that all of some steps have.
#[derive(Debug, Clone, Default)]
pub struct UsualFiles(Option<Vec<FileName>>);

impl UsualFiles {
    /// Adds a step: what it lacks is usual no more.
    pub fn add(&mut self, step: &StepNames) {
        match &mut self.0 {
            Some(usual) => usual.retain(|name| step.has(name)),
            None => self.0 = Some(step.files.clone()),
        }
    }

    /// Returns the usual files that a step lacks, with `*` in place of a step's number; `None` if there was no other
    /// step.
    pub fn lacking(&self, step: &StepNames) -> Option<Vec<String>> {
        let lacking = self.0.as_ref()?.iter().filter(|name| !step.has(name));
        Some(lacking.map(|name| name.general.clone()).collect())
    }

    /// Returns whether a file that [`Self::lacking`] has returned is usual here too; true if there was no step.
    pub fn has(&self, file: &str) -> bool {
        let is_it = |name: &FileName| name.general == file || name.own == file;
        self.0.as_ref().is_none_or(|usual| usual.iter().any(is_it))
    }
}

/// The usual files of the steps with lower numbers, as steps are added in the order of their numbers.
#[derive(Debug, Default)]
struct EarlierFiles {
    usual: UsualFiles,
    /// The steps with the highest number so far.
    last: (Option<u64>, Vec<StepNames>),
}

impl EarlierFiles {
    /// Returns the files that all steps with lower numbers have and this one lacks.
    fn lacking(&mut self, number: Option<u64>, step: &StepNames) -> Option<Vec<String>> {
        if self.last.0 != number {
            self.last.1.drain(..).for_each(|step| self.usual.add(&step));
            self.last.0 = number;
        }
        self.usual.lacking(step)
    }

    /// Adds a step that was compared last.
    fn add(&mut self, step: StepNames) {
        self.last.1.push(step);
    }
}

/// Returns a path with `*` in place of each number that is the step's.
fn without_step(path: &str, step: Option<u64>) -> String {
    let Some(step) = step else {
        return path.to_owned();
    };
    let mut result = String::new();
    let mut rest = path;
    while let Some(start) = rest.find(|character: char| character.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|character: char| !character.is_ascii_digit());
        let (digits, behind) = from.split_at(end.unwrap_or(from.len()));
        let is_step = digits.parse() == Ok(step);
        result.push_str(before);
        result.push_str(if is_step { "*" } else { digits });
        rest = behind;
    }
    result.push_str(rest);
    result
}

fn is_unique(name: &str) -> bool {
    let runs = name.split(|character: char| !character.is_ascii_hexdigit());
    runs.map(str::len).max() >= Some(UNIQUE_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacking(earlier: &[(u64, &[&str])], step: (u64, &[&str])) -> Option<Vec<String>> {
        let names = |(step, paths): &(u64, &[&str])| StepNames::new(Some(*step), paths.iter().copied());
        let mut usual = UsualFiles::default();
        for step in earlier {
            usual.add(&names(step));
        }
        usual.lacking(&names(&step))
    }

    #[test]
    fn a_file_that_all_earlier_steps_have_is_missed() {
        assert_eq!(lacking(&[], (10, &["a"])), None);
        let earlier: [(u64, &[&str]); 2] = [(10, &["a", "b", "readme"]), (20, &["a", "b", "log"])];
        assert_eq!(lacking(&earlier, (30, &["a"])), Some(vec!["b".to_owned()]));
        assert_eq!(lacking(&earlier, (30, &["b", "a"])), Some(Vec::new()));
    }

    #[test]
    fn the_number_of_the_step_is_no_part_of_a_name() {
        let earlier: [(u64, &[&str]); 1] = [(1, &["model_1.bin", "rank_0", "rank_1"])];
        assert_eq!(lacking(&earlier, (2, &["model_2.bin", "rank_0", "rank_1"])), Some(Vec::new()));
        assert_eq!(lacking(&earlier, (2, &["rank_0", "rank_1"])), Some(vec!["model_*.bin".to_owned()]));
        let padded: [(u64, &[&str]); 1] = [(100, &["iter_00000100.bin"])];
        assert_eq!(lacking(&padded, (200, &["iter_00000200.bin"])), Some(Vec::new()));
    }

    #[test]
    fn names_with_digests_and_times_are_not_missed() {
        let earlier: [(u64, &[&str]); 1] = [(1, &["d/0a1b2c3d4e5f", "events.1732426428.host", "a"])];
        assert_eq!(lacking(&earlier, (2, &["a"])), Some(Vec::new()));
    }
}
