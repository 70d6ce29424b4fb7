//! The uploads around a trainer: the agent that serves it, and the wait, before it starts, for a newer step that the job
//! before is still uploading from other nodes.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use stepvault_agent::{AgentOptions, AgentReport, Stop};
use stepvault_core::config::Config;
use stepvault_core::drain::{ObservedProgress, UnderWay};
use stepvault_core::words;
use stepvault_core::{Error, ErrorKind, NodeName, Result, StepId, Writer};
use stepvault_engine::blocking::sealed_steps;
use stepvault_engine::node_records::uploads_now;
use stepvault_engine::tier::catalog::FoundCommit;
use stepvault_engine::tier::step_state::visible_commits;
use stepvault_local::{SealedStep, SystemClock};
use tokio::time::{Instant, sleep, timeout};

use super::restoring::tell;
use crate::commands::agent::open_remotes;
use crate::context::{Tiers, attempt};
use crate::output::Output;
use crate::progress::Progress;
use crate::session::Session;

const INTERVAL: Duration = Duration::from_secs(2);
/// How long a remote has to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often the time left is said.
const SAID_EVERY: Duration = Duration::from_mins(1);
/// How long an upload may make no progress. Its node writes its record every 10 s.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(45);
/// Limits of the time between two steps that is waited without a setting.
const SHORTEST_DEFAULT: Duration = Duration::from_mins(1);
const LONGEST_DEFAULT: Duration = Duration::from_mins(15);

/// Waits until the newest step that can be expected within the configured time is durable, or its upload stands still.
/// Says so. An unreachable remote is not waited for: the restore tells what that means.
pub(super) async fn wait_for_uploads(session: &Session, tiers: &Tiers, limit: Option<Duration>) {
    if limit == Some(Duration::ZERO) {
        return;
    }
    let mut newest = newest_here(tiers).await;
    let mut steps = uploads_now(&tiers.upload_remotes(), newest, &SystemClock).await;
    if steps.is_empty() {
        return;
    }
    let (durable, interval) = durable_steps(tiers).await;
    newest = newest.max(durable);
    steps.retain(|step| newest.is_none_or(|newest| step.id > newest));
    let limit = limit.unwrap_or(interval);
    let began = Instant::now();
    let (mut said_at, mut progress, mut moved_at) = (None::<Instant>, ObservedProgress::default(), began);
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let in_time = |step: &&UnderWay| step.time_left.is_none_or(|time_left| time_left <= left);
        let Some(step) = steps.iter().find(in_time).filter(|_| !left.is_zero()) else {
            if let Some(step) = steps.first() {
                let limit = words::duration(limit);
                let text = format!(
                    "{}: not waiting longer than {limit} (restart.wait-for-uploads)",
                    under_way(step)
                );
                session.output.warn(&text);
            }
            return;
        };
        if progress.observe(step) {
            moved_at = Instant::now();
        } else if moved_at.elapsed() > LONGEST_STANDSTILL {
            session.output.warn(&format!("{}: it makes no progress, and is not waited for", under_way(step)));
            return;
        }
        if said_at.is_none_or(|said_at| said_at.elapsed() >= SAID_EVERY) {
            said_at = Some(Instant::now());
            let newer = newest.map_or_else(String::new, |newest| format!(", newer than {newest}"));
            let limit = words::duration(limit);
            tell(
                session,
                &format!(
                    "{}{newer}: waiting for it, {limit} at most (restart.wait-for-uploads)",
                    under_way(step)
                ),
            );
        }
        sleep(INTERVAL).await;
        newest = newest.max(durable_steps(tiers).await.0);
        steps = uploads_now(&tiers.upload_remotes(), newest, &SystemClock).await;
    }
}

fn under_way(step: &UnderWay) -> String {
    let nodes: Vec<&str> = step.nodes.keys().map(NodeName::as_str).collect();
    let time_left =
        step.time_left.map_or_else(String::new, |left| format!(", about {}", words::duration(left)));
    format!(
        "{} uploading {} to {}, {} missing{time_left}",
        match nodes.as_slice() {
            [node] => format!("{node} is still"),
            nodes => format!("{} nodes are still", nodes.len()),
        },
        step.id,
        step.remote,
        words::bytes(step.missing_bytes())
    )
}

/// Returns the newest step of the vault.
async fn newest_here(tiers: &Tiers) -> Option<StepId> {
    let steps = sealed_steps(tiers.vault.as_ref()?, tiers.run_name()).await.ok()?.steps;
    steps.last().map(SealedStep::id)
}

/// Returns the newest step that a remote shows, and the time that the trainer took from the one before to it.
async fn durable_steps(tiers: &Tiers) -> (Option<StepId>, Duration) {
    let mut steps = Vec::new();
    for remote in &tiers.upload_remotes() {
        let Ok(Ok(commits)) = timeout(PATIENCE, visible_commits(remote)).await else {
            continue;
        };
        let written = |commit: FoundCommit| commit.commit.ok().map(|commit| commit.written_at);
        steps.extend(commits.into_iter().map(|(id, commit)| (id, written(commit))));
    }
    steps.sort_unstable();
    steps.dedup_by_key(|(id, _)| *id);
    let newest = steps.last().map(|(id, _)| *id);
    let mut last = steps.iter().rev().filter_map(|(_, written_at)| *written_at);
    let took = last.next().zip(last.next());
    let seconds = took.map(|(last, before)| last.seconds.saturating_sub(before.seconds));
    let took = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    (newest, took.unwrap_or(LONGEST_DEFAULT).clamp(SHORTEST_DEFAULT, LONGEST_DEFAULT))
}

/// Pause before a failed agent is started again.
const PAUSE: Duration = Duration::from_secs(30);

/// The agent of one trainer.
pub(super) struct Serving {
    pub(super) config: Config,
    pub(super) writer: Writer,
    pub(super) progress: Progress,
    pub(super) output: Output,
    /// How the agent is started, for the vault.
    pub(super) invocation: Option<Vec<u8>>,
    /// The last warning, so that it is not repeated.
    pub(super) said: String,
}

impl Serving {
    /// Serves until `stop` is requested, then drains; returns the agent's report. Restarts a failed agent after a
    /// pause, at the latest for the drain, unless a retry cannot succeed.
    pub(super) async fn serve(&mut self, stop: &Stop) -> Option<AgentReport> {
        loop {
            let is_last = stop.is_requested();
            let error = match AssertUnwindSafe(self.live(stop)).catch_unwind().await {
                Ok(Ok(report)) => return Some(report),
                Ok(Err(error)) => error,
                Err(_) => Error::new(ErrorKind::Failed, "the agent panicked"),
            };
            if error.kind() == ErrorKind::Held {
                let text = "another process holds the vault and must save the checkpoints";
                self.warn_once(format!("{text}: {error}"));
            } else {
                let text = error.text_with_hint();
                self.warn_once(format!("the trainer's checkpoints are not saved: {text}"));
            }
            if is_last {
                return None;
            }
            let is_hopeless = error.kind() == ErrorKind::Usage;
            tokio::select! {
                () = stop.wait() => {}
                () = sleep(PAUSE), if !is_hopeless => {}
            }
            if is_hopeless {
                return None;
            }
        }
    }

    /// Warns, unless it was the last warning.
    fn warn_once(&mut self, text: String) {
        if self.said != text {
            self.output.warn(&text);
            self.said = text;
        }
    }

    async fn live(&mut self, stop: &Stop) -> Result<AgentReport> {
        let observer = self.progress.observer();
        let remotes = open_remotes(&self.config, &observer).await?;
        let mut options =
            AgentOptions::from_config(&self.config, self.writer.clone(), attempt(None)?, remotes, false)?;
        options.traces = self.output.traces().cloned();
        // `run` records the starts of the trainer, and the agent belongs to them.
        options.lifecycle.restart_loop = None;
        options.lifecycle.invocation.clone_from(&self.invocation);
        if let Err(error) = options.refuse_read_only_mounts().await {
            // A step is sealed all the same, and uploaded to the other remotes.
            self.warn_once(error.text_with_hint());
        }
        stepvault_agent::run(options, observer, stop.clone()).await
    }
}
