//! The final report: what the service did, and what of the vault is not durable, for every run, served or not.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_core::{Result, RunName};
use stepvault_engine::tier::step_state::{Durability, is_quarantined_durable_on};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{SealedStep, Vault};

use crate::backlog::{is_durable, unsent_bytes};
use crate::discovery::WAITS_FOR_SCAN;
use crate::options::AgentOptions;
use crate::remotes::{on_remote, remotes_of};
use crate::report::{AgentReport, LeftUndone, NotDurable, SkippedEntry, UnservedRun};
use crate::shared::Shared;

/// Why a step of an unserved run waits.
const NOT_SERVED: &str = "the agent does not serve the run";

impl LeftUndone {
    /// Scans every run in the vault. Blocks.
    ///
    /// A run that is not configured is compared with every configured remote, because its own remotes are unknown.
    ///
    /// # Errors
    /// When the vault cannot be listed.
    pub(crate) fn in_vault(vault: &Vault, options: &AgentOptions) -> Result<Self> {
        let mut found = Self::default();
        for run in vault.runs()? {
            let is_it = |known: &&RunSettings| known.name == run;
            let served = options.runs.iter().find(is_it);
            let remotes = if let Some(known) = served.or_else(|| options.other_runs.iter().find(is_it)) {
                remotes_of(known, options, vault)
            } else {
                let all = options.remotes.iter();
                all.map(|remote| on_remote(&run, remote, vault)).collect()
            };
            found.scan_run(vault, &run, &remotes, served.is_some())?;
        }
        Ok(found)
    }

    fn scan_run(
        &mut self,
        vault: &Vault,
        run: &RunName,
        remotes: &[RunRemote],
        is_served: bool,
    ) -> Result<()> {
        let scan = vault.steps(run)?;
        let mut undurable_steps = 0;
        for step in &scan.steps {
            // Of an unreadable state nothing is known: the step counts as not durable.
            let durability = Durability::of(remotes, |remote| Ok(is_durable(step, remote)))?;
            undurable_steps += u64::from(durability.missing().any(|(_, needed)| needed));
            let not_durable =
                durability.missing().map(|(remote, required)| not_durable(vault, step, remote, required));
            self.not_durable.extend(not_durable);
        }
        let unreadable = |path: PathBuf, reason: String| SkippedEntry { run: run.clone(), path, reason };
        let faults = scan.faults.into_iter();
        self.unreadable.extend(faults.map(|(path, error)| unreadable(path, error.to_string())));
        for step in vault.quarantined(run)? {
            let durability = Durability::of(remotes, |remote| {
                Ok(is_quarantined_durable_on(&step, remote).unwrap_or(false))
            })?;
            if durability.missing().any(|(_, needed)| needed) {
                let reason = format!("it is in quarantine and not known to be durable: {}", step.reason);
                self.unreadable.push(unreadable(step.directory, reason));
            }
        }
        if !is_served && undurable_steps > 0 {
            self.unserved.push(UnservedRun { run: run.clone(), steps: undurable_steps });
        }
        Ok(())
    }
}

fn not_durable(vault: &Vault, step: &SealedStep, remote: &RunRemote, required: bool) -> NotDurable {
    NotDurable {
        run: step.run().clone(),
        id: step.id(),
        remote: remote.name().clone(),
        required,
        failed: false,
        needs_this_vault: true,
        missing_bytes: unsent_bytes(vault, step, remote.name()),
        reason: NOT_SERVED.to_owned(),
    }
}

/// Returns why a step is not sealed, once there is no next scan.
fn at_end(reason: String) -> String {
    if reason == WAITS_FOR_SCAN {
        "it is finished, but there was no time left to seal it".to_owned()
    } else {
        reason
    }
}

/// Builds the final report of a service. `lost` is what was not durable in vaults that were deleted under it.
pub(crate) async fn final_report(shared: &Shared, lost: &[NotDurable]) -> Result<AgentReport> {
    let (options, status) = (&shared.options, &shared.reporter.status);
    let mut report = status.report();
    let (vault, asked) = (shared.vault.vault.clone(), Arc::clone(options));
    let mut found = blocking(move || LeftUndone::in_vault(&vault, &asked)).await?;
    let is_served = |run: &RunName| options.runs.iter().any(|served| served.name == *run);
    for step in &mut found.not_durable {
        if is_served(&step.run) {
            status.explain_not_durable(step);
        }
    }
    // Steps that the trainer still had were sealed again and count like any other.
    let sealed_again = |step: &&NotDurable| {
        let mut sealed = report.sealed.latest.iter();
        !sealed.any(|sealed| sealed.run == step.run && sealed.id.step == step.id.step)
    };
    let lost: Vec<NotDurable> = lost.iter().filter(sealed_again).cloned().collect();
    found.not_durable.extend(lost);
    for run in &options.runs {
        let mut unsealed = status.unsealed_of(&run.name, usize::MAX);
        if let Some(directory) = &run.watch
            && shared.drain.stop.is_requested()
            && !status.has_final_scan(&run.name)
        {
            let reason = "there was no time to scan it again, and it may hold a finished step".to_owned();
            unsealed.push((directory.clone(), reason));
        }
        let entries = unsealed.into_iter().map(|(path, reason)| SkippedEntry {
            run: run.name.clone(),
            path,
            reason: at_end(reason),
        });
        found.unsealed.extend(entries);
    }
    report.left = found;
    Ok(report)
}
