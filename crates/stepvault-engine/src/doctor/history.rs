//! Reads the existing steps: how large the next one will be, and what is left of unfinished ones.

use std::path::{Path, PathBuf};

use stepvault_core::disk_facts::{Leftover, LeftoverKind};
use stepvault_core::forecast::Taken;
use stepvault_core::timestamp::Timestamp;
use stepvault_diagnose::doctor::forecast::{Forecast, PastStep};
use stepvault_diagnose::doctor::room::RECORDS_OF_A_STEP;
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::ownership::Parents;
use stepvault_local::probe::leftovers;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use super::model::RunToCheck;
use crate::inspect::{InspectRequest, InspectedStep, Inspection, inspect};

/// Where one run's steps are.
#[derive(Debug, Clone)]
pub(super) struct HistoryScope<'a> {
    pub(super) run: &'a RunToCheck,
    pub(super) watch: Option<&'a Path>,
    pub(super) vault: Option<&'a Path>,
    pub(super) profiles: &'a ProfileSet,
}

/// Facts from the existing steps.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) forecast: Option<Forecast>,
    /// Leftovers among the checkpoints.
    pub(super) leftovers: Vec<Leftover>,
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
pub(super) fn read_history(place: &HistoryScope<'_>, now: Timestamp) -> History {
    let sealed = sealed(place);
    let mut history = History { forecast: Forecast::of(&sealed, "in the vault"), ..History::default() };
    let Some(watch) = place.watch else {
        return history;
    };
    history.leftovers = leftovers::among_checkpoints(watch, place.vault, now);
    let settings = &place.run.settings;
    let quiet_seconds = settings.complete.quiet_time().map_or(0, |time| time.as_secs());
    let request = InspectRequest {
        profiles: place.profiles,
        profile: settings.profile.as_deref(),
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

fn sealed(place: &HistoryScope<'_>) -> Vec<PastStep> {
    let (Some(run), Some(directory)) = (&place.run.name, place.vault) else {
        return Vec::new();
    };
    let scan = Vault::open_below(directory, Parents::Shared)
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

/// Returns the steps that a trainer can resume from, or could if they were complete.
fn resumable(entries: &[&InspectedStep]) -> Vec<PastStep> {
    let entries = entries.iter().filter(|entry| entry.step.resumable);
    entries
        .map(|entry| PastStep {
            step: entry.step.step,
            taken: Taken {
                bytes: entry.step.bytes,
                files: entry.step.files,
                // Their depth is unknown; count the step's own directory.
                directories: 1,
            },
            written_at: entry.step.written_at,
        })
        .collect()
}
