//! `verify`: whether what the tiers hold is what was saved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::observe::{Observer, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::catalog::{committed_ids, tombstones};
use stepvault_engine::run_remote::RunRemote;
use stepvault_engine::verify::{Depth, StepHealth, check_remote, check_sealed};

use super::Session;
use super::list::FailedTier;
use crate::arguments::values::{SampleRate, TierChoice, checked};
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::json::ErrorInfo;
use crate::output::{Report, human, table};

const SECONDS_IN_A_DAY: u64 = 86_400;

/// Check that what the tiers hold is what was saved
///
/// Without --deep or --sample the store's own checksums are compared; where a store keeps none, presence and size.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Only this step
    #[arg(value_name = "STEP", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Of this attempt
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Read every byte back
    #[arg(long, conflicts_with = "sample")]
    deep: bool,
    /// Read one file in N back, others each day: N days in a row read everything
    #[arg(long, value_name = "1/N")]
    sample: Option<SampleRate>,
    /// Which tiers: local, remote, all, or a remote's name
    #[arg(long, value_name = "TIER", default_value_t)]
    tier: TierChoice,
}

#[derive(Serialize)]
struct VerifyDocument {
    run: String,
    steps: Vec<CheckedStep>,
    sound_steps: u64,
    damaged_steps: u64,
    failed: Vec<FailedTier>,
}

/// One step over the tiers that were checked.
#[derive(Serialize)]
struct CheckedStep {
    step: u64,
    attempt: u32,
    tiers: Vec<CheckedTier>,
}

#[derive(Serialize)]
struct CheckedTier {
    tier: String,
    sound: bool,
    #[serde(flatten)]
    health: StepHealth,
}

/// What was found, by step.
#[derive(Default)]
struct Findings {
    by_step: BTreeMap<StepId, Vec<(Tier, StepHealth)>>,
    failed: Vec<(String, Error)>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &VerifyArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.require_any()?;
    let depth = depth(arguments);
    let wanted = |id: StepId| {
        arguments.step.is_none_or(|step| step == id.step)
            && arguments.attempt.is_none_or(|attempt| attempt == id.attempt)
    };
    let observer = tiers.observer();
    let mut findings = Findings::default();
    if arguments.tier.takes(&Tier::Local) {
        check_vault(&tiers, depth, &wanted, &observer, &mut findings).await?;
    }
    for remote in tiers.remotes.iter().filter(|remote| arguments.tier.takes(&remote.tier)) {
        if let Err(error) = check_run_on(remote, depth, &wanted, &observer, &mut findings.by_step).await {
            findings.failed.push((remote.name().to_string(), error));
        }
    }
    tiers.progress.finish();
    if findings.by_step.is_empty() {
        return Err(nothing_checked(&tiers, arguments, findings.failed));
    }
    for (tier, error) in &findings.failed {
        session.output.warn(&format!("{tier} was not checked to the end"));
        session.output.error_beside_report(error);
    }
    let document = document(&tiers, findings);
    let code = exit_code(&document);
    session.output.result(&document)?;
    Ok(code)
}

fn depth(arguments: &VerifyArguments) -> Depth {
    match (arguments.deep, arguments.sample) {
        (true, _) => Depth::Deep,
        (false, Some(SampleRate { one_in })) => Depth::Sample { one_in, turn: days_since_epoch() },
        (false, None) => Depth::Checksums,
    }
}

/// The turn for samples: each day another.
#[expect(clippy::disallowed_methods, reason = "which files a sample reads may follow the wall clock")]
fn days_since_epoch() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs() / SECONDS_IN_A_DAY).unwrap_or(u32::MAX)
}

async fn check_vault(
    tiers: &Tiers,
    depth: Depth,
    wanted: &impl Fn(StepId) -> bool,
    observer: &Arc<dyn Observer>,
    findings: &mut Findings,
) -> Result<()> {
    let Some(vault) = tiers.vault.clone() else { return Ok(()) };
    let run = tiers.run_name().clone();
    let scan = blocking(move || vault.steps(&run)).await?;
    for step in scan.steps.iter().rev().filter(|step| wanted(step.id())) {
        let health = check_sealed(step, depth, observer).await?;
        findings.by_step.entry(step.id()).or_default().push((Tier::Local, health));
    }
    for (path, error) in scan.faults {
        let id = path.file_name().and_then(|name| name.to_str()).and_then(StepId::from_label);
        match id.filter(|id| wanted(*id)) {
            Some(id) => {
                let health = StepHealth { faults: vec![error.to_string()], ..StepHealth::default() };
                findings.by_step.entry(id).or_default().push((Tier::Local, health));
            }
            None if id.is_none() => findings.failed.push(("local".to_owned(), error)),
            None => {}
        }
    }
    Ok(())
}

async fn check_run_on(
    remote: &RunRemote,
    depth: Depth,
    wanted: &impl Fn(StepId) -> bool,
    observer: &Arc<dyn Observer>,
    by_step: &mut BTreeMap<StepId, Vec<(Tier, StepHealth)>>,
) -> Result<()> {
    let condemned: BTreeSet<StepId> = tombstones(remote).await?.into_iter().collect();
    let committed = committed_ids(remote).await?;
    // The newest first: it is the one that would be restored.
    for id in committed.into_keys().rev().filter(|id| wanted(*id) && !condemned.contains(id)) {
        let health = check_remote(remote, id, depth, observer).await?;
        by_step.entry(id).or_default().push((remote.tier.clone(), health));
    }
    Ok(())
}

/// A check of nothing must not pass for a check: a wrong bucket is empty, too.
fn nothing_checked(tiers: &Tiers, arguments: &VerifyArguments, failed: Vec<(String, Error)>) -> Error {
    if let Some((_, error)) = failed.into_iter().next() {
        return error;
    }
    let run = tiers.run_name();
    Error::new(ErrorKind::NotFound, "no such checkpoint")
        .on(match arguments.step {
            Some(step) => format!("step {step} of run '{run}'"),
            None => format!("any step of run '{run}'"),
        })
        .because(format!("no tier of '{}' has it", arguments.tier))
        .hint("'stepvault list' shows what there is")
}

fn document(tiers: &Tiers, findings: Findings) -> VerifyDocument {
    let steps: Vec<CheckedStep> = findings
        .by_step
        .into_iter()
        .rev()
        .map(|(id, checked)| CheckedStep {
            step: id.step.number(),
            attempt: id.attempt.number(),
            tiers: checked
                .into_iter()
                .map(|(tier, health)| CheckedTier { tier: tier.to_string(), sound: health.is_sound(), health })
                .collect(),
        })
        .collect();
    let damaged = steps.iter().filter(|step| step.tiers.iter().any(|tier| !tier.sound)).count();
    let failed = findings.failed.iter();
    VerifyDocument {
        run: tiers.run_name().to_string(),
        sound_steps: (steps.len() - damaged) as u64,
        damaged_steps: damaged as u64,
        failed: failed
            .map(|(tier, error)| FailedTier { tier: tier.clone(), error: ErrorInfo::from(error) })
            .collect(),
        steps,
    }
}

/// Damage outweighs a tier that could not be asked: it is what somebody has to act on. A step counts as lost only
/// when no copy of it is sound.
fn exit_code(document: &VerifyDocument) -> ExitCode {
    let some_copy_sound = document.steps.iter().any(|step| step.tiers.iter().any(|tier| tier.sound));
    match (document.damaged_steps, document.failed.is_empty()) {
        (0, true) => ExitCode::Done,
        (0, false) if document.failed.iter().all(|failed| failed.error.kind == "unreachable") => ExitCode::Unreachable,
        (0, false) => ExitCode::Failed,
        (_, true) if !some_copy_sound => ExitCode::NoneValid,
        _ => ExitCode::Failed,
    }
}

impl Report for VerifyDocument {
    fn human(&self) -> String {
        let headings = ["step", "attempt", "tier", "result", "proved", "unproved", "read back"];
        let mut rows = table::table(&headings, &[0, 1, 4, 5, 6]);
        let mut faults = String::new();
        let mut unproved = 0;
        for step in &self.steps {
            for tier in &step.tiers {
                rows.add_row([
                    step.step.to_string(),
                    step.attempt.to_string(),
                    tier.tier.clone(),
                    if tier.sound { "sound" } else { "DAMAGED" }.to_owned(),
                    human::count(tier.health.proved_files, "file"),
                    human::count(tier.health.unproved_files, "file"),
                    human::bytes(tier.health.read_bytes),
                ]);
                unproved += tier.health.unproved_files;
                for fault in &tier.health.faults {
                    faults.push_str(&format!("step {} on {}: {fault}\n", step.step, tier.tier));
                }
            }
        }
        let mut text = format!("{}\n\n{faults}", table::text(&rows));
        text.push_str(&format!(
            "{} sound, {} damaged",
            human::count(self.sound_steps, "step"),
            self.damaged_steps
        ));
        if unproved > 0 {
            text.push_str(&format!(
                "; of {} only presence and size are known: --deep reads them back",
                human::count(unproved, "file")
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(copies: &[&[bool]], failed: &[ErrorKind]) -> VerifyDocument {
        let steps: Vec<CheckedStep> = copies
            .iter()
            .map(|sound| CheckedStep {
                step: 1,
                attempt: 1,
                tiers: sound
                    .iter()
                    .map(|sound| CheckedTier { tier: "main".to_owned(), sound: *sound, health: StepHealth::default() })
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
        assert_eq!(exit_code(&document(&[&[true], &[true, true]], &[])), ExitCode::Done);
        assert_eq!(exit_code(&document(&[&[true, false]], &[])), ExitCode::Failed);
        assert_eq!(exit_code(&document(&[&[false], &[true]], &[])), ExitCode::Failed);
        assert_eq!(exit_code(&document(&[&[false], &[false]], &[])), ExitCode::NoneValid);
        assert_eq!(exit_code(&document(&[&[true]], &[ErrorKind::Unreachable])), ExitCode::Unreachable);
        assert_eq!(exit_code(&document(&[&[true]], &[ErrorKind::Denied])), ExitCode::Failed);
        assert_eq!(exit_code(&document(&[&[false]], &[ErrorKind::Unreachable])), ExitCode::Failed);
    }

    #[test]
    fn the_last_line_counts_and_says_what_is_not_proved() {
        let mut document = document(&[&[true]], &[]);
        assert!(document.human().ends_with("1 step sound, 0 damaged"));
        document.steps[0].tiers[0].health.unproved_files = 3;
        assert!(document.human().ends_with("of 3 files only presence and size are known: --deep reads them back"));
    }
}
