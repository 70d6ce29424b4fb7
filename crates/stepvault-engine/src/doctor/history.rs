//! The steps so far: how large the next one is going to be, and what was left of those that did not end.

use std::path::{Path, PathBuf};

use stepvault_core::doctor::forecast::{Forecast, PastStep};
use stepvault_core::doctor::leftovers::{Kind, Leftover};
use stepvault_core::doctor::room::RECORDS_OF_A_STEP;
use stepvault_core::forecast::Taken;
use stepvault_core::ids::RunName;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::probe::leftovers;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use crate::inspect::{InspectRequest, InspectedStep, Inspection, inspect};

/// What to look at for one run.
#[derive(Debug, Clone)]
pub(super) struct Where<'a> {
    pub(super) run: Option<&'a RunName>,
    pub(super) watch: Option<&'a Path>,
    pub(super) vault: Option<&'a Path>,
    pub(super) profile: Option<&'a str>,
    pub(super) quiet_seconds: u64,
    pub(super) profiles: &'a ProfileSet,
}

/// What the past says.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) forecast: Option<Forecast>,
    /// Among the checkpoints.
    pub(super) leftovers: Vec<Leftover>,
    /// One of the trainer's own files.
    pub(super) example: Option<PathBuf>,
    /// The profile by which there are steps.
    pub(super) profile: Option<String>,
}

/// What the vault holds of all runs, its records among the files.
pub(super) fn kept(vault: &Path) -> Taken {
    let Ok(Some(vault)) = Vault::open(vault) else {
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

/// Looks at the vault first, since what was sealed was whole, and else at the trainer's directory. Blocks.
pub(super) fn look(place: &Where<'_>, now: Timestamp) -> History {
    let sealed = sealed(place);
    let mut history = History {
        forecast: Forecast::of(&sealed, "in the vault"),
        ..History::default()
    };
    let Some(watch) = place.watch else {
        return history;
    };
    history.leftovers = leftovers::among_checkpoints(watch, place.vault, now);
    let request = InspectRequest {
        profiles: place.profiles,
        profile: place.profile,
        options: FindOptions {
            quiet_seconds: place.quiet_seconds,
            ..FindOptions::default()
        },
    };
    match inspect(watch, &request, &At(now)) {
        Ok(inspection) => add_inspected(&mut history, &inspection, watch, now),
        Err(error) => tracing::debug!(%error, "no step to forecast from"),
    }
    history
}

/// A clock that stands: all that is looked at is looked at now.
#[derive(Debug)]
struct At(Timestamp);

impl stepvault_core::clock::Clock for At {
    fn now(&self) -> Timestamp {
        self.0
    }
}

fn sealed(place: &Where<'_>) -> Vec<PastStep> {
    let (Some(run), Some(directory)) = (place.run, place.vault) else {
        return Vec::new();
    };
    let steps = Vault::open(directory).and_then(|vault| match vault {
        Some(vault) => vault.steps(run).map(|scan| scan.steps),
        None => Ok(Vec::new()),
    });
    let steps = steps
        .inspect_err(|error| tracing::debug!(%error, "the vault's steps cannot be read"))
        .unwrap_or_default();
    steps.iter().map(past).collect()
}

fn past(step: &SealedStep) -> PastStep {
    let record = step.record();
    PastStep {
        step: Some(step.id().step.number()),
        taken: record.taken(),
        written_at: record.written_at,
    }
}

fn add_inspected(history: &mut History, inspection: &Inspection, watch: &Path, now: Timestamp) {
    let (valid, half): (Vec<&InspectedStep>, Vec<&InspectedStep>) =
        inspection.steps.iter().partition(|entry| entry.is_valid());
    if history.forecast.is_none() {
        let there = format!("in {}", watch.display());
        // Half a step says at least that the next one is no smaller.
        history.forecast = Forecast::of(&resumable(&valid), &there)
            .or_else(|| Forecast::of(&resumable(&half), &format!("{there}, none of them whole")));
    }
    if !inspection.steps.is_empty() {
        history.profile = Some(inspection.framework.clone());
    }
    history.example = valid
        .last()
        .map(|entry| watch.join(&entry.step.path))
        .and_then(|path| {
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
                let left = leftovers::measured(Kind::HalfStep, &path, now);
                history.leftovers.extend(left);
            }
        }
    }
}

/// Those that a trainer can go on from, or could if they were whole.
fn resumable(entries: &[&InspectedStep]) -> Vec<PastStep> {
    let entries = entries.iter().filter(|entry| entry.step.resumable);
    entries
        .map(|entry| PastStep {
            step: entry.step.step,
            taken: Taken {
                bytes: entry.step.bytes,
                files: entry.step.files,
                // How deep it goes is not said; the step's own is one.
                directories: 1,
            },
            written_at: entry.step.written_at,
        })
        .collect()
}
