//! Looking for finished steps in a watched directory. Nothing here writes to it.

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
use stepvault_core::config::{Completion, RunSettings};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::seal::LinkPolicy;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Tree, scan_members};
use tokio::time::Instant;

use crate::options::AgentRun;
pub(crate) use announced::ready_alone;
use by_name::ByName;
use by_profile::ByProfile;
use entry::Entry;
pub(crate) use wake::Wake;

/// One watched directory, and what was made of its entries so far.
#[derive(Debug)]
pub(crate) struct Discovery {
    directory: PathBuf,
    rule: Rule,
    /// By path below the directory.
    entries: BTreeMap<String, Entry>,
}

/// How steps are told.
#[derive(Debug)]
enum Rule {
    /// By their names and one rule for all.
    Name(ByName),
    /// By the profile of the framework that writes there.
    Profile(Box<ByProfile>),
}

/// How often looking is worth its while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// For months, beside a trainer that needs the disk.
    Lasting,
    /// A few times, and then no more.
    Once,
}

/// Where a step stands, and the name it is kept under.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The directory or file; the watched directory for a step of several paths.
    pub(crate) source: PathBuf,
    /// Those paths below it.
    pub(crate) members: Vec<RelativePath>,
    pub(crate) name: String,
}

impl Origin {
    /// One directory or file.
    fn of_path(source: &Path, name: &str) -> Self {
        Self {
            source: source.to_owned(),
            members: Vec::new(),
            name: name.to_owned(),
        }
    }

    /// Lists what is there. Blocks.
    fn scan(&self) -> Result<Tree> {
        scan_members(&self.source, &self.members)
    }
}

/// A finished step.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    /// Its path below the watched directory.
    pub(crate) key: String,
    /// Its path, for messages; of several the first.
    pub(crate) path: PathBuf,
    /// What it is sealed from, and as what.
    pub(crate) origin: Origin,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
    pub(crate) newest: Timestamp,
    pub(crate) bytes: u64,
    /// What the framework's habits allow.
    pub(crate) links: LinkPolicy,
}

impl Ready {
    /// Looks at its files once more, and fails unless they are as they were when it was found finished. Blocks.
    pub(crate) fn unchanged(&self) -> Result<Tree> {
        let tree = self.origin.scan()?;
        if tree.fingerprint() == self.fingerprint {
            return Ok(tree);
        }
        Err(Error::new(ErrorKind::SourceChanged, "cannot seal the step")
            .on(self.path.display())
            .because("it was written to after it looked finished"))
    }
}

/// A step of the trainer's own that was taken over as it is, and that the trainer can do without.
#[derive(Debug, Clone)]
pub(crate) struct Spent {
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
}

impl Spent {
    /// Looks at its files once more; `None` when they are not those that were taken over. Blocks.
    pub(crate) fn unchanged(&self) -> Result<Option<Tree>> {
        let tree = self.origin.scan()?;
        Ok((tree.fingerprint() == self.fingerprint).then_some(tree))
    }
}

/// What a look came to.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Finished and not handled yet, in the order they were written.
    pub(crate) ready: Vec<Ready>,
    /// Passed over for good since the last look, and why.
    pub(crate) passed_over: Vec<(PathBuf, String)>,
    /// What became known about the directory as a whole.
    pub(crate) news: Option<String>,
    /// What somebody should change about it.
    pub(crate) advice: Option<String>,
    /// When something may be ready before the next regular look.
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
    /// For one run; `None` for one that is not watched. `extent` is how much of a step its directory holds.
    pub(crate) fn new(
        run: &AgentRun,
        profiles: &Arc<ProfileSet>,
        pace: Pace,
        extent: Extent,
    ) -> Result<Option<Self>> {
        let Some(directory) = run.watch_directory.clone() else {
            return Ok(None);
        };
        let rule = match &run.completion {
            Completion::Auto(quiet_time) => {
                let names = run.pattern.as_deref().map(names).transpose()?;
                let rule = ByProfile::new(run, Arc::clone(profiles), names, *quiet_time, pace, extent)?;
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

    /// The directories in which new steps appear, as far as is known.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let inner = match &self.rule {
            Rule::Name(_) => Vec::new(),
            Rule::Profile(rule) => rule.directories(),
        };
        let inner = inner.into_iter().map(|path| self.directory.join(path));
        std::iter::once(self.directory.clone()).chain(inner).collect()
    }

    /// What was seen so far, by the keys of [`Ready`].
    pub(crate) fn seen(&self) -> BTreeSet<String> {
        self.entries.keys().cloned().collect()
    }

    /// How long a step may have to be quiet.
    pub(crate) fn quiet_time(&self) -> Option<Duration> {
        match &self.rule {
            Rule::Name(rule) => rule.quiet_time(),
            Rule::Profile(rule) => Some(rule.quiet_time()),
        }
    }

    /// Looks at the directory. `sealed` gives the steps in the vault, and is asked when something new is there: it may
    /// be one of them. Blocks.
    pub(crate) fn look(&mut self, now: Timestamp, sealed: impl FnOnce() -> Vec<SealedStep>) -> Look {
        let mut look = match &mut self.rule {
            Rule::Name(rule) => rule.look(&self.directory, &mut self.entries, now, sealed),
            Rule::Profile(rule) => rule.look(&self.directory, &mut self.entries, now, sealed),
        };
        // Attempts are told by the order in which steps were written.
        look.ready.sort_by_key(|ready| (ready.newest, ready.step));
        look
    }

    /// The trainer's own steps that it can do without, as far as its profile knows, the oldest first. Blocks.
    pub(crate) fn spent(&mut self) -> Result<Vec<Spent>> {
        match &mut self.rule {
            Rule::Name(_) => Ok(Vec::new()),
            Rule::Profile(rule) => rule.spent(&self.directory, &mut self.entries),
        }
    }

    /// The entry was handled: it is left alone until something is written to it.
    pub(crate) fn handled(&mut self, ready: &Ready) {
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.handled(ready.fingerprint, ready.newest);
        }
    }

    /// The entry was not taken over and is tried again after a pause, of at most `longest`.
    pub(crate) fn failed(&mut self, ready: &Ready, longest: Duration, reason: String) {
        // Each time: people are told of the first alone.
        let path = self.directory.join(&ready.key);
        tracing::debug!(path = %path.display(), reason, "not taken over, and tried again later");
        if let Some(entry) = self.entries.get_mut(&ready.key) {
            entry.failed(longest, reason);
        }
    }

    /// Where an entry is, as [`Self::unfinished`] says it.
    pub(crate) fn path_of(&self, ready: &Ready) -> PathBuf {
        self.directory.join(&ready.key)
    }

    /// When the first pause ends.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.entries.values().filter_map(Entry::next_try).min()
    }

    /// What is there and was neither taken over nor passed over, and why.
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

/// Forgets the entries that are gone, and tells of those that were not taken over before.
fn forget(
    directory: &Path,
    entries: &mut BTreeMap<String, Entry>,
    is_there: impl Fn(&str) -> bool,
    look: &mut Look,
) {
    entries.retain(|key, entry| {
        let stays = is_there(key);
        if !stays && let Some(why) = entry.trouble() {
            let reason = format!("it vanished before it was taken over ({why})");
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
            Error::new(ErrorKind::Usage, "not a pattern for the names of steps")
                .on(format!("{pattern:?}"))
                .because(error.kind())
                .hint("write a glob such as step_* or {checkpoint,step}-*")
        })?;
    Ok(glob.compile_matcher())
}
