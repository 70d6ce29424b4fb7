//! Scans a watched directory for finished steps.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::{ErrorKind, Result, Step, Timestamp};
use stepvault_formats::find::{
    FindOptions, Found, FoundStep, Leftover, RunBelow, copied_files, find_steps, leftovers, runs_below,
};
use stepvault_formats::profile::{GENERIC, Profile};
use stepvault_formats::prunable::prunable;
use stepvault_formats::tree::Tree;
use stepvault_local::sealed::SealedStep;
use stepvault_local::survey::{Below, SurveyFiles, survey_again};
use tokio::time::Instant;

use super::entry::{Entry, EntryOutcome, ScanFacts};
use super::leftovers::Leftovers;
use super::missing_files::SealedFiles;
use super::{Discovery, PrunableStep, Ready, ScanMode, ScanReport, selection};

/// Quiet time is measured here, by this machine's clock and by observation: the profile's own rule is evaluated as if
/// nothing were ever written again.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);
/// Scanning takes at most one part in this many of the time.
const SHARE_OF_TIME: u32 = 20;
/// One step that vanished may be an accident.
const VANISHED_TOLD_AFTER: u32 = 2;

impl Discovery {
    /// Scans the directory. `sealed` returns the steps in the vault, and is called when there is a new entry, which may
    /// be one of them. Blocks.
    pub(crate) fn scan(&mut self, now: Timestamp, sealed: impl FnOnce() -> Vec<SealedStep>) -> ScanReport {
        let mut report = ScanReport::default();
        if let Some(time) = self.seen.not_before.filter(|time| *time > Instant::now()) {
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
                self.quiet.of_steps.as_secs()
            ));
        }
        self.seen.not_before = match self.mode {
            ScanMode::Continuous => Some(Instant::now() + begun.elapsed() * SHARE_OF_TIME),
            ScanMode::Once => None,
        };
        // Attempts depend on the order in which steps were written.
        // What has no number gets one behind all others.
        report
            .ready
            .sort_by_cached_key(|ready| (ready.step.is_none(), ready.tree.newest_mtime(), ready.step));
        report
    }

    fn scan_into(
        &mut self,
        now: Timestamp,
        sealed: impl FnOnce() -> Vec<SealedStep>,
        report: &mut ScanReport,
    ) -> Result<()> {
        let tree = self.list()?;
        // It contains nothing that could be opened, and may not even exist.
        if tree.entries().next().is_none() {
            (self.seen.survey, self.seen.found) = (tree, Found::default());
            self.leftovers = Leftovers::default();
            self.forget_vanished(report);
            return Ok(());
        }
        let files = SurveyFiles::open(&self.directory)?;
        if tree != self.seen.survey {
            report.news = self.find_steps(tree, &files);
        }
        self.forget_vanished(report);
        let Some(profile) = self.choice.profile.as_ref() else {
            return Ok(());
        };
        let selected = self.selection.of(profile, &self.seen.found);
        let paths: BTreeSet<&str> = selected.steps.iter().map(|step| step.path.as_str()).collect();
        self.entries.retain(|key, _| paths.contains(key.as_str()));
        report.advice = selected.advice;
        // Only those that may be sealed are compared with the vault, whose records take long to read.
        let is_new = |step: &FoundStep| {
            step.is_complete()
                && (step.step.is_some() || step.rewritten)
                && self.entries.get(&step.path).is_none_or(|entry| !entry.compared)
        };
        let mut rest = self.left_over(profile, &paths, &files);
        let mut in_vault = Vec::new();
        if selected.steps.iter().any(|step| is_new(step)) || self.leftovers.has_new(&rest) {
            in_vault = sealed();
            self.sealed_files = SealedFiles::of(&in_vault);
            self.leftovers.add_sealed(&in_vault);
            rest = self.left_over(profile, &paths, &files);
        }
        let facts = ScanFacts {
            directory: &self.directory,
            profile,
            survey: &self.seen.survey,
            files: &files,
            found: &self.seen.found,
            extent: self.extent,
            quiet: self.quiet,
            now,
            sealed: &in_vault,
            sealed_files: &self.sealed_files,
        };
        let (waiting, ranks) = facts.check_all(&selected.steps, &mut self.entries, report);
        for step in &selected.steps {
            self.early.found_again(step);
        }
        for step in waiting {
            self.early.link(&self.directory, step, selection::links_of(profile, step));
        }
        self.seen.ranks = ranks.or(self.seen.ranks);
        self.account_for(rest, now, report);
        Ok(())
    }

    /// Recognises the framework and finds its steps in a directory that has changed. Returns what a user should know of the
    /// framework.
    fn find_steps(&mut self, tree: Tree, files: &SurveyFiles) -> Option<String> {
        let news = self.choice.detect(&tree, files);
        let options = FindOptions {
            quiet_seconds: 0,
            previous_ranks: self.seen.ranks,
            extent: self.extent,
            ..FindOptions::default()
        };
        let mut found = match self.choice.profile.as_ref() {
            Some(profile) => find_steps(profile, &tree, files, END_OF_TIME, &options),
            None => Found::default(),
        };
        let copies = copied_files(&found, &tree, files);
        found.copies.extend(copies);
        self.choice.settle(&found);
        self.seen.runs_below = match self.choice.others.as_deref() {
            Some(profiles) => runs_below(&tree, files, profiles, END_OF_TIME, &FindOptions::default()),
            None => Vec::new(),
        };
        (self.seen.survey, self.seen.found) = (tree, found);
        news
    }

    /// Lists the directory. A handled entry whose own metadata is unchanged is not listed again for a while.
    pub(super) fn list(&mut self) -> Result<Tree> {
        let settled: BTreeSet<String> =
            self.entries.iter().filter(|(_, entry)| entry.is_settled()).map(|(key, _)| key.clone()).collect();
        let below = |path: &str| {
            if settled.contains(path) {
                Below::AsKnown
            } else if self.choice.ignores(path) {
                Below::Nothing
            } else {
                Below::List
            }
        };
        let tree = match survey_again(&self.directory, &self.seen.survey, &below) {
            Err(error) if error.kind() == ErrorKind::NotFound => Tree::default(),
            surveyed => surveyed?,
        };
        for (_, entry) in self.entries.iter_mut().filter(|(key, _)| !settled.contains(*key)) {
            entry.surveyed = Some(Instant::now());
        }
        Ok(tree)
    }

    /// Returns the entries that may be checkpoints and belong to no step that is, or can be, sealed; `selected` are the paths
    /// of the steps that the run includes.
    fn left_over(&self, profile: &Profile, selected: &BTreeSet<&str>, files: &SurveyFiles) -> Vec<Leftover> {
        let excludes = self.selection.excludes_others();
        let is_accounted_for = |step: &FoundStep| {
            // Of a step that was sealed, or could once be resumed from, the rest may be what a trainer is deleting.
            let was_sealed = || {
                let entry = self.entries.get(&step.path);
                entry.is_some_and(|entry| entry.was_handled)
                    || self.leftovers.sealed_names.contains(&step.name(profile))
            };
            let is_spent = !step.resumable && step.was_resumable(profile);
            excludes
                || is_spent
                || selected.contains(step.path.as_str()) && (step.is_complete() || was_sealed())
        };
        leftovers(&self.seen.found, is_accounted_for, &self.seen.survey, files)
    }

    /// Records what is not stored and may be a checkpoint, and warns of it.
    fn account_for(&mut self, leftovers: Vec<Leftover>, now: Timestamp, report: &mut ScanReport) {
        let own = leftovers.into_iter();
        let own = own.filter(|leftover| self.selection.may_be_own(&leftover.path));
        let own = own.map(|leftover| {
            let why = self.about(&leftover);
            (leftover, why)
        });
        let own: Vec<_> = own.collect();
        let again = self.leftovers.update(own, now, self.quiet.of_rest);
        report.again_by(again);
        let warning = self.leftovers.warning(&self.directory);
        report.warnings.extend(warning.map(|text| (self.directory.clone(), text)));
    }

    /// Returns what is known of an entry that is not stored.
    fn about(&self, leftover: &Leftover) -> String {
        let mut steps = self.seen.found.steps.iter();
        if let Some(step) = steps.find(|step| step.members.contains(&leftover.path)) {
            return if step.is_complete() {
                format!("belongs to the series '{}', which the run does not include", step.series)
            } else {
                format!("is not complete: {}", step.reasons().join("; "))
            };
        }
        let is_inside = |run: &&RunBelow| {
            let rest = run.directory.strip_prefix(leftover.path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let runs: Vec<&RunBelow> = self.seen.runs_below.iter().filter(is_inside).collect();
        match runs.as_slice() {
            [] if leftover.is_directory => "may hold a checkpoint".to_owned(),
            [] => "may be a checkpoint, and its name shows no step".to_owned(),
            [run] if run.profile == GENERIC => format!("holds steps in {}", run.directory),
            [run] => format!("holds steps of {} in {}", run.profile, run.directory),
            [run, ..] => format!("holds steps of {} runs, as in {}", runs.len(), run.directory),
        }
    }

    /// Forgets the entries that are gone, and reports those that were never sealed.
    fn forget_vanished(&mut self, report: &mut ScanReport) {
        self.seal_deleted(report);
        self.entries.retain(|key, entry| {
            let stays = self.seen.survey.get(key).is_some();
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

    /// Returns the trainer's own steps that it no longer needs, as far as its profile knows, the oldest first. Blocks.
    pub(crate) fn prunable_steps(&mut self) -> Result<Vec<PrunableStep>> {
        let tree = self.list()?;
        // It is unknown what an unknown trainer needs.
        let is_known = |profile: &&Profile| profile.name != GENERIC && profile.names.is_none();
        let Some(profile) = self.choice.profile.as_ref().filter(is_known) else {
            return Ok(Vec::new());
        };
        // A directory that changed since the last scan is judged by the next scan first.
        if tree != self.seen.survey || tree.entries().next().is_none() {
            return Ok(Vec::new());
        }
        let files = SurveyFiles::open(&self.directory)?;
        let handled_as = |step: &FoundStep| self.entries.get(&step.path).and_then(Entry::handled_as);
        // A run that went back writes lower numbers later: its newest step is the one written last.
        let is_followed = |step: &FoundStep| {
            self.seen.found.steps.iter().any(|newer| {
                newer.series == step.series
                    && newer.is_complete()
                    && newer.step > step.step
                    && newer.written_at >= step.written_at
                    && handled_as(newer).is_some()
            })
        };
        let mut steps = prunable(profile, &tree, &files, &self.seen.found);
        // A path that is rewritten is where the trainer resumes from.
        steps.retain(|step| !step.rewritten && is_followed(step));
        steps.sort_by_key(|step| (step.written_at, step.step));
        let identified = |step: &FoundStep| {
            let (number, checkpoint) = selection::identity(profile, &self.directory, step).ok()?;
            Some(PrunableStep {
                path: self.directory.join(&step.path),
                checkpoint,
                step: number?,
                fingerprint: handled_as(step)?,
            })
        };
        Ok(steps.into_iter().filter_map(identified).collect())
    }
}

impl ScanFacts<'_> {
    /// Checks all steps, and adds those that are ready to the report. Returns the steps that wait and may be linked
    /// meanwhile, and the number of ranks that wrote the last one that is ready.
    fn check_all<'a>(
        &self,
        steps: &'a [Cow<'_, FoundStep>],
        entries: &mut BTreeMap<String, Entry>,
        report: &mut ScanReport,
    ) -> (Vec<&'a FoundStep>, Option<u32>) {
        let profile = self.profile;
        // Of other steps nothing ever proves that a save was over.
        let may_be_proved = profile.name != GENERIC && profile.names.is_none() && !self.extent.is_part();
        let (mut waiting, mut ranks) = (Vec::new(), None);
        for step in steps {
            // What the trainer is deleting is sealed from its links.
            if report.ready.iter().any(|ready| ready.key == step.path) {
                continue;
            }
            let entry = entries.entry(step.path.clone()).or_insert_with(Entry::just_surveyed);
            if let Some(ready) = self.check(step, entry, report) {
                ranks = step.ranks.or(ranks);
                if entry.last_number.is_some() && ready.step.is_none() {
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
        (waiting, ranks)
    }

    /// Checks a step, and records in `report` what a user should know of it. Returns it when it is finished.
    fn check(&self, step: &FoundStep, entry: &mut Entry, report: &mut ScanReport) -> Option<Ready> {
        let path = self.directory.join(&step.path);
        let (number, mut checkpoint) = match selection::identity(self.profile, self.directory, step) {
            Ok(identity) => identity,
            Err(reason) => {
                report.skipped.extend(entry.skip(reason).map(|reason| (path, reason)));
                return None;
            }
        };
        let outcome = entry.check(self, step, &checkpoint);
        let warning = entry.warning(&outcome, &path, self.quiet.patience());
        report.warnings.extend(warning.map(|text| (path.clone(), text)));
        match outcome {
            EntryOutcome::NoAction => None,
            EntryOutcome::Skipped(reason) => {
                if entry.unsealed().is_some() {
                    let text = format!("{} is not sealed: {reason}", path.display());
                    report.warnings.push((path.clone(), text));
                }
                report.skipped.push((path, reason));
                None
            }
            EntryOutcome::Later(time) => {
                report.again_by(time);
                None
            }
            EntryOutcome::Ready(tree) => {
                let best = self.found.best_of(step, self.profile, self.survey, self.files);
                selection::add_names(&mut checkpoint, best, self.found, step);
                Some(Ready {
                    step: self.number_now(step, number),
                    key: step.path.clone(),
                    path,
                    checkpoint,
                    tree: Arc::new(tree),
                    early: None,
                })
            }
        }
    }

    /// Returns the number of a step that is ready. The content that states it may be another than at the last search.
    fn number_now(&self, step: &FoundStep, number: Option<Step>) -> Option<Step> {
        if !step.rewritten || number.is_none() {
            return number;
        }
        Step::new(step.stated_step(self.profile, self.survey, self.files)?).ok()
    }
}
