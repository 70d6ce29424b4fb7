//! Attempts around a restore: determines provisional attempts before searching for the newest step, and records what the
//! trainer resumes from.

use std::time::Duration;

use stepvault_core::{ErrorKind, Result};
use stepvault_local::tree::scan_members;
use stepvault_local::vault::Vault;

use super::plan::RestorePlan;
use super::request::{Restore, RestoreContext, RestoreRequest, Together};
use crate::blocking::blocking;
use crate::launches::{has_begun_before, record_beginning};
use crate::placement::{CurrentWriter, determine_attempts, provisional_steps};
use crate::seen_checkpoints::{CheckpointIdentity, Resumptions, record_checkpoint};

/// How many times, one second apart, the restore waits for an agent that holds the vault to determine the attempts.
const MAX_TRIES: u32 = 15;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// Determines the attempts of provisional steps, so that they count when the newest step is chosen. If that is not
/// possible, the restore continues with their provisional identities.
pub(super) async fn determine_provisional_attempts(restore: Restore<'_>) {
    let Restore { context, request } = restore;
    let (Some(vault), Some(together)) = (&context.vault, &request.together) else {
        return;
    };
    if context.remotes.is_empty() {
        return;
    }
    if let Err(error) = determine(restore, vault, together).await {
        context
            .observer
            .warn(format!("the attempts of steps sealed during an outage are still provisional: {error}"));
    }
}

/// Warns of provisional steps: a restore determines their attempts before it searches, which a plan must not do.
pub(super) async fn warn_of_provisional_attempts(Restore { context, request }: Restore<'_>) {
    let (Some(vault), false) = (&context.vault, context.remotes.is_empty()) else {
        return;
    };
    // The search reports a vault that cannot be read.
    let provisional = provisional_steps(vault, &request.run).await.unwrap_or_default();
    if !provisional.is_empty() {
        let ids: Vec<String> = provisional.iter().map(|step| step.id().to_string()).collect();
        context.observer.warn(format!(
                "the attempts of steps sealed during an outage are still provisional: {}; a restore determines them \
                 first, and may choose another step then",
                ids.join(", ")
            ));
    }
}

async fn determine(restore: Restore<'_>, vault: &Vault, together: &Together) -> Result<()> {
    let (run, mut tries) = (&restore.request.run, 0);
    while !provisional_steps(vault, run).await?.is_empty() {
        let locked = vault.clone();
        let lock = match blocking(move || locked.lock()).await {
            Ok(lock) => lock,
            // A running agent does it as soon as a remote answers.
            Err(error) if error.kind() == ErrorKind::Held && tries < MAX_TRIES => {
                tries += 1;
                tokio::time::sleep(BETWEEN_TRIES).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let current = CurrentWriter { writer: together.writer.clone(), launch_since: together.since };
        let RestoreContext { remotes, observer, .. } = restore.context;
        determine_attempts(vault, remotes, run, &current, observer).await?;
        drop(lock);
        return Ok(());
    }
    Ok(())
}

/// Whether the trainer must start from scratch if there is no step to resume from. What several nodes each have in a
/// directory of their own after an earlier start was never whole on all of them, and some of them could resume from it.
pub(super) async fn starts_from_scratch(Restore { context, request }: Restore<'_>) -> Result<bool> {
    let (Some(vault), Some(together), true) = (&context.vault, &request.together, request.resumes) else {
        return Ok(false);
    };
    let writer = &together.writer;
    let have_own = writer.place.nodes().is_several() && !writer.shared;
    Ok(have_own && has_begun_before(vault, &request.run).await?)
}

/// Records in the context's vault when this node began to take part in its launch. A failure does not fail the restore.
pub(super) async fn record_launch(Restore { context, request }: Restore<'_>) {
    let (Some(vault), Some(together), true) = (&context.vault, &request.together, request.resumes) else {
        return;
    };
    let Some(launch) = &together.writer.launch else {
        return;
    };
    if let Err(error) = record_beginning(vault, &request.run, launch, together.since).await {
        context
            .observer
            .warn(format!("cannot record in the vault that the launch '{launch}' began: {error}"));
    }
}

/// Records in the context's vault what the trainer resumes from. A failure does not fail the restore.
pub(super) async fn remember(Restore { context, request }: Restore<'_>, plan: &RestorePlan) {
    let Some(vault) = &context.vault else {
        return;
    };
    let remembered = async {
        remember_checkpoint(vault, request, plan).await?;
        remember_resumption(vault, request, plan).await
    };
    if let Err(error) = remembered.await {
        context.observer.warn(format!("cannot record in the vault that {} was restored: {error}", plan.id));
    }
}

/// Records in `vault` which files the restored step has, if it is whole.
async fn remember_checkpoint(vault: &Vault, request: &RestoreRequest, plan: &RestorePlan) -> Result<()> {
    if !request.include.is_empty() {
        return Ok(());
    }
    let files = plan.step.files.iter();
    let files: Vec<_> = files.map(|file| (&file.path, file.size_bytes)).collect();
    let restored = CheckpointIdentity::of(&files, &plan.step.symlinks, plan.written_at);
    let (path, members) = (plan.path.clone(), plan.step.members.clone());
    let there = blocking(move || scan_members(&path, &members)).await;
    let there = there.map(|tree| CheckpointIdentity::of_tree(&tree));
    let identity = there.ok().filter(|there| there.looks_like(&restored));
    record_checkpoint(vault, &request.run, plan.id, identity.unwrap_or(restored)).await
}

/// Records in `vault` what the trainer resumes from; does nothing if it does not resume from the restored step.
///
/// # Errors
/// When the vault cannot be written to.
pub async fn remember_resumption(vault: &Vault, request: &RestoreRequest, plan: &RestorePlan) -> Result<()> {
    let handoff = plan.handoff.as_ref();
    let resumes_from_another = handoff.is_some_and(|handoff| handoff.kept.is_some());
    let Some(together) = &request.together else {
        return Ok(());
    };
    if !request.resumes || !request.include.is_empty() || resumes_from_another {
        return Ok(());
    }
    let mut resumptions = Resumptions::open(vault, &request.run).await?;
    resumptions.add(plan.id, together.since).await
}
