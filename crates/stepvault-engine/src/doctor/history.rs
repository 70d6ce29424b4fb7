//! Reads the existing steps: how large the next one will be, and what is left of unfinished ones; what to check of
//! this node, and the results.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::config::{LinkPolicy, RunSettings};
use stepvault_core::disk_facts::{Leftover, LeftoverKind};
use stepvault_core::forecast::Taken;
use stepvault_core::{RunName, Timestamp};
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::feasibility::RunFacts;
use stepvault_diagnose::doctor::forecast::{Forecast, PastStep};
use stepvault_diagnose::doctor::room::RECORDS_OF_A_STEP;
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;
use stepvault_formats::tree::{Entry, EntryKind};
use stepvault_local::ownership::Parents;
use stepvault_local::probe::leftovers;
use stepvault_local::sealed::SealedStep;
use stepvault_local::survey::survey;
use stepvault_local::vault::Vault;

use crate::inspect::{InspectRequest, InspectedStep, Inspection, inspect};

/// Facts from the existing steps.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) forecast: Option<Forecast>,
    /// Leftovers among the checkpoints.
    pub(super) leftovers: Vec<Leftover>,
    /// Bytes of the largest file of the newest step.
    pub(super) largest_file_bytes: u64,
    /// One of the trainer's own files.
    pub(super) example: Option<PathBuf>,
    /// The profile that finds the steps.
    pub(super) profile: Option<String>,
}

/// Returns what the vault stores of all runs, including its records.
pub(super) fn kept(vault: &Path) -> Taken {
    // For sizes only: opening the vault for use reports whether it may be used.
    let Ok(Some(vault)) = Vault::open_below(vault, Parents::Shared) else {
        return Taken::default();
    };
    let mut kept = Taken::default();
    for run in vault.runs().unwrap_or_default() {
        let steps = vault.steps(&run).map(|scan| scan.steps).unwrap_or_default();
        for taken in steps.iter().map(|step| step.record().taken()) {
            kept = kept.and(&taken);
            kept.files = kept.files.saturating_add(RECORDS_OF_A_STEP);
        }
    }
    kept
}

/// Reads the vault first, because sealed steps are complete, otherwise the trainer's directory. Blocks.
pub(super) fn read_history(
    run: &RunToCheck,
    watch: Option<&Path>,
    vault: Option<&Path>,
    profiles: &ProfileSet,
    now: Timestamp,
) -> History {
    let sealed = run.name.as_ref().zip(vault).map(|(run, vault)| sealed(run, vault)).unwrap_or_default();
    let mut history = History { forecast: Forecast::of(&sealed, "in the vault"), ..History::default() };
    let Some(watch) = watch else {
        return history;
    };
    history.leftovers = leftovers::among_checkpoints(watch, vault, now);
    let quiet_seconds = run.settings.complete.quiet_time().map_or(0, |time| time.as_secs());
    let request = InspectRequest {
        profiles,
        profile: run.settings.profile.as_deref(),
        reads_best: false,
        deep: None,
        options: FindOptions { quiet_seconds, ..FindOptions::default() },
    };
    match inspect(watch, &request, now) {
        Ok(inspection) => add_inspected(&mut history, &inspection, watch, now),
        Err(error) => tracing::debug!(%error, "cannot find a step to base the forecast on"),
    }
    history
}

fn sealed(run: &RunName, vault: &Path) -> Vec<PastStep> {
    let scan = Vault::open_below(vault, Parents::Shared)
        .and_then(|vault| vault.map(|vault| vault.steps(run)).transpose())
        .inspect_err(|error| tracing::debug!(%error, "cannot read the vault's steps"));
    let steps = scan.ok().flatten().map(|scan| scan.steps).unwrap_or_default();
    let past = |step: &SealedStep| PastStep {
        step: Some(step.id().step.number()),
        taken: step.record().taken(),
        written_at: step.record().written_at,
    };
    steps.iter().map(past).collect()
}

fn add_inspected(history: &mut History, inspection: &Inspection, watch: &Path, now: Timestamp) {
    let (valid, half): (Vec<&InspectedStep>, Vec<&InspectedStep>) =
        inspection.steps.iter().partition(|entry| entry.is_valid());
    if history.forecast.is_none() {
        let there = format!("in {}", watch.display());
        // An incomplete step at least gives a lower bound for the next one.
        history.forecast = Forecast::of(&resumable(&valid), &there)
            .or_else(|| Forecast::of(&resumable(&half), &format!("{there}, none of them whole")));
    }
    if !inspection.steps.is_empty() {
        history.profile = Some(inspection.framework.clone());
    }
    let newest = inspection.steps.last().map(|entry| watch.join(&entry.step.path));
    history.largest_file_bytes = newest.map_or(0, |path| largest_file_bytes(&path));
    history.example = valid.last().map(|entry| watch.join(&entry.step.path)).and_then(|path| {
        if path.is_file() {
            return Some(path);
        }
        let entries = std::fs::read_dir(path).ok()?.flatten();
        let mut files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
        files.next()
    });
    for entry in half {
        for member in &entry.step.members {
            let path = watch.join(member);
            let text = path.display().to_string();
            let known = history.leftovers.iter().any(|left| left.path == text);
            if !known {
                let left = leftovers::measured(LeftoverKind::HalfStep, &path, now);
                history.leftovers.extend(left);
            }
        }
    }
}

/// Returns the size of the largest file of a step, as far as it can be listed.
fn largest_file_bytes(step: &Path) -> u64 {
    let Ok(tree) = survey(step) else {
        return step.metadata().map_or(0, |facts| facts.len());
    };
    let size = |(_, entry): (&str, &Entry)| match entry.kind {
        EntryKind::File { size_bytes, .. } => size_bytes,
        _ => 0,
    };
    tree.files().map(size).max().unwrap_or(0)
}

/// Returns the steps that a trainer can resume from, or could if they were complete.
fn resumable(entries: &[&InspectedStep]) -> Vec<PastStep> {
    let entries = entries.iter().filter(|entry| entry.step.resumable);
    entries
        .map(|InspectedStep { step, .. }| {
            // Their depth is unknown; count the step's own directory.
            let taken = Taken { bytes: step.bytes, files: step.files, directories: 1 };
            PastStep { step: step.step, taken, written_at: step.written_at }
        })
        .collect()
}

/// What to check.
#[derive(Debug, Clone)]
pub struct LocalToCheck {
    /// The runs.
    pub runs: Vec<RunToCheck>,
    /// The vault, if there is to be one.
    pub vault: Option<PathBuf>,
    /// Whether the directories above it may be open to other users.
    pub vault_parents: Parents,
    /// Directories for temporary files, each with the setting that names it.
    pub temporary: Vec<(String, PathBuf)>,
    /// The variables that must hold directories, with their values.
    pub variables: Vec<(String, Option<String>)>,
    /// How files are linked or copied into the vault.
    pub links: LinkPolicy,
    /// Maximum number of bytes in buffers.
    pub memory_budget_bytes: u64,
    /// The profiles used to find steps.
    pub profiles: Arc<ProfileSet>,
    /// The next step's size, if given explicitly.
    pub given: GivenForecast,
    /// The current time.
    pub now: Timestamp,
}

/// A run to check.
#[derive(Debug, Clone)]
pub struct RunToCheck {
    /// Its title in findings: its name, or else its directory.
    pub title: String,
    /// Its name, if it has one.
    pub name: Option<RunName>,
    /// Its settings.
    pub settings: RunSettings,
}

/// Explicitly given facts about the next step; they override those of earlier steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenForecast {
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// Number of its files.
    pub files: Option<u64>,
    /// Seconds between saves.
    pub interval_seconds: Option<u64>,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct LocalLook {
    /// All findings.
    pub findings: Vec<Finding>,
    /// The measurements for each run, in the same order.
    pub runs: Vec<RunLook>,
}

/// The measurements for one run.
#[derive(Debug, Clone)]
pub struct RunLook {
    /// The expected next step.
    pub forecast: Option<Forecast>,
    /// What was measured.
    pub facts: RunFacts,
}

impl GivenForecast {
    /// Given facts override those of earlier steps.
    pub(super) fn over(self, past: Option<Forecast>) -> Option<Forecast> {
        let mut forecast = past.or_else(|| {
            Some(Forecast {
                taken: Taken { bytes: self.bytes?, files: 1, directories: 1 },
                interval_seconds: None,
                interval_steps: None,
                source: String::new(),
            })
        })?;
        if let Some(bytes) = self.bytes {
            forecast.taken.bytes = bytes;
            "--step-size".clone_into(&mut forecast.source);
        }
        forecast.taken.files = self.files.unwrap_or(forecast.taken.files);
        if self.interval_seconds.is_some() {
            forecast.interval_seconds = self.interval_seconds;
            // The corresponding number of steps is unknown.
            forecast.interval_steps = None;
        }
        Some(forecast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_wins_over_what_was() {
        let said = GivenForecast { bytes: Some(50), files: None, interval_seconds: Some(60) };
        let given = said.over(None).unwrap();
        assert_eq!((given.taken.bytes, given.taken.files, given.interval_seconds), (50, 1, Some(60)));
        assert_eq!(given.source, "--step-size");
        let past = Forecast {
            taken: Taken { bytes: 9, files: 7, directories: 2 },
            interval_seconds: Some(600),
            interval_steps: Some(100),
            source: "the newest 3 steps in the vault".to_owned(),
        };
        let both = said.over(Some(past.clone())).unwrap();
        assert_eq!((both.taken.bytes, both.taken.files, both.interval_seconds), (50, 7, Some(60)));
        assert_eq!(both.interval_steps, None, "how many steps a minute is, is not known");
        assert_eq!(GivenForecast::default().over(Some(past.clone())), Some(past));
        assert_eq!(GivenForecast::default().over(None), None);
    }
}
