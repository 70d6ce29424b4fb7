//! The backlog of one remote: the sealed steps that it lacks.

use std::collections::BTreeSet;

use stepvault_core::records::Pin;
use stepvault_core::{RemoteName, Result, StepId};
use stepvault_engine::tier::step_state::is_durable_on;
use stepvault_engine::upload::missing_bytes;
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{SealedStep, Vault};

/// The sealed steps of a run, and those that the remote lacks, both with the newest last.
#[derive(Debug)]
pub(crate) struct Backlog {
    pub(crate) sealed: Vec<SealedStep>,
    pub(crate) missing: BTreeSet<StepId>,
    /// The same, plus those that cannot be sent before their attempt is determined.
    pub(crate) not_durable: BTreeSet<StepId>,
    pub(crate) pins: Vec<Pin>,
}

impl Backlog {
    /// Finds the steps that the vault has and the remote lacks.
    pub(crate) async fn read(vault: &Vault, remote: &RunRemote) -> Result<Self> {
        let (vault, run, remote) = (vault.clone(), remote.keys.run().clone(), remote.clone());
        blocking(move || {
            let sealed = vault.steps(&run)?.steps;
            let not_durable = || sealed.iter().filter(|step| !is_durable(step, &remote));
            let missing =
                not_durable().filter(|step| !step.record().is_provisional()).map(SealedStep::id).collect();
            let not_durable = not_durable().map(SealedStep::id).collect();
            Ok(Self { sealed, missing, not_durable, pins: vault.pins(&run)? })
        })
        .await
    }
}

/// Whether a step is recorded as durable on the remote at its current URL. A state that cannot be read counts as none:
/// the upload determines it again, starting with a query of the remote.
pub(crate) fn is_durable(step: &SealedStep, remote: &RunRemote) -> bool {
    is_durable_on(step, remote).unwrap_or(false)
}

/// Returns the bytes of a step that were not sent to the remote yet. Blocks.
pub(crate) fn unsent_bytes(vault: &Vault, step: &SealedStep, remote: &RemoteName) -> u64 {
    // An unreadable journal is restarted, and so is the step.
    missing_bytes(vault, step, remote).unwrap_or_else(|_| step.record().data_bytes())
}
