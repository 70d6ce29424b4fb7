//! Determines the identity of a checkpoint and seals it under that identity.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::config::LinkPolicy;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{Attempt, RunName, Step, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::{Observer, Operation, OperationKind, Tier};
use stepvault_core::path::RelativePath;
use stepvault_core::placement::{Content, Decision, KnownStep, LeftAlone, LiveSave, Placement};
use stepvault_core::step_origin::StepOrigin;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::not_checkpoint::may_hold_state;
use stepvault_formats::step_name;
use stepvault_local::seal::{SealRequest, seal};
use stepvault_local::seal_record::{AttemptOrigin, AttemptState};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Tree, scan_members};
use stepvault_local::vault::Vault;

use super::rewritten::{StepNumber, Tiers, copied_step, number_of};
use crate::blocking::{blocking, sealed_steps};
use crate::launches::recorded_beginning;
use crate::metrics::{MetricsSource, read_metrics};
use crate::observed::ObservedOperation;
use crate::outage::is_outage;
use crate::placement::{
    KnownSteps, PlacementQuery, Placer, ScannedCheckpoint, ask_remotes, determine_attempts, is_overwritten,
    known_in_vault, left_alone, provisional_steps, report, taken, written_at,
};
use crate::resumptions::Resumptions;
use crate::seen_checkpoints::{CheckpointIdentity, record_checkpoint, seen_checkpoint};
use crate::tier::run_remote::RunRemote;

/// One checkpoint to seal.
#[derive(Debug, Clone)]
pub struct CheckpointToSeal {
    /// The run it belongs to.
    pub run: RunName,
    /// The directory or file that the trainer wrote.
    pub source: PathBuf,
    /// The paths below `source` that make up the checkpoint; empty when it is all of `source`.
    pub members: Vec<RelativePath>,
    /// Where its trainer keeps it, and what wrote it.
    pub origin: StepOrigin,
    /// The name to store it under; `None` for the name of `source`.
    pub name: Option<String>,
    /// Its step; `None` to parse it from the name, or to take the next number where the path is rewritten.
    pub step: Option<Step>,
    /// Its attempt; `None` to determine it.
    pub attempt: Option<Attempt>,
    /// The writer of the step.
    pub writer: Writer,
    /// The time, by this node's clock, since which this node has been part of the writer's launch.
    pub launch_since: Timestamp,
    /// Whether the checkpoint is known to belong to that launch; otherwise one older than the launch does not.
    pub in_launch: bool,
    /// It appeared after this time of this node's clock, whatever the times of its files are.
    pub not_before: Option<Timestamp>,
    /// Set if it appeared, or all of it was written anew, while an agent was running.
    pub live: Option<LiveSave>,
    /// Metrics given by hand; they override those in the checkpoint.
    pub metrics: BTreeMap<String, f64>,
    /// Where the checkpoint contains metrics.
    pub metrics_source: MetricsSource,
    /// How files are linked or copied into the vault.
    pub links: LinkPolicy,
    /// The algorithm of the digests of its files.
    pub digest: DigestAlgorithm,
    /// The tree as it was when the checkpoint was judged complete.
    pub expected: Option<Tree>,
}

/// A checkpoint with its identity.
#[derive(Debug)]
pub enum Placed {
    /// It is in the vault.
    Sealed {
        /// The step.
        step: Box<SealedStep>,
        /// Whether it was sealed just now.
        new: bool,
        /// Whether it is a whole save at or below the highest number that was seen live.
        is_live_below_highest: bool,
    },
    /// Every remote already has it, or a remote has the step of which it is a copy, so it was not sealed.
    DurableEverywhere {
        /// Step and attempt.
        id: StepId,
        /// Its name.
        name: String,
        /// Its files.
        file_count: u64,
        /// Its bytes.
        data_bytes: u64,
    },
}

impl Placed {
    fn durable_everywhere(id: StepId, name: String, tree: &Tree) -> Self {
        Self::DurableEverywhere {
            id,
            name,
            file_count: tree.files.len() as u64,
            data_bytes: tree.data_bytes(),
        }
    }

    /// Whether the attempt may still change because no remote has answered.
    pub fn is_provisional(&self) -> bool {
        match self {
            Self::Sealed { step, .. } => step.record().is_provisional(),
            Self::DurableEverywhere { .. } => false,
        }
    }

    /// Returns identity, name, number of files and bytes.
    pub fn summary(&self) -> (StepId, String, u64, u64) {
        match self {
            Self::Sealed { step, .. } => {
                let record = step.record();
                (
                    record.id,
                    record.name.clone(),
                    record.files.len() as u64,
                    record.data_bytes(),
                )
            }
            Self::DurableEverywhere {
                id,
                name,
                file_count,
                data_bytes,
            } => (*id, name.clone(), *file_count, *data_bytes),
        }
    }
}

impl CheckpointToSeal {
    fn placer(&self) -> Placer {
        Placer {
            writer: self.writer.clone(),
            launch_since: self.launch_since,
        }
    }
}

/// Seals a checkpoint under the identity that follows from what is known of the run.
///
/// An unreachable remote does not prevent sealing: the identity then follows from what the others know, and if no
/// remote answers, the attempt is provisional until one does. Provisional steps that were sealed earlier are determined
/// first.
///
/// # Errors
/// [`ErrorKind::Refused`] for an old checkpoint whose identity is taken or that retention removed, and for files of two
/// starts of a job of several nodes;
/// [`ErrorKind::Conflict`] when an attempt was given and holds different files at that step.
pub async fn seal_checkpoint(
    vault: &Vault,
    remotes: &[RunRemote],
    request: CheckpointToSeal,
    observer: &Arc<dyn Observer>,
) -> Result<Placed> {
    let ScannedSource {
        source,
        name,
        named,
        tree,
    } = scan_source(&request).await?;
    begin_remotes(vault, remotes, observer).await;
    let is_in_order = determine_earlier(vault, remotes, &request, observer).await?;
    let sealed = sealed_steps(vault, &request.run).await?;
    let identity = CheckpointIdentity::of_tree(&tree);
    let tiers = Tiers {
        vault,
        remotes,
        sealed: &sealed.steps,
        is_in_order,
        observer,
    };
    let mut request = request;
    let StepNumber { step, unnumbered } =
        number_of(named, &tiers, &request, (&name, &tree), &identity).await?;
    request.origin.unnumbered = unnumbered;
    let seen = seen_checkpoint(vault, &request.run, step, &identity).await?;
    let checkpoint = ScannedCheckpoint {
        source: source.clone(),
        step,
        tree: Arc::new(tree.clone()),
        name: name.clone(),
        origin: request.origin.clone(),
        has_members: !request.members.is_empty(),
        proven: seen.filter(|seen| seen.is_proven).map(|seen| seen.id),
    };
    let known = known_steps(&tiers, &request, &checkpoint, seen.map(|seen| seen.id)).await?;
    let origin = AttemptOrigin {
        not_before: request.not_before,
        in_launch: request.in_launch,
        live: request.live.filter(|_| has_kinds_of_newest(&tree, &sealed.steps)),
        ..AttemptOrigin::default()
    };
    let query = PlacementQuery {
        vault,
        run: &request.run,
        remotes,
        placer: &request.placer(),
        checkpoint: &checkpoint,
        writer: &request.writer,
        attempt: request.attempt,
        origin: &origin,
        is_overwritten: is_overwritten(&checkpoint, &sealed.steps),
        provisional: provisional_attempts(&sealed.steps),
    };
    let Identified {
        decision,
        state,
        copied,
    } = identify(&tiers, &request, &query, &known, &name).await?;
    let id = match decision.placement {
        Placement::Known(id) => {
            if let Some(step) = sealed.steps.iter().find(|sealed| sealed.id() == id) {
                return Ok(found_sealed(vault, step.clone(), identity, observer).await);
            }
            if !known.missing_somewhere || copied.is_some() {
                record_sealed(vault, &request.run, id, identity, observer).await;
                return Ok(Placed::durable_everywhere(id, name, &tree));
            }
            id
        }
        Placement::New(id) | Placement::LaunchWentBack(id) => {
            refuse_mixed_starts(vault, &request, (&source, &name, step), &tree).await?;
            id
        }
        Placement::Left(id, why) => return Err(refused(&source, id, why)),
    };
    report(&decision, observer);
    let is_live = origin.live.is_some();
    let origin = AttemptOrigin { state, ..origin };
    let run = request.run.clone();
    (request.origin.amends, request.origin.began) = (decision.amends, decision.began);
    let identified = (id, origin, completed(&decision, sealed.steps));
    let looked_at = (source.clone(), request.members.clone());
    let step = seal_as(vault, request, identified, (source, name), &tree, observer).await?;
    if !step.record().is_provisional() {
        let identity = identity_now(looked_at, tree).await.unwrap_or(identity);
        record_sealed(vault, &run, id, identity, observer).await;
    }
    Ok(Placed::Sealed {
        step: Box::new(step),
        new: true,
        is_live_below_highest: is_live && decision.is_below_highest && !decision.amends,
    })
}

/// Returns the identity of a checkpoint that was just sealed: the links of the vault have changed its inodes. `None` if
/// something else has changed it too.
async fn identity_now(
    (source, members): (PathBuf, Vec<RelativePath>),
    sealed: Tree,
) -> Option<CheckpointIdentity> {
    let now = blocking(move || scan_members(&source, &members)).await.ok()?;
    sealed
        .change_until(&now)
        .is_none()
        .then(|| CheckpointIdentity::of_tree(&now))
}

/// Returns the step whose files a revision takes, where its checkpoint has lost them.
fn completed(decision: &Decision, sealed: Vec<SealedStep>) -> Option<SealedStep> {
    let mut sealed = sealed.into_iter();
    sealed.find(|step| decision.completes == Some(step.id()))
}

/// Returns a step that is sealed already. The process that sealed it may have been killed before it recorded it.
async fn found_sealed(
    vault: &Vault,
    step: SealedStep,
    identity: CheckpointIdentity,
    observer: &Arc<dyn Observer>,
) -> Placed {
    if !step.record().is_provisional() {
        record_sealed(vault, step.run(), step.id(), identity, observer).await;
    }
    Placed::Sealed {
        step: Box::new(step),
        new: false,
        is_live_below_highest: false,
    }
}

/// The files of a checkpoint, and what its name tells.
struct ScannedSource {
    source: PathBuf,
    name: String,
    /// Its number, unless only its content can tell it.
    named: Option<Step>,
    tree: Tree,
}

async fn scan_source(request: &CheckpointToSeal) -> Result<ScannedSource> {
    let source = absolute(&request.source)?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => name_of(&source)?,
    };
    let named = match request.step {
        None if request.origin.rewritten => None,
        None => Some(step_of(&name)?),
        given => given,
    };
    let (scanned, members) = (source.clone(), request.members.clone());
    let tree = blocking(move || scan_members(&scanned, &members)).await?;
    if tree.files.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "cannot push the step")
            .on(source.display())
            .because("it holds no file"));
    }
    Ok(ScannedSource {
        source,
        name,
        named,
        tree,
    })
}

/// The identity of a checkpoint.
struct Identified {
    decision: Decision,
    /// Whether it may still change.
    state: AttemptState,
    /// The step of another name that it is a copy of.
    copied: Option<StepId>,
}

async fn identify(
    tiers: &Tiers<'_>,
    request: &CheckpointToSeal,
    query: &PlacementQuery<'_>,
    known: &KnownSteps,
    name: &str,
) -> Result<Identified> {
    let checkpoint = query.checkpoint;
    let (mut decision, state) = decide(query, known, tiers.sealed).await?;
    // Two files of an unknown trainer that have one number may be two halves of a step.
    let may_be_copy = request.origin.rewritten || request.origin.profile.is_some();
    let copied = if may_be_copy && request.attempt.is_none() {
        let written_at = checkpoint.tree.newest_mtime();
        copied_step(tiers, request, &known.steps, (&decision, name), written_at).await?
    } else {
        None
    };
    if let Some(id) = copied {
        decision.placement = Placement::Known(id);
    }
    Ok(Identified {
        decision,
        state,
        copied,
    })
}

/// Whether a checkpoint has the kinds of files that the newest sealed step has, by their extensions. An averaged or
/// converted one lacks some.
fn has_kinds_of_newest(tree: &Tree, sealed: &[SealedStep]) -> bool {
    let kind = |path: &RelativePath| {
        let name = path.as_str();
        let kind = name
            .rsplit_once('.')
            .map_or(name, |(_, extension)| extension)
            .to_owned();
        may_hold_state(name).then_some(kind)
    };
    let kinds: BTreeSet<String> = tree.files.iter().filter_map(|file| kind(&file.path)).collect();
    let newest = sealed.iter().max_by_key(|step| step.id());
    let mut wanted = newest.into_iter().flat_map(|step| &step.record().files);
    wanted.all(|file| kind(&file.path).is_none_or(|kind| kinds.contains(&kind)))
}

/// Returns when each provisional step was written, and its attempt for now.
fn provisional_attempts(sealed: &[SealedStep]) -> Vec<(Timestamp, Attempt)> {
    let provisional = sealed.iter().filter(|step| step.record().is_provisional());
    provisional
        .map(|step| (written_at(step), step.id().attempt))
        .collect()
}

/// Prepares each remote, and warns of those that cannot be.
async fn begin_remotes(vault: &Vault, remotes: &[RunRemote], observer: &Arc<dyn Observer>) {
    for remote in remotes {
        // The same fault would also fail queries and uploads, so it is reported here.
        if let Err(error) = remote.begin(vault).await {
            observer.warn(format!("{}: cannot prepare the remote: {error}", remote.name()));
        }
    }
}

/// Collects the steps that the remotes and the vault know, and the one as which the checkpoint was `seen` before. The
/// remotes are only asked if earlier steps are in order.
///
/// # Errors
/// [`ErrorKind::Refused`] when the checkpoint was sealed before and retention has removed it.
pub(super) async fn known_steps(
    tiers: &Tiers<'_>,
    request: &CheckpointToSeal,
    checkpoint: &ScannedCheckpoint,
    seen: Option<StepId>,
) -> Result<KnownSteps> {
    let mut known = if tiers.is_in_order {
        ask_remotes(tiers.remotes, checkpoint, &request.writer, tiers.observer).await
    } else {
        KnownSteps {
            missing_somewhere: true,
            ..KnownSteps::default()
        }
    };
    known.add(known_in_vault(tiers.sealed, checkpoint, &request.writer).await?);
    if request.attempt.is_some() || known.has_content(checkpoint.step) {
        return Ok(known);
    }
    let Some(seen) = seen else {
        return Ok(known);
    };
    if known.is_removed(seen) {
        return Err(refused(&checkpoint.source, seen, LeftAlone::Removed));
    }
    if !known.steps.iter().any(|entry| entry.id == seen) {
        // It never became durable, or no remote answers.
        known.add(vec![KnownStep {
            written_at: Some(checkpoint.tree.newest_mtime()),
            ..taken(seen, Content::Same)
        }]);
    }
    Ok(known)
}

/// Records a sealed step for the time after retention has removed it. A failure does not fail the seal.
async fn record_sealed(
    vault: &Vault,
    run: &RunName,
    id: StepId,
    identity: CheckpointIdentity,
    observer: &Arc<dyn Observer>,
) {
    if let Err(error) = record_checkpoint(vault, run, id, identity).await {
        observer.warn(format!(
            "cannot record in the vault that {id} was sealed: {error}"
        ));
    }
}

/// Returns why a checkpoint is not sealed. What retention removed is no fault; everything else is lost with the node.
fn refused(source: &Path, id: StepId, why: LeftAlone) -> Error {
    let (kind, what, hint) = match why {
        LeftAlone::Removed => (
            ErrorKind::Refused,
            "refusing to seal an old checkpoint".to_owned(),
            "to keep it, push it as a new attempt with --attempt",
        ),
        LeftAlone::Taken => (
            ErrorKind::Conflict,
            format!("{id} is taken"),
            "omit --attempt, or give a higher one",
        ),
        LeftAlone::LostFiles | LeftAlone::OneOfSeveral => (
            ErrorKind::Usage,
            "cannot seal what was changed in the checkpoint".to_owned(),
            "the step stays as it was sealed; to keep this state too, push it as a new attempt with --attempt",
        ),
    };
    let error = Error::new(kind, what)
        .on(source.display())
        .because(left_alone(id, why))
        .hint(hint);
    if why == LeftAlone::Removed {
        error.pruned()
    } else {
        error
    }
}

/// Seals the checkpoint under this identity and reports it to the observer.
async fn seal_as(
    vault: &Vault,
    request: CheckpointToSeal,
    (id, attempt, completes): (StepId, AttemptOrigin, Option<SealedStep>),
    (source, name): (PathBuf, String),
    tree: &Tree,
    observer: &Arc<dyn Observer>,
) -> Result<SealedStep> {
    let location = source.display().to_string();
    let mut sealing = ObservedOperation::start(
        observer.as_ref(),
        Operation {
            kind: OperationKind::Seal,
            tier: &Tier::Local,
            id,
            location: &location,
            files: tree.files.len() as u64,
            bytes: Some(tree.data_bytes()),
        },
    );
    let (vault, from) = (vault.clone(), source);
    // The seal has to match the tree that was placed.
    let expected = request.expected.clone().or_else(|| Some(tree.clone()));
    let sealed = blocking(move || {
        let mut metrics = read_metrics(&from, &request.metrics_source)?;
        metrics.extend(request.metrics);
        let request = SealRequest {
            run: request.run,
            id,
            attempt,
            writer: request.writer,
            source: from,
            members: request.members,
            origin: request.origin,
            name,
            metrics,
            links: request.links,
            digest: request.digest,
            expected,
            completes,
        };
        seal(&vault, &request)
    })
    .await;
    match &sealed {
        Ok(step) => {
            sealing.operation.files = step.record().files.len() as u64;
            sealing.operation.bytes = Some(step.record().data_bytes());
            sealing.finished(0);
        }
        Err(error) => sealing.failed(error),
    }
    sealed
}

/// Determines the attempts of the run's provisional steps. Returns `false` if that is not possible now: a later step is
/// then provisional too, even if a remote answers a moment later.
async fn determine_earlier(
    vault: &Vault,
    remotes: &[RunRemote],
    request: &CheckpointToSeal,
    observer: &Arc<dyn Observer>,
) -> Result<bool> {
    if remotes.is_empty() || provisional_steps(vault, &request.run).await?.is_empty() {
        return Ok(true);
    }
    match determine_attempts(vault, remotes, &request.run, &request.placer(), observer).await {
        Ok(_) => Ok(true),
        Err(error) if is_outage(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses files of two starts of a job of several nodes in one directory: what an interrupted save left, and a later
/// save of the same step. A file is of an earlier start if the kernel has not changed its inode since this one began: a copy
/// cannot set that time. A hard link into a vault changes it too, so that a file is of this start only by its modification
/// time. A directory whose name does not contain the step may be rewritten in part each time.
///
/// An agent that starts in the middle of a save, with a vault that knows of no earlier beginning of the launch, cannot
/// tell that save from files of two starts, and refuses it too.
async fn refuse_mixed_starts(
    vault: &Vault,
    request: &CheckpointToSeal,
    (source, name, step): (&Path, &str, Step),
    tree: &Tree,
) -> Result<()> {
    let oldest = tree.files.iter().map(|file| (file.ctime, &file.path)).min();
    let newest = tree.files.iter().map(|file| (file.mtime, &file.path)).max();
    let (Some((oldest, old)), Some((newest, new))) = (oldest, newest) else {
        return Ok(());
    };
    if !request.writer.place.nodes().is_several() || step_of(name).ok() != Some(step) {
        return Ok(());
    }
    // The agent may have started later than its launch, in the middle of a save.
    let recorded = match &request.writer.launch {
        Some(launch) => recorded_beginning(vault, &request.run, launch).await?,
        None => None,
    };
    let launch_since = recorded.map_or(request.launch_since, |recorded| {
        recorded.min(request.launch_since)
    });
    let restored = Resumptions::open(vault, &request.run).await?.before(newest);
    let began = restored.map_or(launch_since, |restored| restored.since.max(launch_since));
    if oldest >= began || newest < began {
        return Ok(());
    }
    Err(
        Error::new(ErrorKind::Usage, "refusing to seal a checkpoint of two starts")
            .on(source.display())
            .because(format!(
                "{old} was written before this start of the trainer, and {new} after it"
            ))
            .hint("remove the directory; or, if it is whole, rename it and push it with --step"),
    )
}

/// Decides which step a checkpoint is, and whether that is final or provisional.
async fn decide(
    query: &PlacementQuery<'_>,
    known: &KnownSteps,
    sealed: &[SealedStep],
) -> Result<(Decision, AttemptState)> {
    if query.attempt.is_some() {
        return Ok((query.decide(&known.steps, true).await?, AttemptState::Given));
    }
    let is_several = query.writer.place.nodes().is_several();
    if query.remotes.is_empty() || known.answered || is_several {
        match query.decide(&known.steps, true).await {
            Ok(decision) => return Ok((decision, AttemptState::Placed)),
            Err(error) if is_outage(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let mut decision = query.decide(&known.steps, false).await?;
    if let Placement::New(id) = &mut decision.placement {
        // The identity may be taken by another provisional step.
        while sealed.iter().any(|other| other.id() == *id) {
            *id = id.next_revision()?;
        }
    }
    Ok((decision, AttemptState::Provisional))
}

fn absolute(source: &Path) -> Result<PathBuf> {
    std::path::absolute(source).map_err(|error| {
        Error::new(ErrorKind::Usage, "not a path")
            .on(source.display())
            .caused_by(error)
    })
}

fn name_of(source: &Path) -> Result<String> {
    let fault = |why: &str| {
        Error::new(ErrorKind::Usage, "cannot name the step")
            .on(source.display())
            .because(why)
    };
    let name = source
        .file_name()
        .ok_or_else(|| fault("the path has no last component"))?;
    let name = name.to_str().ok_or_else(|| fault("its name is not UTF-8"))?;
    stepvault_core::keys::check_step_name(name)?;
    Ok(name.to_owned())
}

/// Parses the step number from its name.
pub(crate) fn step_of(name: &str) -> Result<Step> {
    let number = step_name::parse(name).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "cannot determine the step number")
            .on(name)
            .because("its name contains no number")
            .hint("give it with --step N")
    })?;
    Step::new(number)
}
