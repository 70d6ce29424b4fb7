//! Checks a directory of checkpoints: incomplete steps, and impossible times.

use std::path::Path;

use stepvault_core::forecast::Taken;
use stepvault_core::{Result, Timestamp};
use stepvault_diagnose::explain::{Cause, Evidence};
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;

use super::on_disk::{ResumeOnDisk, resume_on_disk, root_of};
use crate::inspect::{InspectRequest, InspectedStep, Inspection, inspect};

/// Weight of an incomplete step, and the age given to one that is not the newest.
const WEIGHT: u32 = 30;
const OLDER: u32 = 300;
/// Maximum number of steps that are reported.
const MAXIMUM_STEPS: usize = 8;
/// Maximum length of the list of reasons, in characters.
const MAXIMUM_REASON: usize = 400;
/// A step dated this far ahead was not dated by this clock.
const AHEAD_SECONDS: u64 = 120;

/// The steps found in a directory.
pub(super) struct FoundSteps {
    pub(super) evidence: Vec<Evidence>,
    pub(super) needs: Taken,
    pub(super) on_disk: Option<ResumeOnDisk>,
}

/// Checks one directory.
pub(super) fn find(
    directory: &Path,
    profiles: &ProfileSet,
    profile: Option<&str>,
    now: Timestamp,
) -> Result<FoundSteps> {
    // The run has ended: nothing is being written any more.
    let options = FindOptions { quiet_seconds: 0, ..FindOptions::default() };
    let request = InspectRequest { profiles, profile, reads_best: false, deep: None, options };
    let inspection = inspect(directory, &request, now)?;
    let on_disk = resume_on_disk(directory, &inspection, profiles)?;
    let sizes = inspection.steps.iter().map(|entry| &entry.step);
    Ok(FoundSteps {
        needs: Taken {
            bytes: sizes.clone().map(|step| step.bytes).max().unwrap_or(0),
            files: sizes.map(|step| step.files).max().unwrap_or(0),
            directories: 1,
        },
        evidence: evidence(directory, &inspection, now),
        on_disk,
    })
}

fn evidence(directory: &Path, inspection: &Inspection, now: Timestamp) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let newest = inspection.steps.iter().filter_map(|entry| entry.step.step).max();
    // A step dated ahead of the clock cannot be distinguished from one being written.
    let bad = inspection
        .steps
        .iter()
        .rev()
        .filter(|entry| !entry.is_valid() && entry.step.written_at <= now)
        // An empty directory of steps may be named like a step.
        .filter(|entry| entry.step.files > 0 || root_of(directory, &entry.step.path) == directory);
    for entry in bad.take(MAXIMUM_STEPS) {
        let recency = if entry.step.step == newest { 1000 } else { OLDER };
        evidence.push(of_step(directory, inspection, entry).earlier(recency));
    }
    let named = |path: &&String| !inspection.steps.iter().any(|entry| entry.step.path == **path);
    let temporary = inspection.found.temporary.iter();
    for path in temporary.filter(named).take(MAXIMUM_STEPS) {
        let path = directory.join(path);
        let text = format!("{} has the name of a checkpoint that is still being written", path.display());
        evidence.push(Evidence::left(Cause::InterruptedSave, WEIGHT, text));
    }
    let ahead = inspection
        .steps
        .iter()
        .map(|entry| (entry.step.written_at.seconds_since(now), &entry.step.path))
        .max()
        .filter(|(ahead, _)| *ahead > AHEAD_SECONDS);
    evidence.extend(ahead.map(|(ahead, path)| {
        let text = format!("{path} is dated {ahead} s ahead of this machine's clock");
        Evidence::now(Cause::ClockWrong, 40, text)
    }));
    evidence
}

/// Missing files show a partial step; a temporary name, or a truncated file, an interrupted save.
fn of_step(directory: &Path, inspection: &Inspection, entry: &InspectedStep) -> Evidence {
    let is_temporary = inspection.found.temporary.contains(&entry.step.path);
    let lacks_files = !entry.step.is_complete() && !is_temporary;
    let cause = if lacks_files { Cause::PartialStep } else { Cause::InterruptedSave };
    let prefix = format!("{}: ", entry.step.path);
    let told: Vec<String> = entry
        .reasons()
        .iter()
        .map(|reason| reason.strip_prefix(&prefix).unwrap_or(reason).to_owned())
        .collect();
    let mut reasons = told.join("; ");
    if reasons.chars().count() > MAXIMUM_REASON {
        reasons = reasons.chars().take(MAXIMUM_REASON).chain(['…']).collect();
    }
    let path = root_of(directory, &entry.step.path).join(&entry.step.path);
    Evidence::left(cause, WEIGHT, format!("{}: {reasons}", path.display()))
}
