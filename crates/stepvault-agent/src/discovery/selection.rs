//! Selects the run's steps among those that a profile finds.

use std::borrow::Cow;
use std::path::Path;

use stepvault_core::config::LinkPolicy;
use stepvault_core::entries::SymlinkEntry;
use stepvault_core::step_origin::{BestName, MAX_LINKS};
use stepvault_core::{RelativePath, Step};
use stepvault_formats::find::{Found, FoundStep, StepIdentity};
use stepvault_formats::profile::{PathGlob, Profile, last_component};
use stepvault_local::tree::Checkpoint;

/// Which steps are selected.
#[derive(Debug)]
pub(super) struct Selection {
    names: Option<PathGlob>,
    series: Option<Vec<String>>,
    /// The names of the steps of other runs in the same directory, as far as they are given; `None` if there is no other
    /// run.
    pub(super) other_names: Option<Vec<PathGlob>>,
}

/// The steps selected from one scan.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub(super) steps: Vec<Cow<'a, FoundStep>>,
    /// A recommended change of the configuration.
    pub(super) advice: Option<String>,
}

impl Selection {
    /// `names` restricts the names of steps; `series` names the series to seal, instead of all that a trainer can
    /// resume from.
    pub(super) fn new(names: Option<PathGlob>, series: Option<Vec<String>>) -> Self {
        Self { names, series, other_names: None }
    }

    /// Whether steps that are not selected are left out on purpose: the run names its series, or shares the directory.
    pub(super) fn excludes_others(&self) -> bool {
        self.series.is_some() || self.other_names.is_some()
    }

    /// Whether an entry may be the run's by its name.
    pub(super) fn may_be_own(&self, path: &str) -> bool {
        let mut others = self.other_names.iter().flatten();
        self.has_name(path) && !others.any(|names| names.is_match(last_component(path)))
    }

    fn has_name(&self, path: &str) -> bool {
        let names = self.names.as_ref();
        names.is_none_or(|names| names.is_match(last_component(path)))
    }

    pub(super) fn of<'a>(&self, profile: &Profile, found: &'a Found) -> Selected<'a> {
        let mut steps: Vec<Cow<'a, FoundStep>> = found
            .steps
            .iter()
            .filter(|step| self.is_of_series(step) && self.has_name(&step.path))
            .map(Cow::Borrowed)
            .collect();
        let advice = match &self.series {
            _ if steps.is_empty() => self.advice(profile, found),
            Some(_) => None,
            None => leave_out_other_counts(profile, &mut steps),
        };
        Selected { steps, advice }
    }

    fn is_of_series(&self, step: &FoundStep) -> bool {
        match &self.series {
            Some(series) => series.contains(&step.series),
            None => step.resumable,
        }
    }

    /// Returns advice about complete steps that are not selected.
    fn advice(&self, profile: &Profile, found: &Found) -> Option<String> {
        let left_out = found.steps.iter().find(|step| step.is_complete())?;
        let series = &left_out.series;
        Some(match (&self.series, &self.names) {
            (Some(_), _) => format!(
                "{} belongs to the series '{series}' of {}, which the run does not include: add it to the run's series",
                left_out.path, profile.name
            ),
            (None, _) if !left_out.resumable => format!(
                "{} belongs to the series '{series}' of {}, from which the trainer cannot resume: to keep it, set \
                 series = [\"{series}\"]",
                left_out.path, profile.name
            ),
            (None, _) => format!(
                "the run's pattern excludes {}, which is a step according to its profile",
                left_out.path
            ),
        })
    }
}

/// Restricts the steps to one sequence of numbers. Of series that count different things, the first that has a step is
/// selected; returns advice about the others. A path that is rewritten stays, as the run's newest state: where it states
/// another kind of number, it gets the next one.
fn leave_out_other_counts(profile: &Profile, steps: &mut Vec<Cow<'_, FoundStep>>) -> Option<String> {
    let counts = |step: &FoundStep| {
        let mut series = profile.series.iter();
        series.find(|series| series.name == step.series)?.counts.as_deref()
    };
    let mut all = profile.series.iter();
    let first = all.find(|series| steps.iter().any(|step| step.series == series.name))?;
    let taken = first.counts.as_deref();
    let left_out = steps
        .iter()
        .find(|step| step.is_complete() && !step.rewritten && counts(step) != taken)
        .map(|step| {
            format!(
                "{} belongs to the series '{}' of {}, whose numbers count {}: to keep it too, give it its own run \
                 with series = [\"{}\"]",
                step.path,
                step.series,
                profile.name,
                counts(step).unwrap_or("steps"),
                step.series
            )
        });
    steps.retain(|step| step.rewritten || counts(step) == taken);
    for step in steps.iter_mut().filter(|step| counts(step) != taken) {
        step.to_mut().step = None;
    }
    left_out
}

/// Returns the number and checkpoint that a step is sealed as, or why it cannot be sealed.
pub(super) fn identity(
    profile: &Profile,
    directory: &Path,
    step: &FoundStep,
) -> Result<(Option<Step>, Checkpoint), String> {
    let watched = directory.file_name().and_then(|name| name.to_str());
    let StepIdentity { number, name, members, origin } = step.identity(profile, watched)?;
    let source = match step.members.as_slice() {
        [path] => directory.join(path),
        _ => directory.to_owned(),
    };
    let links = links_of(profile, step);
    Ok((number, Checkpoint { members, origin, links, ..Checkpoint::of_path(&source, name) }))
}

/// Records the steps that a checkpoint names as the best, and the links that lead the trainer to it.
pub(super) fn add_names(checkpoint: &mut Checkpoint, best: Vec<BestName>, found: &Found, step: &FoundStep) {
    let name = last_component(&step.path);
    let links = found.links_to(step).into_iter().map(|path| {
        // Several paths are relative to the watched directory, one to its own.
        let path = if checkpoint.members.is_empty() { last_component(path) } else { path };
        let target = name.to_owned();
        RelativePath::new(path).map(|path| SymlinkEntry { path, target })
    });
    checkpoint.origin.links = links.filter_map(Result::ok).take(MAX_LINKS).collect();
    checkpoint.origin.best = best;
}

/// Returns how the files of a step may be linked or copied.
pub(super) fn links_of(profile: &Profile, step: &FoundStep) -> LinkPolicy {
    if step.is_overwritten(profile) { LinkPolicy::ReflinkOrCopy } else { LinkPolicy::Auto }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::timestamp::Timestamp;
    use stepvault_formats::find::{FindOptions, find_steps};
    use stepvault_formats::profile::ProfileSet;
    use stepvault_formats::tree::ReadAt;
    use stepvault_formats::tree::{Entry, EntryKind, OpenFile, Tree};

    struct NoFile;

    impl OpenFile for NoFile {
        fn open(&self, _: &str) -> std::io::Result<Box<dyn ReadAt>> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }

    /// Returns the steps selected from files with these names, and the advice.
    fn taken(profile: &str, series: Option<&str>, names: &[&str]) -> (Vec<String>, Option<String>) {
        let profiles = ProfileSet::default();
        let profile = profiles.get(profile).unwrap();
        let mtime = Timestamp::from_seconds(0);
        let kind = EntryKind::File { size_bytes: 1, allocated_bytes: None };
        let entries = names.iter().map(|name| ((*name).to_owned(), Entry { kind: kind.clone(), mtime }));
        let tree = Tree::new(entries.collect());
        let now = Timestamp::from_seconds(1_000_000);
        let found = find_steps(profile, &tree, &NoFile, now, &FindOptions::default());
        let selection = Selection::new(None, series.map(|name| vec![name.to_owned()]));
        let selected = selection.of(profile, &found);
        let mut paths: Vec<String> = selected.steps.iter().map(|step| step.path.clone()).collect();
        paths.sort();
        (paths, selected.advice)
    }

    #[test]
    fn numbers_that_count_different_things_are_not_one_run() {
        let timm = ["checkpoint-1.pth.tar", "recovery-1-50.pth.tar", "recovery-2-50.pth.tar"];
        let (paths, advice) = taken("timm", None, &timm);
        assert_eq!(paths, ["checkpoint-1.pth.tar"]);
        assert_eq!(
            advice.unwrap(),
            "recovery-1-50.pth.tar belongs to the series 'recovery' of timm, whose numbers count epochs under way: to \
             keep it too, give it its own run with series = [\"recovery\"]"
        );
        let (paths, advice) = taken("timm", Some("recovery"), &timm);
        assert_eq!((paths.len(), advice), (2, None));
        let (paths, advice) = taken("timm", None, &timm[1..]);
        assert_eq!((paths.len(), advice), (2, None), "there is nothing else yet");
        let fairseq = ["checkpoint1.pt", "checkpoint_1_500.pt"];
        assert_eq!(taken("fairseq", None, &fairseq).0, ["checkpoint_1_500.pt"]);
    }
}
