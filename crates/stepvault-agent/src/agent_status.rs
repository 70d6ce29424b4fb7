//! The agent's state: tasks record their progress and faults here, for the report and for `status`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::starts::RestartLoop;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind};
use stepvault_formats::step_name;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::SystemClock;
use crate::options::AgentOptions;
use crate::other_writers::OtherWriter;
use crate::report::{AgentReport, NotDurable, RunStep, SkippedEntry, StepOnRemote};
use crate::standing::{Goal, Standing};

/// Number of the latest skipped entries that are searched for the cause of a missing step.
const MAX_PASSED_OVER: usize = 256;
/// Number of subjects whose warnings are stored to avoid repetition; beyond that, some are repeated.
const REMEMBERED_SUBJECTS: usize = 1000;
/// Number of different warnings stored for one subject.
const REMEMBERED_WARNINGS: usize = 16;
/// Number of other jobs stored for one run.
const MAXIMUM_OTHER_WRITERS: usize = 8;
/// A job that was not seen for this long no longer counts.
const OTHER_WRITER_COUNTS_FOR: Duration = Duration::from_hours(1);
/// A warning about a lasting fault is repeated after this long.
const WARNED_AGAIN_AFTER: Duration = Duration::from_hours(1);

/// The state of one remote in one run, and since when.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RemotePulse {
    /// Since when it has been unreachable, if it is.
    pub(crate) failing_since: Option<Instant>,
    /// When an operation last succeeded on it: an upload began or ended.
    pub(crate) moved_at: Option<Instant>,
    /// When a step last became durable on it.
    pub(crate) durable_at: Option<Timestamp>,
    /// Number of failed uploads.
    pub(crate) failures: u64,
}

/// Why a step is not on a remote yet.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    /// Whether it needs an operator. It is retried regardless.
    pub(crate) needs_operator: bool,
    /// Whether this node's part is uploaded but other nodes' parts are missing.
    pub(crate) lacks_parts: bool,
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
            kind: Some(error.kind()),
            reason: error.to_string(),
        }
    }

    /// A step that has to wait without a failure.
    pub(crate) fn waiting(reason: String) -> Self {
        Self {
            needs_operator: false,
            lacks_parts: false,
            kind: None,
            reason,
        }
    }
}

/// The faults of one remote in one run.
#[derive(Debug, Default)]
pub(crate) struct RemoteTroubles {
    /// The step being uploaded.
    pub(crate) uploading: Option<StepId>,
    /// The fault of the remote as a whole.
    pub(crate) remote: Option<Trouble>,
    /// The faults of single steps, the newest last: failures, and steps that lack other nodes' parts.
    pub(crate) steps: Vec<(StepId, Trouble)>,
}

impl RemoteTroubles {
    /// Returns the current errors.
    pub(crate) fn errors(&self) -> impl Iterator<Item = ErrorKind> {
        let steps = self.steps.iter().map(|(_, trouble)| trouble);
        let counted = steps.filter(|trouble| !trouble.lacks_parts);
        self.remote
            .iter()
            .chain(counted)
            .filter_map(|trouble| trouble.kind)
    }

    /// Returns the steps that need an operator.
    pub(crate) fn steps_for_operator(&self) -> impl Iterator<Item = StepId> {
        let needing = self.steps.iter().filter(|(_, trouble)| trouble.needs_operator);
        needing.map(|(id, _)| *id)
    }

    /// Returns the steps whose part of this node is uploaded but that lack other nodes' parts.
    pub(crate) fn lacking_parts(&self) -> impl Iterator<Item = &(StepId, Trouble)> {
        self.steps.iter().filter(|(_, trouble)| trouble.lacks_parts)
    }

    /// Returns the steps whose last upload failed.
    pub(crate) fn failing(&self) -> impl Iterator<Item = &(StepId, Trouble)> {
        let failing = self.steps.iter();
        failing.filter(|(_, trouble)| trouble.kind.is_some() && !trouble.lacks_parts)
    }
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
    troubles: BTreeMap<StepOnRemote, Trouble>,
    remote_errors: BTreeMap<(RunName, RemoteName), Trouble>,
    uploading: BTreeSet<StepOnRemote>,
    warned: BTreeMap<String, Vec<Warned>>,
    pulses: BTreeMap<(RunName, RemoteName), RemotePulse>,
    next_prunes: BTreeMap<RemoteName, Timestamp>,
    unfinished: BTreeMap<RunName, BTreeMap<PathBuf, String>>,
    given_up: BTreeMap<RunName, u64>,
    /// For each run, steps that are finished but not sealed, with the cause.
    unsealed: BTreeMap<RunName, Vec<(PathBuf, String)>>,
    /// Steps missing on each remote at the last scan of the vault.
    waiting: BTreeMap<(RunName, RemoteName), BTreeSet<StepId>>,
    /// Steps whose upload this service has begun.
    begun: BTreeSet<RunStep>,
    /// Other jobs that write a run, and when each was last seen.
    other_writers: BTreeMap<RunName, Vec<(OtherWriter, Instant)>>,
    /// Runs whose directory was scanned after the service was asked to stop.
    looked_last: BTreeSet<RunName>,
}

impl State {
    fn pulse(&mut self, step: &StepOnRemote) -> &mut RemotePulse {
        self.pulses
            .entry((step.run.clone(), step.remote.clone()))
            .or_default()
    }
}

/// The shared state of the service.
#[derive(Debug, Default)]
pub(crate) struct AgentStatus {
    state: Mutex<State>,
    /// Counts changes that may affect a step's progress.
    changes: watch::Sender<u64>,
}

impl AgentStatus {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Returns a receiver of all changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn sealed(&self, run: &RunName, id: StepId) {
        self.state().report.sealed.add(RunStep { run: run.clone(), id });
        self.changed();
    }

    /// Records the new attempt of a step.
    pub(crate) fn renamed(&self, run: &RunName, before: StepId, id: StepId) {
        let mut state = self.state();
        let sealed = state.report.sealed.latest.iter_mut();
        for step in sealed.filter(|step| step.run == *run && step.id == before) {
            step.id = id;
        }
        drop(state);
        self.changed();
    }

    pub(crate) fn evicted(&self, run: &RunName, id: StepId) {
        self.state().report.evicted.add(RunStep { run: run.clone(), id });
    }

    /// Records a given-up step: it is no longer in the vault and was not durable.
    pub(crate) fn given_up(&self, run: &RunName, id: StepId) {
        let mut state = self.state();
        state.report.given_up.add(RunStep { run: run.clone(), id });
        *state.given_up.entry(run.clone()).or_default() += 1;
        drop(state);
        self.changed();
    }

    /// Returns how many steps of a run were given up.
    pub(crate) fn given_up_count(&self, run: &RunName) -> u64 {
        self.state().given_up.get(run).copied().unwrap_or_default()
    }

    /// Returns the steps of a run that are being uploaded to a working remote, as far as known.
    pub(crate) fn progressing(&self, run: &RunName) -> BTreeSet<StepId> {
        let state = self.state();
        let is_failing = |step: &StepOnRemote| {
            let pulse = state.pulses.get(&(step.run.clone(), step.remote.clone()));
            pulse.is_some_and(|pulse| pulse.failing_since.is_some())
        };
        let uploading = state.uploading.iter();
        uploading
            .filter(|step| step.run == *run && !is_failing(step))
            .map(|step| step.id)
            .collect()
    }

    pub(crate) fn cleaned(&self, run: &RunName, id: StepId) {
        self.state().report.cleaned.add(RunStep { run: run.clone(), id });
    }

    pub(crate) fn pruned(&self, step: StepOnRemote) {
        self.state().report.pruned.add(step);
    }

    pub(crate) fn restart_loop(&self, found: RestartLoop) {
        self.state().report.restart_loop = Some(found);
    }

    pub(crate) fn skipped(&self, run: &RunName, path: &Path, reason: String) {
        self.state().report.skipped.add(SkippedEntry {
            run: run.clone(),
            path: path.to_owned(),
            reason,
        });
    }

    /// Records what a run's directory contains that is not sealed yet, with the cause; returns the new entries.
    pub(crate) fn unfinished(&self, run: &RunName, found: Vec<(PathBuf, String)>) -> Vec<(PathBuf, String)> {
        let mut state = self.state();
        let before = state.unfinished.entry(run.clone()).or_default();
        let is_new = |(path, _): &&(PathBuf, String)| !before.contains_key(path);
        let new = found.iter().filter(is_new).cloned().collect();
        *before = found.into_iter().collect();
        new
    }

    /// Returns what was not sealed yet at the last scan, by path.
    pub(crate) fn unfinished_of(&self, run: &RunName, most: usize) -> Vec<(PathBuf, String)> {
        let state = self.state();
        let found = state.unfinished.get(run).into_iter().flatten();
        found
            .take(most)
            .map(|(path, why)| (path.clone(), why.clone()))
            .collect()
    }

    /// Records which steps of a run are finished but not sealed, at the last scan.
    pub(crate) fn unsealed(&self, run: &RunName, found: Vec<(PathBuf, String)>) {
        self.state().unsealed.insert(run.clone(), found);
    }

    /// Returns the steps of a run that are finished but not sealed, by path.
    pub(crate) fn unsealed_of(&self, run: &RunName, most: usize) -> Vec<(PathBuf, String)> {
        let state = self.state();
        let found = state.unsealed.get(run).into_iter().flatten();
        found.take(most).cloned().collect()
    }

    /// Returns the number of steps of a run that are finished but not sealed.
    pub(crate) fn unsealed_count(&self, run: &RunName) -> usize {
        self.state().unsealed.get(run).map_or(0, Vec::len)
    }

    /// Records that the directory of a run was scanned after the service was asked to stop.
    pub(crate) fn looked_last(&self, run: &RunName) {
        self.state().looked_last.insert(run.clone());
    }

    /// Whether the directory of a run was scanned after the service was asked to stop.
    pub(crate) fn has_looked_last(&self, run: &RunName) -> bool {
        self.state().looked_last.contains(run)
    }

    pub(crate) fn upload_began(&self, step: &StepOnRemote) {
        let mut state = self.state();
        state.uploading.insert(step.clone());
        state.begun.insert(RunStep {
            run: step.run.clone(),
            id: step.id,
        });
        state.pulse(step).moved_at = Some(Instant::now());
    }

    /// Records a successful upload; `new` if the step was not durable on the remote before.
    pub(crate) fn upload_done(&self, step: &StepOnRemote, new: bool) {
        let mut state = self.state();
        state.uploading.remove(step);
        state.troubles.remove(step);
        state
            .remote_errors
            .remove(&(step.run.clone(), step.remote.clone()));
        let pulse = state.pulse(step);
        pulse.failing_since = None;
        pulse.moved_at = Some(Instant::now());
        if new {
            pulse.durable_at = Some(SystemClock.now());
            state.report.uploaded.add(step.clone());
        }
        drop(state);
        self.changed();
    }

    /// Records that an upload was preempted by another step.
    pub(crate) fn upload_gave_way(&self, step: &StepOnRemote) {
        self.state().uploading.remove(step);
    }

    /// Records an upload that failed for a cause that affects the whole remote.
    pub(crate) fn remote_failed(&self, step: &StepOnRemote, trouble: Trouble) {
        let mut state = self.state();
        state.uploading.remove(step);
        state
            .remote_errors
            .insert((step.run.clone(), step.remote.clone()), trouble);
        let pulse = state.pulse(step);
        pulse.failing_since.get_or_insert_with(Instant::now);
        pulse.failures += 1;
        drop(state);
        self.changed();
    }

    /// Records an upload that failed for a cause that affects only this step.
    pub(crate) fn step_failed(&self, step: &StepOnRemote, trouble: Trouble) {
        let mut state = self.state();
        state.uploading.remove(step);
        state.troubles.insert(step.clone(), trouble);
        // The remote answered.
        state
            .remote_errors
            .remove(&(step.run.clone(), step.remote.clone()));
        let pulse = state.pulse(step);
        pulse.failing_since = None;
        pulse.moved_at = Some(Instant::now());
        pulse.failures += 1;
        drop(state);
        self.changed();
    }

    /// Records that a step is deferred; returns false if that was already known.
    pub(crate) fn stands_back(&self, step: &StepOnRemote, reason: &str) -> bool {
        let mut state = self.state();
        if state.troubles.contains_key(step) {
            return false;
        }
        let trouble = Trouble::waiting(reason.to_owned());
        state.troubles.insert(step.clone(), trouble);
        true
    }

    /// Whether this service has begun to upload a step.
    pub(crate) fn has_begun(&self, run: &RunName, id: StepId) -> bool {
        self.state().begun.contains(&RunStep { run: run.clone(), id })
    }

    /// Records another job that writes the run.
    pub(crate) fn other_writer(&self, run: &RunName, seen: OtherWriter) {
        let mut state = self.state();
        let known = state.other_writers.entry(run.clone()).or_default();
        known.retain(|(other, _)| (&other.launch, &other.nodes) != (&seen.launch, &seen.nodes));
        if known.len() >= MAXIMUM_OTHER_WRITERS {
            known.remove(0);
        }
        known.push((seen, Instant::now()));
    }

    /// Returns the other jobs recently seen writing the run, the latest last.
    pub(crate) fn other_writers(&self, run: &RunName) -> Vec<OtherWriter> {
        let state = self.state();
        let known = state.other_writers.get(run).into_iter().flatten();
        known
            .filter(|(_, at)| at.elapsed() < OTHER_WRITER_COUNTS_FOR)
            .map(|(other, _)| other.clone())
            .collect()
    }

    /// Records the steps in the vault that a remote lacks.
    pub(crate) fn waits(&self, run: &RunName, remote: &RemoteName, missing: &BTreeSet<StepId>) {
        let of = (run.clone(), remote.clone());
        self.state().waiting.insert(of, missing.clone());
    }

    /// Returns what was not durable at the last scan of a vault that no longer exists.
    pub(crate) fn waiting(&self, options: &AgentOptions) -> Vec<NotDurable> {
        let state = self.state();
        let waiting = state.waiting.iter().flat_map(|((run, remote), ids)| {
            let mut remotes = options.remotes.iter();
            let required = remotes.any(|other| other.settings.name == *remote && other.settings.required);
            ids.iter().map(move |id| NotDurable {
                run: run.clone(),
                id: *id,
                remote: remote.clone(),
                required,
                failed: true,
                missing_bytes: 0,
                reason: "it was lost with the vault, which was deleted under the agent".to_owned(),
            })
        });
        let uploaded = &state.report.uploaded.latest;
        waiting
            .filter(|step| {
                let here = |there: &StepOnRemote| {
                    there.run == step.run && there.id == step.id && there.remote == step.remote
                };
                !uploaded.iter().any(here)
            })
            .collect()
    }

    /// Forgets the faults of steps that the vault no longer holds.
    pub(crate) fn forget_all_but(&self, run: &RunName, remote: &RemoteName, there: &BTreeSet<StepId>) {
        self.state()
            .troubles
            .retain(|step, _| step.run != *run || step.remote != *remote || there.contains(&step.id));
    }

    /// Whether a warning is new: it was not emitted about the same subject, or so long ago that a reader of the log
    /// would not find it.
    pub(crate) fn is_news(&self, about: &str, text: &str) -> bool {
        let now = Instant::now();
        let warned = &mut self.state().warned;
        if warned.len() >= REMEMBERED_SUBJECTS && !warned.contains_key(about) {
            warned.clear();
        }
        let given = warned.entry(about.to_owned()).or_default();
        if let Some(known) = given.iter_mut().find(|known| known.text == text) {
            let is_old = known.at + WARNED_AGAIN_AFTER <= now;
            if is_old {
                known.at = now;
            }
            return is_old;
        }
        if given.len() >= REMEMBERED_WARNINGS {
            given.remove(0);
        }
        given.push(Warned {
            text: text.to_owned(),
            at: now,
        });
        true
    }

    /// Makes the next warning about this subject new again.
    pub(crate) fn is_well(&self, about: &str) {
        self.state().warned.remove(about);
    }

    /// Returns what is known of a step that is not durable on a remote.
    pub(crate) fn why_not_durable(
        &self,
        step: StepOnRemote,
        required: bool,
        missing_bytes: u64,
    ) -> NotDurable {
        let state = self.state();
        let trouble = state.troubles.get(&step);
        let remote_error = state.remote_errors.get(&(step.run.clone(), step.remote.clone()));
        let reason = match (trouble, remote_error) {
            (Some(trouble), _) => trouble.reason.clone(),
            (None, Some(error)) => error.reason.clone(),
            (None, None) if state.uploading.contains(&step) => {
                "its upload was interrupted; the next start resumes it".to_owned()
            }
            (None, None) => "it was waiting for its upload".to_owned(),
        };
        let failed = trouble
            .or(remote_error)
            .is_some_and(|trouble| trouble.needs_operator);
        let StepOnRemote { run, id, remote } = step;
        NotDurable {
            run,
            id,
            remote,
            required,
            failed,
            missing_bytes,
            reason,
        }
    }

    /// Records when retention is next applied to a remote.
    pub(crate) fn next_prune_is_at(&self, remote: &RemoteName, time: Timestamp) {
        self.state().next_prunes.insert(remote.clone(), time);
    }

    /// Returns when retention is next applied to a remote; `None` if it has none.
    pub(crate) fn next_prune(&self, remote: &RemoteName) -> Option<Timestamp> {
        self.state().next_prunes.get(remote).copied()
    }

    /// Returns the state of a remote.
    pub(crate) fn pulse(&self, run: &RunName, remote: &RemoteName) -> RemotePulse {
        let state = self.state();
        let pulse = state.pulses.get(&(run.clone(), remote.clone()));
        pulse.copied().unwrap_or_default()
    }

    /// Adds to a step's recorded state what only this service knows: why it is not there yet.
    pub(crate) fn explain(&self, standing: &mut Standing) {
        if let Some(id) = standing.id() {
            for on in &mut standing.remotes {
                if on.reached == Some(Goal::Durable) {
                    continue;
                }
                let here = StepOnRemote {
                    run: standing.run.clone(),
                    id,
                    remote: on.remote.clone(),
                };
                let state = self.state();
                let trouble = state.troubles.get(&here);
                let remote_error = state.remote_errors.get(&(here.run.clone(), here.remote.clone()));
                on.failed = trouble
                    .or(remote_error)
                    .is_some_and(|trouble| trouble.needs_operator);
                let reason = match (trouble, remote_error) {
                    (Some(trouble), _) => trouble.reason.clone(),
                    (None, Some(error)) => error.reason.clone(),
                    (None, None) if state.uploading.contains(&here) => "it is being uploaded".to_owned(),
                    (None, None) => "it waits for its upload".to_owned(),
                };
                on.reason.get_or_insert(reason);
            }
            return;
        }
        let passed_over = self.skipped_of(&standing.run, usize::MAX).into_iter();
        let is_this = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.and_then(step_name::parse) == Some(standing.step.number())
        };
        for (path, reason) in passed_over.take(MAX_PASSED_OVER) {
            if is_this(&path) {
                standing.reason = Some(format!("{} was skipped: {reason}", path.display()));
                return;
            }
        }
        let mut unfinished = self.unfinished_of(&standing.run, usize::MAX).into_iter();
        if let Some((path, reason)) = unfinished.find(|(path, _)| is_this(path)) {
            standing.reason = Some(format!("{} is not sealed yet: {reason}", path.display()));
        }
    }

    /// Returns the faults of a remote.
    pub(crate) fn on_remote(&self, run: &RunName, remote: &RemoteName) -> RemoteTroubles {
        let state = self.state();
        let here = |step: &StepOnRemote| step.run == *run && step.remote == *remote;
        let steps = state.troubles.iter().filter(|(step, _)| here(step));
        RemoteTroubles {
            uploading: state.uploading.iter().find(|step| here(step)).map(|step| step.id),
            remote: state.remote_errors.get(&(run.clone(), remote.clone())).cloned(),
            steps: steps.map(|(step, trouble)| (step.id, trouble.clone())).collect(),
        }
    }

    /// Returns the report, without the steps that are not durable.
    pub(crate) fn report(&self) -> AgentReport {
        self.state().report.clone()
    }

    /// Returns the entries recently skipped in a run's directory, the latest first.
    pub(crate) fn skipped_of(&self, run: &RunName, most: usize) -> Vec<(PathBuf, String)> {
        let state = self.state();
        let latest = state
            .report
            .skipped
            .latest
            .iter()
            .rev()
            .filter(|entry| entry.run == *run);
        latest
            .take(most)
            .map(|entry| (entry.path.clone(), entry.reason.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_warning_is_given_at_once_and_hourly_while_it_lasts_whatever_else_is_told_in_between() {
        let status = AgentStatus::default();
        assert!(status.is_news("upload a s3", "denied") && status.is_news("upload a s3", "no such bucket"));
        assert!(!status.is_news("upload a s3", "denied") && !status.is_news("upload a s3", "no such bucket"));
        assert!(status.is_news("upload b s3", "denied"));
        tokio::time::advance(WARNED_AGAIN_AFTER / 2).await;
        assert!(!status.is_news("upload a s3", "denied"));
        tokio::time::advance(WARNED_AGAIN_AFTER / 2).await;
        assert!(status.is_news("upload a s3", "denied"));
        assert!(!status.is_news("upload a s3", "denied"));
        status.is_well("upload a s3");
        assert!(status.is_news("upload a s3", "denied"));
    }
}
