//! Which of the steps that a profile finds are a run's.

use std::path::Path;

use globset::GlobMatcher;
use stepvault_core::ids::Step;
use stepvault_core::path::RelativePath;
use stepvault_formats::find::{Found, FoundStep};
use stepvault_formats::profile::{GENERIC, PathGlob, Profile, Proof, last_component};
use stepvault_formats::tree::Tree;

use crate::discovery::Origin;

/// Words of which the name of a step has one, where no framework and no pattern says what else it may be.
const STEP_WORDS: [&str; 5] = ["step", "checkpoint", "ckpt", "iter", "epoch"];

/// What is taken.
#[derive(Debug)]
pub(super) struct Selection {
    names: Option<GlobMatcher>,
    series: Option<Vec<String>>,
}

/// What is taken of one look.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub(super) steps: Vec<&'a FoundStep>,
    /// What somebody should configure.
    pub(super) advice: Option<String>,
}

impl Selection {
    /// `names` restricts the names of steps; `series` names those to take, in place of all that a trainer can go on
    /// from.
    pub(super) fn new(names: Option<GlobMatcher>, series: Option<Vec<String>>) -> Self {
        Self { names, series }
    }

    pub(super) fn of<'a>(&self, profile: &Profile, found: &'a Found) -> Selected<'a> {
        let mut steps: Vec<&FoundStep> = found
            .steps
            .iter()
            .filter(|step| self.is_of_series(step) && self.is_named_so(profile, step))
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

    fn is_named_so(&self, profile: &Profile, step: &FoundStep) -> bool {
        let name = last_component(&step.path);
        match &self.names {
            Some(names) => names.is_match(name),
            None => profile.name != GENERIC || looks_like_a_step(name),
        }
    }

    /// Complete steps that nobody takes are worth a word.
    fn advice(&self, profile: &Profile, found: &Found) -> Option<String> {
        let left_out = found.steps.iter().find(|step| step.is_complete())?;
        let series = &left_out.series;
        Some(match (&self.series, &self.names) {
            (Some(_), _) => format!(
                "{} is of the series '{series}' of {}, which the run does not take: name it in the run's series",
                left_out.path, profile.name
            ),
            (None, _) if !left_out.resumable => format!(
                "{} is of the series '{series}' of {}, which the trainer cannot go on from: to keep it, set \
                 series = [\"{series}\"]",
                left_out.path, profile.name
            ),
            (None, Some(_)) => format!(
                "the run's pattern leaves out {}, which is a step by its profile",
                left_out.path
            ),
            (None, None) => format!(
                "the name of {} has a number and no word that means a step: if it is one, set a pattern",
                left_out.path
            ),
        })
    }
}

/// A run is one series of numbers. Of series that count different things the first that has a step is taken; what to do
/// about the others.
fn leave_out_other_counts(profile: &Profile, steps: &mut Vec<&FoundStep>) -> Option<String> {
    let counts = |step: &FoundStep| {
        let mut series = profile.series.iter();
        series
            .find(|series| series.name == step.series)?
            .counts
            .as_deref()
    };
    let mut all = profile.series.iter();
    let first = all.find(|series| steps.iter().any(|step| step.series == series.name))?;
    let taken = first.counts.as_deref();
    let left_out = steps
        .iter()
        .find(|step| step.is_complete() && counts(step) != taken)
        .map(|step| {
            format!(
                "{} is of the series '{}' of {}, whose numbers count {}: to keep it too, give it a run of its own with \
                 series = [\"{}\"]",
                step.path,
                step.series,
                profile.name,
                counts(step).unwrap_or("steps"),
                step.series
            )
        });
    steps.retain(|step| counts(step) == taken);
    left_out
}

fn looks_like_a_step(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    STEP_WORDS.iter().any(|word| lower.contains(word)) || name.bytes().all(|byte| byte.is_ascii_digit())
}

/// What a step is sealed as and from, or why it cannot be sealed. One of several paths has no name of its own: it is
/// called after the framework, the series and its number, and keeps its paths as they are in the watched directory.
pub(super) fn identity(
    profile: &Profile,
    directory: &Path,
    step: &FoundStep,
) -> Result<(Step, Origin), String> {
    let number = step.step.ok_or("its name says no step number")?;
    let number = Step::new(number).map_err(|error| error.to_string())?;
    if let [path] = step.members.as_slice() {
        return Ok((
            number,
            Origin::of_path(&directory.join(path), last_component(path)),
        ));
    }
    let members = step.members.iter().map(RelativePath::new);
    let origin = Origin {
        source: directory.to_owned(),
        members: members
            .collect::<stepvault_core::Result<_>>()
            .map_err(|error| error.to_string())?,
        name: format!("{}-{}-{}", profile.name, step.series, number.number()),
    };
    Ok((number, origin))
}

/// Whether nothing but silence proves that the save of a complete step is over.
///
/// A marker or pointer proves nothing of what was written after it: a run that went back overwrites steps that have
/// their old marker, and that the pointer has long been past.
pub(super) fn rests_on_silence(profile: &Profile, found: &Found, tree: &Tree, step: &FoundStep) -> bool {
    let series = profile.series.iter().find(|series| series.name == step.series);
    series.is_none_or(|series| match &series.complete.proof {
        Proof::Rename | Proof::MarkerRemoved(_) => false,
        Proof::Marker(markers) => !is_newest(markers, tree, step),
        Proof::Pointer | Proof::PointerOrQuiet => !is_pointed_to_since(found, tree, step),
        Proof::Quiet => true,
    })
}

/// Whether nothing in the step is newer than one of its markers.
fn is_newest(markers: &[PathGlob], tree: &Tree, step: &FoundStep) -> bool {
    step.members.iter().any(|member| {
        tree.inside(member).any(|(path, entry)| {
            let inside = path.strip_prefix(member.as_str()).unwrap_or(path);
            let inside = inside.trim_start_matches('/');
            entry.mtime >= step.written_at && markers.iter().any(|marker| marker.is_match(inside))
        })
    })
}

/// Whether every pointer that the trainer goes on by was written after the step.
fn is_pointed_to_since(found: &Found, tree: &Tree, step: &FoundStep) -> bool {
    let mut pointers = found
        .pointers
        .iter()
        .filter(|pointer| pointer.is_for_resuming())
        .peekable();
    let is_newer = |path: &str| tree.get(path).is_some_and(|entry| entry.mtime >= step.written_at);
    pointers.peek().is_some() && pointers.all(|pointer| is_newer(&pointer.path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::timestamp::Timestamp;
    use stepvault_formats::find::{FindOptions, find_steps};
    use stepvault_formats::profile::ProfileSet;
    use stepvault_formats::source::ReadAt;
    use stepvault_formats::tree::{Entry, EntryKind, OpenFile};

    struct NoFile;

    impl OpenFile for NoFile {
        fn open(&self, _: &str) -> std::io::Result<Box<dyn ReadAt>> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }

    /// What is taken of files with these names, and the advice.
    fn taken(profile: &str, series: Option<&str>, names: &[&str]) -> (Vec<String>, Option<String>) {
        let profiles = ProfileSet::default();
        let profile = profiles.get(profile).unwrap();
        let mtime = Timestamp::from_seconds(0);
        let kind = EntryKind::File {
            size_bytes: 1,
            allocated_bytes: None,
        };
        let entries = names.iter().map(|name| {
            (
                (*name).to_owned(),
                Entry {
                    kind: kind.clone(),
                    mtime,
                },
            )
        });
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
        let timm = [
            "checkpoint-1.pth.tar",
            "recovery-1-50.pth.tar",
            "recovery-2-50.pth.tar",
        ];
        let (paths, advice) = taken("timm", None, &timm);
        assert_eq!(paths, ["checkpoint-1.pth.tar"]);
        assert_eq!(
            advice.unwrap(),
            "recovery-1-50.pth.tar is of the series 'recovery' of timm, whose numbers count epochs under way: to keep it \
             too, give it a run of its own with series = [\"recovery\"]"
        );
        let (paths, advice) = taken("timm", Some("recovery"), &timm);
        assert_eq!((paths.len(), advice), (2, None));
        let (paths, advice) = taken("timm", None, &timm[1..]);
        assert_eq!((paths.len(), advice), (2, None), "there is nothing else yet");
        let fairseq = ["checkpoint1.pt", "checkpoint_1_500.pt"];
        assert_eq!(taken("fairseq", None, &fairseq).0, ["checkpoint_1_500.pt"]);
    }
}
