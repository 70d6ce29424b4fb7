//! Metrics of a running service. Runs and remotes are labels, as many as are configured; steps are values.

mod health;
mod observer;
mod uploads;
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
use prometheus_client::registry::{Metric, Registry};
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::vault::Vault;
use tokio::time::Instant;

use crate::agent_status::AgentStatus;
use crate::options::AgentOptions;
use crate::remotes::ServedRun;
pub(crate) use observer::CountingObserver;
use uploads::Uploads;
use vault::VaultGauges;

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnError {
    run: String,
    remote: String,
    kind: String,
}

impl OnRun {
    fn new(run: &RunName) -> Self {
        Self { run: run.to_string() }
    }
}

impl OnRemote {
    fn new(remote: &RemoteName) -> Self {
        Self {
            remote: remote.to_string(),
        }
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

type Seconds = Gauge<f64, AtomicU64>;

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    vault: Vault,
    status: Arc<AgentStatus>,
    runs: Arc<[ServedRun]>,
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
    in_vault: VaultGauges,
    healthy: Gauge,
    /// When bytes were last sent to each remote.
    moved_at: Mutex<BTreeMap<RemoteName, Instant>>,
    /// The uploads in progress.
    pub(crate) uploads: Uploads,
    /// When the vault was last read.
    read_at: Mutex<Option<Instant>>,
    /// Whether it is being read: a disk that hangs blocks one thread, not one for each request.
    is_reading: AtomicBool,
}

/// Registers a metric.
fn register<M: Metric + Default + Clone>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Creates a registry with what does not change.
fn registry_of_start(started_at: Timestamp) -> Registry {
    let mut registry = Registry::with_prefix("stepvault");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of the running agent", build);
    let started: Seconds = register(
        &mut registry,
        "agent_start_timestamp_seconds",
        "Start time of the agent, in seconds since 1970",
    );
    started.set(seconds(started_at));
    registry
}

impl Metrics {
    pub(crate) fn new(
        options: &AgentOptions,
        started_at: Timestamp,
        vault: Vault,
        status: Arc<AgentStatus>,
        runs: Arc<[ServedRun]>,
    ) -> Self {
        let mut registry = registry_of_start(started_at);
        let in_vault = VaultGauges::register(&mut registry);
        let metrics = Self {
            sealed_steps: register(
                &mut registry,
                "sealed_steps",
                "Steps sealed into the vault since the agent started",
            ),
            warnings: register(&mut registry, "warnings", "Warnings that the agent has emitted"),
            moved_bytes: register(
                &mut registry,
                "uploaded_bytes",
                "Checkpoint bytes sent to the remote, and read back from it to verify a step again",
            ),
            copied_bytes: register(
                &mut registry,
                "copied_bytes",
                "Checkpoint bytes that the remote copied from an earlier step and that were not sent",
            ),
            durable_steps: register(
                &mut registry,
                "durable_steps",
                "Steps that became durable on the remote since the agent started",
            ),
            removed_steps: register(
                &mut registry,
                "removed_steps",
                "Steps that retention removed from the tier, which is 'local' or a remote's name",
            ),
            given_up_steps: register(
                &mut registry,
                "given_up_steps",
                "Steps that the vault gave up before they were durable, for lack of disk space",
            ),
            upload_failures: register(
                &mut registry,
                "upload_failures",
                "Failed uploads; each is retried while the step is in the vault",
            ),
            last_durable: register(
                &mut registry,
                "last_durable_timestamp_seconds",
                "Time at which a step last became durable on the remote, in seconds since 1970; absent until the first \
             one since the agent started",
            ),
            remote_failing: register(
                &mut registry,
                "remote_failing",
                "1 while uploads to the remote fail for a cause that affects the whole remote",
            ),
            unsealed_steps: register(
                &mut registry,
                "unsealed_steps",
                "Finished steps that are not sealed yet, for lack of space or because their files cannot be read",
            ),
            other_writers: register(
                &mut registry,
                "other_writers",
                "Other training jobs seen writing the run within the last hour; a run belongs to one job",
            ),
            steps_failed: register(
                &mut registry,
                "steps_failed",
                "Steps whose upload to the remote fails for a cause that needs an operator; they are retried regardless",
            ),
            remote_needs_operator: register(
                &mut registry,
                "remote_needs_operator",
                "1 while uploads to the remote fail for a cause that needs an operator, such as wrong credentials or a \
             missing bucket",
            ),
            upload_errors: register(
                &mut registry,
                "upload_errors",
                "Errors that currently keep steps from the remote, by kind: one for the whole remote, and one for each \
             step",
            ),
            healthy: register(
                &mut registry,
                "agent_healthy",
                "1 when the health check reports no problem",
            ),
            in_vault,
            vault,
            status,
            runs,
            moved_at: Mutex::default(),
            uploads: Uploads::default(),
            read_at: Mutex::default(),
            is_reading: AtomicBool::new(false),
            registry,
        };
        metrics.begin_at_zero(options);
        metrics
    }

    /// Counters that exist from the start can be distinguished from missing ones.
    fn begin_at_zero(&self, options: &AgentOptions) {
        let removed_from = |tier: String| self.removed_steps.get_or_create(&OnTier { tier }).inc_by(0);
        removed_from("local".to_owned());
        for remote in &options.remotes {
            let labels = OnRemote::new(&remote.settings.name);
            for counters in [&self.moved_bytes, &self.copied_bytes, &self.durable_steps] {
                counters.get_or_create(&labels).inc_by(0);
            }
            removed_from(labels.remote);
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
    pub(crate) async fn text(self: &Arc<Self>) -> Result<String> {
        self.read_vault().await?;
        self.read_status();
        self.healthy.set(i64::from(self.problems().is_empty()));
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the metrics").caused_by(error))?;
        Ok(text)
    }

    async fn read_vault(self: &Arc<Self>) -> Result<()> {
        let is_fresh = {
            let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            read_at.is_some_and(|time| time.elapsed() < FRESH_FOR)
        };
        if is_fresh || self.is_reading.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let metrics = Arc::clone(self);
        let reading = tokio::task::spawn_blocking(move || {
            let read = metrics.in_vault.read(&metrics.vault, &metrics.runs);
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

    fn read_status(&self) {
        let status = &self.status;
        self.upload_errors.clear();
        for served in self.runs.iter() {
            let labels = OnRun::new(&served.run);
            self.given_up_steps
                .get_or_create(&labels)
                .inner()
                .store(status.given_up_count(&served.run), Ordering::Relaxed);
            let unsealed = status.unsealed_count(&served.run);
            set(&self.unsealed_steps, &labels, unsealed as u64);
            let others = status.other_writers(&served.run).len();
            set(&self.other_writers, &labels, others as u64);
            for remote in &served.remotes {
                let labels = OnRunRemote::new(&served.run, remote.name());
                let state = status.remote(&served.run, remote.name());
                self.upload_failures
                    .get_or_create(&labels)
                    .inner()
                    .store(state.failures, Ordering::Relaxed);
                if let Some(time) = state.durable_at {
                    self.last_durable.get_or_create(&labels).set(seconds(time));
                }
                let is_failing = state.failing_since.is_some();
                set(&self.remote_failing, &labels, u64::from(is_failing));
                let for_operator = state.steps_for_operator().count();
                set(&self.steps_failed, &labels, for_operator as u64);
                let for_operator = state.fault.as_ref().is_some_and(|fault| fault.needs_operator);
                set(&self.remote_needs_operator, &labels, u64::from(for_operator));
                // Errors of a remote as a whole are present from the start.
                let of_remotes = [ErrorKind::Denied, ErrorKind::Unreachable, ErrorKind::Usage];
                let mut errors: BTreeMap<&str, i64> = of_remotes.map(|kind| (kind.name(), 0)).into();
                for kind in state.errors() {
                    *errors.entry(kind.name()).or_default() += 1;
                }
                for (kind, count) in errors {
                    let labels = OnError {
                        run: served.run.to_string(),
                        remote: remote.name().to_string(),
                        kind: kind.to_owned(),
                    };
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

fn set<Labels>(gauges: &Family<Labels, Gauge>, labels: &Labels, value: u64)
where
    Labels: Clone + Eq + std::hash::Hash,
{
    gauges.get_or_create(labels).set(whole(value));
}
