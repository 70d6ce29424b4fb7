//! The output of `verify`, for people and programs.

use std::fmt::Write as _;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::ErrorKind;
use stepvault_core::document::StepIdMembers;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::observe::Tier;
use stepvault_engine::verify::StepHealth;

use super::Findings;
use crate::commands::inventory::{FailedTier, attempt_text};
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};

#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct VerifyDocument {
    /// The run.
    run: String,
    /// The steps that were checked, the newest first.
    steps: Vec<CheckedStep>,
    /// Number of steps without a damaged copy.
    sound_steps: u64,
    /// Number of steps with at least one damaged copy.
    damaged_steps: u64,
    /// Tiers that could not be listed and may hold more steps.
    failed: Vec<FailedTier>,
}

/// One step over the tiers that were checked.
#[derive(Serialize, JsonSchema)]
struct CheckedStep {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// One entry for each tier that has the step.
    tiers: Vec<CheckedTier>,
}

#[derive(Serialize, JsonSchema)]
struct CheckedTier {
    /// `local` or the remote's name.
    tier: String,
    /// Whether no damage was found.
    sound: bool,
    #[serde(flatten)]
    health: StepHealth,
}

pub(super) fn of_findings(run: &RunName, findings: Findings) -> VerifyDocument {
    let tier = |(tier, health): (Tier, StepHealth)| CheckedTier {
        tier: tier.to_string(),
        sound: health.is_sound(),
        health,
    };
    let steps = findings.by_step.into_iter().rev();
    let steps = steps.map(|(id, checked)| CheckedStep {
        id,
        tiers: checked.into_iter().map(tier).collect(),
    });
    let steps = steps.collect_vec();
    let is_damaged = |step: &&CheckedStep| step.tiers.iter().any(|tier| !tier.sound);
    let damaged = steps.iter().filter(is_damaged).count();
    VerifyDocument {
        run: run.to_string(),
        sound_steps: (steps.len() - damaged) as u64,
        damaged_steps: damaged as u64,
        failed: FailedTier::all(&findings.failed),
        steps,
    }
}

/// Returns the exit code. Damage takes precedence over a tier that could not be checked, because it needs action. The
/// code is `NoneValid` only if no checked copy is sound.
pub(super) fn exit_code(document: &VerifyDocument) -> ExitCode {
    let mut tiers = document.steps.iter().flat_map(|step| &step.tiers);
    let some_copy_sound = tiers.any(|tier| tier.sound);
    let mut failed = document.failed.iter();
    let only_unreachable = failed.all(|failed| failed.error.kind == ErrorKind::Unreachable.name());
    match (document.damaged_steps, document.failed.is_empty()) {
        (0, true) => ExitCode::Done,
        (0, false) if only_unreachable => ExitCode::Unreachable,
        (1.., true) if !some_copy_sound => ExitCode::NoneValid,
        _ => ExitCode::Failed,
    }
}

impl Report for VerifyDocument {
    fn human(&self) -> String {
        let headings = "step|attempt|tier|result|proved|unproved|read back";
        let mut rows = table::table(&headings.split('|').collect_vec(), &[0, 1, 4, 5, 6]);
        let mut faults = String::new();
        let mut unproved = 0;
        for step in &self.steps {
            for tier in &step.tiers {
                rows.add_row([
                    step.id.step.to_string(),
                    attempt_text(step.id),
                    tier.tier.clone(),
                    if tier.sound { "sound" } else { "DAMAGED" }.to_owned(),
                    human::count(tier.health.proved_files, "file"),
                    human::count(tier.health.unproved_files, "file"),
                    human::bytes(tier.health.read_bytes),
                ]);
                unproved += tier.health.unproved_files;
                for fault in &tier.health.faults {
                    let _ = writeln!(faults, "{} on {}: {fault}", step.id, tier.tier);
                }
            }
        }
        let sound = human::count(self.sound_steps, "step");
        let (rows, damaged) = (table::text(&rows), self.damaged_steps);
        let mut text = format!("{rows}\n\n{faults}{sound} sound, {damaged} damaged");
        if unproved > 0 {
            let _ = write!(
                text,
                "; only presence and size of {} were checked: use --deep to read them back",
                human::count(unproved, "file")
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::Error;
    use stepvault_core::document::ErrorInfo;

    use super::*;

    fn document(copies: &[&[bool]], failed: &[ErrorKind]) -> VerifyDocument {
        let steps: Vec<CheckedStep> = copies
            .iter()
            .map(|sound| CheckedStep {
                id: StepId::from_label("000000000001.a1").unwrap(),
                tiers: sound
                    .iter()
                    .map(|sound| CheckedTier {
                        tier: "main".to_owned(),
                        sound: *sound,
                        health: StepHealth::default(),
                    })
                    .collect(),
            })
            .collect();
        let damaged_steps = copies.iter().filter(|sound| sound.contains(&false)).count() as u64;
        let failed = failed.iter().map(|kind| FailedTier {
            tier: "other".to_owned(),
            error: ErrorInfo::from(&Error::new(*kind, "cannot")),
        });
        VerifyDocument {
            run: "demo".to_owned(),
            sound_steps: copies.len() as u64 - damaged_steps,
            damaged_steps,
            steps,
            failed: failed.collect(),
        }
    }

    #[test]
    fn the_code_says_sound_damaged_lost_or_unknown() {
        assert_eq!(
            exit_code(&document(&[&[true], &[true, true]], &[])),
            ExitCode::Done
        );
        assert_eq!(exit_code(&document(&[&[true, false]], &[])), ExitCode::Failed);
        assert_eq!(exit_code(&document(&[&[false], &[true]], &[])), ExitCode::Failed);
        assert_eq!(
            exit_code(&document(&[&[false], &[false]], &[])),
            ExitCode::NoneValid
        );
        assert_eq!(
            exit_code(&document(&[&[true]], &[ErrorKind::Unreachable])),
            ExitCode::Unreachable
        );
        assert_eq!(
            exit_code(&document(&[&[true]], &[ErrorKind::Denied])),
            ExitCode::Failed
        );
        assert_eq!(
            exit_code(&document(&[&[false]], &[ErrorKind::Unreachable])),
            ExitCode::Failed
        );
    }

    #[test]
    fn the_last_line_counts_and_says_what_is_not_proved() {
        let mut document = document(&[&[true]], &[]);
        assert!(document.human().ends_with("1 step sound, 0 damaged"));
        document.steps[0].tiers[0].health.unproved_files = 3;
        assert!(
            document
                .human()
                .ends_with("only presence and size of 3 files were checked: use --deep to read them back")
        );
    }
}
