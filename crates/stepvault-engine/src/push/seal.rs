//! Determines the identity of a checkpoint and seals it under that identity.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use futures::future::select_ok;
use stepvault_core::config::{LinkPolicy, RunSettings};
use stepvault_core::placement::{Decision, KnownStep, LeftAlone, Placement};
use stepvault_core::{
    Attempt, DigestAlgorithm, Error, ErrorKind, Observer, Operation, OperationKind, RelativePath, Result,
    RunName, Sha256Digest, Step, StepId, Tier,
};
use stepvault_formats::find::LONGEST_SAVE_SECONDS;
use stepvault_formats::not_checkpoint::may_hold_state;
use stepvault_formats::step_name;
use stepvault_local::durable::read_bounded;
use stepvault_local::seal::{SealRequest, Sealed, seal, seal_reporting};
use stepvault_local::seal_record::{AttemptOrigin, AttemptState};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::{Checkpoint, Tree, absolute};
use stepvault_local::vault::Vault;
use stepvault_remote::store::ArchivePlace;

use super::number::StepNumber;
use crate::blocking::{blocking, sealed_steps};
use crate::launches::recorded_beginning;
use crate::observed::ObservedOperation;
use crate::outage::is_outage;
use crate::placement::{
    CurrentWriter, KnownSteps, PlacementQuery, ScannedCheckpoint, determine_attempts, refused, report,
};
use crate::seen_checkpoints::{CheckpointIdentity, Resumptions, record_checkpoint, seen_checkpoint};
use crate::tier::catalog::{committed_ids, read_commit};
use crate::tier::run_remote::RunRemote;
use crate::upload::CopyInProgress;

/// Maximum size of a metrics file that is read.
const MAX_METRICS_FILE_BYTES: u64 = 16 << 20;
/// Bytes hashed at once to measure the rate: they fit in the processor's cache.
const SAMPLE_BYTES: usize = 256 << 10;
/// Number of measurements. The fastest counts: the others were interrupted.
const SAMPLES: usize = 8;

/// Where metrics are found: a JSON file in the checkpoint, and a JSON pointer into it for each metric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsSource {
    /// Path inside the checkpoint.
    pub file: Option<RelativePath>,
    /// JSON pointers (RFC 6901) by metric name.
    pub pointers: BTreeMap<String, String>,
}

impl MetricsSource {
    /// Returns where the checkpoints of a run contain metrics.
    pub fn of(run: &RunSettings) -> Self {
        Self { file: run.metrics_file.clone(), pointers: run.metrics.clone() }
    }
}

/// One checkpoint to seal.
#[derive(Debug, Clone)]
pub struct CheckpointToSeal {
    /// The run it belongs to.
    pub run: RunName,
    /// What it is sealed from. Its metrics override those that the checkpoint contains.
    pub checkpoint: Checkpoint,
    /// Its files when it was judged complete; `None` to list them now. It is sealed only if they are unchanged.
    pub tree: Option<Arc<Tree>>,
    /// Its step; `None` to parse it from the name, or to take the next number where the path is rewritten.
    pub step: Option<Step>,
    /// Its attempt; `None` to determine it.
    pub attempt: Option<Attempt>,
    /// What is known of its attempt before that: whether it belongs to the launch of its writer, although it may be older, and
    /// whether it appeared, or all of it was written anew, while an agent was running.
    pub origin: AttemptOrigin,
    /// The writer of the step.
    pub current: CurrentWriter,
    /// How its files may be linked or copied if no remote answers, and the step will be uploaded later; `None` for the same
    /// way.
    pub links_for_later: Option<LinkPolicy>,
    /// Whether its trainer is known to write its finished files again, so that links to them end with the next save.
    pub is_overwritten: bool,
    /// Where the checkpoint contains metrics.
    pub metrics_source: MetricsSource,
    /// The algorithm of the digests of its files; `None` to go on with that of the run.
    pub digest: Option<DigestAlgorithm>,
    /// Shows its files while they are copied into the vault, if an upload sends them meanwhile.
    pub shown_in: Option<CopyInProgress>,
}

/// The outcome of sealing a checkpoint.
#[derive(Debug)]
pub enum SealOutcome {
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
    DurableEverywhere(StepSummary),
}

/// A step in short.
#[derive(Debug, Clone)]
pub struct StepSummary {
    /// Step and attempt.
    pub id: StepId,
    /// Its name.
    pub name: String,
    /// Number of its files.
    pub file_count: u64,
    /// Its bytes.
    pub data_bytes: u64,
}

impl SealOutcome {
    /// Whether the attempt may still change because no remote has answered.
    pub fn is_provisional(&self) -> bool {
        matches!(self, Self::Sealed { step, .. } if step.record().is_provisional())
    }

    /// Returns the step in short.
    pub fn summary(&self) -> StepSummary {
        match self {
            Self::DurableEverywhere(summary) => summary.clone(),
            Self::Sealed { step, .. } => StepSummary {
                id: step.id(),
                name: step.name().to_owned(),
                file_count: step.record().files.len() as u64,
                data_bytes: step.record().data_bytes(),
            },
        }
    }
}

impl CheckpointToSeal {
    /// Returns its number, unless only its content can tell it.
    fn named_step(&self) -> Result<Option<Step>> {
        match self.step {
            None if self.checkpoint.origin.rewritten => Ok(None),
            None => step_of(&self.checkpoint.name).map(Some),
            given => Ok(given),
        }
    }
}

/// A checkpoint that is being placed and sealed, and what is known of the run by then.
pub(super) struct Sealing<'a> {
    pub(super) vault: &'a Vault,
    pub(super) remotes: &'a [RunRemote],
    pub(super) observer: &'a Arc<dyn Observer>,
    pub(super) request: CheckpointToSeal,
    /// Its files when it was judged complete.
    pub(super) tree: Arc<Tree>,
    /// The steps of the run in the vault.
    pub(super) sealed: Vec<SealedStep>,
    /// Whether the remotes may be asked: no earlier step waits for its attempt.
    is_in_order: bool,
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
pub async fn identify_and_seal(
    vault: &Vault,
    remotes: &[RunRemote],
    mut request: CheckpointToSeal,
    observer: &Arc<dyn Observer>,
) -> Result<SealOutcome> {
    request.checkpoint.source = absolute(&request.checkpoint.source)?;
    let named = request.named_step()?;
    let mut sealing = Sealing::begin(vault, remotes, request, observer).await?;
    let Identified { step, identity, known, decision, state, copied } = sealing.identify(named).await?;
    let request = &sealing.request;
    let id = match decision.placement {
        Placement::Known(id) => {
            if let Some(step) = sealing.sealed.iter().find(|sealed| sealed.id() == id) {
                if step.record().source.is_none() || request.checkpoint.in_place {
                    return Ok(sealing.found_sealed(step.clone(), identity).await);
                }
                // Its files are the trainer's own. They are sealed again, as files of the vault.
                let (owner, run) = (vault.clone(), request.run.clone());
                blocking(move || owner.evict(&run, id)).await?;
            }
            if !known.missing_somewhere || copied.is_some() {
                sealing.record_sealed(id, identity).await;
                return Ok(SealOutcome::DurableEverywhere(sealing.summary(id)));
            }
            id
        }
        Placement::New(id) | Placement::LaunchWentBack(id) => {
            sealing.refuse_mixed_starts(step).await?;
            id
        }
        Placement::Left(id, why) => return Err(refused(&request.checkpoint.source, id, why)),
    };
    report(&decision, observer);
    let origin = AttemptOrigin { state, ..request.origin.clone() };
    // Those that did not answer a moment ago are not waited for again, and those that did may have said that the run is new.
    let may_know = known.answered && !known.steps.is_empty();
    let digest = match request.digest {
        Some(given) => given,
        None => choose_digest(&sealing.sealed, if may_know { remotes } else { &[] }).await?,
    };
    let sealed = sealing.seal_observed(id, origin, &decision, digest).await?;
    if !sealed.step.record().is_provisional() {
        // The links of the vault have changed its inodes.
        let identity = CheckpointIdentity::of_tree(&sealed.source);
        sealing.record_sealed(id, identity).await;
    }
    Ok(SealOutcome::Sealed {
        step: Box::new(sealed.step),
        new: true,
        is_live_below_highest: request.origin.live.is_some() && decision.is_below_highest && !decision.amends,
    })
}

/// What a push of a checkpoint would seal.
#[derive(Debug)]
pub struct SealPlan {
    /// The step.
    pub step: StepSummary,
    /// Whether its attempt may still change, because no remote has answered, or an earlier step waits for its own.
    pub provisional: bool,
    /// Whether it is in the vault already, or on every remote.
    pub is_sealed: bool,
}

/// Determines as which step [`identify_and_seal`] would seal a checkpoint, and changes nothing.
///
/// # Errors
/// As for [`identify_and_seal`].
pub(super) async fn plan_seal(
    vault: &Vault,
    remotes: &[RunRemote],
    mut request: CheckpointToSeal,
    observer: &Arc<dyn Observer>,
) -> Result<SealPlan> {
    request.checkpoint.source = absolute(&request.checkpoint.source)?;
    let named = request.named_step()?;
    let mut sealing = Sealing::list(vault, remotes, request, observer).await?;
    sealing.is_in_order = !sealing.sealed.iter().any(|step| step.record().is_provisional());
    let Identified { step, known, decision, state, copied, .. } = sealing.identify(named).await?;
    let (id, is_sealed) = match decision.placement {
        Placement::Known(id) => {
            let is_in_vault = sealing.sealed.iter().any(|sealed| sealed.id() == id);
            (id, is_in_vault || !known.missing_somewhere || copied.is_some())
        }
        Placement::New(id) | Placement::LaunchWentBack(id) => {
            sealing.refuse_mixed_starts(step).await?;
            (id, false)
        }
        Placement::Left(id, why) => return Err(refused(&sealing.request.checkpoint.source, id, why)),
    };
    let provisional = state == AttemptState::Provisional;
    Ok(SealPlan { step: sealing.summary(id), provisional, is_sealed })
}

/// What a checkpoint is by what is known of the run.
struct Identified {
    step: Step,
    identity: CheckpointIdentity,
    known: KnownSteps,
    decision: Decision,
    state: AttemptState,
    /// The step of another name of which it is a copy; its placement is that step then.
    copied: Option<StepId>,
}

impl<'a> Sealing<'a> {
    /// Lists the checkpoint and the steps in the vault.
    async fn list(
        vault: &'a Vault,
        remotes: &'a [RunRemote],
        mut request: CheckpointToSeal,
        observer: &'a Arc<dyn Observer>,
    ) -> Result<Self> {
        let tree = tree_of(&mut request).await?;
        let sealed = sealed_steps(vault, &request.run).await?.steps;
        Ok(Self { vault, remotes, observer, request, tree, sealed, is_in_order: true })
    }

    /// Lists the checkpoint and the steps in the vault, prepares the remotes, and determines earlier provisional steps.
    async fn begin(
        vault: &'a Vault,
        remotes: &'a [RunRemote],
        mut request: CheckpointToSeal,
        observer: &'a Arc<dyn Observer>,
    ) -> Result<Self> {
        request.tree = Some(tree_of(&mut request).await?);
        for remote in remotes {
            // The same fault would also fail queries and uploads, so it is reported here.
            if let Err(error) = remote.begin(vault, ArchivePlace::Anywhere).await {
                observer.warn(format!("{}: cannot prepare the remote: {error}", remote.name()));
            }
        }
        let mut sealing = Self::list(vault, remotes, request, observer).await?;
        if !remotes.is_empty() && sealing.sealed.iter().any(|step| step.record().is_provisional()) {
            let Sealing { request, .. } = &sealing;
            // A later step is provisional too while this is not possible, even if a remote answers a moment later.
            let determined =
                determine_attempts(vault, remotes, &request.run, &request.current, observer).await;
            let is_in_order = match determined {
                Ok(_) => true,
                Err(error) if is_outage(&error) => false,
                Err(error) => return Err(error),
            };
            sealing.sealed = sealed_steps(vault, &request.run).await?.steps;
            sealing.is_in_order = is_in_order;
        }
        Ok(sealing)
    }

    /// Determines which step the checkpoint is; `named` is its number as far as it is given or in its name.
    async fn identify(&mut self, named: Option<Step>) -> Result<Identified> {
        let identity = CheckpointIdentity::of_tree(&self.tree);
        let StepNumber { step, unnumbered } = match named {
            Some(step) => StepNumber { step, unnumbered: false },
            None => self.number(&identity).await?,
        };
        self.request.checkpoint.origin.unnumbered = unnumbered;
        if !self.has_kinds_of_newest() {
            self.request.origin.live = None;
        }
        let seen = seen_checkpoint(self.vault, &self.request.run, step, &identity).await?;
        let proven = seen.filter(|seen| seen.is_proven).map(|seen| seen.id);
        let scanned = self.scanned(step, proven);
        let query = self.query(&scanned);
        let known = query.known_steps(seen.map(|seen| seen.id)).await?;
        let (mut decision, state) = query.decide(&known).await?;
        let copied = self.copied_step(&known.steps, &decision).await?;
        if let Some(id) = copied {
            decision.placement = Placement::Known(id);
        }
        Ok(Identified { step, identity, known, decision, state, copied })
    }
}

/// Returns the files of a checkpoint: as they were judged, or as they are now.
async fn tree_of(request: &mut CheckpointToSeal) -> Result<Arc<Tree>> {
    let tree = if let Some(judged) = request.tree.take() {
        judged
    } else {
        let checkpoint = request.checkpoint.clone();
        Arc::new(blocking(move || checkpoint.scan()).await?)
    };
    if tree.files.is_empty() {
        return Err(Error::at(ErrorKind::Usage, "cannot push the step", &request.checkpoint.source)
            .because("it holds no file"));
    }
    Ok(tree)
}

impl Sealing<'_> {
    /// Returns the checkpoint as a step of this number; `proven` as which the vault has seen its very files.
    pub(super) fn scanned(&self, step: Step, proven: Option<StepId>) -> ScannedCheckpoint {
        ScannedCheckpoint::new(&self.request.checkpoint, step, Arc::clone(&self.tree), proven)
    }

    /// Returns the query that decides which step the checkpoint is.
    pub(super) fn query<'b>(&'b self, checkpoint: &'b ScannedCheckpoint) -> PlacementQuery<'b> {
        let request = &self.request;
        PlacementQuery {
            vault: self.vault,
            run: &request.run,
            remotes: self.remotes,
            current: &request.current,
            checkpoint,
            writer: &request.current.writer,
            attempt: request.attempt,
            origin: &request.origin,
            sealed: &self.sealed,
            is_in_order: self.is_in_order,
            observer: self.observer,
        }
    }

    fn summary(&self, id: StepId) -> StepSummary {
        StepSummary {
            id,
            name: self.request.checkpoint.name.clone(),
            file_count: self.tree.files.len() as u64,
            data_bytes: self.tree.data_bytes(),
        }
    }

    /// Returns the step of another name that has the number of a checkpoint which `decision` makes another revision of it,
    /// or leaves alone, only because of that: the trainer saved one state under both names, one right after the other, as
    /// where one callback keeps the best and another every epoch. `None` if an attempt begins, or the number is that of an
    /// earlier content of the same path.
    ///
    /// # Errors
    /// When the vault cannot be read.
    async fn copied_step(&self, known: &[KnownStep], decision: &Decision) -> Result<Option<StepId>> {
        let origin = &self.request.checkpoint.origin;
        // Two files of an unknown trainer that have one number may be two halves of a step.
        let may_be_copy = origin.rewritten || origin.profile.is_some();
        if !may_be_copy || self.request.attempt.is_some() {
            return Ok(None);
        }
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
        let written_at = self.tree.newest_mtime();
        let resumptions = Resumptions::open(self.vault, &self.request.run).await?;
        let resumed = resumptions.before(written_at).map(|resumed| resumed.since);
        if decision.began.is_some()
            || resumed.is_some_and(|since| taken_at < since)
            || written_at.seconds_since(taken_at) > LONGEST_SAVE_SECONDS
        {
            return Ok(None);
        }
        let name = &self.request.checkpoint.name;
        let other = self.name_of(taken).await.is_some_and(|other| other != *name);
        Ok(other.then_some(taken))
    }

    /// Returns the name of a step; `None` if no tier that answers has it.
    pub(super) async fn name_of(&self, id: StepId) -> Option<String> {
        if let Some(step) = self.sealed.iter().find(|step| step.id() == id) {
            return Some(step.name().to_owned());
        }
        for remote in self.remotes {
            if let Ok(commit) = read_commit(remote, id).await {
                return Some(commit.name);
            }
        }
        None
    }

    /// Returns a step that is sealed already. The process that sealed it may have been killed before it recorded it.
    async fn found_sealed(&self, step: SealedStep, identity: CheckpointIdentity) -> SealOutcome {
        if !step.record().is_provisional() {
            self.record_sealed(step.id(), identity).await;
        }
        SealOutcome::Sealed { step: Box::new(step), new: false, is_live_below_highest: false }
    }

    /// Whether a checkpoint has the kinds of files that the newest sealed step has, by their extensions. An averaged or
    /// converted one lacks some.
    fn has_kinds_of_newest(&self) -> bool {
        let kind = |path: &RelativePath| {
            let name = path.as_str();
            let kind = name.rsplit_once('.').map_or(name, |(_, extension)| extension);
            may_hold_state(name).then(|| kind.to_owned())
        };
        let files = self.tree.files.iter();
        let kinds: BTreeSet<String> = files.filter_map(|file| kind(&file.path)).collect();
        let newest = self.sealed.iter().max_by_key(|step| step.id());
        let mut wanted = newest.into_iter().flat_map(|step| &step.record().files);
        wanted.all(|file| kind(&file.path).is_none_or(|kind| kinds.contains(&kind)))
    }

    /// Records a sealed step for the time after retention has removed it. A failure does not fail the seal.
    async fn record_sealed(&self, id: StepId, identity: CheckpointIdentity) {
        let recorded = record_checkpoint(self.vault, &self.request.run, id, identity).await;
        if let Err(error) = recorded {
            self.observer.warn(format!("cannot record in the vault that {id} was sealed: {error}"));
        }
    }

    /// Refuses files of two starts of a job of several nodes in one directory: what an interrupted save left, and a later
    /// save of the same step. A file is of an earlier start if the kernel has not changed its inode since this one began: a
    /// copy cannot set that time. A hard link into a vault changes it too, so that a file is of this start only by its
    /// modification time. A directory whose name does not contain the step may be rewritten in part each time.
    ///
    /// An agent that starts in the middle of a save, with a vault that knows of no earlier beginning of the launch, cannot
    /// tell that save from files of two starts, and refuses it too.
    async fn refuse_mixed_starts(&self, step: Step) -> Result<()> {
        let (request, files) = (&self.request, &self.tree.files);
        let oldest = files.iter().map(|file| (file.ctime, &file.path)).min();
        let newest = files.iter().map(|file| (file.mtime, &file.path)).max();
        let (Some((oldest, old)), Some((newest, new))) = (oldest, newest) else {
            return Ok(());
        };
        let named = step_of(&request.checkpoint.name).ok();
        if !request.current.writer.place.nodes().is_several() || named != Some(step) {
            return Ok(());
        }
        // The agent may have started later than its launch, in the middle of a save.
        let recorded = match &request.current.writer.launch {
            Some(launch) => recorded_beginning(self.vault, &request.run, launch).await?,
            None => None,
        };
        let launch_since = recorded
            .map_or(request.current.launch_since, |recorded| recorded.min(request.current.launch_since));
        let restored = Resumptions::open(self.vault, &request.run).await?.before(newest);
        let began = restored.map_or(launch_since, |restored| restored.since.max(launch_since));
        if oldest >= began || newest < began {
            return Ok(());
        }
        Err(Error::at(
            ErrorKind::Usage,
            "refusing to seal a checkpoint of two starts",
            &request.checkpoint.source,
        )
        .because(format!("{old} was written before this start of the trainer, and {new} after it"))
        .hint("remove the directory; or, if it is whole, rename it and push it with --step"))
    }

    /// Seals the checkpoint under this identity and reports it to the observer. What it has lost of the step that it
    /// completes is taken from the vault.
    async fn seal_observed(
        &self,
        id: StepId,
        attempt: AttemptOrigin,
        decision: &Decision,
        digest: DigestAlgorithm,
    ) -> Result<Sealed> {
        let location = self.request.checkpoint.source.display().to_string();
        let mut sealing = ObservedOperation::start(
            self.observer.as_ref(),
            Operation {
                kind: OperationKind::Seal,
                run: &self.request.run,
                tier: &Tier::Local,
                id,
                location: &location,
                files: self.tree.files.len() as u64,
                bytes: Some(self.tree.data_bytes()),
            },
        );
        let completes = |step: &&SealedStep| decision.completes == Some(step.id());
        let mut request = SealRequest {
            run: self.request.run.clone(),
            id,
            attempt,
            writer: self.request.current.writer.clone(),
            checkpoint: self.request.checkpoint.clone(),
            digest,
            // The seal has to match the tree that was placed.
            expected: Some(Arc::clone(&self.tree)),
            completes: self.sealed.iter().find(completes).cloned(),
        };
        let origin = &mut request.checkpoint.origin;
        (origin.amends, origin.began) = (decision.amends, decision.began);
        let (vault, metrics_source) = (self.vault.clone(), self.request.metrics_source.clone());
        let is_for_later = request.attempt.state == AttemptState::Provisional;
        let links_for_later = self.request.links_for_later.filter(|_| is_for_later);
        // Nothing of a provisional step may be sent.
        let may_be_sent = !is_for_later && request.completes.is_none();
        let shown_in = self.request.shown_in.as_ref().filter(|_| may_be_sent);
        let shown = shown_in.map(|shown_in| shown_in.of_seal(&request, &self.tree));
        let sealed = blocking(move || {
            let checkpoint = &mut request.checkpoint;
            let mut metrics = read_metrics(&checkpoint.source, &metrics_source)?;
            metrics.append(&mut checkpoint.metrics);
            checkpoint.metrics = metrics;
            if let Some(links) = links_for_later {
                let mut later = request.clone();
                (later.checkpoint.links, later.checkpoint.in_place) = (links, false);
                match seal(&vault, &later) {
                    // Without room for a copy, it is better not to have one than to have nothing.
                    Err(error) if error.kind() == ErrorKind::NoSpace => {}
                    sealed => return sealed,
                }
            }
            seal_reporting(&vault, &request, &mut |copy| {
                if let Some(shown) = &shown {
                    shown.copied(copy);
                }
            })
        })
        .await;
        match &sealed {
            Ok(Sealed { step, .. }) => {
                sealing.operation.files = step.record().files.len() as u64;
                sealing.operation.bytes = Some(step.record().data_bytes());
                sealing.finished(0);
            }
            Err(error) => sealing.failed(error),
        }
        sealed
    }
}

/// Returns the algorithm for the next step of a run: that of its newest step in the vault, else on the first remote that
/// answers, else the one that suits this processor.
pub(crate) async fn choose_digest(sealed: &[SealedStep], remotes: &[RunRemote]) -> Result<DigestAlgorithm> {
    if let Some(newest) = sealed.iter().max_by_key(|step| step.id()) {
        return Ok(newest.record().digest);
    }
    let asked: Vec<_> =
        remotes.iter().map(|remote| Box::pin(remote.answers_soon(newest_committed(remote)))).collect();
    // Without an answer the run counts as new: each step records its own algorithm.
    let answer = if asked.is_empty() { None } else { select_ok(asked).await.ok() };
    match answer.and_then(|(committed, _)| committed) {
        Some(algorithm) => Ok(algorithm),
        None => blocking(|| Ok(DigestAlgorithm::for_new_run(sha256_rate()))).await,
    }
}

async fn newest_committed(remote: &RunRemote) -> Result<Option<DigestAlgorithm>> {
    let Some(newest) = committed_ids(remote).await?.into_keys().max() else {
        return Ok(None);
    };
    let commit = read_commit(remote, newest).await?;
    let part = commit.parts.first().ok_or_else(|| {
        Error::new(ErrorKind::Damaged, "a commit lists no part")
            .on(remote.describe(&remote.keys.commit(newest)))
    })?;
    Ok(Some(part.digest))
}

/// Returns the bytes per second of SHA-256 on one core, measured once. Blocks for a few milliseconds.
fn sha256_rate() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let sample = vec![0; SAMPLE_BYTES];
        let times = (0..SAMPLES).map(|_| {
            let begun = Instant::now();
            std::hint::black_box(Sha256Digest::of(std::hint::black_box(&sample)));
            begun.elapsed()
        });
        let nanoseconds = times.min().map_or(1, |time| time.as_nanos().max(1));
        u64::try_from(SAMPLE_BYTES as u128 * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX)
    })
}

/// Reads the metrics of the checkpoint at `root`. Missing and non-numeric values are left out: a step without the
/// metric is still a step, and retention reports that it lacks it.
fn read_metrics(root: &Path, source: &MetricsSource) -> Result<BTreeMap<String, f64>> {
    let Some(file) = &source.file else {
        return Ok(BTreeMap::new());
    };
    let path = root.join(file);
    let Some(bytes) = read_bounded(&path, MAX_METRICS_FILE_BYTES)? else {
        return Ok(BTreeMap::new());
    };
    let document: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot read the metrics file").on(path.display()).caused_by(error)
    })?;
    let number = |pointer: &String| document.pointer(pointer).and_then(serde_json::Value::as_f64);
    Ok(source
        .pointers
        .iter()
        .filter_map(|(metric, pointer)| {
            Some((metric.clone(), number(pointer).filter(|value| value.is_finite())?))
        })
        .collect())
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
