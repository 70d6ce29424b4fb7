//! Removes the trainer's own steps, for runs with cleaning, once every required remote holds them and the local tier's
//! rules have dropped its copy. The trainer's directory keeps as many steps as the vault, and those that its profile
//! says it needs.

use std::collections::BTreeSet;
use std::sync::Arc;

use stepvault_core::records::Pin;
use stepvault_core::{Observer, Result, RunName, Step, StepId};
use stepvault_engine::placement::{ScannedCheckpoint, held_by_all};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::{Tree, Vault};
use tokio::time::Instant;

use crate::agent_status::Reporter;
use crate::discovery::PrunableStep;

/// Maximum number of steps that are checked in one round: each takes a few queries of every remote, and nothing is
/// sealed meanwhile.
const MAX_AT_ONCE: usize = 8;

/// The decision about one of the trainer's steps.
#[derive(Debug)]
enum Verdict {
    /// It is durable under this identity, and is removed if it is unchanged.
    Remove(StepId, Arc<Tree>),
    /// It stays, with the cause.
    Keep(String),
}

/// Removes the trainer's prunable steps that the local tier has evicted and every required remote holds. `turn` grows
/// by one with each round: if there are more steps than one round can check, each has its turn.
///
/// # Errors
/// When a remote or the vault could not be read: then nothing is removed.
pub(crate) async fn clean_source(
    vault: &Vault,
    reporter: &Reporter,
    run: &RunName,
    remotes: &[RunRemote],
    steps: Vec<PrunableStep>,
    turn: usize,
) -> Result<()> {
    let (opened, of_run) = (vault.clone(), run.clone());
    let (pins, sealed) = blocking(move || Ok((opened.pins(&of_run)?, opened.steps(&of_run)?))).await?;
    let sealed: BTreeSet<Step> = sealed.steps.iter().map(|step| step.id().step).collect();
    let (kept, mut evicted): (Vec<PrunableStep>, Vec<PrunableStep>) =
        steps.into_iter().partition(|found| sealed.contains(&found.step));
    let is_kept = |step| (step, Verdict::Keep("the local tier keeps it".to_owned()));
    let mut plan: Vec<(PrunableStep, Verdict)> = kept.into_iter().map(is_kept).collect();
    if evicted.len() > MAX_AT_ONCE {
        let start = turn.wrapping_mul(MAX_AT_ONCE) % evicted.len();
        evicted.rotate_left(start);
    }
    for step in evicted.into_iter().take(MAX_AT_ONCE) {
        let verdict = judge(remotes, &pins, &step, &reporter.observer).await?;
        plan.push((step, verdict));
    }
    for (PrunableStep { path, checkpoint, .. }, verdict) in plan {
        let (id, tree) = match verdict {
            Verdict::Remove(id, tree) => (id, tree),
            Verdict::Keep(reason) => {
                tracing::debug!(%run, path = %path.display(), reason, "keeping the trainer's step");
                continue;
            }
        };
        let (vault, bytes, begun) = (vault.clone(), tree.data_bytes(), Instant::now());
        tracing::info!(%run, %id, path = %path.display(), bytes, "removing the trainer's copy of a step that every \
                                                                  required remote holds");
        blocking(move || vault.remove_source(&checkpoint.source, &checkpoint.members, &tree)).await?;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(%run, %id, path = %path.display(), bytes, seconds, "removed the trainer's copy of a step");
        reporter.status.cleaned(run, id);
    }
    Ok(())
}

async fn judge(
    remotes: &[RunRemote],
    pins: &[Pin],
    prunable: &PrunableStep,
    observer: &Arc<dyn Observer>,
) -> Result<Verdict> {
    let looked_at = prunable.clone();
    let Some(tree) = blocking(move || looked_at.unchanged()).await? else {
        return Ok(Verdict::Keep("it was modified after it was sealed".to_owned()));
    };
    for remote in remotes {
        let pinned = match stepvault_engine::tier::catalog::pins(remote).await {
            Ok(pinned) => pinned,
            // Its pins count only while it answers, as for every other removal.
            Err(_) if !remote.settings.required => continue,
            Err(error) => return Err(error),
        };
        if pinned.iter().any(|pin| pin.step == prunable.step) {
            return Ok(Verdict::Keep(format!("it is pinned on {}", remote.name())));
        }
    }
    let required: Vec<RunRemote> =
        remotes.iter().filter(|remote| remote.settings.required).cloned().collect();
    let tree = Arc::new(tree);
    // What is deleted is read before.
    let proven = None;
    let checkpoint = ScannedCheckpoint::new(&prunable.checkpoint, prunable.step, Arc::clone(&tree), proven);
    let held = held_by_all(&required, &checkpoint, observer).await?;
    Ok(match held {
        None => Verdict::Keep("not every required remote holds it".to_owned()),
        Some(id) if pins.iter().any(|pin| pin.id == id) => Verdict::Keep("it is pinned".to_owned()),
        Some(id) => Verdict::Remove(id, tree),
    })
}
