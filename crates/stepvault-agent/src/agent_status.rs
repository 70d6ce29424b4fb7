//! The agent's state: tasks record their progress and faults here, for the report and for `status`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stepvault_core::starts::RestartLoop;
use stepvault_core::{Error, ErrorKind, Observer, RemoteName, RunName, Step, StepId, Tier, Timestamp};
use stepvault_formats::step_name;
use stepvault_local::clock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::labels::{Durations, durations, of_both};
use crate::options::AgentRemote;
use crate::report::{AgentReport, NotDurable, OtherWriter, RunStep, SkippedEntry, StepOnRemote};
use crate::step_progress::{Goal, StepProgress};

/// Number of the latest skipped entries that are searched for the cause of a missing step.
const MAX_SKIPPED: usize = 256;
/// Number of subjects whose warnings are stored to avoid repetition; beyond that, some are repeated.
const MAX_SUBJECTS: usize = 1000;
/// Number of different warnings stored for one subject.
const MAX_WARNINGS: usize = 16;
/// Number of other jobs stored for one run.
const MAX_OTHER_WRITERS: usize = 8;
/// A job that was not seen for this long no longer counts.
const OTHER_WRITER_COUNTS_FOR: Duration = Duration::from_hours(1);
/// A warning about a lasting fault is repeated after this long.
const WARNED_AGAIN_AFTER: Duration = Duration::from_hours(1);

/// Why a step is not on a remote yet.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    /// Whether it needs an operator. It is retried regardless.
    pub(crate) needs_operator: bool,
    /// Whether this node's part is uploaded but other nodes' parts are missing.
    pub(crate) lacks_parts: bool,
    /// Whether the step was durable until retention removed it.
    pub(crate) is_pruned: bool,
    /// The kind of the error; `None` if nothing has failed.
    pub(crate) kind: Option<ErrorKind>,
    pub(crate) reason: String,
}

impl Trouble {
    /// A failed upload.
    pub(crate) fn of(error: &Error) -> Self {
        Self {
            needs_operator: error.needs_operator(),
            lacks_parts: false,
            is_pruned: error.is_pruned(),
            kind: Some(error.kind()),
            reason: error.to_string(),
        }
    }

    /// A step that has to wait without a failure.
    pub(crate) fn waiting(reason: String) -> Self {
        Self { needs_operator: false, lacks_parts: false, is_pruned: false, kind: None, reason }
    }
}

/// The newest of the steps that became durable on a remote, and when the last of them was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewestDurable {
    pub(crate) id: StepId,
    pub(crate) written_at: Timestamp,
}

/// The state of one remote in one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RemoteState {
    /// The step being uploaded.
    pub(crate) uploading: Option<StepId>,
    /// The fault of the remote as a whole.
    pub(crate) fault: Option<Trouble>,
    /// The faults of single steps: failures, and steps that lack other nodes' parts.
    pub(crate) steps: BTreeMap<StepId, Trouble>,
    /// Since when it has been unreachable, if it is.
    pub(crate) failing_since: Option<Instant>,
    /// When an operation last succeeded on it: an upload began or ended.
    pub(crate) moved_at: Option<Instant>,
    /// When a step last became durable on it.
    pub(crate) durable_at: Option<Timestamp>,
    /// What became durable on it.
    pub(crate) newest_durable: Option<NewestDurable>,
    /// Number of failed uploads.
    pub(crate) failures: u64,
    /// Steps that it lacked at the last scan of the vault, and steps that vanished from the vault while it lacked them.
    pub(crate) backlog: BTreeSet<StepId>,
}

impl RemoteState {
    /// Returns the fault of a step, or of the remote as a whole.
    fn trouble(&self, id: StepId) -> Option<&Trouble> {
        self.steps.get(&id).or(self.fault.as_ref())
    }

    fn end_upload(&mut self, id: StepId) {
        self.uploading.take_if(|uploading| *uploading == id);
    }

    /// Records an operation that the remote answered.
    fn answered(&mut self) {
        self.fault = None;
        self.failing_since = None;
        self.moved_at = Some(Instant::now());
    }

    /// Returns the current errors.
    pub(crate) fn errors(&self) -> impl Iterator<Item = ErrorKind> {
        let counted = self.steps.values().filter(|trouble| !trouble.lacks_parts);
        self.fault.iter().chain(counted).filter_map(|trouble| trouble.kind)
    }

    /// Returns the steps that need an operator.
    pub(crate) fn steps_for_operator(&self) -> impl Iterator<Item = StepId> {
        let needing = self.steps.iter().filter(|(_, trouble)| trouble.needs_operator);
        needing.map(|(id, _)| *id)
    }

    /// Returns the steps whose part of this node is uploaded but that lack other nodes' parts, the newest last.
    pub(crate) fn lacking_parts(&self) -> impl DoubleEndedIterator<Item = (&StepId, &Trouble)> {
        self.steps.iter().filter(|(_, trouble)| trouble.lacks_parts)
    }

    /// Returns the steps whose last upload failed, the newest last.
    pub(crate) fn failing(&self) -> impl DoubleEndedIterator<Item = (&StepId, &Trouble)> {
        let failing = self.steps.iter();
        failing.filter(|(_, trouble)| trouble.kind.is_some() && !trouble.lacks_parts)
    }
}

/// An entry of a watched directory that is not sealed yet.
#[derive(Debug)]
struct Unfinished {
    why: String,
    since: Instant,
    was_told: bool,
}

/// The state of one run.
#[derive(Debug, Default)]
struct RunState {
    /// What its directory contains that is not sealed yet.
    unfinished: BTreeMap<PathBuf, Unfinished>,
    /// Steps that are finished but not sealed, with the cause.
    unsealed: Vec<(PathBuf, String)>,
    /// Number of steps that were given up.
    given_up: u64,
    /// Steps whose upload this service has begun.
    begun: BTreeSet<StepId>,
    /// Other jobs that write it, and when each was last seen.
    other_writers: Vec<(OtherWriter, Instant)>,
    /// Whether its directory was scanned after the service was asked to stop.
    scanned_at_end: bool,
}

/// A warning that was emitted.
#[derive(Debug)]
struct Warned {
    text: String,
    at: Instant,
}

#[derive(Debug, Default)]
struct State {
    report: AgentReport,
    runs: BTreeMap<RunName, RunState>,
    remotes: BTreeMap<(RunName, RemoteName), RemoteState>,
    warned: BTreeMap<String, Vec<Warned>>,
    next_prunes: BTreeMap<RemoteName, Timestamp>,
    /// The runs and tiers from which retention can remove nothing.
    blocked: BTreeSet<(RunName, Tier)>,
}

impl State {
    fn run(&mut self, run: &RunName) -> &mut RunState {
        self.runs.entry(run.clone()).or_default()
    }

    fn remote(&mut self, run: &RunName, remote: &RemoteName) -> &mut RemoteState {
        self.remotes.entry((run.clone(), remote.clone())).or_default()
    }

    fn remote_of(&mut self, step: &StepOnRemote) -> &mut RemoteState {
        self.remote(&step.run, &step.remote)
    }
}

/// The shared state of the service.
#[derive(Debug)]
pub(crate) struct AgentStatus {
    state: Mutex<State>,
    /// Counts changes that may affect a step's progress.
    changes: watch::Sender<u64>,
    /// Seconds from a step's last write until it was durable, by run and remote.
    pub(crate) save_to_durable: Durations<2>,
}

impl Default for AgentStatus {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: watch::Sender::default(), save_to_durable: durations() }
    }
}

impl AgentStatus {
    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns a receiver of all changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn sealed(&self, run: &RunName, id: StepId) {
        self.state.lock().report.sealed.add(RunStep::new(run, id));
        self.changed();
    }

    /// Records the new attempt of a step.
    pub(crate) fn renamed(&self, run: &RunName, before: StepId, id: StepId) {
        let mut state = self.state.lock();
        let sealed = state.report.sealed.latest.iter_mut();
        for step in sealed.filter(|step| step.run == *run && step.id == before) {
            step.id = id;
        }
        drop(state);
        self.changed();
    }

    pub(crate) fn evicted(&self, run: &RunName, id: StepId) {
        self.state.lock().report.evicted.add(RunStep::new(run, id));
    }

    /// Records a given-up step: it is no longer in the vault and was not durable.
    pub(crate) fn given_up(&self, run: &RunName, id: StepId) {
        let mut state = self.state.lock();
        state.report.given_up.add(RunStep::new(run, id));
        state.run(run).given_up += 1;
        drop(state);
        self.changed();
    }

    /// Returns how many steps of a run were given up.
    pub(crate) fn given_up_count(&self, run: &RunName) -> u64 {
        self.state.lock().run(run).given_up
    }

    /// Returns the steps of a run that are being uploaded to a working remote, as far as known.
    pub(crate) fn progressing(&self, run: &RunName) -> BTreeSet<StepId> {
        let state = self.state.lock();
        let of_run = state.remotes.iter().filter(|((of, _), _)| of == run);
        of_run
            .filter(|(_, remote)| remote.failing_since.is_none())
            .filter_map(|(_, remote)| remote.uploading)
            .collect()
    }

    pub(crate) fn cleaned(&self, run: &RunName, id: StepId) {
        self.state.lock().report.cleaned.add(RunStep::new(run, id));
    }

    pub(crate) fn pruned(&self, step: StepOnRemote) {
        self.state.lock().report.pruned.add(step);
    }

    /// Records whether a guard or a refused deletion keeps retention from its work.
    pub(crate) fn retention_blocked(&self, run: &RunName, tier: &Tier, is_blocked: bool) {
        let (mut state, place) = (self.state.lock(), (run.clone(), tier.clone()));
        if is_blocked {
            state.blocked.insert(place);
        } else {
            state.blocked.remove(&place);
        }
    }

    /// Whether retention is blocked on a tier.
    pub(crate) fn is_retention_blocked(&self, run: &RunName, tier: &Tier) -> bool {
        self.state.lock().blocked.contains(&(run.clone(), tier.clone()))
    }

    pub(crate) fn restart_loop(&self, found: RestartLoop) {
        self.state.lock().report.restart_loop = Some(found);
    }

    pub(crate) fn skipped(&self, run: &RunName, path: &Path, reason: String) {
        self.state.lock().report.skipped.add(SkippedEntry {
            run: run.clone(),
            path: path.to_owned(),
            reason,
        });
    }

    /// Records what a run's directory contains that is not sealed yet, with the cause. Returns the entries that have been
    /// there for `told_after`, each once: every step is unfinished for a while.
    pub(crate) fn unfinished(
        &self,
        run: &RunName,
        found: Vec<(PathBuf, String)>,
        told_after: Duration,
    ) -> Vec<(PathBuf, String)> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let mut before = std::mem::take(&mut state.run(run).unfinished);
        let mut lasting = Vec::new();
        for (path, why) in found {
            let known = before.remove(&path);
            let since = known.as_ref().map_or(now, |known| known.since);
            let mut was_told = known.is_some_and(|known| known.was_told);
            if !was_told && now.duration_since(since) >= told_after {
                lasting.push((path.clone(), why.clone()));
                was_told = true;
            }
            let unfinished = Unfinished { why, since, was_told };
            state.run(run).unfinished.insert(path, unfinished);
        }
        lasting
    }

    /// Returns what was not sealed yet at the last scan, by path.
    pub(crate) fn unfinished_of(&self, run: &RunName, max: usize) -> Vec<(PathBuf, String)> {
        let mut state = self.state.lock();
        let found = state.run(run).unfinished.iter().take(max);
        found.map(|(path, entry)| (path.clone(), entry.why.clone())).collect()
    }

    /// Records which steps of a run are finished but not sealed, at the last scan.
    pub(crate) fn unsealed(&self, run: &RunName, found: Vec<(PathBuf, String)>) {
        self.state.lock().run(run).unsealed = found;
    }

    /// Returns the steps of a run that are finished but not sealed, by path.
    pub(crate) fn unsealed_of(&self, run: &RunName, max: usize) -> Vec<(PathBuf, String)> {
        self.state.lock().run(run).unsealed.iter().take(max).cloned().collect()
    }

    /// Records that the directory of a run was scanned after the service was asked to stop.
    pub(crate) fn scanned_at_end(&self, run: &RunName) {
        self.state.lock().run(run).scanned_at_end = true;
    }

    /// Whether the directory of a run was scanned after the service was asked to stop.
    pub(crate) fn has_final_scan(&self, run: &RunName) -> bool {
        self.state.lock().run(run).scanned_at_end
    }

    pub(crate) fn upload_began(&self, step: &StepOnRemote) {
        let mut state = self.state.lock();
        state.run(&step.run).begun.insert(step.id);
        let remote = state.remote_of(step);
        remote.uploading = Some(step.id);
        remote.moved_at = Some(Instant::now());
    }

    /// Records a successful upload. `written_at` is when the trainer wrote a step that was not durable on the remote before.
    pub(crate) fn upload_done(&self, step: &StepOnRemote, written_at: Option<Timestamp>) {
        let mut state = self.state.lock();
        let remote = state.remote_of(step);
        remote.end_upload(step.id);
        remote.answered();
        remote.steps.remove(&step.id);
        remote.backlog.remove(&step.id);
        if let Some(written_at) = written_at {
            let now = clock::now();
            remote.durable_at = Some(now);
            let newest = remote.newest_durable.get_or_insert(NewestDurable { id: step.id, written_at });
            newest.id = newest.id.max(step.id);
            newest.written_at = newest.written_at.max(written_at);
            let took = Duration::from_secs(now.seconds_since(written_at)).as_secs_f64();
            self.save_to_durable.get_or_create(&of_both(&step.run, &step.remote)).observe(took);
            state.report.uploaded.add(step.clone());
        }
        drop(state);
        self.changed();
    }

    /// Records that an upload was stopped before its end, without a failure.
    pub(crate) fn upload_stopped(&self, step: &StepOnRemote) {
        self.state.lock().remote_of(step).end_upload(step.id);
    }

    /// Records an upload that failed for a cause that affects the whole remote.
    pub(crate) fn remote_failed(&self, step: &StepOnRemote, trouble: Trouble) {
        let mut state = self.state.lock();
        let remote = state.remote_of(step);
        remote.end_upload(step.id);
        remote.fault = Some(trouble);
        remote.failing_since.get_or_insert_with(Instant::now);
        remote.failures += 1;
        drop(state);
        self.changed();
    }

    /// Records an upload that failed for a cause that affects only this step.
    pub(crate) fn step_failed(&self, step: &StepOnRemote, trouble: Trouble) {
        let mut state = self.state.lock();
        let remote = state.remote_of(step);
        remote.end_upload(step.id);
        remote.answered();
        remote.steps.insert(step.id, trouble);
        remote.failures += 1;
        drop(state);
        self.changed();
    }

    /// Records that a step is deferred; returns false if that was already known.
    pub(crate) fn defer(&self, step: &StepOnRemote, reason: &str) -> bool {
        let mut state = self.state.lock();
        let steps = &mut state.remote_of(step).steps;
        if steps.contains_key(&step.id) {
            return false;
        }
        steps.insert(step.id, Trouble::waiting(reason.to_owned()));
        true
    }

    /// Whether this service has begun to upload a step.
    pub(crate) fn has_begun(&self, run: &RunName, id: StepId) -> bool {
        self.state.lock().run(run).begun.contains(&id)
    }

    /// Records another job that writes the run.
    pub(crate) fn other_writer(&self, run: &RunName, seen: OtherWriter) {
        let mut state = self.state.lock();
        let known = &mut state.run(run).other_writers;
        known.retain(|(other, _)| (&other.launch, &other.nodes) != (&seen.launch, &seen.nodes));
        if known.len() >= MAX_OTHER_WRITERS {
            known.remove(0);
        }
        known.push((seen, Instant::now()));
    }

    /// Returns the other jobs recently seen writing the run, the latest last.
    pub(crate) fn other_writers(&self, run: &RunName) -> Vec<OtherWriter> {
        let mut state = self.state.lock();
        let known = state.run(run).other_writers.iter();
        let recent = known.filter(|(_, at)| at.elapsed() < OTHER_WRITER_COUNTS_FOR);
        recent.map(|(other, _)| other.clone()).collect()
    }

    /// Records the steps in the vault, and which of them a remote lacks. A step that it lacked and that the vault no longer has
    /// is kept, because the vault may be half deleted, until the vault has another attempt of it.
    pub(crate) fn backlog(
        &self,
        run: &RunName,
        remote: &RemoteName,
        sealed: &BTreeSet<StepId>,
        missing: &BTreeSet<StepId>,
    ) {
        let mut state = self.state.lock();
        let backlog = &mut state.remote(run, remote).backlog;
        let steps: BTreeSet<Step> = sealed.iter().map(|id| id.step).collect();
        backlog.retain(|id| !steps.contains(&id.step));
        backlog.extend(missing);
    }

    /// Returns what was not durable in a vault that no longer exists.
    pub(crate) fn lost_with_vault(&self, remotes: &[AgentRemote]) -> Vec<NotDurable> {
        let state = self.state.lock();
        let lost = state.remotes.iter().flat_map(|((run, remote), of_remote)| {
            let is_required = |other: &AgentRemote| other.settings.name == *remote && other.settings.required;
            let required = remotes.iter().any(is_required);
            of_remote.backlog.iter().map(move |id| NotDurable {
                run: run.clone(),
                id: *id,
                remote: remote.clone(),
                required,
                failed: true,
                needs_this_vault: true,
                missing_bytes: 0,
                reason: "it was lost with the vault, which was deleted under the agent".to_owned(),
            })
        });
        lost.collect()
    }

    /// Forgets the faults of steps that the vault no longer holds.
    pub(crate) fn forget_all_but(&self, run: &RunName, remote: &RemoteName, sealed: &BTreeSet<StepId>) {
        let mut state = self.state.lock();
        let steps = &mut state.remote(run, remote).steps;
        steps.retain(|id, _| sealed.contains(id));
    }

    /// Whether a warning is new: it was not emitted about the same subject, or so long ago that a reader of the log
    /// would not find it.
    pub(crate) fn is_new_warning(&self, subject: &str, text: &str) -> bool {
        let now = Instant::now();
        let warned = &mut self.state.lock().warned;
        if warned.len() >= MAX_SUBJECTS && !warned.contains_key(subject) {
            warned.clear();
        }
        let given = warned.entry(subject.to_owned()).or_default();
        if let Some(known) = given.iter_mut().find(|known| known.text == text) {
            let is_old = known.at + WARNED_AGAIN_AFTER <= now;
            if is_old {
                known.at = now;
            }
            return is_old;
        }
        if given.len() >= MAX_WARNINGS {
            given.remove(0);
        }
        given.push(Warned { text: text.to_owned(), at: now });
        true
    }

    /// Makes the next warning about this subject new again.
    pub(crate) fn forget_warnings(&self, subject: &str) {
        self.state.lock().warned.remove(subject);
    }

    /// Adds to a step that is not durable on a remote what is known of the cause.
    pub(crate) fn explain_not_durable(&self, step: &mut NotDurable) {
        let remote = self.remote(&step.run, &step.remote);
        let trouble = remote.trouble(step.id);
        step.failed = trouble.is_some_and(|trouble| trouble.needs_operator);
        step.needs_this_vault = trouble.is_none_or(|trouble| !trouble.lacks_parts && !trouble.is_pruned);
        let reason = match trouble {
            Some(trouble) => &trouble.reason,
            None if remote.uploading == Some(step.id) => {
                "its upload was interrupted; the next start resumes it"
            }
            None => "it was waiting for its upload",
        };
        reason.clone_into(&mut step.reason);
    }

    /// Records when retention is next applied to a remote.
    pub(crate) fn next_prune_is_at(&self, remote: &RemoteName, time: Timestamp) {
        self.state.lock().next_prunes.insert(remote.clone(), time);
    }

    /// Returns when retention is next applied to a remote; `None` if it has none.
    pub(crate) fn next_prune(&self, remote: &RemoteName) -> Option<Timestamp> {
        self.state.lock().next_prunes.get(remote).copied()
    }

    /// Returns the state of a remote.
    pub(crate) fn remote(&self, run: &RunName, remote: &RemoteName) -> RemoteState {
        self.state.lock().remote(run, remote).clone()
    }

    /// Adds to a step's recorded state what only this service knows: why it is not durable yet.
    pub(crate) fn explain(&self, progress: &mut StepProgress) {
        if let Some(id) = progress.id() {
            let not_durable = progress.remotes.iter_mut();
            for on in not_durable.filter(|on| on.reached != Some(Goal::Durable)) {
                let remote = self.remote(&progress.run, &on.remote);
                let trouble = remote.trouble(id);
                on.failed = trouble.is_some_and(|trouble| trouble.needs_operator);
                let reason = match trouble {
                    Some(trouble) => &trouble.reason,
                    None if remote.uploading == Some(id) => "it is being uploaded",
                    None => "it waits for its upload",
                };
                on.reason.get_or_insert_with(|| reason.to_owned());
            }
            return;
        }
        let is_this = |(path, _): &(PathBuf, String)| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.and_then(step_name::parse) == Some(progress.step.number())
        };
        let mut skipped = self.skipped_of(&progress.run, MAX_SKIPPED).into_iter();
        if let Some((path, reason)) = skipped.find(is_this) {
            progress.reason = Some(format!("{} was skipped: {reason}", path.display()));
            return;
        }
        let mut unfinished = self.unfinished_of(&progress.run, usize::MAX).into_iter();
        if let Some((path, reason)) = unfinished.find(is_this) {
            progress.reason = Some(format!("{} is not sealed yet: {reason}", path.display()));
        }
    }

    /// Returns the report, without the steps that are not durable.
    pub(crate) fn report(&self) -> AgentReport {
        self.state.lock().report.clone()
    }

    /// Returns the entries recently skipped in a run's directory, the latest first.
    pub(crate) fn skipped_of(&self, run: &RunName, max: usize) -> Vec<(PathBuf, String)> {
        let state = self.state.lock();
        let latest = state.report.skipped.latest.iter().rev().filter(|entry| entry.run == *run);
        latest.take(max).map(|entry| (entry.path.clone(), entry.reason.clone())).collect()
    }
}

// Reports to the observer, without repetition.

/// Reports to the observer, and records in the agent's status what was reported. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    pub(crate) status: Arc<AgentStatus>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Reporter {
    /// Reports information.
    pub(crate) fn info(&self, message: &str) {
        self.observer.info(message);
    }

    /// Warns.
    pub(crate) fn warn(&self, message: &str) {
        self.observer.warn(message);
    }

    /// Warns, unless the same was said about the subject lately.
    pub(crate) fn warn_once(&self, subject: &str, message: &str) {
        self.warn_of_cause(subject, message, message);
    }

    /// Warns, unless the same cause was reported about the subject lately: the text may differ each time.
    pub(crate) fn warn_of_cause(&self, subject: &str, cause: &str, message: &str) {
        if self.status.is_new_warning(subject, cause) {
            self.warn(message);
        }
    }

    /// Records that there is nothing to warn of any more: the next warning about the subject is new.
    pub(crate) fn resolved(&self, subject: &str) {
        self.status.forget_warnings(subject);
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::Attempt;

    use super::*;

    #[test]
    fn a_step_that_is_gone_from_a_half_deleted_vault_is_lost_unless_it_was_durable() {
        let (run, remote) = (RunName::new("demo").unwrap(), RemoteName::new("s3").unwrap());
        let id = |attempt, step| StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap());
        let status = AgentStatus::default();
        let scanned = |steps: &[StepId]| {
            let steps = steps.iter().copied().collect();
            status.backlog(&run, &remote, &steps, &steps);
        };
        scanned(&[id(1, 1), id(1, 2), id(1, 3)]);
        status.upload_done(&StepOnRemote::new(&run, id(1, 2), &remote), None);
        // Step 3 got its attempt.
        scanned(&[id(2, 3)]);
        scanned(&[]);
        let lost: Vec<StepId> = status.lost_with_vault(&[]).into_iter().map(|step| step.id).collect();
        assert_eq!(lost, [id(1, 1), id(2, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_given_at_once_and_hourly_while_it_lasts_whatever_else_is_told_in_between() {
        let status = AgentStatus::default();
        assert!(
            status.is_new_warning("upload a s3", "denied")
                && status.is_new_warning("upload a s3", "no such bucket")
        );
        assert!(
            !status.is_new_warning("upload a s3", "denied")
                && !status.is_new_warning("upload a s3", "no such bucket")
        );
        assert!(status.is_new_warning("upload b s3", "denied"));
        tokio::time::advance(WARNED_AGAIN_AFTER / 2).await;
        assert!(!status.is_new_warning("upload a s3", "denied"));
        tokio::time::advance(WARNED_AGAIN_AFTER / 2).await;
        assert!(status.is_new_warning("upload a s3", "denied"));
        assert!(!status.is_new_warning("upload a s3", "denied"));
        status.forget_warnings("upload a s3");
        assert!(status.is_new_warning("upload a s3", "denied"));
    }
}
