//! Finds steps by their names, finished by one configured rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::path::Path;
use std::time::Duration;

use globset::GlobMatcher;
use stepvault_core::Result;
use stepvault_core::config::Completion;
use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::Step;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::{step_name, temporary};
use stepvault_local::sealed::SealedStep;

use super::entry::{Entry, Sight};
use super::{Look, Origin, Ready, forget};

/// The rule.
#[derive(Debug)]
pub(super) struct ByName {
    names: GlobMatcher,
    completion: Completion,
    /// Names that match but contain no step number.
    unnumbered: BTreeSet<String>,
}

impl ByName {
    pub(super) fn new(names: GlobMatcher, completion: Completion) -> Self {
        Self {
            names,
            completion,
            unnumbered: BTreeSet::new(),
        }
    }

    pub(super) fn quiet_time(&self) -> Option<Duration> {
        match self.completion {
            Completion::Quiet(time) => Some(time),
            _ => None,
        }
    }

    pub(super) fn look(
        &mut self,
        directory: &Path,
        entries: &mut BTreeMap<String, Entry>,
        now: Timestamp,
        sealed: impl FnOnce() -> Vec<SealedStep>,
    ) -> Look {
        let mut look = Look::default();
        let there = match self.list(directory, &mut look) {
            Ok(there) => there,
            Err(error) => {
                look.fault = Some(error);
                return look;
            }
        };
        forget(directory, entries, |name| there.contains_key(name), &mut look);
        let is_new = |name: &String| entries.get(name).is_none_or(Entry::is_new);
        let sealed = if there.keys().any(is_new) {
            sealed()
        } else {
            Vec::new()
        };
        for (name, (step, metadata)) in there {
            let path = directory.join(&name);
            let entry = entries.entry(name.clone()).or_default();
            match entry.look(&name, &path, &metadata, &self.completion, now, &sealed) {
                Sight::Nothing => {}
                Sight::PassedOver(reason) => look.passed_over.push((path, reason)),
                Sight::Later(time) => look.again_by(time),
                Sight::Ready {
                    fingerprint,
                    newest,
                    bytes,
                } => {
                    look.ready.push(Ready {
                        origin: Origin::of_path(&path, &name),
                        key: name,
                        path,
                        step,
                        fingerprint,
                        newest,
                        bytes,
                        links: LinkPolicy::Auto,
                    });
                }
            }
        }
        look
    }

    /// Returns the entries that may be steps, with the metadata of each. Returns none if the directory does not exist
    /// (yet).
    fn list(&mut self, directory: &Path, look: &mut Look) -> Result<BTreeMap<String, (Step, Metadata)>> {
        let fault = |error| stepvault_local::errors::io("cannot look for steps", directory, error);
        let listed = match std::fs::read_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            listed => listed.map_err(fault)?,
        };
        let mut there = BTreeMap::new();
        let mut unnumbered = BTreeSet::new();
        for entry in listed {
            let entry = entry.map_err(fault)?;
            // No framework uses names that are not UTF-8.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if !self.names.is_match(&name) || temporary::is_temporary(&name) {
                continue;
            }
            // Deleted meanwhile, or a link, whose target is scanned itself.
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_dir() && !metadata.is_file() {
                continue;
            }
            if let Some(step) = step_name::parse(&name).and_then(|number| Step::new(number).ok()) {
                there.insert(name, (step, metadata));
                continue;
            }
            if !self.unnumbered.contains(&name) {
                let path = directory.join(&name);
                look.passed_over
                    .push((path, "its name contains no step number".to_owned()));
            }
            unnumbered.insert(name);
        }
        self.unnumbered = unnumbered;
        Ok(there)
    }
}
