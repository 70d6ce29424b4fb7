//! Scans a watched directory for finished steps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::ids::Step;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::check::{StepCheck, check_extent};
use stepvault_formats::find::{Extent, FindOptions, Found, FoundStep, find_steps, runs_below};
use stepvault_formats::profile::{GENERIC, Profile};
use stepvault_formats::tree::{OpenFile, Tree};
use stepvault_local::sealed::SealedStep;
use stepvault_local::survey::{Below, SurveyFiles, survey_again};
use tokio::time::Instant;

use super::entry::{Candidate, Entry, EntryOutcome};
use super::missing_files::{SealedFiles, patience, warning};
use super::{Discovery, Ready, ScanMode, ScanReport, selection};

/// Quiet time is measured here, by this machine's clock and by observation: the profile's own rule is evaluated as if
/// nothing were ever written again.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);
/// Scanning takes at most one part in this many of the time.
const SHARE_OF_TIME: u32 = 20;
/// From this size on, a file in a directory without steps is mentioned: it may be a checkpoint.
const UNEXPLAINED_BYTES: u64 = 16 << 20;
/// Not while it may still be written.
const UNEXPLAINED_AFTER: Duration = Duration::from_mins(1);
/// One step that vanished may be an accident.
const VANISHED_TOLD_AFTER: u32 = 2;

impl Discovery {
    /// Scans the directory. `sealed` returns the steps in the vault, and is called when there is a new entry, which may
    /// be one of them. Blocks.
    pub(crate) fn look(&mut self, now: Timestamp, sealed: impl FnOnce() -> Vec<SealedStep>) -> ScanReport {
        let mut report = ScanReport::default();
        if let Some(time) = self.not_before.filter(|time| *time > Instant::now()) {
            report.again_by(Some(time));
            return report;
        }
        let begun = Instant::now();
        if let Err(error) = self.scan_into(now, sealed, &mut report) {
            report.fault = Some(error);
        }
        if self.vanished_unquiet >= VANISHED_TOLD_AFTER && report.advice.is_none() {
            report.advice = Some(format!(
                "the trainer deletes its steps before they are sealed: at least {VANISHED_TOLD_AFTER} vanished before they had \
                 been unchanged for {} s; let it keep more steps, set a shorter quiet-time, or announce each step with \
                 'stepvault announce'",
                self.quiet_time.as_secs()
            ));
        }
        self.not_before = match self.scan_mode {
            ScanMode::Continuous => Some(Instant::now() + begun.elapsed() * SHARE_OF_TIME),
            ScanMode::Once => None,
        };
        // Attempts depend on the order in which steps were written.
        report.ready.sort_by_key(|ready| (ready.newest, ready.step));
        report
    }

    fn scan_into(
        &mut self,
        now: Timestamp,
        sealed: impl FnOnce() -> Vec<SealedStep>,
        report: &mut ScanReport,
    ) -> stepvault_core::Result<()> {
        let tree = self.list()?;
        // It contains nothing that could be opened, and may not even exist.
        if tree.entries().next().is_none() {
            (self.survey, self.found) = (tree, Found::default());
            self.forget_vanished(report);
            return Ok(());
        }
        let files = SurveyFiles::open(&self.directory)?;
        if tree != self.survey {
            report.news = self.choice.detect(&tree, &files);
            self.found = self.find(&tree, &files);
            self.choice.settle(&self.found);
            self.run_below = self.run_below(&tree, &files);
            self.survey = tree;
        }
        self.forget_vanished(report);
        let Some(profile) = self.choice.profile() else {
            return Ok(());
        };
        let selected = self.selection.of(profile, &self.found);
        let paths: BTreeSet<&str> = selected.steps.iter().map(|step| step.path.as_str()).collect();
        self.entries.retain(|key, _| paths.contains(key.as_str()));
        report.advice = selected.advice;
        self.not_taken = None;
        if selected.steps.is_empty() {
            let has_advice = report.advice.is_some();
            let large = || self.large_file(now).filter(|_| !has_advice);
            self.not_taken = self.run_below.clone().or_else(large);
            let advice = self.not_taken.as_ref().map(NotTaken::advice);
            report.advice = advice.or(report.advice.take());
        }
        // Only those that may be sealed are compared with the vault, whose records take long to read.
        let is_new = |step: &FoundStep| {
            step.is_complete()
                && (step.step.is_some() || step.rewritten)
                && self.entries.get(&step.path).is_none_or(Entry::is_new)
        };
        let sealed = if selected.steps.iter().any(|step| is_new(step)) {
            let sealed = sealed();
            self.sealed_files = SealedFiles::of(&sealed);
            sealed
        } else {
            Vec::new()
        };
        let facts = ScanFacts {
            directory: &self.directory,
            profile,
            tree: &self.survey,
            files: &files,
            quiet_time: self.quiet_time,
            announced_within: self.announced_within,
            extent: self.extent,
            found: &self.found,
            sealed_files: &self.sealed_files,
            patience: if self.accepts_missing_files {
                Duration::ZERO
            } else {
                patience(self.quiet_time)
            },
        };
        // Of other steps nothing ever proves that a save was over.
        let may_be_proved = profile.name != GENERIC && profile.names.is_none() && !self.extent.is_part();
        let mut waiting = Vec::new();
        for step in &selected.steps {
            // What the trainer is deleting is sealed from its links.
            if report.ready.iter().any(|ready| ready.key == step.path) {
                continue;
            }
            let entry = self.entries.entry(step.path.clone());
            let entry = entry.or_insert_with(Entry::just_surveyed);
            if let Some(ready) = facts.check(step, entry, now, &sealed, report) {
                self.ranks = step.ranks.or(self.ranks);
                if entry.ends_to_state_a_number(ready.step) {
                    report.news = Some(format!(
                        "{} states no step number any more, as after the end of a training: it becomes the next step, and \
                         the one before it stays",
                        ready.path.display()
                    ));
                }
                report.ready.push(ready);
            } else if entry.is_waiting_at_first() && may_be_proved {
                waiting.push(step.as_ref());
            }
        }
        for step in waiting {
            let links = selection::links_of(profile, step);
            self.early.link(&self.directory, step, links);
        }
        Ok(())
    }

    /// Lists the directory. A handled entry whose own metadata is unchanged is not listed again for a while.
    pub(super) fn list(&mut self) -> stepvault_core::Result<Tree> {
        let settled: BTreeSet<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_settled())
            .map(|(key, _)| key.clone())
            .collect();
        let below = |path: &str| {
            if settled.contains(path) {
                Below::AsKnown
            } else if self.choice.ignores(path) {
                Below::Nothing
            } else {
                Below::List
            }
        };
        let tree = match survey_again(&self.directory, &self.survey, &below) {
            Err(error) if error.kind() == ErrorKind::NotFound => Tree::default(),
            surveyed => surveyed?,
        };
        for (_, entry) in self.entries.iter_mut().filter(|(key, _)| !settled.contains(*key)) {
            entry.surveyed();
        }
        Ok(tree)
    }

    fn find(&self, tree: &Tree, files: &dyn OpenFile) -> Found {
        let options = FindOptions {
            quiet_seconds: 0,
            previous_ranks: self.ranks,
            extent: self.extent,
            ..FindOptions::default()
        };
        let profile = self.choice.profile();
        profile.map_or_else(Found::default, |profile| {
            find_steps(profile, tree, files, END_OF_TIME, &options)
        })
    }

    /// Returns the subdirectory that holds steps and that the profile does not look into.
    fn run_below(&self, tree: &Tree, files: &dyn OpenFile) -> Option<NotTaken> {
        let profiles = self.choice.others()?;
        let profile = self.choice.profile()?;
        if !self.selection.of(profile, &self.found).steps.is_empty() {
            return None;
        }
        let runs = runs_below(tree, files, profiles, END_OF_TIME, &FindOptions::default());
        let first = runs.first()?;
        let more = match runs.len() {
            1 => String::new(),
            count => format!(", as do {} other directories", count - 1),
        };
        Some(NotTaken {
            path: self.directory.join(&first.directory),
            why: format!("holds steps of {}{more}", first.profile),
            hint: "watch that directory, each in a run of its own",
        })
    }

    /// Returns a large file that is written no more and belongs to no step.
    fn large_file(&self, now: Timestamp) -> Option<NotTaken> {
        let is_large = |path: &str| {
            let size_bytes = self.survey.file_size_bytes(path);
            size_bytes.is_some_and(|bytes| bytes >= UNEXPLAINED_BYTES)
        };
        // Without a quiet time, the trainer has ended.
        let least_age_seconds = match self.quiet_time {
            Duration::ZERO => 0,
            quiet_time => quiet_time.max(UNEXPLAINED_AFTER).as_secs(),
        };
        let large = self.survey.files().filter(|(path, entry)| {
            is_large(path) && entry.mtime <= now && now.seconds_since(entry.mtime) >= least_age_seconds
        });
        let (path, _) = large.max_by_key(|(_, entry)| entry.mtime)?;
        Some(NotTaken {
            path: self.directory.join(path),
            why: "is large, and no name on its path shows a step".to_owned(),
            hint: "if it is a checkpoint, write the step's number into its name, set 'pattern', or announce it with \
                   'stepvault announce'",
        })
    }

    /// Forgets the entries that are gone, and reports those that were never sealed.
    fn forget_vanished(&mut self, report: &mut ScanReport) {
        self.seal_deleted(report);
        self.entries.retain(|key, entry| {
            let stays = self.survey.get(key).is_some();
            if !stays && entry.waiting().is_some() {
                self.vanished_unquiet = self.vanished_unquiet.saturating_add(1);
            }
            if !stays && let Some(why) = entry.trouble() {
                let reason = format!("it vanished before it was sealed ({why})");
                report.skipped.push((self.directory.join(key), reason));
            }
            stays
        });
    }
}

/// What may be a checkpoint, in a directory in which nothing is taken for one.
#[derive(Debug, Clone)]
pub(super) struct NotTaken {
    pub(super) path: PathBuf,
    pub(super) why: String,
    hint: &'static str,
}

impl NotTaken {
    fn advice(&self) -> String {
        let path = self.path.display();
        format!("nothing is sealed: {path} {}; {}", self.why, self.hint)
    }
}

/// The findings of one scan.
struct ScanFacts<'a> {
    directory: &'a Path,
    profile: &'a Profile,
    tree: &'a Tree,
    files: &'a SurveyFiles,
    quiet_time: Duration,
    announced_within: Option<Duration>,
    extent: Extent,
    found: &'a Found,
    sealed_files: &'a SealedFiles,
    /// How long a step must be unchanged that lacks files of all earlier ones.
    patience: Duration,
}

impl ScanFacts<'_> {
    fn check(
        &self,
        step: &FoundStep,
        entry: &mut Entry,
        now: Timestamp,
        sealed: &[SealedStep],
        report: &mut ScanReport,
    ) -> Option<Ready> {
        let path = self.directory.join(&step.path);
        let (number, origin) = match selection::identity(self.profile, self.directory, step) {
            Ok(identity) => identity,
            Err(reason) => {
                report
                    .skipped
                    .extend(entry.skip(reason).map(|reason| (path, reason)));
                return None;
            }
        };
        let candidate = Candidate {
            origin: &origin,
            step,
            quiet_time: self.quiet_time,
            announced_within: self.announced_within,
            structure: &|| match self.profile.names {
                Some(_) => StepCheck::default(),
                None => check_extent(self.extent, step, self.tree, self.files),
            },
            missing: &|tree| match (self.found.missing.get(&step.path), step.step) {
                (Some(missing), Some(number)) => {
                    self.sealed_files.missing(&origin, number, tree, missing.as_ref())
                }
                _ => Vec::new(),
            },
            patience: self.patience,
        };
        let outcome = entry.check(&candidate, now, sealed);
        let warning = warning(entry, &outcome, &path, self.patience);
        report.warnings.extend(warning);
        match outcome {
            EntryOutcome::Nothing => None,
            EntryOutcome::Skipped(reason) => {
                report.skipped.push((path, reason));
                None
            }
            EntryOutcome::Later(time) => {
                report.again_by(time);
                None
            }
            EntryOutcome::Ready {
                fingerprint,
                files,
                newest,
                bytes,
            } => Some(Ready {
                step: self.number_now(step, number),
                key: step.path.clone(),
                path,
                origin: origin.naming(self.found.best_of(step, self.profile, self.tree, self.files)),
                fingerprint,
                files,
                newest,
                bytes,
                links: selection::links_of(self.profile, step),
                early: None,
                metrics: BTreeMap::new(),
            }),
        }
    }

    /// Returns the number of a step that is ready. The content that states it may be another than at the last search.
    fn number_now(&self, step: &FoundStep, number: Option<Step>) -> Option<Step> {
        if !step.rewritten || number.is_none() {
            return number;
        }
        Step::new(step.stated_step(self.profile, self.tree, self.files)?).ok()
    }
}
