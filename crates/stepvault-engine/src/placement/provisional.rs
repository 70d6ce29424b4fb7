//! Determines the attempts of steps that were sealed while no remote answered, and of steps whose attempt turned out to
//! be taken, before any of their bytes are sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepvault_core::ids::{RunName, StepId};
use stepvault_core::nodes::{NodePlace, Writer};
use stepvault_core::observe::Observer;
use stepvault_core::placement::{Decision, LeftAlone, Placement};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::seal_record::AttemptState;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;

use super::{
    KnownSteps, PlacementQuery, Placer, ScannedCheckpoint, ask_remotes, is_overwritten, known_in_vault,
    remarks,
};
use crate::blocking::blocking;
use crate::launches::remembered_attempt;
use crate::outage::is_outage;
use crate::push::held_by_all;
use crate::seen_checkpoints::{CheckpointIdentity, record_checkpoint, seen_checkpoint};
use crate::tier::catalog::read_commit;
use crate::tier::run_remote::RunRemote;

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
    let (vault, run) = (vault.clone(), run.clone());
    let mut steps = blocking(move || vault.steps(&run)).await?.steps;
    steps.retain(|step| step.record().is_provisional());
    steps.sort_by_key(|step| (written_at(step), step.id().step));
    Ok(steps)
}

/// Returns the earliest time at which a step can have been written.
pub(crate) fn written_at(step: &SealedStep) -> Timestamp {
    let record = step.record();
    record
        .attempt
        .not_before
        .map_or(record.written_at, |time| time.max(record.written_at))
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
    placer: &Placer,
    observer: &Arc<dyn Observer>,
) -> Result<Vec<Determined>> {
    let mut determined = Vec::new();
    let mut former_ids = BTreeMap::new();
    for remote in remotes {
        // The directory above an archive may have been mounted since a step was sealed. What fails here fails below too.
        if let Err(error) = remote.begin(vault).await {
            tracing::debug!(%error, "cannot prepare the remote");
        }
    }
    // Each iteration leaves one fewer: a determined step is no longer provisional, or no longer exists.
    while let Some(step) = provisional_steps(vault, run).await?.into_iter().next() {
        let id = step.id();
        let (outcome, remarks) =
            determine_one(vault, remotes, step, placer, (&mut former_ids, observer)).await?;
        let before = former_ids.get(&id).copied().unwrap_or(id);
        report(before, &outcome, &remarks, observer);
        determined.push(Determined {
            before,
            outcome,
            remarks,
        });
    }
    Ok(determined)
}

/// Frees an identity for a step: another provisional step may hold it until its own attempt is determined.
async fn free_identity(
    vault: &Vault,
    sealed: &[SealedStep],
    step: &SealedStep,
    id: StepId,
    former_ids: &mut BTreeMap<StepId, StepId>,
) -> Result<()> {
    let holds_identity =
        |other: &&SealedStep| other.id() == id && id != step.id() && other.record().is_provisional();
    let Some(other) = sealed.iter().find(holds_identity).cloned() else {
        return Ok(());
    };
    let mut free = id;
    while sealed.iter().any(|other| other.id() == free) {
        free = free.next_revision()?;
    }
    let vault = vault.clone();
    let renamed = blocking(move || vault.rename_provisional(&other, free)).await?;
    let before = former_ids.remove(&id).unwrap_or(id);
    former_ids.insert(renamed.id(), before);
    Ok(())
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

async fn determine_one(
    vault: &Vault,
    remotes: &[RunRemote],
    step: SealedStep,
    placer: &Placer,
    (former_ids, observer): (&mut BTreeMap<StepId, StepId>, &Arc<dyn Observer>),
) -> Result<(Outcome, Vec<String>)> {
    let (tree, source) = (step.tree(), step.checkpoint_path());
    let record = step.record();
    let checkpoint = ScannedCheckpoint::of_sealed(&step, &source, &tree);
    let writer = Writer {
        place: NodePlace::new(record.node.clone(), record.nodes())?,
        launch: record.launch.clone(),
        shared: record.shared,
    };
    let mut known = ask_remotes(remotes, &checkpoint, &writer, observer).await;
    if !known.answered {
        return Err(unanswered(known));
    }
    let (reader, run) = (vault.clone(), record.run.clone());
    let sealed = blocking(move || reader.steps(&run)).await?.steps;
    let settled: Vec<SealedStep> = (sealed.iter().filter(|other| !other.record().is_provisional()))
        .cloned()
        .collect();
    known.add(known_in_vault(&settled, &checkpoint, &writer).await?);
    // It is sealed already, and takes nothing from another step.
    known.steps.iter_mut().for_each(|entry| entry.is_here = false);
    // One that lost its identity to another writer was not the step that was removed.
    let has_lost = !record.attempt.former.is_empty() || !record.attempt.lost.is_empty();
    if !has_lost
        && !known.has_content(checkpoint.step)
        && let Some(seen) = seen_checkpoint(
            vault,
            &record.run,
            checkpoint.step,
            &CheckpointIdentity::of_tree(&tree),
        )
        .await?
        && known.is_removed(seen.id)
    {
        let outcome = no_place(vault, &step, (seen.id, LeftAlone::Removed), &known).await?;
        return Ok((outcome, Vec::new()));
    }
    let query = PlacementQuery {
        vault,
        run: &record.run,
        remotes,
        placer,
        checkpoint: &checkpoint,
        writer: &writer,
        attempt: None,
        not_before: record.attempt.not_before,
        in_launch: record.attempt.in_launch,
        live: record.attempt.live,
        is_overwritten: is_overwritten(&checkpoint, &settled),
        lost: &record.attempt.lost,
        provisional: Vec::new(),
    };
    let decision = query.decide(&known.steps, true).await?;
    let outcome = match decision.placement {
        Placement::Known(id) if settled_as(&sealed, &step, id) => {
            discard(vault, &step).await?;
            Outcome::Duplicate(id)
        }
        Placement::Known(id) if others_hold(remotes, &step, id, &checkpoint, observer).await? => {
            discard(vault, &step).await?;
            Outcome::Duplicate(id)
        }
        Placement::New(id) | Placement::Known(id) | Placement::LaunchWentBack(id) => {
            free_identity(vault, &sealed, &step, id, former_ids).await?;
            place(vault, &step, id, &decision).await?
        }
        Placement::Left(id, why) => no_place(vault, &step, (id, why), &known).await?,
    };
    Ok((outcome, remarks(&decision)))
}

fn unanswered(known: KnownSteps) -> Error {
    let none = || {
        Error::new(
            ErrorKind::Unreachable,
            "cannot determine the attempts of sealed steps",
        )
        .because("no remote is configured")
    };
    known.unanswered.into_iter().next().unwrap_or_else(none)
}

/// Whether another step of the vault has this identity permanently.
fn settled_as(sealed: &[SealedStep], step: &SealedStep, id: StepId) -> bool {
    let mut others = sealed.iter().filter(|other| other.id() == id && id != step.id());
    others.any(|other| !other.record().is_provisional())
}

/// Whether every remote holds the same step as another node's, proved now: a node that restored it and has a different
/// name than the writer has nothing to add.
async fn others_hold(
    remotes: &[RunRemote],
    step: &SealedStep,
    id: StepId,
    checkpoint: &ScannedCheckpoint<'_>,
    observer: &Arc<dyn Observer>,
) -> Result<bool> {
    let record = step.record();
    if record.is_one_of_several() {
        return Ok(false);
    }
    for remote in remotes {
        match read_commit(remote, id).await {
            Ok(commit) if commit.parts.iter().all(|part| part.node != record.node) => {}
            Err(error) if is_outage(&error) => return Err(error),
            _ => return Ok(false),
        }
    }
    let held = held_by_all(remotes, checkpoint, observer).await?;
    Ok(held == Some(id))
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

/// Returns why a checkpoint is not stored beside a step, in words.
pub(crate) fn left_alone(id: StepId, why: LeftAlone) -> String {
    match why {
        LeftAlone::Removed => format!("{id} was removed by retention or belongs to another launch"),
        LeftAlone::LostFiles => {
            format!("files of it were added or changed since {id} was sealed, and others of {id} are gone")
        }
        LeftAlone::OneOfSeveral => {
            format!(
                "files of it were added or changed since {id} was sealed, which several nodes have written"
            )
        }
        LeftAlone::Taken => format!("{id} has, or had, different files"),
    }
}

/// Discards a step that retention removed elsewhere. Quarantines a step that another checkpoint replaced: a sealed step
/// is never deleted because of the times of its files.
async fn no_place(
    vault: &Vault,
    step: &SealedStep,
    (taken, left): (StepId, LeftAlone),
    known: &KnownSteps,
) -> Result<Outcome> {
    let error = Error::new(
        ErrorKind::Refused,
        format!("cannot upload step {}", step.id().step),
    )
    .on(step.directory().display());
    if left == LeftAlone::Removed && known.is_removed(taken) {
        discard(vault, step).await?;
        return Ok(Outcome::NoPlace(error.because(format!(
            "it was sealed while no remote was reachable, and retention had already removed {taken}"
        ))));
    }
    let why = left_alone(taken, left);
    let (vault, run, id, reason) = (vault.clone(), step.run().clone(), step.id(), why.clone());
    let put_aside = blocking(move || vault.quarantine(&run, id, &reason)).await?;
    Ok(Outcome::NoPlace(error.because(why).hint(format!(
        "to keep its files, push them from {} with --attempt",
        put_aside.directory.display()
    ))))
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
