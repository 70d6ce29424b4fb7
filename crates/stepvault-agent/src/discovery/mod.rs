//! Looking for finished steps in a watched directory. Nothing here writes to it.

mod entry;
mod judge;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use stepvault_core::config::Completion;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::Step;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::{step_name, temporary};
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use entry::{Entry, Sight};
pub(crate) use wake::Wake;

/// What the look at a watched directory goes by.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    names: GlobMatcher,
    completion: Completion,
}

/// One watched directory, and what was made of its entries so far.
#[derive(Debug)]
pub(crate) struct Discovery {
    place: Place,
    entries: BTreeMap<String, Entry>,
    /// Names that match and say no step.
    unnumbered: BTreeSet<String>,
}

/// A finished step.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) step: Step,
    pub(crate) fingerprint: Sha256Digest,
    pub(crate) newest: Timestamp,
    pub(crate) bytes: u64,
}

/// What a look came to.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Finished and not handled yet, in the order they were written.
    pub(crate) ready: Vec<Ready>,
    /// Passed over for good since the last look, and why.
    pub(crate) passed_over: Vec<(PathBuf, String)>,
    /// When something may be ready before the next regular look.
    pub(crate) again_at: Option<Instant>,
    /// Why the directory cannot be read.
    pub(crate) fault: Option<Error>,
}

impl Discovery {
    pub(crate) fn new(directory: PathBuf, pattern: &str, completion: Completion) -> Result<Self> {
        let glob = GlobBuilder::new(pattern)
            .literal_separator(true)
            .build()
            .map_err(|error| {
                Error::new(ErrorKind::Usage, "not a pattern for the names of steps")
                    .on(format!("{pattern:?}"))
                    .because(error.kind())
                    .hint("write a glob such as step_* or {checkpoint,step}-*")
            })?;
        let place = Place {
            directory,
            names: glob.compile_matcher(),
            completion,
        };
        Ok(Self {
            place,
            entries: BTreeMap::new(),
            unnumbered: BTreeSet::new(),
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.place.directory
    }

    pub(crate) fn is_quiet_rule(&self) -> Option<std::time::Duration> {
        match self.place.completion {
            Completion::Quiet(time) => Some(time),
            _ => None,
        }
    }

    /// Looks at the directory. `sealed` gives the steps in the vault, and is asked when something new is there: it may
    /// be one of them. Blocks.
    pub(crate) fn look(&mut self, now: Timestamp, sealed: impl FnOnce() -> Vec<SealedStep>) -> Look {
        let mut look = Look::default();
        let there = match self.list(&mut look) {
            Ok(there) => there,
            Err(error) => {
                look.fault = Some(error);
                return look;
            }
        };
        self.entries.retain(|name, entry| {
            let stays = there.contains_key(name);
            if !stays && let Some(why) = entry.trouble() {
                let reason = format!("it vanished before it was taken over ({why})");
                look.passed_over.push((self.place.directory.join(name), reason));
            }
            stays
        });
        let is_new = |name: &String| self.entries.get(name).is_none_or(Entry::is_new);
        let sealed = if there.keys().any(is_new) {
            sealed()
        } else {
            Vec::new()
        };
        for (name, (step, metadata)) in there {
            let path = self.place.directory.join(&name);
            let entry = self.entries.entry(name.clone()).or_default();
            match entry.look(&name, &path, &metadata, &self.place.completion, now, &sealed) {
                Sight::Nothing => {}
                Sight::PassedOver(reason) => look.passed_over.push((path, reason)),
                Sight::Later(time) => {
                    look.again_at = [look.again_at, time].into_iter().flatten().min();
                }
                Sight::Ready {
                    fingerprint,
                    newest,
                    bytes,
                } => {
                    look.ready.push(Ready {
                        name,
                        path,
                        step,
                        fingerprint,
                        newest,
                        bytes,
                    });
                }
            }
        }
        // Attempts are told by the order in which steps were written.
        look.ready.sort_by_key(|ready| (ready.newest, ready.step));
        look
    }

    /// The entries that may be steps, with what `stat` says of each. None in a directory that is not there (yet).
    fn list(&mut self, look: &mut Look) -> Result<BTreeMap<String, (Step, Metadata)>> {
        let fault =
            |error| stepvault_local::errors::io("cannot look for steps", &self.place.directory, error);
        let listed = match std::fs::read_dir(&self.place.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            listed => listed.map_err(fault)?,
        };
        let mut there = BTreeMap::new();
        let mut unnumbered = BTreeSet::new();
        for entry in listed {
            let entry = entry.map_err(fault)?;
            // A name that is not UTF-8 is no framework's.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !self.place.names.is_match(&name) || temporary::is_temporary(&name) {
                continue;
            }
            // Gone meanwhile, or a link, which is a second name for something that is looked at itself.
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_dir() && !metadata.is_file() {
                continue;
            }
            if let Some(step) = step_name::parse(&name).and_then(|number| Step::new(number).ok()) {
                there.insert(name, (step, metadata));
                continue;
            }
            if !self.unnumbered.contains(&name) {
                let path = self.place.directory.join(&name);
                look.passed_over
                    .push((path, "its name says no step number".to_owned()));
            }
            unnumbered.insert(name);
        }
        self.unnumbered = unnumbered;
        Ok(there)
    }

    /// The entry was handled: it is left alone until something is written to it.
    pub(crate) fn handled(&mut self, ready: &Ready) {
        if let Some(entry) = self.entries.get_mut(&ready.name) {
            entry.handled(ready.fingerprint, ready.newest);
        }
    }

    /// The entry was not taken over and is tried again after a pause, of at most `longest`.
    pub(crate) fn failed(&mut self, name: &str, longest: std::time::Duration, reason: String) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.failed(longest, reason);
        }
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
            .filter_map(|(name, entry)| Some((name, entry.trouble()?)));
        troubled
            .map(|(name, why)| (self.place.directory.join(name), why.to_owned()))
            .collect()
    }
}
