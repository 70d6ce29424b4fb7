//! Determines the attempts of steps that were sealed while no remote answered, and of steps whose attempt turned out to
//! be taken, before any of their bytes are sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepvault_core::placement::{Decision, LeftAlone, Placement};
use stepvault_core::{Error, ErrorKind, NodePlace, Observer, Result, RunName, StepId, Timestamp, Writer};
use stepvault_local::seal_record::AttemptState;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use super::remarks::{left_alone, remarks};
use super::{
    CurrentWriter, KnownSteps, PlacementQuery, ScannedCheckpoint, ask_remotes, held_by_all, known_in_vault,
};
use crate::blocking::{blocking, sealed_steps};
use crate::launches::remembered_attempt;
use crate::outage::is_outage;
use crate::seen_checkpoints::{CheckpointIdentity, record_checkpoint, seen_checkpoint};
use crate::tier::catalog::read_commit;
use crate::tier::run_remote::RunRemote;
use stepvault_remote::store::ArchivePlace;

/// Maximum number of attempts that a step goes through before its conflict is final.
const MAX_FORMER_ATTEMPTS: usize = 16;

/// The outcome for one provisional step.
#[derive(Debug)]
pub struct Determined {
    /// Its identity before.
    pub before: StepId,
    /// The outcome.
    pub outcome: Outcome,
    /// What a user should know of it.
    pub remarks: Vec<String>,
}

/// The outcome of determining an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// The step got this attempt.
    Placed(Box<SealedStep>),
    /// The vault, or every remote, already holds the same step under this identity; this copy was discarded.
    Duplicate(StepId),
    /// The step has no identity: retention removed it, or a later checkpoint replaced it.
    NoPlace(Error),
}

/// Returns the provisional steps of a run, in the order in which they were written.
///
/// # Errors
/// When the vault cannot be read.
pub async fn provisional_steps(vault: &Vault, run: &RunName) -> Result<Vec<SealedStep>> {
    let mut steps = sealed_steps(vault, run).await?.steps;
    steps.retain(|step| step.record().is_provisional());
    steps.sort_by_key(|step| (written_at(step), step.id().step));
    Ok(steps)
}

/// Returns the earliest time at which a step can have been written.
pub(super) fn written_at(step: &SealedStep) -> Timestamp {
    let record = step.record();
    record.attempt.not_before.map_or(record.written_at, |time| time.max(record.written_at))
}

/// Determines the attempts of all provisional steps of a run, in the order in which they were written.
///
/// The caller holds the vault's lock, and nothing else seals or determines attempts meanwhile.
///
/// # Errors
/// When no remote answers: attempts determined before that stay, and the rest remains provisional.
pub async fn determine_attempts(
    vault: &Vault,
    remotes: &[RunRemote],
    run: &RunName,
    current: &CurrentWriter,
    observer: &Arc<dyn Observer>,
) -> Result<Vec<Determined>> {
    for remote in remotes {
        // The directory above an archive may have been mounted since a step was sealed. What fails here fails below too.
        if let Err(error) = remote.begin(vault, ArchivePlace::Anywhere).await {
            tracing::debug!(%error, "cannot prepare the remote");
        }
    }
    let mut determination = Determination { vault, remotes, current, observer, former_ids: BTreeMap::new() };
    let mut determined = Vec::new();
    // Each iteration leaves one fewer: a determined step is no longer provisional, or no longer exists.
    while let Some(step) = provisional_steps(vault, run).await?.into_iter().next() {
        let id = step.id();
        let (outcome, remarks) = determination.determine(&step).await?;
        let before = determination.former_ids.get(&id).copied().unwrap_or(id);
        report(before, &outcome, &remarks, observer);
        determined.push(Determined { before, outcome, remarks });
    }
    Ok(determined)
}

fn report(before: StepId, outcome: &Outcome, remarks: &[String], observer: &Arc<dyn Observer>) {
    for message in remarks {
        observer.warn(message);
    }
    match outcome {
        Outcome::Placed(step) if step.id() == before => {}
        Outcome::Placed(step) => observer.info(format!("{before} was provisional and is now {}", step.id())),
        Outcome::Duplicate(id) => observer.info(format!("{before} was provisional and equals {id}")),
        Outcome::NoPlace(error) => observer.warn(error.to_string()),
    }
}

/// The determination of a run's provisional steps, one after the other.
struct Determination<'a> {
    vault: &'a Vault,
    remotes: &'a [RunRemote],
    current: &'a CurrentWriter,
    observer: &'a Arc<dyn Observer>,
    /// The identities that renamed steps had before.
    former_ids: BTreeMap<StepId, StepId>,
}

impl Determination<'_> {
    /// Determines one step; returns the remarks on the decision as well.
    async fn determine(&mut self, step: &SealedStep) -> Result<(Outcome, Vec<String>)> {
        let vault = self.vault;
        let record = step.record();
        let checkpoint = ScannedCheckpoint::of_sealed(step);
        let writer = Writer {
            place: NodePlace::new(record.node.clone(), record.nodes())?,
            launch: record.launch.clone(),
            shared: record.shared,
        };
        let mut known = ask_remotes(self.remotes, &checkpoint, &writer, self.observer).await;
        if !known.answered {
            let none = || {
                Error::new(ErrorKind::Unreachable, "cannot determine the attempts of sealed steps")
                    .because("no remote is configured")
            };
            return Err(known.unanswered.into_iter().next().unwrap_or_else(none));
        }
        let sealed = sealed_steps(vault, &record.run).await?.steps;
        let settled: Vec<SealedStep> =
            (sealed.iter().filter(|other| !other.record().is_provisional())).cloned().collect();
        known.add(known_in_vault(&settled, &checkpoint, &writer).await?);
        // It is sealed already, and takes nothing from another step.
        known.steps.iter_mut().for_each(|entry| entry.is_here = false);
        if let Some(removed) = self.removed_before(step, &checkpoint, &known).await? {
            let outcome = self.no_place(step, (removed, LeftAlone::Removed), &known).await?;
            return Ok((outcome, Vec::new()));
        }
        let query = PlacementQuery {
            vault,
            run: &record.run,
            remotes: self.remotes,
            current: self.current,
            checkpoint: &checkpoint,
            writer: &writer,
            attempt: None,
            origin: &record.attempt,
            sealed: &settled,
            is_in_order: true,
            observer: self.observer,
        };
        let decision = query.decide_finally(&known.steps).await?;
        let outcome = match decision.placement {
            Placement::Known(id)
                if settled_as(&sealed, step, id) || self.others_hold(step, id, &checkpoint).await? =>
            {
                discard(vault, step).await?;
                Outcome::Duplicate(id)
            }
            Placement::New(id) | Placement::Known(id) | Placement::LaunchWentBack(id) => {
                self.free_identity(&sealed, step, id).await?;
                place(vault, step, id, &decision).await?
            }
            Placement::Left(id, why) => self.no_place(step, (id, why), &known).await?,
        };
        Ok((outcome, remarks(&decision)))
    }

    /// Returns the step as which the vault has seen these files before, if retention has removed it. One that lost its
    /// identity to another writer was not the step that was removed.
    async fn removed_before(
        &self,
        step: &SealedStep,
        checkpoint: &ScannedCheckpoint,
        known: &KnownSteps,
    ) -> Result<Option<StepId>> {
        let (run, attempt) = (step.run(), &step.record().attempt);
        let has_lost = !attempt.former.is_empty() || !attempt.lost.is_empty();
        if has_lost || known.has_content(checkpoint.step) {
            return Ok(None);
        }
        let identity = CheckpointIdentity::of_tree(&checkpoint.tree);
        let seen = seen_checkpoint(self.vault, run, checkpoint.step, &identity).await?;
        Ok(seen.map(|seen| seen.id).filter(|id| known.is_removed(*id)))
    }

    /// Frees an identity for a step: another provisional step may hold it until its own attempt is determined.
    async fn free_identity(&mut self, sealed: &[SealedStep], step: &SealedStep, id: StepId) -> Result<()> {
        let holds_identity =
            |other: &&SealedStep| other.id() == id && id != step.id() && other.record().is_provisional();
        let Some(other) = sealed.iter().find(holds_identity).cloned() else {
            return Ok(());
        };
        let mut free = id;
        while sealed.iter().any(|other| other.id() == free) {
            free = free.next_revision()?;
        }
        let vault = self.vault.clone();
        let renamed = blocking(move || vault.rename_provisional(&other, free)).await?;
        let before = self.former_ids.remove(&id).unwrap_or(id);
        self.former_ids.insert(renamed.id(), before);
        Ok(())
    }

    /// Whether every remote holds the same step as another node's, proved now: a node that restored it and has a different
    /// name than the writer has nothing to add.
    async fn others_hold(
        &self,
        step: &SealedStep,
        id: StepId,
        checkpoint: &ScannedCheckpoint,
    ) -> Result<bool> {
        let record = step.record();
        if record.is_one_of_several() {
            return Ok(false);
        }
        for remote in self.remotes {
            match read_commit(remote, id).await {
                Ok(commit) if commit.parts.iter().all(|part| part.node != record.node) => {}
                Err(error) if is_outage(&error) => return Err(error),
                _ => return Ok(false),
            }
        }
        let held = held_by_all(self.remotes, checkpoint, self.observer).await?;
        Ok(held == Some(id))
    }

    /// Discards a step that retention removed elsewhere. Quarantines a step that another checkpoint replaced: a sealed step
    /// is never deleted because of the times of its files.
    async fn no_place(
        &self,
        step: &SealedStep,
        (taken, left): (StepId, LeftAlone),
        known: &KnownSteps,
    ) -> Result<Outcome> {
        let what = format!("cannot upload step {}", step.id().step);
        let error = Error::new(ErrorKind::Refused, what).on(step.directory().display());
        if left == LeftAlone::Removed && known.is_removed(taken) {
            discard(self.vault, step).await?;
            return Ok(Outcome::NoPlace(error.because(format!(
                "it was sealed while no remote was reachable, and retention had already removed {taken}"
            ))));
        }
        let why = left_alone(taken, left);
        let (vault, run, id, reason) = (self.vault.clone(), step.run().clone(), step.id(), why.clone());
        let put_aside = blocking(move || vault.quarantine(&run, id, &reason)).await?;
        Ok(Outcome::NoPlace(error.because(why).hint(format!(
            "to keep its files, push them from {} with --attempt",
            put_aside.directory.display()
        ))))
    }
}

/// Whether another step of the vault has this identity permanently.
fn settled_as(sealed: &[SealedStep], step: &SealedStep, id: StepId) -> bool {
    let mut others = sealed.iter().filter(|other| other.id() == id && id != step.id());
    others.any(|other| !other.record().is_provisional())
}

async fn place(vault: &Vault, step: &SealedStep, id: StepId, decision: &Decision) -> Result<Outcome> {
    let identity = CheckpointIdentity::of_tree(&step.tree());
    record_checkpoint(vault, step.run(), id, identity).await?;
    let mut origin = step.record().origin.clone();
    (origin.amends, origin.began) = (decision.amends, decision.began);
    let (vault, step) = (vault.clone(), step.clone());
    let placed = blocking(move || vault.place(&step, id, origin)).await?;
    Ok(Outcome::Placed(Box::new(placed)))
}

async fn discard(vault: &Vault, step: &SealedStep) -> Result<()> {
    let (vault, run, id) = (vault.clone(), step.run().clone(), step.id());
    blocking(move || vault.evict(&run, id)).await.map(drop)
}

/// Makes the attempt of a step provisional again after an upload found it taken. Returns `false` if the attempt stays,
/// because it was given explicitly or the step went through too many attempts.
///
/// The caller holds the vault's lock, and nothing of the step is being sent.
pub async fn make_provisional_again(vault: &Vault, step: &SealedStep, error: &Error) -> Result<bool> {
    let origin = &step.record().attempt;
    let may = error.is_name_taken()
        && origin.state == AttemptState::Placed
        && origin.former.len() + origin.lost.len() < MAX_FORMER_ATTEMPTS
        // The same identity was determined again: its files are uploaded, under another writer's claim.
        && !origin.lost.contains(&step.id())
        && is_of_its_launch(vault, step).await?;
    if may {
        let (vault, step) = (vault.clone(), step.clone());
        blocking(move || vault.make_provisional_again(&step)).await?;
    }
    Ok(may)
}

/// Whether a multi-node step has the attempt of the launch that sealed it. A step left by the previous launch has an
/// earlier attempt and must not become a step of the later launch, which may have gone back before it.
async fn is_of_its_launch(vault: &Vault, step: &SealedStep) -> Result<bool> {
    let record = step.record();
    if !record.is_one_of_several() {
        return Ok(true);
    }
    let Some(launch) = &record.launch else {
        return Ok(false);
    };
    let remembered = remembered_attempt(vault, &record.run, launch).await?;
    Ok(remembered == Some(record.id.attempt))
}
