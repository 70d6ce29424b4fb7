//! Finds finished steps in a watched directory. Nothing here writes to it.

mod announced;
mod by_name;
mod by_profile;
mod choice;
mod entry;
mod judge;
#[cfg(test)]
mod soak;
mod soundness;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use stepvault_core::config::LinkPolicy;
use stepvault_core::config::{Completion, RunSettings};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Tree, scan_members};
use tokio::time::Instant;

use crate::options::AgentRun;
pub(crate) use announced::ready_alone;
use by_name::ByName;
use by_profile::ByProfile;
use entry::Entry;
pub(crate) use wake::Wake;

/// One watched directory, and the state of its entries.
#[derive(Debug)]
pub(crate) struct Discovery {
    directory: PathBuf,
    rule: Rule,
    /// By path below the directory.
    entries: BTreeMap<String, Entry>,
}

/// How steps are recognized.
#[derive(Debug)]
enum Rule {
    /// By their names and one rule for all.
    Name(ByName),
    /// By the profile of the framework that writes them.
    Profile(Box<ByProfile>),
}

/// How often scanning is worthwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For months, next to a trainer that needs the disk.
    Lasting,
    /// A few times only.
    Once,
}

/// A step's location, and the name it is stored under.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The directory or file; the watched directory for a multi-path step.
    pub(crate) source: PathBuf,
    /// Its paths below that, for a multi-path step.
    pub(crate) members: Vec<RelativePath>,
    pub(crate) name: String,
}

impl Origin {
    /// Creates the origin of one directory or file.
    fn of_path(source: &Path, name: &str) -> Self {
        Self {
            source: source.to_owned(),
            members: Vec::new(),
            name: name.to_owned(),
        }
    }

    /// Lists the files. Blocks.
    fn scan(&self) -> Result<Tree> {
        scan_members(&self.source, &self.members)
    }
}

/// A finished step.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    /// Its path below the watched directory.
    pub(crate) key: String,
    /// Its path, for messages; the first one of a multi-path step.
    pub(crate) path: PathBuf,
    /// What it is sealed from, and under which name.
    pub(crate) origin: Origin,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
    pub(crate) newest: Timestamp,
    pub(crate) bytes: u64,
    /// How its framework allows files to be linked or copied.
    pub(crate) links: LinkPolicy,
}

impl Ready {
    /// Scans its files again, and fails unless they are unchanged since it was found finished. Blocks.
    pub(crate) fn unchanged(&self) -> Result<Tree> {
        let tree = self.origin.scan()?;
        if tree.fingerprint() == self.fingerprint {
            return Ok(tree);
        }
        Err(Error::new(ErrorKind::SourceChanged, "cannot seal the step")
            .on(self.path.display())
            .because("it was modified after it was found finished"))
    }
}

/// One of the trainer's own steps that was sealed as it is and that the trainer no longer needs.
#[derive(Debug, Clone)]
pub(crate) struct Spent {
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
}

impl Spent {
    /// Scans its files again; returns `None` when they are not those that were sealed. Blocks.
    pub(crate) fn unchanged(&self) -> Result<Option<Tree>> {
        let tree = self.origin.scan()?;
        Ok((tree.fingerprint() == self.fingerprint).then_some(tree))
    }
}

/// The result of one scan.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Finished steps that were not handled yet, in the order in which they were written.
    pub(crate) ready: Vec<Ready>,
    /// Entries skipped permanently since the last scan, with the cause.
    pub(crate) passed_over: Vec<(PathBuf, String)>,
    /// New facts about the directory as a whole.
    pub(crate) news: Option<String>,
    /// A recommended change of its configuration.
    pub(crate) advice: Option<String>,
    /// When something may be ready before the next regular scan.
    pub(crate) again_at: Option<Instant>,
    /// Why the directory cannot be read.
    pub(crate) fault: Option<Error>,
}

impl Look {
    fn again_by(&mut self, time: Option<Instant>) {
        self.again_at = [self.again_at, time].into_iter().flatten().min();
    }
}

impl Discovery {
    /// Creates the discovery of one run; `None` for one that is not watched. `extent` is how much of a step its
    /// directory holds.
    pub(crate) fn new(
        run: &AgentRun,
        profiles: &Arc<ProfileSet>,
        rate: Pace,
        extent: Extent,
    ) -> Result<Option<Self>> {
        let Some(directory) = run.watch_directory.clone() else {
            return Ok(None);
        };
        let rule = match &run.completion {
            Completion::Auto(quiet_time) => {
                let names = run.pattern.as_deref().map(names).transpose()?;
                let rule = ByProfile::new(run, Arc::clone(profiles), names, *quiet_time, rate, extent)?;
                Rule::Profile(Box::new(rule))
            }
            completion => {
                let pattern = run.pattern.as_deref().unwrap_or(RunSettings::DEFAULT_PATTERN);
                Rule::Name(ByName::new(names(pattern)?, completion.clone()))
            }
        };
        Ok(Some(Self {
            directory,
            rule,
            entries: BTreeMap::new(),
        }))
    }

    /// Returns the directories in which new steps appear, as far as known.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let inner = match &self.rule {
            Rule::Name(_) => Vec::new(),
            Rule::Profile(rule) => rule.directories(),
        };
        let inner = inner.into_iter().map(|path| self.directory.join(path));
        std::iter::once(self.directory.clone()).chain(inner).collect()
    }

    /// Returns what was seen so far, by the keys of [`Ready`].
    pub(crate) fn seen(&self) -> BTreeSet<String> {
        self.entries.keys().cloned().collect()
    }

    /// Returns how long a step may have to be unchanged.
    pub(crate) fn quiet_time(&self) -> Option<Duration> {
        match &self.rule {
            Rule::Name(rule) => rule.quiet_time(),
            Rule::Profile(rule) => Some(rule.quiet_time()),
        }
    }

    /// Scans the directory. `sealed` returns the steps in the vault, and is called when there is a new entry, which may
    /// be one of them. Blocks.
    pub(crate) fn look(&mut self, now: Timestamp, sealed: impl FnOnce() -> Vec<SealedStep>) -> Look {
        let mut look = match &mut self.rule {
            Rule::Name(rule) => rule.look(&self.directory, &mut self.entries, now, sealed),
            Rule::Profile(rule) => rule.look(&self.directory, &mut self.entries, now, sealed),
        };
        // Attempts depend on the order in which steps were written.
        look.ready.sort_by_key(|ready| (ready.newest, ready.step));
        look
    }

    /// Returns the trainer's own steps that it no longer needs, as far as its profile knows, the oldest first. Blocks.
    pub(crate) fn spent(&mut self) -> Result<Vec<Spent>> {
        match &mut self.rule {
            Rule::Name(_) => Ok(Vec::new()),
            Rule::Profile(rule) => rule.spent(&self.directory, &mut self.entries),
        }
    }

    /// Records that the entry was handled: it is ignored until it is modified.
    pub(crate) fn handled(&mut self, ready: &Ready) {
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.handled(ready.fingerprint, ready.newest);
        }
    }

    /// Records that the entry cannot be sealed as it is: it is ignored until it is modified, and is not safe.
    pub(crate) fn unfit(&mut self, ready: &Ready, reason: String) {
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.unfit(ready.fingerprint, ready.newest, reason);
        }
    }

    /// Whether an entry of the directory represents it.
    pub(crate) fn knows(&self, ready: &Ready) -> bool {
        self.entries.contains_key(&ready.key)
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
        self.entries.values_mut().for_each(Entry::try_now);
    }

    /// Returns when the first pause ends.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.entries.values().filter_map(Entry::next_try).min()
    }

    /// Returns what is finished, as far as known, but not sealed, with the cause.
    pub(crate) fn unsealed(&self) -> Vec<(PathBuf, String)> {
        let unsealed = self
            .entries
            .iter()
            .filter_map(|(key, entry)| Some((key, entry.unsealed()?)));
        unsealed
            .map(|(key, why)| (self.directory.join(key), why.to_owned()))
            .collect()
    }

    /// Returns the entries that were neither sealed nor skipped, with the cause.
    pub(crate) fn unfinished(&self) -> Vec<(PathBuf, String)> {
        let troubled = self
            .entries
            .iter()
            .filter_map(|(key, entry)| Some((key, entry.trouble()?)));
        troubled
            .map(|(key, why)| (self.directory.join(key), why.to_owned()))
            .collect()
    }
}

/// Forgets the entries that are gone, and reports those that were never sealed.
fn forget(
    directory: &Path,
    entries: &mut BTreeMap<String, Entry>,
    is_there: impl Fn(&str) -> bool,
    look: &mut Look,
) {
    entries.retain(|key, entry| {
        let stays = is_there(key);
        if !stays && let Some(why) = entry.trouble() {
            let reason = format!("it vanished before it was sealed ({why})");
            look.passed_over.push((directory.join(key), reason));
        }
        stays
    });
}

fn names(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Usage, "invalid pattern for step names")
                .on(format!("{pattern:?}"))
                .because(error.kind())
                .hint("write a glob such as step_* or {checkpoint,step}-*")
        })?;
    Ok(glob.compile_matcher())
}
