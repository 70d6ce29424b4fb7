//! The uploads of one run to one remote, and the choice of its next step. There is no stored queue: a step waits if the vault
//! has it and the remote lacks it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_core::records::Pin;
use stepvault_core::retention::{
    Elsewhere, Guards, KeepRules, LocalLimits, Needed, StepFacts, TierView, Verdict, Verified,
    abandoned_steps, plan,
};
use stepvault_core::{Error, Event, Result, StepId, Tier};
use stepvault_engine::exclusive::{ExclusiveRun, Purpose};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::upload::UploadSession;
use stepvault_local::{SealedStep, clock};
use tokio::time::{Duration, Instant};

use super::missing_parts::MissingParts;
use crate::attempts::OpenRun;
use crate::backlog::Backlog;
use crate::drain::Telling;
use crate::pause::{Pause, earliest};
use crate::report::StepOnRemote;
use crate::shared::Shared;

/// The uploads of one run to one remote.
#[derive(Debug)]
pub(crate) struct RunUploads {
    pub(super) remote: RunRemote,
    /// Determines the run's attempts.
    pub(super) attempts: Arc<OpenRun>,
    pub(super) settings: RunSettings,
    pub(super) connection: Connection,
    pub(super) pause: Pause,
    /// Whether the remote was unreachable and this service, which is about to end, does not wait for it.
    pub(super) given_up: bool,
    pub(super) tries: BTreeMap<StepId, Tries>,
    pub(super) missing_parts: MissingParts,
    /// Steps that retention would remove anyway, when time is short.
    pub(super) deferred: BTreeSet<StepId>,
    /// What other nodes are told of these uploads.
    pub(super) telling: Telling,
    /// When to compare next what the vault takes for durable with what the remote lists.
    pub(super) compares_at: Instant,
}

/// What is open between a run and a remote.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Opened for the first step.
    pub(super) session: Option<UploadSession>,
    /// The exclusive right, once taken.
    pub(super) held: Option<ExclusiveRun>,
    /// Whether the remote was unreachable since it was last verified.
    pub(super) was_out: bool,
    /// How often no remote of the run had answered when this one last did.
    pub(super) outages: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tries {
    pub(super) pause: Pause,
    /// Whether it is not retried before this service ends. A lasting service gives nothing up.
    pub(super) given_up: bool,
}

impl RunUploads {
    pub(crate) fn new(remote: RunRemote, settings: RunSettings, attempts: Arc<OpenRun>) -> Self {
        Self {
            remote,
            attempts,
            settings,
            connection: Connection::default(),
            pause: Pause::default(),
            given_up: false,
            tries: BTreeMap::new(),
            missing_parts: MissingParts::default(),
            deferred: BTreeSet::new(),
            telling: Telling::default(),
            compares_at: Instant::now(),
        }
    }

    /// Takes the exclusive right to write the run, if configured.
    ///
    /// # Errors
    /// [`ErrorKind::Held`](stepvault_core::ErrorKind::Held) while another job has it.
    pub(super) async fn hold(&mut self, shared: &Shared) -> Result<()> {
        let held = &mut self.connection.held;
        if self.settings.exclusive && !held.as_ref().is_some_and(ExclusiveRun::is_current) {
            *held = None;
            let (vault, writer) = (&shared.vault.vault, &shared.options.writer);
            *held = Some(ExclusiveRun::take(&self.remote, vault, writer, Purpose::Upload).await?);
        }
        Ok(())
    }

    pub(super) fn on_remote(&self, id: StepId) -> StepOnRemote {
        StepOnRemote::new(self.remote.keys.run(), id, self.remote.name())
    }

    /// Forgets the failures of the remote, and those of a step.
    pub(super) fn succeeded(&mut self, id: StepId) {
        self.pause.clear();
        self.tries.remove(&id);
    }

    /// Returns the waiting steps that are not given up, and those of them that are deferred.
    pub(super) fn waiting(
        &mut self,
        shared: &Shared,
        backlog: &Backlog,
    ) -> (BTreeSet<StepId>, BTreeSet<StepId>) {
        let sealed: BTreeSet<StepId> = backlog.sealed.iter().map(SealedStep::id).collect();
        self.tries.retain(|id, _| sealed.contains(id));
        self.missing_parts.forget_all_but(&sealed);
        let (run, remote, reporter) = (self.remote.keys.run(), self.remote.name(), &shared.reporter);
        reporter.status.forget_all_but(run, remote, &sealed);
        reporter.status.backlog(run, remote, &sealed, &backlog.not_durable);
        let mut waiting = backlog.missing.clone();
        waiting.retain(|id| !self.tries.get(id).is_some_and(|tries| tries.given_up));
        let mut deferred = BTreeSet::new();
        if waiting.len() <= shared.options.upload.maximum_backlog_steps as usize {
            return (waiting, deferred);
        }
        let dropped = retention_would_drop(
            &self.remote.tier,
            &self.settings.keep_remote,
            &backlog.sealed,
            &waiting,
            &backlog.pins,
        );
        for (id, why) in dropped {
            let reason = format!(
                "{} steps wait for {remote}: this one is deferred because retention would remove it there ({why})",
                waiting.len(),
            );
            if reporter.status.defer(&self.on_remote(id), &reason) {
                reporter.observer.on_event(&Event::Skipped { tier: &self.remote.tier, id, reason: &reason });
            }
            deferred.insert(id);
        }
        (waiting, deferred)
    }

    /// Removes the steps that lack other nodes' parts from `waiting`; returns one of them when a check is due. The check
    /// costs a request or two, and then the next step is uploaded.
    pub(super) fn due_check(
        &self,
        waiting: &mut BTreeSet<StepId>,
        patient: bool,
        later: &mut Option<Instant>,
    ) -> Option<StepId> {
        let now = Instant::now();
        let mut due = None;
        waiting.retain(|id| {
            let Some(check) = self.missing_parts.next_check(*id) else {
                return true;
            };
            if check <= now {
                due = Some(*id);
            } else if patient {
                *later = earliest(*later, Some(check));
            }
            false
        });
        due
    }

    /// Returns the next step of this run; `patient` if other nodes' parts are worth waiting for.
    pub(super) fn choose(
        &mut self,
        index: usize,
        shared: &Shared,
        backlog: Backlog,
        patient: bool,
    ) -> Choice {
        let (mut waiting, deferred) = self.waiting(shared, &backlog);
        let sealed = backlog.sealed;
        let mut later = None;
        let lacks_parts = |id: &StepId| self.missing_parts.next_check(*id).is_some();
        let for_others: Vec<StepId> =
            waiting.iter().copied().filter(|id| !patient && lacks_parts(id)).collect();
        waiting.retain(|id| !for_others.contains(id));
        let due = self.due_check(&mut waiting, patient, &mut later);
        if let Some(step) = due.and_then(|id| sealed.iter().find(|step| step.id() == id)) {
            return Choice::upload(index, step.clone());
        }
        let newest_first = || waiting.iter().rev();
        let undeferred = || newest_first().filter(|id| !deferred.contains(id));
        for id in undeferred().chain(newest_first().filter(|id| deferred.contains(id))) {
            if let Some(until) = self.tries.get(id).and_then(|tries| tries.pause.until()) {
                later = earliest(later, Some(until));
                continue;
            }
            let Some(step) = sealed.iter().find(|step| step.id() == *id).cloned() else {
                return Choice::Nothing;
            };
            // What has failed before goes alone.
            let others = undeferred().filter(|other| *other != id && !self.tries.contains_key(other));
            let small = small_steps(&step, others, &sealed);
            return Choice::Upload(index, Box::new(step), small);
        }
        for step in sealed {
            if for_others.contains(&step.id()) && self.missing_parts.take_final_check(step.id()) {
                return Choice::upload(index, step);
            }
        }
        Choice::later(later)
    }
}

/// Returns the steps among `waiting` that the remote's rules would not keep, with the cause.
///
/// The decision assumes that the remote holds everything that the vault holds. The remote actually holds more, and then
/// every rule selects at most fewer of these steps, so a step that would be kept is never deferred.
fn retention_would_drop(
    tier: &Tier,
    keep: &KeepRules,
    sealed: &[SealedStep],
    waiting: &BTreeSet<StepId>,
    pins: &[Pin],
) -> BTreeMap<StepId, String> {
    let now = clock::now();
    let abandoned = abandoned_steps(sealed.iter().map(SealedStep::id));
    let facts = |step: &SealedStep| {
        let record = step.record();
        StepFacts {
            amends: false,
            id: record.id,
            name: record.name.clone(),
            // A step reaches the remote when it is uploaded.
            created: if waiting.contains(&record.id) { now } else { record.written_at },
            bytes: record.data_bytes(),
            reclaimable_bytes: record.data_bytes(),
            best: record.origin.best.clone(),
            metrics: record.metrics.clone(),
            verified: Verified::Yes,
            needed: Needed { pinned: pins.iter().any(|pin| pin.id == record.id), ..Needed::default() },
            elsewhere: Elsewhere { needs_other_nodes: record.is_one_of_several(), ..Elsewhere::default() },
            abandoned: abandoned.contains(&record.id),
        }
    };
    let view = TierView {
        tier: tier.clone(),
        steps: sealed.iter().map(facts).collect(),
        unreadable: Vec::new(),
        now,
        free_bytes: None,
    };
    // Rules that would delete everything are refused: then nothing is deferred.
    let Ok(plan) = plan(&view, keep, &LocalLimits::default(), &Guards::default()) else {
        return BTreeMap::new();
    };
    plan.decisions
        .into_iter()
        .filter(|decision| decision.verdict == Verdict::Drop && waiting.contains(&decision.id))
        .map(|decision| (decision.id, decision.reasons.join("; ")))
        .collect()
}

/// Pause before an unreadable vault is scanned again.
pub(super) const VAULT_PAUSE: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Debug)]
pub(super) enum Choice {
    /// Upload this step of this run, and then these small ones at once.
    Upload(usize, Box<SealedStep>, Vec<SealedStep>),
    /// Check again at this time.
    Later(Instant),
    /// Nothing waits.
    Nothing,
}

impl Choice {
    pub(super) fn upload(run: usize, step: SealedStep) -> Self {
        Self::Upload(run, Box::new(step), Vec::new())
    }

    pub(super) fn later(time: Option<Instant>) -> Self {
        time.map_or(Self::Nothing, Self::Later)
    }
}

/// Returns the backlog of a run, or warns.
pub(super) async fn read_backlog(run: &RunUploads, shared: &Shared) -> Option<Backlog> {
    let warn = |error: &Error| {
        let subject = format!("vault {}", run.remote.keys.run());
        shared.reporter.warn_once(&subject, &error.to_string());
    };
    let read = Backlog::read(&shared.vault.vault, &run.remote).await;
    read.inspect_err(warn).ok()
}

/// Maximum number of small steps that are uploaded at once, after the one that was chosen.
const MOST_STEPS: usize = 15;
/// Maximum number of bytes of all of them: they are not interrupted for a newer step.
const MOST_BYTES: u64 = 8 << 20;

/// Returns the next of the `waiting` steps that can follow the chosen one at once. There are none after a large step.
fn small_steps<'a>(
    chosen: &SealedStep,
    waiting: impl Iterator<Item = &'a StepId>,
    sealed: &[SealedStep],
) -> Vec<SealedStep> {
    let mut room = MOST_BYTES.checked_sub(chosen.record().own_bytes());
    let steps = waiting.filter_map(|id| sealed.iter().find(|step| step.id() == *id));
    let fitting = steps.take_while(|step| {
        room = room.and_then(|room| room.checked_sub(step.record().own_bytes()));
        room.is_some()
    });
    fitting.take(MOST_STEPS).cloned().collect()
}
