//! Checkpoints that a trainer saves one after another under the same name, where neither the name nor, sometimes, the
//! content tells their number.

use std::sync::Arc;

use stepvault_core::ids::{Step, StepId};
use stepvault_core::observe::Observer;
use stepvault_core::placement::{Decision, KnownStep, LeftAlone, Placement};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::find::LONGEST_SAVE_SECONDS;
use stepvault_formats::step_name;
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Tree;
use stepvault_local::vault::Vault;

use super::seal::{CheckpointToSeal, known_steps};
use crate::content::tree_matches_record;
use crate::placement::{KnownSteps, ScannedCheckpoint};
use crate::resumptions::Resumptions;
use crate::seen_checkpoints::{CheckpointIdentity, seen_content};
use crate::tier::catalog::read_commit;
use crate::tier::run_remote::RunRemote;

/// The number of a run's first step, if nothing tells it.
const FIRST: u64 = 1;
/// How often the tiers are asked again when they know of a newer step than before.
const MAX_ROUNDS: usize = 4;

/// Where to look for earlier contents of the same path.
#[derive(Clone, Copy)]
pub(super) struct Tiers<'a> {
    pub(super) vault: &'a Vault,
    pub(super) remotes: &'a [RunRemote],
    pub(super) sealed: &'a [SealedStep],
    /// Whether the remotes may be asked: no earlier step waits for its attempt.
    pub(super) is_in_order: bool,
    pub(super) observer: &'a Arc<dyn Observer>,
}

/// The number of a checkpoint.
pub(super) struct StepNumber {
    pub(super) step: Step,
    /// As [`StepOrigin::unnumbered`](stepvault_core::step_origin::StepOrigin::unnumbered).
    pub(super) unnumbered: bool,
}

/// Returns the number of a checkpoint. If nothing tells it, that is the number of the step with its content, otherwise one
/// more than that of the newest step that any tier knows or knew. If that step has its number in its name, the next one
/// will use this number too, and all contents until then are revisions under it.
///
/// # Errors
/// [`ErrorKind::Usage`] if several nodes write the step: each could count differently.
pub(super) async fn number_of(
    told: Option<Step>,
    tiers: &Tiers<'_>,
    request: &CheckpointToSeal,
    (name, tree): (&str, &Tree),
    identity: &CheckpointIdentity,
) -> Result<StepNumber> {
    if let Some(step) = told {
        return Ok(StepNumber {
            step,
            unnumbered: false,
        });
    }
    if request.writer.place.nodes().is_several() {
        return Err(Error::new(ErrorKind::Usage, "cannot determine the step number")
            .on(request.source.display())
            .because("neither its name nor its content tells it, and several nodes write the run")
            .hint("write the step's number into the name"));
    }
    let has_content = |step: &&SealedStep| step.name() == name && tree_matches_record(tree, step.record());
    if let Some(step) = tiers.sealed.iter().rfind(has_content) {
        return Ok(StepNumber {
            step: step.id().step,
            unnumbered: step.record().origin.unnumbered,
        });
    }
    let (seen, last_seen) = seen_content(tiers.vault, &request.run, identity).await?;
    if let Some(seen) = seen {
        return Ok(StepNumber {
            step: seen.step,
            unnumbered: false,
        });
    }
    let mut known = KnownSteps::default();
    let mut newest = tiers.sealed.iter().map(SealedStep::id).max().max(last_seen);
    for _ in 0..MAX_ROUNDS {
        let checkpoint = ScannedCheckpoint {
            source: request.source.clone(),
            step: newest.map_or(Step::new(FIRST)?, |id| id.step),
            tree: Arc::new(tree.clone()),
            name: name.to_owned(),
            origin: request.origin.clone(),
            has_members: !request.members.is_empty(),
            proven: None,
        };
        // It was not seen before, under any number.
        known = known_steps(tiers, request, &checkpoint, None).await?;
        if let Some(same) = known.with_content(checkpoint.step) {
            return Ok(StepNumber {
                step: same.id.step,
                unnumbered: same.unnumbered,
            });
        }
        let found = known.steps.iter().map(|entry| entry.id).max().max(newest);
        if found == newest {
            break;
        }
        newest = found;
    }
    let Some(newest) = newest else {
        return Ok(StepNumber {
            step: Step::new(FIRST)?,
            unnumbered: false,
        });
    };
    if known
        .steps
        .iter()
        .any(|entry| entry.id == newest && entry.unnumbered)
    {
        return Ok(StepNumber {
            step: newest.step,
            unnumbered: true,
        });
    }
    let name = name_of(tiers, newest).await;
    let has_number = |name: String| step_name::parse(&name) == Some(newest.step.number());
    Ok(StepNumber {
        step: Step::new(newest.step.number() + 1)?,
        unnumbered: name.is_some_and(has_number),
    })
}

/// Returns the name of a step; `None` if no tier that answers has it.
async fn name_of(tiers: &Tiers<'_>, id: StepId) -> Option<String> {
    if let Some(step) = tiers.sealed.iter().find(|step| step.id() == id) {
        return Some(step.name().to_owned());
    }
    for remote in tiers.remotes {
        if let Ok(commit) = read_commit(remote, id).await {
            return Some(commit.name);
        }
    }
    None
}

/// Returns the step of another name that has the number of a checkpoint which `decision` makes another revision of it, or
/// leaves alone, only because of that: the trainer saved one state under both names, one right after the other, as where
/// one callback keeps the best and another every epoch. `None` if an attempt begins, or the number is that of an earlier
/// content of the same path.
///
/// # Errors
/// When the vault cannot be read.
pub(super) async fn copied_step(
    tiers: &Tiers<'_>,
    request: &CheckpointToSeal,
    known: &[KnownStep],
    (decision, name): (&Decision, &str),
    written_at: Timestamp,
) -> Result<Option<StepId>> {
    let is_taken = |entry: &&KnownStep| match decision.placement {
        Placement::New(id) => !decision.amends && entry.id.is_revision_of(id),
        Placement::Left(id, LeftAlone::Removed | LeftAlone::LostFiles) => entry.id == id,
        _ => false,
    };
    let numbered = known.iter().filter(|entry| !entry.unnumbered);
    let taken = numbered.filter(is_taken).max_by_key(|entry| entry.id);
    let Some((taken, taken_at)) = taken.and_then(|entry| Some((entry.id, entry.written_at?))) else {
        return Ok(None);
    };
    let resumptions = Resumptions::open(tiers.vault, &request.run).await?;
    let resumed = resumptions.before(written_at).map(|resumed| resumed.since);
    if decision.began.is_some()
        || resumed.is_some_and(|since| taken_at < since)
        || written_at.seconds_since(taken_at) > LONGEST_SAVE_SECONDS
    {
        return Ok(None);
    }
    let other = name_of(tiers, taken).await.is_some_and(|other| other != name);
    Ok(other.then_some(taken))
}
