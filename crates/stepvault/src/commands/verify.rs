//! `verify`: checks that the tiers hold what was saved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use console::Color;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::notifications::Occurrence;
use stepvault_core::config::NotifyEvent;
use stepvault_core::document::StepIdMembers;
use stepvault_core::{
    Attempt, Clock as _, Error, ErrorKind, Event, Observer, Result, Revision, RunName, Step, StepId, Tier,
};
use stepvault_engine::blocking::sealed_steps;
use stepvault_engine::outage::{is_outage, outage};
use stepvault_engine::restore::WantedSteps;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::step_state::visible_steps;
use stepvault_engine::verify::{Depth, StepHealth, check_sealed, check_steps};
use stepvault_local::SystemClock;

use super::inventory::{FailedTier, attempt_text, id_of};
use super::notify::notify;
use crate::arguments::values::{TierChoice, checked, sample};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

const SECONDS_IN_A_DAY: i64 = 86_400;

/// Verify that the copies on the tiers match what was saved
///
/// Without --deep or --sample, compare the store's own checksums; if a store keeps none, check presence and size.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Check only this step
    #[arg(value_name = "STEP", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Check only this attempt
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Check only this revision
    #[arg(long, value_name = "N", value_parser = checked::<Revision>)]
    revision: Option<Revision>,
    /// Read every byte back
    #[arg(long, conflicts_with = "sample")]
    deep: bool,
    /// Read back one file in N, a different sample each day: N consecutive days cover all files
    #[arg(long, value_name = "1/N", value_parser = sample)]
    sample: Option<u32>,
    /// Tiers: local, remote, all, or a remote's name
    #[arg(long, value_name = "TIER", default_value_t)]
    tier: TierChoice,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct VerifyDocument {
    /// The run.
    run: String,
    /// The steps that were checked, the newest first.
    steps: Vec<CheckedStep>,
    /// Number of steps of which every copy that was checked is sound.
    sound_steps: u64,
    /// Number of steps without a damaged copy of which a copy is only known to be present.
    present_steps: u64,
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
    /// Whether every file was proved, by its bytes or by the store's checksum, and no damage was found.
    sound: bool,
    #[serde(flatten)]
    health: StepHealth,
}

impl CheckedTier {
    fn is_damaged(&self) -> bool {
        !self.health.is_sound()
    }

    fn result(&self) -> &'static str {
        match (self.is_damaged(), self.sound) {
            (true, _) => "DAMAGED",
            (false, true) => "sound",
            (false, false) => "present",
        }
    }
}

/// What is checked, and what was found, by step.
struct Verification {
    depth: Depth,
    wanted: WantedSteps,
    observer: Arc<dyn Observer>,
    by_step: BTreeMap<StepId, Vec<CheckedTier>>,
    failed: Vec<(String, Error)>,
}

impl Verification {
    async fn check_vault(&mut self, tiers: &Tiers) -> Result<()> {
        let Some(vault) = &tiers.vault else {
            return Ok(());
        };
        let (wanted, scan) = (self.wanted, sealed_steps(vault, tiers.run_name()).await?);
        for step in scan.steps.iter().rev().filter(|step| wanted.contain(step.id())) {
            match check_sealed(step, self.depth, &self.observer).await {
                Ok(health) => self.add(step.id(), &Tier::Local, health),
                Err(error) if is_outage(&error) => self.failed.push((Tier::Local.to_string(), error)),
                Err(error) => return Err(error),
            }
        }
        for (path, error) in scan.faults {
            match id_of(&path) {
                None => self.failed.push((Tier::Local.to_string(), error)),
                Some(id) if !wanted.contain(id) => {}
                // The step may be sound: it could not be read.
                Some(_) if is_outage(&error) => self.failed.push((Tier::Local.to_string(), outage(error))),
                Some(id) => {
                    let health = StepHealth { faults: vec![error.to_string()], ..StepHealth::default() };
                    self.add(id, &Tier::Local, health);
                }
            }
        }
        Ok(())
    }

    async fn check_remote(&mut self, remote: &RunRemote) -> Result<()> {
        let wanted = self.wanted;
        // The newest first, because it is the one that would be restored.
        let visible = visible_steps(remote).await?;
        let ids: Vec<StepId> = visible.into_keys().rev().filter(|id| wanted.contain(*id)).collect();
        let observer = Arc::clone(&self.observer);
        let depth = self.depth;
        let add = |id, health| self.add(id, &remote.tier, health);
        check_steps(remote, &ids, depth, &observer, add).await
    }

    fn add(&mut self, id: StepId, tier: &Tier, health: StepHealth) {
        self.observer.on_event(&Event::Verified { tier, is_sound: health.is_sound() });
        self.by_step.entry(id).or_default().push(CheckedTier {
            tier: tier.to_string(),
            sound: health.is_sound() && health.unproved_files == 0,
            health,
        });
    }

    fn document(self, run: &RunName) -> VerifyDocument {
        let steps = self.by_step.into_iter().rev();
        let steps = steps.map(|(id, tiers)| CheckedStep { id, tiers }).collect_vec();
        let count = |is_so: fn(&CheckedStep) -> bool| steps.iter().filter(|step| is_so(step)).count() as u64;
        let damaged_steps = count(|step| step.tiers.iter().any(CheckedTier::is_damaged));
        let sound_steps = count(|step| step.tiers.iter().all(|tier| tier.sound));
        VerifyDocument {
            run: run.to_string(),
            sound_steps,
            present_steps: steps.len() as u64 - sound_steps - damaged_steps,
            damaged_steps,
            failed: FailedTier::all(&self.failed),
            steps,
        }
    }
}

impl VerifyDocument {
    /// Returns what to notify of if a copy is damaged: the newest one, and how many steps are damaged in all.
    fn occurrence(&self, run: &RunName) -> Option<Occurrence> {
        let copies = self.steps.iter().flat_map(|step| step.tiers.iter().map(move |tier| (step.id, tier)));
        let damaged = copies.filter(|(_, tier)| tier.is_damaged()).collect_vec();
        let (id, tier) = damaged.first()?;
        let fault = tier.health.faults.first().map_or("", String::as_str);
        let steps = human::count(self.damaged_steps, "damaged step");
        let message = format!("verify found {steps}: {id} on {}: {fault}", tier.tier);
        let cause = damaged.iter().map(|(id, tier)| format!("{id} on {}", tier.tier)).join(", ");
        Some(Occurrence::new(NotifyEvent::VerificationFailed, run, message).step(*id).cause(cause))
    }
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &VerifyArguments) -> Result<ExitCode> {
    let tiers = Tiers::load_to_read(session).await?;
    let VerifyArguments { step, attempt, revision, .. } = *arguments;
    let mut verification = Verification {
        depth: depth(arguments),
        wanted: WantedSteps { step, attempt, revision },
        observer: tiers.observer(),
        by_step: BTreeMap::new(),
        failed: Vec::new(),
    };
    if arguments.tier.takes(&Tier::Local) {
        verification.check_vault(&tiers).await?;
    }
    let remotes = tiers.remotes.iter();
    for remote in remotes.filter(|remote| arguments.tier.takes(&remote.tier)) {
        if let Err(error) = verification.check_remote(remote).await {
            verification.failed.push((remote.name().to_string(), error));
        }
    }
    tiers.progress.finish();
    if verification.by_step.is_empty() {
        return Err(nothing_checked(&tiers, arguments, verification.failed));
    }
    for (tier, error) in &verification.failed {
        session.output.warn(&format!("the check of {tier} is incomplete"));
        session.output.error_beside_report(error);
    }
    let document = verification.document(tiers.run_name());
    notify(&tiers, document.occurrence(tiers.run_name())).await;
    let code = exit_code(&document);
    session.output.result(&document)?;
    Ok(code)
}

fn depth(arguments: &VerifyArguments) -> Depth {
    match (arguments.deep, arguments.sample) {
        (true, _) => Depth::Deep,
        (false, Some(one_in)) => Depth::Sample { one_in, turn: days_since_epoch() },
        (false, None) => Depth::Checksums,
    }
}

/// Returns the turn for samples, which changes daily.
fn days_since_epoch() -> u32 {
    u32::try_from(SystemClock.now().seconds / SECONDS_IN_A_DAY).unwrap_or_default()
}

/// Returns the error for a check that covered no step: it must not count as success, as a wrong bucket is empty too.
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
        .hint("run 'stepvault list' to see the steps")
}

/// Returns the exit code. Damage takes precedence over a tier that could not be checked, because it needs action. The
/// code is `NoneValid` only if every checked copy is damaged.
fn exit_code(document: &VerifyDocument) -> ExitCode {
    let mut tiers = document.steps.iter().flat_map(|step| &step.tiers);
    let some_copy_undamaged = tiers.any(|tier| !tier.is_damaged());
    let mut failed = document.failed.iter();
    let only_unreachable = failed.all(|failed| failed.error.kind == ErrorKind::Unreachable.name());
    match (document.damaged_steps, document.failed.is_empty()) {
        (0, true) => ExitCode::Done,
        (0, false) if only_unreachable => ExitCode::Unreachable,
        (1.., true) if !some_copy_undamaged => ExitCode::NoneValid,
        _ => ExitCode::Failed,
    }
}

impl Report for VerifyDocument {
    fn human(&self) -> String {
        let headings = ["step", "attempt", "tier", "result", "proved", "unproved", "read back"];
        let mut rows = Vec::new();
        let mut faults = String::new();
        let mut unproved = 0;
        for step in &self.steps {
            for tier in &step.tiers {
                rows.push([
                    step.id.step.to_string(),
                    attempt_text(step.id),
                    tier.tier.clone(),
                    tier.result().to_owned(),
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
        let (rows, damaged) = (table::text(&headings, &[0, 1, 4, 5, 6], rows), self.damaged_steps);
        let sound = human::count(self.sound_steps, "step");
        let present = match self.present_steps {
            0 => String::new(),
            steps => format!(", {steps} present"),
        };
        let mut text = format!("{rows}\n\n{faults}{sound} sound{present}, {damaged} damaged");
        if unproved > 0 {
            let _ = write!(
                text,
                "; only presence and size of {} were checked: use --deep to read them back",
                human::count(unproved, "file")
            );
        }
        text
    }

    fn verdicts(&self) -> &'static [(&'static str, Color)] {
        &[("DAMAGED", Color::Red), ("present", Color::Yellow), ("sound", Color::Green)]
    }
}

#[cfg(test)]
mod tests {
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
                        health: StepHealth {
                            faults: (!sound).then(|| "a fault".to_owned()).into_iter().collect(),
                            ..StepHealth::default()
                        },
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
            present_steps: 0,
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
        assert!(
            document
                .human()
                .ends_with("only presence and size of 3 files were checked: use --deep to read them back")
        );
    }
}
