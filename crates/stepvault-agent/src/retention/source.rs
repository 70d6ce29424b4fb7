//! Removal of the trainer's own steps once they are safe elsewhere, for runs that ask for it.

use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::ids::{RunName, StepId};
use stepvault_engine::blocking::blocking;
use stepvault_engine::push::held_by_all;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::tree::Tree;

use crate::discovery::Spent;
use crate::shared::Shared;

/// Most steps that are looked at in one round: each is a few questions to every remote, and nothing is sealed meanwhile.
const MOST_AT_ONCE: usize = 8;

/// What is to become of one of the trainer's steps.
#[derive(Debug)]
struct Decision {
    spent: Spent,
    verdict: Verdict,
}

#[derive(Debug)]
enum Verdict {
    /// It is safe under this identity, and goes as long as it looks like this.
    Remove(StepId, Box<Tree>),
    /// It stays, and why.
    Keep(String),
}

/// Removes those of the trainer's spent steps that every required remote holds.
///
/// # Errors
/// When a remote or the vault could not be asked what it holds: then nothing is removed.
pub(crate) async fn clean_source(
    shared: &Arc<Shared>,
    run: &RunName,
    remotes: &[RunRemote],
    spent: Vec<Spent>,
) -> Result<()> {
    for decision in plan(shared, run, remotes, spent).await? {
        let Spent { path, origin, .. } = decision.spent;
        let (id, tree) = match decision.verdict {
            Verdict::Remove(id, tree) => (id, tree),
            Verdict::Keep(reason) => {
                tracing::debug!(%run, path = %path.display(), reason, "the trainer's step stays");
                continue;
            }
        };
        let vault = shared.vault.clone();
        blocking(move || vault.remove_source(&origin.source, &origin.members, &tree)).await?;
        tracing::info!(%run, %id, path = %path.display(), "removed the trainer's own step, which every required remote holds");
        shared.board.cleaned(run, id);
    }
    Ok(())
}

async fn plan(
    shared: &Arc<Shared>,
    run: &RunName,
    remotes: &[RunRemote],
    spent: Vec<Spent>,
) -> Result<Vec<Decision>> {
    let required: Vec<RunRemote> = remotes
        .iter()
        .filter(|remote| remote.settings.required)
        .cloned()
        .collect();
    let (vault, pinned_run) = (shared.vault.clone(), run.clone());
    let pins = blocking(move || vault.pins(&pinned_run)).await?;
    let mut plan = Vec::new();
    for spent in spent.into_iter().take(MOST_AT_ONCE) {
        let looked_at = spent.clone();
        let verdict = match blocking(move || looked_at.unchanged()).await? {
            None => Verdict::Keep("it was written to since it was taken over".to_owned()),
            Some(tree) => match held_by_all(&required, &spent.origin.source, spent.step, &tree).await? {
                None => Verdict::Keep("not every required remote holds it".to_owned()),
                Some(id) if pins.iter().any(|pin| pin.id == id) => Verdict::Keep("it is pinned".to_owned()),
                Some(id) => Verdict::Remove(id, Box::new(tree)),
            },
        };
        plan.push(Decision { spent, verdict });
    }
    Ok(plan)
}
