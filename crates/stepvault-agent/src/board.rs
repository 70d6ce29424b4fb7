//! Where the tasks write what they did and what went wrong, for the report and for `status`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepvault_core::clock::Clock as _;
use stepvault_core::ids::{RemoteName, RunName, StepId};
use stepvault_core::starts::RestartLoop;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::step_name;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::SystemClock;
use crate::report::{AgentReport, NotDurable, RunStep, SkippedEntry, StepOnRemote};
use crate::standing::{Goal, Standing};

/// Entries that were passed over among which the reason for a missing step is looked for, the latest.
const MOST_PASSED_OVER: usize = 256;
/// Warnings remembered so as not to be repeated; beyond that some come twice.
const REMEMBERED_WARNINGS: usize = 1000;

/// Since when things stand as they do with a remote, in one run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RemotePulse {
    /// Since when it has not been to be had, if it is not.
    pub(crate) failing_since: Option<Instant>,
    /// When something last went well on it: an upload began or ended.
    pub(crate) moved_at: Option<Instant>,
    /// When a step became durable there.
    pub(crate) durable_at: Option<Timestamp>,
    /// Uploads that failed.
    pub(crate) failures: u64,
}

/// Why a step is not on a remote yet.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    /// Trying again would not help.
    pub(crate) failed: bool,
    /// This node has done its part, and other nodes have not.
    pub(crate) lacks_parts: bool,
    pub(crate) reason: String,
}

#[derive(Debug, Default)]
struct State {
    report: AgentReport,
    troubles: BTreeMap<StepOnRemote, Trouble>,
    remote_errors: BTreeMap<(RunName, RemoteName), String>,
    uploading: BTreeSet<StepOnRemote>,
    warned: BTreeMap<String, String>,
    pulses: BTreeMap<(RunName, RemoteName), RemotePulse>,
    next_prunes: BTreeMap<RemoteName, Timestamp>,
    unfinished: BTreeMap<RunName, BTreeMap<PathBuf, String>>,
}

impl State {
    fn pulse(&mut self, step: &StepOnRemote) -> &mut RemotePulse {
        self.pulses
            .entry((step.run.clone(), step.remote.clone()))
            .or_default()
    }
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<State>,
    /// Counts what may have changed how far a step has come.
    changes: watch::Sender<u64>,
}

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Tells of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn sealed(&self, run: &RunName, id: StepId) {
        self.state().report.sealed.add(RunStep { run: run.clone(), id });
        self.changed();
    }

    pub(crate) fn evicted(&self, run: &RunName, id: StepId) {
        self.state().report.evicted.add(RunStep { run: run.clone(), id });
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

    /// What stands in a run's directory and is not taken over yet, and why; gives back what was not among it before.
    pub(crate) fn unfinished(&self, run: &RunName, found: Vec<(PathBuf, String)>) -> Vec<(PathBuf, String)> {
        let mut state = self.state();
        let before = state.unfinished.entry(run.clone()).or_default();
        let is_new = |(path, _): &&(PathBuf, String)| !before.contains_key(path);
        let new = found.iter().filter(is_new).cloned().collect();
        *before = found.into_iter().collect();
        new
    }

    /// What was not taken over yet at the last look, by path.
    pub(crate) fn unfinished_of(&self, run: &RunName, most: usize) -> Vec<(PathBuf, String)> {
        let state = self.state();
        let found = state.unfinished.get(run).into_iter().flatten();
        found
            .take(most)
            .map(|(path, why)| (path.clone(), why.clone()))
            .collect()
    }

    pub(crate) fn upload_began(&self, step: &StepOnRemote) {
        let mut state = self.state();
        state.uploading.insert(step.clone());
        state.pulse(step).moved_at = Some(Instant::now());
    }

    /// An upload ended well; `new` when the step was not durable there before.
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

    /// An upload was broken off for another step's sake.
    pub(crate) fn upload_gave_way(&self, step: &StepOnRemote) {
        self.state().uploading.remove(step);
    }

    /// An upload ended without the step being durable, for a reason that concerns the remote as a whole.
    pub(crate) fn remote_failed(&self, step: &StepOnRemote, reason: String) {
        let mut state = self.state();
        state.uploading.remove(step);
        state
            .remote_errors
            .insert((step.run.clone(), step.remote.clone()), reason);
        let pulse = state.pulse(step);
        pulse.failing_since.get_or_insert_with(Instant::now);
        pulse.failures += 1;
        drop(state);
        self.changed();
    }

    /// An upload ended without the step being durable, for a reason that concerns this step.
    pub(crate) fn step_failed(&self, step: &StepOnRemote, trouble: Trouble) {
        let mut state = self.state();
        state.uploading.remove(step);
        state.troubles.insert(step.clone(), trouble);
        let pulse = state.pulse(step);
        // It answered.
        pulse.failing_since = None;
        pulse.moved_at = Some(Instant::now());
        pulse.failures += 1;
        drop(state);
        self.changed();
    }

    /// A step has to stand back; false when that was known.
    pub(crate) fn stands_back(&self, step: &StepOnRemote, reason: &str) -> bool {
        let mut state = self.state();
        if state.troubles.contains_key(step) {
            return false;
        }
        state.troubles.insert(
            step.clone(),
            Trouble {
                failed: false,
                lacks_parts: false,
                reason: reason.to_owned(),
            },
        );
        true
    }

    /// Forgets the troubles of steps that the vault no longer holds.
    pub(crate) fn forget_all_but(&self, run: &RunName, remote: &RemoteName, there: &BTreeSet<StepId>) {
        self.state()
            .troubles
            .retain(|step, _| step.run != *run || step.remote != *remote || there.contains(&step.id));
    }

    /// Whether a warning is news: the last one about the same thing said something else.
    pub(crate) fn is_news(&self, about: &str, text: &str) -> bool {
        let warned = &mut self.state().warned;
        if warned.get(about).is_some_and(|last| last == text) {
            return false;
        }
        if warned.len() >= REMEMBERED_WARNINGS {
            warned.clear();
        }
        warned.insert(about.to_owned(), text.to_owned());
        true
    }

    /// Makes the next warning about this news again.
    pub(crate) fn is_well(&self, about: &str) {
        self.state().warned.remove(about);
    }

    /// What is known of a step that is not durable on a remote.
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
            (None, Some(error)) => error.clone(),
            (None, None) if state.uploading.contains(&step) => {
                "its upload was cut off; the next start goes on with it".to_owned()
            }
            (None, None) => "it was still waiting for its upload".to_owned(),
        };
        let failed = trouble.is_some_and(|trouble| trouble.failed);
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

    /// Retention is applied to a remote next at this time.
    pub(crate) fn next_prune_is_at(&self, remote: &RemoteName, time: Timestamp) {
        self.state().next_prunes.insert(remote.clone(), time);
    }

    /// When retention is applied to a remote next; `None` where none is.
    pub(crate) fn next_prune(&self, remote: &RemoteName) -> Option<Timestamp> {
        self.state().next_prunes.get(remote).copied()
    }

    /// How things have gone with a remote.
    pub(crate) fn pulse(&self, run: &RunName, remote: &RemoteName) -> RemotePulse {
        let state = self.state();
        let pulse = state.pulses.get(&(run.clone(), remote.clone()));
        pulse.copied().unwrap_or_default()
    }

    /// Adds to what the records say of a step what only this service knows: why it is not there yet.
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
                on.failed = trouble.is_some_and(|trouble| trouble.failed);
                let reason = match (
                    trouble,
                    state.remote_errors.get(&(here.run.clone(), here.remote.clone())),
                ) {
                    (Some(trouble), _) => trouble.reason.clone(),
                    (None, Some(error)) => error.clone(),
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
        for (path, reason) in passed_over.take(MOST_PASSED_OVER) {
            if is_this(&path) {
                standing.reason = Some(format!("{} was passed over: {reason}", path.display()));
                return;
            }
        }
        let mut unfinished = self.unfinished_of(&standing.run, usize::MAX).into_iter();
        if let Some((path, reason)) = unfinished.find(|(path, _)| is_this(path)) {
            standing.reason = Some(format!("{} is not taken over yet: {reason}", path.display()));
        }
    }

    /// The step under way on a remote, the last error of the remote, and the steps given up on it.
    pub(crate) fn on_remote(
        &self,
        run: &RunName,
        remote: &RemoteName,
    ) -> (Option<StepId>, Option<String>, Vec<(StepId, String)>) {
        let state = self.state();
        let here = |step: &&StepOnRemote| step.run == *run && step.remote == *remote;
        let uploading = state.uploading.iter().find(here).map(|step| step.id);
        let error = state.remote_errors.get(&(run.clone(), remote.clone())).cloned();
        let failed = state
            .troubles
            .iter()
            .filter(|(step, trouble)| here(step) && trouble.failed)
            .map(|(step, trouble)| (step.id, trouble.reason.clone()))
            .collect();
        (uploading, error, failed)
    }

    /// The steps whose part of this node is on a remote and that lack other nodes' parts.
    pub(crate) fn lacking_parts(&self, run: &RunName, remote: &RemoteName) -> Vec<(StepId, String)> {
        let state = self.state();
        let here = |step: &StepOnRemote| step.run == *run && step.remote == *remote;
        state
            .troubles
            .iter()
            .filter(|(step, trouble)| here(step) && trouble.lacks_parts)
            .map(|(step, trouble)| (step.id, trouble.reason.clone()))
            .collect()
    }

    /// The report, except for what is not durable.
    pub(crate) fn report(&self) -> AgentReport {
        self.state().report.clone()
    }

    /// What was passed over lately in a run's directory, the latest first.
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
