//! Compares the names of a step's files with those of other steps: a save that lacks what all others have may be unfinished.

use std::collections::{BTreeMap, BTreeSet};

use crate::profile::template::last_component;
use crate::step_name::without_numbers;
use crate::tree::is_inside;

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
pub(super) struct EarlierFiles {
    usual: UsualFiles,
    /// The steps with the highest number so far.
    last: (Option<u64>, Vec<StepNames>),
}

impl EarlierFiles {
    /// Returns the files that all steps with lower numbers have and this one lacks.
    pub(super) fn lacking(&mut self, number: Option<u64>, step: &StepNames) -> Option<Vec<String>> {
        if self.last.0 != number {
            self.last.1.drain(..).for_each(|step| self.usual.add(&step));
            self.last.0 = number;
        }
        self.usual.lacking(step)
    }

    /// Adds a step that was compared last.
    pub(super) fn add(&mut self, step: StepNames) {
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
