//! Inspects a directory of checkpoints, or a prefix of a bucket: which framework wrote it, which steps it has, whether
//! each is complete and sound, and why.
//!
//! Needs no vault and no configuration.

mod remote;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
pub use remote::{ReadGuard, RemoteDirectory, RemoteReads, inspect_remote};
use stepvault_core::ids::RECORDS_DIRECTORY;

use stepvault_core::config::LinkPolicy;
use stepvault_core::step_origin::{BestName, StepOrigin};
use stepvault_core::{Error, ErrorKind, Event, Observer, Result, Step, Tier, Timestamp};
use stepvault_formats::check::{Check, StepCheck, check_extent_by};
use stepvault_formats::deep::{DeepCheck, read_step};
use stepvault_formats::detect::{Detection, detect};
use stepvault_formats::find::{
    Completeness, Extent, FindOptions, Found, FoundStep, QuietRule, RunBelow, find_steps, runs_below,
};
use stepvault_formats::profile::{GENERIC, Profile, ProfileSet, last_component};
use stepvault_formats::soundness::Finding;
use stepvault_formats::step_name::{looks_like_a_step, says_newest};
use stepvault_formats::tree::{OpenFile, Tree};
use stepvault_formats::warnings::warnings;
use stepvault_local::survey::{SurveyFiles, survey};

const WHAT: &str = "cannot inspect";

/// Options of an inspection.
#[derive(Debug)]
pub struct InspectRequest<'a> {
    /// The profiles to choose from.
    pub profiles: &'a ProfileSet,
    /// The profile to use, instead of detecting one.
    pub profile: Option<&'a str>,
    /// Rules for steps whose completeness nothing proves.
    pub options: FindOptions,
    /// Reads which steps each one names as the best, which only a push needs.
    pub reads_best: bool,
    /// Reads all data and compares checksums, and reports the progress to this observer; `None` reads headers alone.
    pub deep: Option<&'a dyn Observer>,
}

/// A step and the result of its checks.
#[derive(Debug)]
pub struct InspectedStep {
    /// The step.
    pub step: FoundStep,
    /// The result of checking its files.
    pub check: StepCheck,
    /// The steps that it calls the best so far, which may be itself; empty if that was not requested.
    pub best: Vec<BestName>,
    /// The result of reading its data, if that was requested.
    pub deep: Option<DeepCheck>,
}

/// The result of an inspection.
#[derive(Debug)]
pub struct Inspection {
    /// The directory to which its paths are relative, if it is not the one that was asked for.
    pub directory: Option<PathBuf>,
    /// The name of the profile.
    pub framework: String,
    /// The evidence for this profile.
    pub why: Vec<String>,
    /// The steps, in the order of [`Found`].
    pub steps: Vec<InspectedStep>,
    /// Everything else that was found; its steps are in [`Self::steps`].
    pub found: Found,
    /// The subdirectories with steps, if the directory itself has none.
    pub below: Vec<RunBelow>,
    /// What a user should know besides.
    pub warnings: Vec<String>,
    /// Whether its paths begin with the name of the directory that was asked for, which is itself a step.
    pub is_from_above: bool,
    /// The runs of stepvault whose records lie here, by their paths; empty for the directory itself.
    pub runs: Vec<String>,
}

/// Whether a directory contains a step to resume from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The newest step is complete and sound.
    Newest,
    /// The newest step is not complete and sound, but an older one is.
    Older,
    /// There are steps, but none is complete and sound.
    NoneValid,
    /// There is no step.
    NoStep,
}

/// Facts about a checkpoint, known before it is sealed.
#[derive(Debug, Default)]
pub struct SourceCheck {
    /// Whether its framework may overwrite finished files in place, so that hard links would change with them.
    pub is_overwritten_in_place: bool,
    /// Whether its trainer is known to write its finished files again, in place or under the same name.
    pub is_overwritten: bool,
    /// The damage found in its files, each with a path.
    pub faults: Vec<String>,
    /// What identified it; without its directory.
    pub origin: StepOrigin,
    /// The number that its content states, if its name has none.
    pub stated_step: Option<Step>,
}

impl SourceCheck {
    /// Returns how its files may be linked or copied, given the configured `links`.
    pub fn links(&self, links: LinkPolicy) -> LinkPolicy {
        match links {
            LinkPolicy::Auto if self.is_overwritten_in_place => LinkPolicy::ReflinkOrCopy,
            stricter => stricter,
        }
    }
}

/// Inspects one checkpoint; `extent` gives its size. A checkpoint that cannot be inspected has no faults here: sealing
/// it reports why it cannot be read. Blocks.
pub fn check_source(
    source: &Path,
    profiles: &ProfileSet,
    profile: Option<&str>,
    extent: Extent,
    now: Timestamp,
) -> SourceCheck {
    let request = InspectRequest {
        profiles,
        profile,
        reads_best: true,
        deep: None,
        options: FindOptions { extent, ..FindOptions::default() },
    };
    let Ok(inspection) = inspect(source, &request, now) else {
        return SourceCheck { is_overwritten_in_place: true, ..SourceCheck::default() };
    };
    // An unknown writer may overwrite files in place next time.
    let profile = profiles.get(&inspection.framework);
    // Files without a number in a directory that was pushed are those of the step, unless a name says more.
    let is_its_file = |only: &InspectedStep| {
        inspection.framework == GENERIC
            && only.step.rewritten
            && source.is_dir()
            && !says_newest(&only.step.path)
    };
    let only = match inspection.steps.as_slice() {
        [only] if !is_its_file(only) => Some(only),
        _ => None,
    };
    let origin = match (only, profile) {
        (Some(only), Some(profile)) => StepOrigin { best: only.best.clone(), ..only.step.origin(profile) },
        _ => StepOrigin::default(),
    };
    let only = only.map(|only| &only.step);
    let overwrites = |profile: &Profile| match only {
        Some(step) => step.is_overwritten(profile),
        None => profile.overwrites_finished_files(),
    };
    let rewritten = only.filter(|step| step.rewritten);
    SourceCheck {
        is_overwritten_in_place: profile.is_none_or(overwrites),
        is_overwritten: origin.rewritten
            || inspection.framework != GENERIC && profile.is_some_and(overwrites),
        faults: inspection.steps.iter().flat_map(|step| step.check.damage()).collect(),
        origin,
        stated_step: rewritten.and_then(|step| Step::new(step.step?).ok()),
    }
}

/// Inspects a directory of checkpoints, one checkpoint, or a single file, at the time `now`. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] for an unknown profile; the filesystem's error if `path` cannot be read.
pub fn inspect(path: &Path, request: &InspectRequest<'_>, now: Timestamp) -> Result<Inspection> {
    request.profile.map(|name| named(request.profiles, name)).transpose()?;
    judge(Subject::at(path)?, request, now)
}

/// What is inspected.
enum Subject {
    /// A trial of `AReaL`: only the directory above the given one shows the other half of a pair.
    Trial(PathBuf, View),
    /// A file or a directory.
    Entry {
        /// The content of the directory.
        inside: Option<View>,
        /// The entry itself, in a directory that has nothing else: it may be a step, which its own name shows.
        above: Option<View>,
    },
}

/// A directory, and how its files are read.
struct View {
    tree: Tree,
    files: Arc<dyn OpenFile>,
    checks_at_once: usize,
}

impl View {
    fn of_directory(tree: Tree, root: &Path) -> Result<Self> {
        Ok(Self { tree, files: Arc::new(SurveyFiles::open(root)?), checks_at_once: 1 })
    }
}

impl Subject {
    /// Surveys a path.
    fn at(path: &Path) -> Result<Self> {
        let facts = path.metadata().map_err(|error| stepvault_local::errors::io(WHAT, path, error))?;
        let inside = if facts.is_dir() { Some(survey(path)?) } else { None };
        if let Some(trial) = areal_trial(path) {
            let view = View::of_directory(survey(&trial)?, &trial)?;
            return Ok(Self::Trial(trial, view));
        }
        let above = entry_in_parent(path, inside.clone().unwrap_or_default())?;
        let inside = inside.map(|tree| View::of_directory(tree, path)).transpose()?;
        if inside.is_none() && above.is_none() {
            return Err(Error::new(ErrorKind::Usage, WHAT)
                .on(path.display())
                .because("its last component is not a name")
                .hint("give the directory that holds the checkpoints"));
        }
        Ok(Self::Entry { inside, above })
    }
}

/// Judges what was listed.
fn judge(subject: Subject, request: &InspectRequest<'_>, now: Timestamp) -> Result<Inspection> {
    let chosen = request.profile.map(|name| named(request.profiles, name)).transpose()?;
    let (inside, above) = match subject {
        Subject::Trial(trial, view) => {
            let checked = find_in(view, chosen, request, now)?.checked(request);
            return Ok(Inspection { directory: Some(trial), ..checked });
        }
        Subject::Entry { inside, above } => (inside, above),
    };
    let mut above = above.map(|view| find_in(view, chosen, request, now)).transpose()?;
    let Some(inside) = inside else {
        let Some(mut file) = above else {
            return Err(Error::new(ErrorKind::Failed, WHAT).because("there is nothing to inspect"));
        };
        if file.found.steps.is_empty() {
            file.found.steps = file_as_step(&file.tree);
        }
        // The user gave its path, so its name is not judged.
        if file.profile.name == GENERIC
            && let [only] = file.found.steps.as_mut_slice()
            && only.rewritten
            && !says_newest(&only.path)
        {
            only.complete = one_file();
        }
        return Ok(file.checked(request));
    };
    let runs = stepvault_runs(&inside.tree);
    let mut inside = find_in(inside, chosen, request, now)?;
    let below = inside.runs_below(request, now);
    // A name with a number shows no step if its directory holds the steps of frameworks.
    let is_named_so = |above: &UncheckedSteps<'_>| {
        let mut steps = above.found.steps.iter();
        above.profile.name != GENERIC || steps.any(|step| looks_like_a_step(last_component(&step.path)))
    };
    above = above.filter(|above| below.is_empty() || is_named_so(above));
    if let Some(above) = above.take_if(|above| above.shows_step_of(&inside)) {
        return Ok(Inspection { runs, is_from_above: true, ..above.checked(request) });
    }
    // A directory with a number in its name, such as `trial_0`, is no step if it holds the steps of a framework.
    inside.found.steps.retain(|step| {
        let is_in_step = |run: &RunBelow| Path::new(&run.directory).starts_with(&step.path);
        !below.iter().any(is_in_step)
    });
    if let Some(above) = above.filter(|above| above.shows_step_of(&inside)) {
        return Ok(Inspection { runs, is_from_above: true, ..above.checked(request) });
    }
    Ok(Inspection { below, runs, ..inside.checked(request) })
}

/// Returns the runs of stepvault whose markers lie in a tree.
fn stepvault_runs(tree: &Tree) -> Vec<String> {
    let marker = format!("{RECORDS_DIRECTORY}/vault.json");
    let run_of = |path: &str| {
        let run = path.strip_suffix(marker.as_str())?;
        if run.is_empty() { Some(String::new()) } else { run.strip_suffix('/').map(str::to_owned) }
    };
    tree.files().filter_map(|(path, _)| run_of(path)).collect()
}

/// Does the work for each item, at most `limit` at once, and returns the results in order. Blocks.
fn in_parallel<T: Sync, R: Send>(items: &[T], limit: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if limit <= 1 || items.len() <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        Some((index, items.get(index)?))
    };
    let results = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..limit.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = take() {
                    let result = work(item);
                    results.lock().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns the directory of `AReaL`'s trial if the path is one half of its pair, or a model's directory with one half:
/// `{trial}/{model}/recover_checkpoint` and `{trial}/recover_info`.
fn areal_trial(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let above = path.parent()?;
    let candidate = if path.ends_with("recover_checkpoint") {
        above.parent()?
    } else if path.ends_with("recover_info") || path.join("recover_checkpoint").is_dir() {
        above
    } else {
        return None;
    };
    let has_pair = candidate.join("recover_info/step_info.json").is_file();
    // A directory above the models is the trial itself.
    (has_pair && !path.join("recover_info").is_dir()).then(|| candidate.to_owned())
}

fn one_file() -> Completeness {
    Completeness::Complete { proof: "it is one file".to_owned(), quiet_rule: QuietRule::Always }
}

/// Returns the one file of a tree as a step, whatever its name is: it was asked for.
fn file_as_step(tree: &Tree) -> Vec<FoundStep> {
    let file = tree.files().map(|(path, entry)| FoundStep {
        path: path.to_owned(),
        members: vec![path.to_owned()],
        series: "file".to_owned(),
        step: None,
        rewritten: false,
        complete: one_file(),
        ranks: None,
        bytes: tree.file_size_bytes(path).unwrap_or_default(),
        files: 1,
        written_at: entry.mtime,
        content: 0,
        resumable: true,
    });
    file.take(1).collect()
}

/// Returns the entry at `path` with its content, in a tree of the parent directory that contains nothing else.
fn entry_in_parent(path: &Path, inside: Tree) -> Result<Option<View>> {
    let fault = |error| stepvault_local::errors::io(WHAT, path, error);
    let path = path.canonicalize().map_err(fault)?;
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(None);
    };
    let Some(entry) = stepvault_local::survey::entry(&path).map_err(fault)? else {
        return Ok(None);
    };
    View::of_directory(inside.under(name, entry), above).map(Some)
}

/// The findings before any file is checked.
struct UncheckedSteps<'a> {
    profile: &'a Profile,
    tree: Tree,
    files: Arc<dyn OpenFile>,
    checks_at_once: usize,
    why: Vec<String>,
    found: Found,
    extent: Extent,
}

fn find_in<'a>(
    view: View,
    chosen: Option<&'a Profile>,
    request: &InspectRequest<'a>,
    now: Timestamp,
) -> Result<UncheckedSteps<'a>> {
    let View { tree, files, checks_at_once } = view;
    let (profile, why) = match chosen {
        Some(profile) => (profile, vec!["it was requested".to_owned()]),
        None => match detect(&tree, &*files, request.profiles) {
            Some(Detection { profile, why, .. }) => (profile, why),
            None => return Err(Error::new(ErrorKind::Failed, "no profile is available")),
        },
    };
    let found = find_steps(profile, &tree, &*files, now, &request.options);
    Ok(UncheckedSteps { profile, tree, files, checks_at_once, why, found, extent: request.options.extent })
}

impl UncheckedSteps<'_> {
    /// Returns the runs in subdirectories, if the directory itself has no step of a framework, or if its profile finds
    /// steps only there and not all of them are of its framework.
    fn runs_below(&mut self, request: &InspectRequest<'_>, now: Timestamp) -> Vec<RunBelow> {
        let is_deep = |step: &FoundStep| step.path.contains('/');
        let has_none = self.profile.name == GENERIC || self.found.steps.is_empty();
        if !has_none && !self.found.steps.iter().all(is_deep) {
            return Vec::new();
        }
        let mut runs = runs_below(&self.tree, &*self.files, request.profiles, now, &request.options);
        // A part of a step may look like a step of another framework.
        runs.retain(|run| {
            let newest = run.newest.as_ref();
            let newest = newest.map(|step| format!("{}/{}", run.directory, step.path));
            let mut steps = self.found.steps.iter();
            has_none
                || run.profile == self.profile.name
                || !newest.is_some_and(|newest| steps.any(|step| step.members.contains(&newest)))
        });
        if has_none {
            return runs;
        }
        if request.profile.is_some() || runs.iter().all(|run| run.profile == self.profile.name) {
            return Vec::new();
        }
        self.found.steps.clear();
        runs
    }

    /// Whether these findings, in the parent directory, show that the directory with the findings `inside` is itself a
    /// step.
    fn shows_step_of(&self, inside: &Self) -> bool {
        // Files without a number are those of a step whose own name says so.
        let is_named = |step: &FoundStep| looks_like_a_step(last_component(&step.path)) && !step.rewritten;
        let are_unnumbered =
            || inside.found.steps.iter().all(|step| step.rewritten) && self.found.steps.iter().any(is_named);
        // An index names the files of one checkpoint.
        let has_index = || (inside.tree.children("")).any(|(name, _)| name.ends_with(".index.json"));
        let are_its_files = inside.profile.name == GENERIC && (are_unnumbered() || has_index());
        let tells = self.profile.name != GENERIC || inside.found.steps.is_empty() || are_its_files;
        // A step further down is itself a step, seen from too far above.
        tells && self.found.steps.iter().any(|step| !step.path.contains('/'))
    }

    fn checked(mut self, request: &InspectRequest<'_>) -> Inspection {
        let warnings = warnings(&self.found, &self.tree, &*self.files);
        let best_of = |step: &FoundStep| {
            if request.reads_best {
                self.found.best_of(step, self.profile, &self.tree, &*self.files)
            } else {
                Vec::new()
            }
        };
        let best: Vec<Vec<BestName>> = self.found.steps.iter().map(best_of).collect();
        let steps = std::mem::take(&mut self.found.steps);
        let all_bytes = steps.iter().map(|step| step.bytes).fold(0, u64::saturating_add);
        if let Some(observer) = request.deep {
            observer.on_event(&Event::ReadingStarted { tier: &Tier::Local, bytes: all_bytes });
        }
        let (steps_at_once, files_at_once) =
            if steps.len() > 1 { (self.checks_at_once, 1) } else { (1, self.checks_at_once) };
        let checks = in_parallel(&steps, steps_at_once, |step| self.check(step, files_at_once, request.deep));
        let steps = steps.into_iter().zip(best).zip(checks);
        let checked =
            steps.map(|((step, best), (check, deep))| InspectedStep { step, check, best, deep }).collect();
        if let Some(observer) = request.deep {
            observer.on_event(&Event::ReadingFinished { tier: &Tier::Local });
        }
        Inspection {
            directory: None,
            steps: checked,
            framework: self.profile.name.clone(),
            why: self.why,
            found: self.found,
            below: Vec::new(),
            warnings,
            is_from_above: false,
            runs: Vec::new(),
        }
    }

    fn check(
        &self,
        step: &FoundStep,
        at_once: usize,
        observer: Option<&dyn Observer>,
    ) -> (StepCheck, Option<DeepCheck>) {
        let run = |checks: &[Check], run: &(dyn Fn(&Check) -> Vec<Finding> + Sync)| {
            in_parallel(checks, at_once, run).concat()
        };
        let mut check = check_extent_by(&run, self.extent, step, &self.tree, &*self.files);
        let deep = observer.map(|observer| {
            read_step(step, &self.tree, &*self.files, &|bytes| {
                observer.on_event(&Event::BytesMoved { tier: &Tier::Local, bytes });
            })
        });
        if let Some(deep) = &deep {
            check.findings.extend(deep.findings.iter().cloned());
        }
        (check, deep)
    }
}

impl InspectedStep {
    /// Whether the trainer could resume from it, as far as is known: it is complete and no check found damage.
    pub fn is_valid(&self) -> bool {
        self.step.is_complete() && self.check.is_sound() != Some(false)
    }

    /// Returns its faults as text: completeness first, then each damaged file.
    pub fn reasons(&self) -> Vec<String> {
        let completeness = self.step.reasons().iter().cloned();
        completeness.chain(self.check.damage()).collect()
    }
}

impl Inspection {
    /// Returns whether there is a step to resume from.
    pub fn verdict(&self) -> Verdict {
        let Some(newest) = self.counted().map(|entry| self.order_of(entry)).max() else {
            return if self.steps.is_empty() { Verdict::NoStep } else { Verdict::NoneValid };
        };
        match self.newest_valid() {
            Some(entry) if self.order_of(entry) == newest => Verdict::Newest,
            Some(_) => Verdict::Older,
            None => Verdict::NoneValid,
        }
    }

    /// Returns the newest valid step; of several with the same number, the first.
    pub fn newest_valid(&self) -> Option<&InspectedStep> {
        let valid = self.counted().rev().filter(|entry| entry.is_valid());
        valid.max_by_key(|entry| self.order_of(entry))
    }

    /// Returns the newest step among those that are complete and proved sound.
    pub fn newest_sound(&self) -> Option<&InspectedStep> {
        let is_sound = |entry: &&InspectedStep| entry.is_valid() && entry.check.is_sound() == Some(true);
        self.counted().filter(is_sound).max_by_key(|entry| self.order_of(entry))
    }

    /// Returns a step's place in the order. A rewritten path that states no number gets the next one when it is sealed: it
    /// comes last if it was written after the step with the highest number.
    fn order_of(&self, entry: &InspectedStep) -> Option<u64> {
        let step = &entry.step;
        if step.step.is_some() || !step.rewritten {
            return step.step;
        }
        let numbered = self.counted().filter(|other| other.step.step.is_some());
        let highest = numbered.max_by_key(|other| other.step.step);
        let is_later = |highest: &InspectedStep| highest.step.written_at < step.written_at;
        highest.is_some_and(is_later).then_some(u64::MAX)
    }

    /// Returns the steps that count: those with temporary names do not, and those that a trainer cannot resume from
    /// count only if there are no others.
    fn counted(&self) -> impl DoubleEndedIterator<Item = &InspectedStep> {
        let is_named = |entry: &InspectedStep| !self.found.temporary.contains(&entry.step.path);
        let steps = self.steps.iter();
        let resumable = steps.clone().any(|entry| entry.step.resumable && is_named(entry));
        steps.filter(move |entry| is_named(entry) && entry.step.resumable == resumable)
    }
}

/// Returns the profile with this name.
///
/// # Errors
/// [`ErrorKind::Usage`] when there is none, with the existing names.
pub(crate) fn named<'a>(profiles: &'a ProfileSet, name: &str) -> Result<&'a Profile> {
    profiles.get(name).ok_or_else(|| {
        let known: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        Error::new(ErrorKind::Usage, "unknown profile")
            .on(name)
            .because("no built-in or configured profile has this name")
            .hint(format!("the profiles are {}", known.join(", ")))
    })
}
