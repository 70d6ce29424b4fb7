//! Finds steps by the profile of the framework that writes them.

mod candidates;
mod spent;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use globset::GlobMatcher;
use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::Step;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::find::{Extent, FindOptions, Found, FoundStep, find_steps};
use stepvault_formats::profile::{Profile, ProfileSet};
use stepvault_formats::tree::{OpenFile, Tree};
use stepvault_local::sealed::SealedStep;
use stepvault_local::survey::{Below, SurveyFiles, survey_again};
use tokio::time::Instant;

use super::choice::Choice;
use super::entry::{Candidate, Entry, Sight};
use super::soundness::broken;
use super::{Look, Origin, Pace, Ready, forget};
use crate::options::AgentRun;
use candidates::Selection;

/// Quiet time is measured here, by this machine's clock and by observation: the profile's own rule is evaluated as if
/// nothing were ever written again.
const END_OF_TIME: Timestamp = Timestamp::from_seconds(253_402_300_799);
/// Scanning takes at most one part in this many of the time.
const SHARE_OF_TIME: u32 = 20;
/// Maximum number of subdirectories that are watched for events.
const MAX_DIRECTORIES: usize = 16;

/// The rule.
#[derive(Debug)]
pub(super) struct ByProfile {
    choice: Choice,
    selection: Selection,
    quiet_time: Duration,
    rate: Pace,
    extent: Extent,
    /// The last scan, and what was found in it.
    tree: Tree,
    found: Found,
    /// Number of ranks of the last step that was ready.
    ranks: Option<u32>,
    not_before: Option<Instant>,
}

impl ByProfile {
    pub(super) fn new(
        run: &AgentRun,
        profiles: Arc<ProfileSet>,
        names: Option<GlobMatcher>,
        quiet_time: Duration,
        rate: Pace,
        extent: Extent,
    ) -> Result<Self> {
        if let Some(name) = run.profile.as_ref().filter(|name| profiles.get(name).is_none()) {
            return Err(Error::new(ErrorKind::Usage, "cannot serve the run")
                .on(&run.run)
                .because(format!("there is no profile '{name}'")));
        }
        Ok(Self {
            choice: Choice::new(profiles, run.profile.clone()),
            selection: Selection::new(names, run.series.clone()),
            quiet_time,
            rate,
            extent,
            tree: Tree::default(),
            found: Found::default(),
            ranks: None,
            not_before: None,
        })
    }

    pub(super) fn quiet_time(&self) -> Duration {
        self.quiet_time
    }

    /// Returns the subdirectories that contain steps.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let parents = self
            .found
            .steps
            .iter()
            .filter_map(|step| Path::new(&step.path).parent());
        let inner: BTreeSet<_> = parents.filter(|parent| !parent.as_os_str().is_empty()).collect();
        inner
            .into_iter()
            .take(MAX_DIRECTORIES)
            .map(Path::to_owned)
            .collect()
    }

    /// Makes the next scan list the directory, however recent the last listing is.
    pub(super) fn hurry(&mut self) {
        self.not_before = None;
    }

    /// Returns the step found at an announced path, with its faults. `None` when there is no step there. Opens files.
    pub(super) fn found_at(&self, directory: &Path, path: &str) -> Option<FoundThere> {
        let profile = self.choice.profile()?;
        let is_there = |step: &&FoundStep| step.members.iter().any(|member| member == path);
        let step = self.found.steps.iter().find(is_there)?;
        let mut faults: Vec<String> = step.reasons().to_vec();
        if faults.is_empty() {
            faults = match SurveyFiles::open(directory) {
                Ok(files) => broken(self.extent, step, &self.tree, &files),
                Err(error) => vec![error.to_string()],
            };
        }
        Some(FoundThere {
            key: step.path.clone(),
            identity: candidates::identity(profile, directory, step),
            is_complete: step.is_complete(),
            faults,
            links: links_of(profile),
        })
    }

    pub(super) fn look(
        &mut self,
        directory: &Path,
        entries: &mut BTreeMap<String, Entry>,
        now: Timestamp,
        sealed: impl FnOnce() -> Vec<SealedStep>,
    ) -> Look {
        let mut look = Look::default();
        if let Some(time) = self.not_before.filter(|time| *time > Instant::now()) {
            look.again_by(Some(time));
            return look;
        }
        let begun = Instant::now();
        if let Err(error) = self.look_into(directory, entries, now, sealed, &mut look) {
            look.fault = Some(error);
        }
        self.not_before = match self.rate {
            Pace::Lasting => Some(Instant::now() + begun.elapsed() * SHARE_OF_TIME),
            Pace::Once => None,
        };
        look
    }

    fn look_into(
        &mut self,
        directory: &Path,
        entries: &mut BTreeMap<String, Entry>,
        now: Timestamp,
        sealed: impl FnOnce() -> Vec<SealedStep>,
        look: &mut Look,
    ) -> Result<()> {
        let tree = self.survey(directory, entries)?;
        // It contains nothing that could be opened, and may not even exist.
        if tree.entries().next().is_none() {
            forget(directory, entries, |_| false, look);
            (self.tree, self.found) = (tree, Found::default());
            return Ok(());
        }
        let files = SurveyFiles::open(directory)?;
        if tree != self.tree {
            look.news = self.choice.look(&tree, &files);
            self.found = self.find(&tree, &files);
            self.choice.settle(&self.found);
            self.tree = tree;
        }
        forget(directory, entries, |path| self.tree.get(path).is_some(), look);
        let Some(profile) = self.choice.profile() else {
            return Ok(());
        };
        let selected = self.selection.of(profile, &self.found);
        let paths: BTreeSet<&str> = selected.steps.iter().map(|step| step.path.as_str()).collect();
        entries.retain(|key, _| paths.contains(key.as_str()));
        look.advice = selected.advice;
        // Only those that may be sealed are compared with the vault, whose records take long to read.
        let is_new = |step: &&FoundStep| {
            step.is_complete() && step.step.is_some() && entries.get(&step.path).is_none_or(Entry::is_new)
        };
        let sealed = if selected.steps.iter().any(is_new) {
            sealed()
        } else {
            Vec::new()
        };
        let seen = Seen {
            directory,
            profile,
            tree: &self.tree,
            found: &self.found,
            files: &files,
            quiet_time: self.quiet_time,
            extent: self.extent,
        };
        for step in &selected.steps {
            let entry = entries.entry(step.path.clone()).or_default();
            if let Some(ready) = seen.look_at(step, entry, now, &sealed, look) {
                self.ranks = step.ranks.or(self.ranks);
                look.ready.push(ready);
            }
        }
        only_newest_of_each_number(entries, look);
        Ok(())
    }

    /// Lists the directory. A handled entry whose own metadata is unchanged is not listed again for a while.
    fn survey(&self, directory: &Path, entries: &mut BTreeMap<String, Entry>) -> Result<Tree> {
        let settled: BTreeSet<String> = entries
            .iter()
            .filter(|(_, entry)| entry.is_settled())
            .map(|(key, _)| key.clone())
            .collect();
        let ignored = self.choice.ignored();
        let below = |path: &str| {
            if settled.contains(path) {
                Below::AsKnown
            } else if ignored.iter().any(|glob| glob.is_match(path)) {
                Below::Nothing
            } else {
                Below::List
            }
        };
        let tree = match survey_again(directory, &self.tree, &below) {
            Err(error) if error.kind() == ErrorKind::NotFound => Tree::default(),
            surveyed => surveyed?,
        };
        for (_, entry) in entries.iter_mut().filter(|(key, _)| !settled.contains(*key)) {
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
}

/// A step that was found at an announced path.
#[derive(Debug)]
pub(super) struct FoundThere {
    pub(super) key: String,
    pub(super) identity: std::result::Result<(Step, Origin), String>,
    pub(super) is_complete: bool,
    /// What is missing or damaged.
    pub(super) faults: Vec<String>,
    pub(super) links: LinkPolicy,
}

fn links_of(profile: &Profile) -> LinkPolicy {
    if profile.overwrites_finished_files() {
        LinkPolicy::ReflinkOrCopy
    } else {
        LinkPolicy::Auto
    }
}

/// The findings of one scan.
struct Seen<'a> {
    directory: &'a Path,
    profile: &'a Profile,
    tree: &'a Tree,
    found: &'a Found,
    files: &'a SurveyFiles,
    quiet_time: Duration,
    extent: Extent,
}

impl Seen<'_> {
    fn look_at(
        &self,
        step: &FoundStep,
        entry: &mut Entry,
        now: Timestamp,
        sealed: &[SealedStep],
        look: &mut Look,
    ) -> Option<Ready> {
        let path = self.directory.join(&step.path);
        let (number, origin) = match candidates::identity(self.profile, self.directory, step) {
            Ok(identity) => identity,
            Err(reason) => {
                look.passed_over
                    .extend(entry.pass_over(reason).map(|reason| (path, reason)));
                return None;
            }
        };
        let candidate = Candidate {
            origin: &origin,
            step,
            rests_on_silence: candidates::rests_on_silence(self.profile, self.found, self.tree, step),
            quiet_time: self.quiet_time,
            check: &|| broken(self.extent, step, self.tree, self.files),
        };
        match entry.look_at(&candidate, now, sealed) {
            Sight::Nothing => None,
            Sight::PassedOver(reason) => {
                look.passed_over.push((path, reason));
                None
            }
            Sight::Later(time) => {
                look.again_by(time);
                None
            }
            Sight::Ready {
                fingerprint,
                newest,
                bytes,
            } => Some(Ready {
                key: step.path.clone(),
                path,
                origin,
                step: number,
                fingerprint,
                newest,
                bytes,
                links: links_of(self.profile),
            }),
        }
    }
}

/// Of several finished steps with the same number, keeps the one written last: otherwise each would make the one before
/// it an abandoned attempt.
fn only_newest_of_each_number(entries: &mut BTreeMap<String, Entry>, look: &mut Look) {
    let mut newest: BTreeMap<_, (Timestamp, String)> = BTreeMap::new();
    for ready in &look.ready {
        let this = (ready.newest, ready.key.clone());
        let best = newest.entry(ready.step).or_insert_with(|| this.clone());
        if *best < this {
            *best = this;
        }
    }
    let mut passed_over = Vec::new();
    look.ready.retain(|ready| {
        let Some((_, key)) = newest.get(&ready.step).filter(|(_, key)| *key != ready.key) else {
            return true;
        };
        if let Some(entry) = entries.get_mut(&ready.key) {
            entry.handled(ready.fingerprint, ready.newest);
        }
        let reason = format!("{key} is also step {} and was written later", ready.step.number());
        passed_over.push((ready.path.clone(), reason));
        false
    });
    look.passed_over.append(&mut passed_over);
}
