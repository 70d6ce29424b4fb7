//! Finds finished steps in a watched directory. Nothing here writes to it.

mod announced;
mod early;
mod entry;
mod leftovers;
mod missing_files;
mod quiet;
mod scan;
mod selection;
#[cfg(test)]
mod soak;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::announced::ready_alone;
pub(crate) use self::early::EarlyPlace;
use self::early::EarlySteps;
use self::entry::Entry;
pub(crate) use self::entry::WAITS_FOR_SCAN;
use self::leftovers::Leftovers;
use self::missing_files::SealedFiles;
use self::quiet::QuietTimes;
use self::selection::Selection;
pub(crate) use self::wake::Wake;
use stepvault_core::config::{Completion, RunSettings};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::detect::detect;
use stepvault_formats::find::{Extent, Found, FoundStep, RunBelow};
use stepvault_formats::profile::{GENERIC, PathGlob, Profile, ProfileSet};
use stepvault_formats::tree::{OpenFile, Tree as SurveyTree};
use stepvault_local::early_links::EarlyLinks;
use stepvault_local::tree::{Checkpoint, Tree};
use tokio::time::Instant;

/// Maximum number of subdirectories that are watched for events.
const MAX_DIRECTORIES: usize = 16;

/// How long a single round waits to see whether an entry is still written, if it waits for nothing else.
const UNTIMED_ONCE: Duration = Duration::from_secs(1);

/// One watched directory, and the state of its entries.
#[derive(Debug)]
pub(crate) struct Discovery {
    directory: PathBuf,
    extent: Extent,
    mode: ScanMode,
    choice: Choice,
    selection: Selection,
    quiet: QuietTimes,
    seen: LastSurvey,
    /// By path below the directory.
    entries: BTreeMap<String, Entry>,
    /// What is not stored and may be a checkpoint.
    leftovers: Leftovers,
    /// Steps that are linked while their quiet time passes.
    early: EarlySteps,
    /// The files of the sealed steps.
    sealed_files: SealedFiles,
    /// Number of steps that vanished while nothing but their quiet time was waited for.
    vanished_unquiet: u32,
}

/// The last survey of the directory, and what was found in it.
#[derive(Debug, Default)]
struct LastSurvey {
    survey: SurveyTree,
    found: Found,
    /// The subdirectories with steps.
    runs_below: Vec<RunBelow>,
    /// Number of ranks of the last step that was ready.
    ranks: Option<u32>,
    /// When the next survey may follow.
    not_before: Option<Instant>,
}

/// How often the directory is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanMode {
    /// Repeatedly, for months, beside a trainer that needs the disk.
    Continuous,
    /// A few times only.
    Once,
}

/// A finished step.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    /// Its path below the watched directory.
    pub(crate) key: String,
    /// Its path, for messages; the first one of a multi-path step.
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Checkpoint,
    /// Its number; the next one of the run, if neither its name nor its content tells it.
    pub(crate) step: Option<Step>,
    /// Its files when it was found finished: it is sealed only if they are unchanged.
    pub(crate) tree: Arc<Tree>,
    /// The links that it is sealed from, if the trainer has deleted its own files.
    pub(crate) early: Option<Arc<EarlyLinks>>,
}

/// One of the trainer's own steps that was sealed as it is and that the trainer no longer needs.
#[derive(Debug, Clone)]
pub(crate) struct PrunableStep {
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
}

impl PrunableStep {
    /// Scans its files again; returns `None` when they are not those that were sealed. Blocks.
    pub(crate) fn unchanged(&self) -> Result<Option<Tree>> {
        let tree = self.checkpoint.scan()?;
        Ok((tree.fingerprint() == self.fingerprint).then_some(tree))
    }
}

/// The result of one scan.
#[derive(Debug, Default)]
pub(crate) struct ScanReport {
    /// Finished steps that were not handled yet, in the order in which they were written.
    pub(crate) ready: Vec<Ready>,
    /// Entries skipped permanently since the last scan, with the cause.
    pub(crate) skipped: Vec<(PathBuf, String)>,
    /// What a user should know of a step, with its path.
    pub(crate) warnings: Vec<(PathBuf, String)>,
    /// What happened to steps.
    pub(crate) infos: Vec<String>,
    /// New facts about the directory as a whole.
    pub(crate) news: Option<String>,
    /// A recommended change of its configuration.
    pub(crate) advice: Option<String>,
    /// When something may be ready before the next regular scan.
    pub(crate) again_at: Option<Instant>,
    /// Why the directory cannot be read.
    pub(crate) fault: Option<Error>,
}

impl ScanReport {
    fn again_by(&mut self, time: Option<Instant>) {
        self.again_at = [self.again_at, time].into_iter().flatten().min();
    }
}

impl Discovery {
    /// Creates the discovery of one run; `None` for one that is not watched. `extent` is how much of a step its
    /// directory holds.
    pub(crate) fn new(
        run: &RunSettings,
        profiles: &Arc<ProfileSet>,
        scan_mode: ScanMode,
        extent: Extent,
    ) -> Result<Option<Self>> {
        let Some(directory) = run.watch.clone() else {
            return Ok(None);
        };
        let error =
            |why: String| Error::new(ErrorKind::Usage, "cannot serve the run").on(&run.name).because(why);
        let names = run.pattern.clone().map(PathGlob::try_from).transpose();
        let names =
            names.map_err(|why| error(why).hint("write a glob such as step_* or {checkpoint,step}-*"))?;
        let configured = Profile::configured(&run.complete, names.clone()).map_err(error)?;
        // Profile and series are about frameworks alone.
        let series = run.series.clone().filter(|_| configured.is_none());
        let ignored = run.ignore.iter().cloned().map(PathGlob::try_from);
        let ignored: Vec<PathGlob> = ignored.collect::<std::result::Result<_, _>>().map_err(error)?;
        let choice = match (configured, &run.profile) {
            (Some(profile), _) => Choice::of(profile, ignored),
            (None, None) => Choice { profile: None, others: Some(Arc::clone(profiles)), ignored },
            (None, Some(name)) => {
                let profile = profiles.get(name).cloned();
                let profile = profile.ok_or_else(|| error(format!("there is no profile '{name}'")))?;
                Choice::of(profile, ignored)
            }
        };
        let quiet_time = run.complete.quiet_time();
        let expected_within = quiet_time.unwrap_or(RunSettings::DEFAULT_QUIET_TIME);
        Ok(Some(Self {
            directory,
            extent,
            mode: scan_mode,
            choice,
            selection: Selection::new(names, series),
            quiet: QuietTimes {
                of_steps: match run.complete {
                    // Nothing but the name is waited for.
                    Completion::Rename => Duration::ZERO,
                    _ => expected_within,
                },
                of_rest: match (quiet_time, scan_mode) {
                    // Nothing else is waited for.
                    (None, ScanMode::Once) => UNTIMED_ONCE,
                    _ => expected_within,
                },
                announced_within: run.announced.then_some(expected_within),
                accepts_missing_files: false,
            },
            seen: LastSurvey::default(),
            entries: BTreeMap::new(),
            leftovers: Leftovers::default(),
            early: EarlySteps::default(),
            sealed_files: SealedFiles::default(),
            vanished_unquiet: 0,
        }))
    }

    /// Leaves to other runs of the same directory what their patterns and series include.
    pub(crate) fn share_directory<'a>(&mut self, others: impl Iterator<Item = &'a RunSettings>) {
        let others = others.filter(|other| other.watch.as_deref() == Some(&*self.directory));
        let mut others = others.map(|other| other.pattern.clone()).peekable();
        if others.peek().is_some() {
            let globs = others.flatten().map(PathGlob::try_from);
            self.selection.other_names = Some(globs.filter_map(std::result::Result::ok).collect());
        }
    }

    /// Returns the directories in which new steps appear, as far as known.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let steps = self.seen.found.steps.iter();
        let inner: BTreeSet<_> = steps
            .filter_map(|step| Path::new(&step.path).parent())
            .filter(|parent| !parent.as_os_str().is_empty())
            .collect();
        let inner = inner.into_iter().take(MAX_DIRECTORIES);
        std::iter::once(self.directory.clone()).chain(inner.map(|path| self.directory.join(path))).collect()
    }

    /// Returns what was seen so far, by the keys of [`Ready`].
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        self.entries.keys().cloned().collect()
    }

    /// Returns how long a step may have to be unchanged.
    pub(crate) fn quiet_time(&self) -> Duration {
        self.quiet.of_steps
    }

    /// Waits for no longer quiet time than this from now on, and for no announcement: the trainer has ended.
    pub(crate) fn shorten_quiet_time(&mut self, longest: Duration) {
        self.quiet.of_steps = self.quiet.of_steps.min(longest);
        self.quiet.of_rest = self.quiet.of_rest.min(longest);
        self.quiet.announced_within = None;
        self.allow_immediate_scan();
    }

    /// Links steps into the vault while their quiet time passes.
    pub(crate) fn link_early(&mut self, place: EarlyPlace) {
        if self.mode == ScanMode::Continuous {
            self.early.enable(place);
        }
    }

    /// Waits no longer for files that all earlier steps have: there will be no later time to seal a step.
    pub(crate) fn accept_missing_files(&mut self) {
        self.quiet.accepts_missing_files = true;
    }

    /// Makes the next scan list the directory, however recent the last listing is.
    pub(crate) fn allow_immediate_scan(&mut self) {
        self.seen.not_before = None;
    }

    /// Records that the entry was handled: it is ignored until it is modified.
    pub(crate) fn handled(&mut self, ready: &Ready) {
        self.early.forget(&ready.key);
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.handled(&ready.tree);
            entry.last_number = ready.step;
        }
    }

    /// Records that the entry cannot be sealed as it is: it is ignored until it is modified, and counts as not durable.
    pub(crate) fn skipped(&mut self, ready: &Ready, reason: String) {
        self.early.forget(&ready.key);
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.skipped(&ready.tree, reason);
        }
    }

    /// Whether an entry of the directory represents it.
    pub(crate) fn knows(&self, ready: &Ready) -> bool {
        self.entries.contains_key(&ready.key)
    }

    /// Whether an earlier state of the entry was handled.
    pub(crate) fn was_handled(&self, ready: &Ready) -> bool {
        self.entries.get(&ready.key).is_some_and(|entry| entry.was_handled)
    }

    /// Records that the entry was not sealed and is retried after a pause of at most `longest`.
    pub(crate) fn failed(&mut self, ready: &Ready, longest: Duration, reason: String) {
        // Logged each time: only the first is reported as a warning.
        let path = self.directory.join(&ready.key);
        tracing::debug!(path = %path.display(), reason, "not sealed; retrying later");
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.failed(longest, reason);
        }
    }

    /// Returns the path of an entry, as in [`Self::unfinished`].
    pub(crate) fn path_of(&self, ready: &Ready) -> PathBuf {
        self.directory.join(&ready.key)
    }

    /// Ends all pauses.
    pub(crate) fn try_now(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.pause.clear());
    }

    /// Returns when the first pause ends.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.pause.until()).min()
    }

    /// Returns what is finished, as far as known, but not sealed, with the cause; also what may be a checkpoint and
    /// belongs to no step.
    pub(crate) fn unsealed(&self) -> Vec<(PathBuf, String)> {
        let mut unsealed = self.entries_with(Entry::unsealed);
        unsealed.extend(self.leftovers.unsealed(&self.directory));
        unsealed
    }

    /// Returns the steps that have all their files and are not quiet yet, with the cause, and what may be a checkpoint and
    /// is not quiet yet.
    pub(crate) fn waiting(&self) -> Vec<(PathBuf, String)> {
        let mut waiting = self.entries_with(Entry::waiting);
        waiting.extend(self.leftovers.waiting(&self.directory));
        waiting
    }

    /// Returns the entries that were neither sealed nor skipped, with the cause.
    pub(crate) fn unfinished(&self) -> Vec<(PathBuf, String)> {
        self.entries_with(Entry::trouble)
    }

    fn entries_with(&self, cause: fn(&Entry) -> Option<&str>) -> Vec<(PathBuf, String)> {
        let with_cause =
            |(key, entry): (&String, &Entry)| Some((self.directory.join(key), cause(entry)?.to_owned()));
        self.entries.iter().filter_map(with_cause).collect()
    }
}

/// The current profile, and whether it may still change.
#[derive(Debug)]
struct Choice {
    /// The current one; `None` before the first scan.
    profile: Option<Profile>,
    /// The profiles to choose from; `None` once the choice is final: it was configured, or a step that is complete by
    /// it was seen.
    others: Option<Arc<ProfileSet>>,
    /// What the run excludes, in addition to what its profile excludes.
    ignored: Vec<PathGlob>,
}

impl Choice {
    /// Creates a final choice.
    fn of(mut profile: Profile, ignored: Vec<PathGlob>) -> Self {
        profile.ignored.extend(ignored);
        Self { profile: Some(profile), others: None, ignored: Vec::new() }
    }

    /// Returns whether the content of a directory need not be scanned. While the choice is open, every path is
    /// evidence.
    fn ignores(&self, path: &str) -> bool {
        self.others.is_none() && self.profile.as_ref().is_some_and(|profile| profile.ignores(path))
    }

    /// Detects the profile from the directory's content, and returns a message when the choice changes.
    ///
    /// The first files of a run may look like several frameworks': the choice stays open until a step is complete by
    /// it.
    fn detect(&mut self, tree: &SurveyTree, files: &dyn OpenFile) -> Option<String> {
        let detection = detect(tree, files, self.others.as_ref()?)?;
        let name = &detection.profile.name;
        let is_first = self.profile.is_none();
        if self.profile.as_ref().is_some_and(|profile| profile.name == *name) {
            return None;
        }
        let text = if name == GENERIC {
            "no framework recognized yet: a directory or file with a step number in its name is sealed once it stops \
             changing"
                .to_owned()
        } else {
            format!("written by {}: {} ({})", name, detection.profile.description, detection.why.join(", "))
        };
        // An empty directory is not reported.
        let is_news = !is_first || name != GENERIC || tree.entries().next().is_some();
        let mut profile = detection.profile.clone();
        profile.ignored.extend(self.ignored.iter().cloned());
        self.profile = Some(profile);
        is_news.then_some(text)
    }

    /// Makes the choice final once a step is complete by it. The generic profile stays open, because it fits anything.
    fn settle(&mut self, found: &Found) {
        let fits_anything = self.profile.as_ref().is_none_or(|profile| profile.name == GENERIC);
        if !fits_anything && found.steps.iter().any(FoundStep::is_complete) {
            self.others = None;
        }
    }
}
