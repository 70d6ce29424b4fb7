//! `verify`: checks that the tiers hold what was saved.

pub(super) mod document;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use stepvault_core::ids::{Attempt, Revision, Step, StepId};
use stepvault_core::observe::{Observer, Tier};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::outage::{is_outage, outage};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::tier::step_state::visible_steps;
use stepvault_engine::verify::{Depth, StepHealth, check_remote, check_sealed};

use crate::arguments::values::{TierChoice, checked, sample};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::session::Session;
use document::{exit_code, of_findings};

const SECONDS_IN_A_DAY: u64 = 86_400;

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

/// The findings, by step.
#[derive(Default)]
struct Findings {
    by_step: BTreeMap<StepId, Vec<(Tier, StepHealth)>>,
    failed: Vec<(String, Error)>,
}

impl Findings {
    fn add(&mut self, id: StepId, tier: &Tier, health: StepHealth) {
        self.by_step.entry(id).or_default().push((tier.clone(), health));
    }
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &VerifyArguments) -> Result<ExitCode> {
    let tiers = Tiers::load(session).await?;
    let depth = depth(arguments);
    let wanted = |id: StepId| {
        arguments.step.is_none_or(|step| step == id.step)
            && arguments.attempt.is_none_or(|attempt| attempt == id.attempt)
            && (arguments.revision).is_none_or(|revision| revision == id.revision)
    };
    let observer = tiers.observer();
    let mut findings = Findings::default();
    if arguments.tier.takes(&Tier::Local) {
        check_vault(&tiers, depth, &wanted, &observer, &mut findings).await?;
    }
    let remotes = tiers.remotes.iter();
    for remote in remotes.filter(|remote| arguments.tier.takes(&remote.tier)) {
        if let Err(error) = check_run_on(remote, depth, &wanted, &observer, &mut findings).await {
            findings.failed.push((remote.name().to_string(), error));
        }
    }
    tiers.progress.finish();
    if findings.by_step.is_empty() {
        return Err(nothing_checked(&tiers, arguments, findings.failed));
    }
    for (tier, error) in &findings.failed {
        session.output.warn(&format!("the check of {tier} is incomplete"));
        session.output.error_beside_report(error);
    }
    let document = of_findings(tiers.run_name(), findings);
    let code = exit_code(&document);
    session.output.result(&document)?;
    Ok(code)
}

fn depth(arguments: &VerifyArguments) -> Depth {
    match (arguments.deep, arguments.sample) {
        (true, _) => Depth::Deep,
        (false, Some(one_in)) => Depth::Sample {
            one_in,
            turn: days_since_epoch(),
        },
        (false, None) => Depth::Checksums,
    }
}

/// Returns the turn for samples, which changes daily.
#[expect(
    clippy::disallowed_methods,
    reason = "which files a sample reads may follow the wall clock"
)]
fn days_since_epoch() -> u32 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u32::try_from(since.as_secs() / SECONDS_IN_A_DAY).unwrap_or(u32::MAX)
}

async fn check_vault(
    tiers: &Tiers,
    depth: Depth,
    wanted: &impl Fn(StepId) -> bool,
    observer: &Arc<dyn Observer>,
    findings: &mut Findings,
) -> Result<()> {
    let Some(vault) = tiers.vault.clone() else {
        return Ok(());
    };
    let run = tiers.run_name().clone();
    let scan = blocking(move || vault.steps(&run)).await?;
    for step in scan.steps.iter().rev().filter(|step| wanted(step.id())) {
        match check_sealed(step, depth, observer).await {
            Ok(health) => findings.add(step.id(), &Tier::Local, health),
            Err(error) if is_outage(&error) => findings.failed.push((Tier::Local.to_string(), error)),
            Err(error) => return Err(error),
        }
    }
    for (path, error) in scan.faults {
        let name = path.file_name().and_then(|name| name.to_str());
        match name.and_then(StepId::from_label) {
            None => findings.failed.push((Tier::Local.to_string(), error)),
            Some(id) if !wanted(id) => {}
            // The step may be sound: it could not be read.
            Some(_) if is_outage(&error) => findings.failed.push((Tier::Local.to_string(), outage(error))),
            Some(id) => {
                let health = StepHealth {
                    faults: vec![error.to_string()],
                    ..StepHealth::default()
                };
                findings.add(id, &Tier::Local, health);
            }
        }
    }
    Ok(())
}

async fn check_run_on(
    remote: &RunRemote,
    depth: Depth,
    wanted: &impl Fn(StepId) -> bool,
    observer: &Arc<dyn Observer>,
    findings: &mut Findings,
) -> Result<()> {
    // The newest first, because it is the one that would be restored.
    let visible = visible_steps(remote).await?;
    for id in visible.into_keys().rev().filter(|id| wanted(*id)) {
        let health = check_remote(remote, id, depth, observer).await?;
        findings.add(id, &remote.tier, health);
    }
    Ok(())
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
