//! Metrics of a running service. Runs and remotes are labels, as many as are configured; steps are values.

mod health;
mod observer;
mod vault;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::control::ControlState;
use crate::options::AgentOptions;
pub(crate) use observer::CountingObserver;

/// Maximum age of values read from the vault.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long reading the vault may delay an answer.
const READ_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnRun {
    run: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnRemote {
    remote: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnRunRemote {
    run: String,
    remote: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnTier {
    tier: String,
}

impl OnRun {
    fn new(run: &RunName) -> Self {
        Self { run: run.to_string() }
    }
}

impl OnRunRemote {
    fn new(run: &RunName, remote: &RemoteName) -> Self {
        Self {
            run: run.to_string(),
            remote: remote.to_string(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnError {
    run: String,
    remote: String,
    kind: String,
}

impl OnError {
    fn new(run: &RunName, remote: &RemoteName, kind: &str) -> Self {
        Self {
            run: run.to_string(),
            remote: remote.to_string(),
            kind: kind.to_owned(),
        }
    }
}

type Seconds = Gauge<f64, AtomicU64>;

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sealed_steps: Counter,
    warnings: Counter,
    moved_bytes: Family<OnRemote, Counter>,
    copied_bytes: Family<OnRemote, Counter>,
    durable_steps: Family<OnRemote, Counter>,
    removed_steps: Family<OnTier, Counter>,
    given_up_steps: Family<OnRun, Counter>,
    upload_failures: Family<OnRunRemote, Counter>,
    last_durable: Family<OnRunRemote, Seconds>,
    remote_failing: Family<OnRunRemote, Gauge>,
    unsealed_steps: Family<OnRun, Gauge>,
    other_writers: Family<OnRun, Gauge>,
    steps_failed: Family<OnRunRemote, Gauge>,
    remote_needs_operator: Family<OnRunRemote, Gauge>,
    upload_errors: Family<OnError, Gauge>,
    in_vault: vault::VaultGauges,
    healthy: Gauge,
    /// When bytes were last sent to each remote.
    moved_at: Mutex<BTreeMap<RemoteName, Instant>>,
    /// When the vault was last read.
    read_at: Mutex<Option<Instant>>,
    /// Whether it is being read: a disk that hangs blocks one thread, not one for each request.
    is_reading: AtomicBool,
}

impl Metrics {
    pub(crate) fn new(options: &AgentOptions, started_at: Timestamp) -> Self {
        let mut registry = Registry::with_prefix("stepvault");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the running agent", build);
        let started = Seconds::default();
        started.set(seconds(started_at));
        registry.register(
            "agent_start_timestamp_seconds",
            "Start time of the agent, in seconds since 1970",
            started,
        );
        let metrics = Self {
            sealed_steps: Counter::default(),
            warnings: Counter::default(),
            moved_bytes: Family::default(),
            copied_bytes: Family::default(),
            durable_steps: Family::default(),
            removed_steps: Family::default(),
            given_up_steps: Family::default(),
            upload_failures: Family::default(),
            last_durable: Family::default(),
            remote_failing: Family::default(),
            unsealed_steps: Family::default(),
            other_writers: Family::default(),
            steps_failed: Family::default(),
            remote_needs_operator: Family::default(),
            upload_errors: Family::default(),
            in_vault: vault::VaultGauges::register(&mut registry),
            healthy: Gauge::default(),
            moved_at: Mutex::default(),
            read_at: Mutex::default(),
            is_reading: AtomicBool::new(false),
            registry: Registry::default(),
        };
        metrics.register(&mut registry);
        metrics.begin_at_zero(options);
        Self { registry, ..metrics }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "sealed_steps",
            "Steps sealed into the vault since the agent started",
            self.sealed_steps.clone(),
        );
        registry.register(
            "warnings",
            "Warnings that the agent has emitted",
            self.warnings.clone(),
        );
        registry.register(
            "uploaded_bytes",
            "Checkpoint bytes sent to the remote, and read back from it to verify a step again",
            self.moved_bytes.clone(),
        );
        registry.register(
            "copied_bytes",
            "Checkpoint bytes that the remote copied from an earlier step and that were not sent",
            self.copied_bytes.clone(),
        );
        registry.register(
            "durable_steps",
            "Steps that became durable on the remote since the agent started",
            self.durable_steps.clone(),
        );
        registry.register(
            "removed_steps",
            "Steps that retention removed from the tier, which is 'local' or a remote's name",
            self.removed_steps.clone(),
        );
        registry.register(
            "given_up_steps",
            "Steps that the vault gave up before they were durable, for lack of disk space",
            self.given_up_steps.clone(),
        );
        registry.register(
            "upload_failures",
            "Failed uploads; each is retried while the step is in the vault",
            self.upload_failures.clone(),
        );
        registry.register(
            "last_durable_timestamp_seconds",
            "Time at which a step last became durable on the remote, in seconds since 1970; absent until the first \
             one since the agent started",
            self.last_durable.clone(),
        );
        registry.register(
            "remote_failing",
            "1 while uploads to the remote fail for a cause that affects the whole remote",
            self.remote_failing.clone(),
        );
        registry.register(
            "unsealed_steps",
            "Finished steps that are not sealed yet, for lack of space or because their files cannot be read",
            self.unsealed_steps.clone(),
        );
        registry.register(
            "other_writers",
            "Other training jobs seen writing the run within the last hour; a run belongs to one job",
            self.other_writers.clone(),
        );
        registry.register(
            "steps_failed",
            "Steps whose upload to the remote fails for a cause that needs an operator; they are retried regardless",
            self.steps_failed.clone(),
        );
        registry.register(
            "remote_needs_operator",
            "1 while uploads to the remote fail for a cause that needs an operator, such as wrong credentials or a \
             missing bucket",
            self.remote_needs_operator.clone(),
        );
        registry.register(
            "upload_errors",
            "Errors that currently keep steps from the remote, by kind: one for the whole remote, and one for each \
             step",
            self.upload_errors.clone(),
        );
        registry.register(
            "agent_healthy",
            "1 when the health check reports no problem",
            self.healthy.clone(),
        );
    }

    /// Counters that exist from the start can be distinguished from missing ones.
    fn begin_at_zero(&self, options: &AgentOptions) {
        let removed_from = |tier: String| self.removed_steps.get_or_create(&OnTier { tier }).inc_by(0);
        removed_from("local".to_owned());
        for remote in &options.remotes {
            let remote = remote.settings.name.to_string();
            let labels = OnRemote {
                remote: remote.clone(),
            };
            self.moved_bytes.get_or_create(&labels).inc_by(0);
            self.copied_bytes.get_or_create(&labels).inc_by(0);
            self.durable_steps.get_or_create(&labels).inc_by(0);
            removed_from(remote);
        }
        for run in &options.runs {
            self.given_up_steps.get_or_create(&OnRun::new(&run.run)).inc_by(0);
            for remote in &run.remotes {
                let labels = OnRunRemote::new(&run.run, remote);
                self.upload_failures.get_or_create(&labels).inc_by(0);
            }
        }
    }

    /// Returns all metrics as text in the `OpenMetrics` format, which Prometheus reads.
    ///
    /// # Errors
    /// When the vault cannot be read in time.
    pub(crate) async fn text(self: &Arc<Self>, control_state: &ControlState) -> Result<String> {
        self.read_vault(control_state).await?;
        self.read_board(control_state);
        self.healthy
            .set(i64::from(self.problems(control_state).is_empty()));
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the metrics").caused_by(error))?;
        Ok(text)
    }

    async fn read_vault(self: &Arc<Self>, control_state: &ControlState) -> Result<()> {
        let is_fresh = {
            let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            read_at.is_some_and(|time| time.elapsed() < FRESH_FOR)
        };
        if is_fresh || self.is_reading.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (metrics, vault) = (Arc::clone(self), control_state.shared.vault.clone());
        let runs = control_state.runs.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let read = metrics.in_vault.read(&vault, &runs);
            if read.is_ok() {
                *metrics.read_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            metrics.is_reading.store(false, Ordering::Release);
            read
        });
        let fault =
            |why: String| Error::new(ErrorKind::Failed, "cannot read the vault for the metrics").because(why);
        match tokio::time::timeout(READ_WITHIN, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(fault(error.to_string())),
            Err(_) => Err(fault(format!(
                "its disk did not answer within {} s",
                READ_WITHIN.as_secs()
            ))),
        }
    }

    fn read_board(&self, control_state: &ControlState) {
        let status = &control_state.shared.status;
        self.upload_errors.clear();
        for served in &control_state.runs {
            let labels = OnRun::new(&served.run);
            self.given_up_steps
                .get_or_create(&labels)
                .inner()
                .store(status.given_up_count(&served.run), Ordering::Relaxed);
            let unsealed = status.unsealed_count(&served.run);
            self.unsealed_steps
                .get_or_create(&labels)
                .set(whole(unsealed as u64));
            let others = status.other_writers(&served.run).len();
            self.other_writers
                .get_or_create(&labels)
                .set(whole(others as u64));
            for remote in &served.remotes {
                let labels = OnRunRemote::new(&served.run, remote.name());
                let pulse = status.pulse(&served.run, remote.name());
                self.upload_failures
                    .get_or_create(&labels)
                    .inner()
                    .store(pulse.failures, Ordering::Relaxed);
                if let Some(time) = pulse.durable_at {
                    self.last_durable.get_or_create(&labels).set(seconds(time));
                }
                self.remote_failing
                    .get_or_create(&labels)
                    .set(i64::from(pulse.failing_since.is_some()));
                let troubles = status.on_remote(&served.run, remote.name());
                self.steps_failed
                    .get_or_create(&labels)
                    .set(whole(troubles.steps_for_operator().count() as u64));
                let for_operator = troubles
                    .remote
                    .as_ref()
                    .is_some_and(|trouble| trouble.needs_operator);
                self.remote_needs_operator
                    .get_or_create(&labels)
                    .set(i64::from(for_operator));
                // Errors of a remote as a whole are present from the start.
                let of_remotes = [ErrorKind::Denied, ErrorKind::Unreachable, ErrorKind::Usage];
                let mut errors: BTreeMap<&str, i64> = of_remotes.map(|kind| (kind.name(), 0)).into();
                for kind in troubles.errors() {
                    *errors.entry(kind.name()).or_default() += 1;
                }
                for (kind, count) in errors {
                    let labels = OnError::new(&served.run, remote.name(), kind);
                    self.upload_errors.get_or_create(&labels).set(count);
                }
            }
        }
    }
}

fn seconds(time: Timestamp) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "whole seconds are exact for millions of years"
    )]
    let whole = time.seconds as f64;
    whole + f64::from(time.nanoseconds) / 1e9
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
