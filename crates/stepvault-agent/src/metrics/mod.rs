//! What a monitoring system may know of a running service. Runs and remotes are labels, as many as are configured;
//! steps are values.

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

use crate::control::Desk;
use crate::options::AgentOptions;
pub(crate) use observer::CountingObserver;

/// What is read from the vault is at most this old.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long reading it may hold up an answer.
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

impl OnRunRemote {
    fn new(run: &RunName, remote: &RemoteName) -> Self {
        Self {
            run: run.to_string(),
            remote: remote.to_string(),
        }
    }
}

type Seconds = Gauge<f64, AtomicU64>;

/// All of them.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    sealed_steps: Counter,
    warnings: Counter,
    moved_bytes: Family<OnRemote, Counter>,
    copied_bytes: Family<OnRemote, Counter>,
    durable_steps: Family<OnRemote, Counter>,
    removed_steps: Family<OnTier, Counter>,
    upload_failures: Family<OnRunRemote, Counter>,
    last_durable: Family<OnRunRemote, Seconds>,
    remote_failing: Family<OnRunRemote, Gauge>,
    steps_failed: Family<OnRunRemote, Gauge>,
    in_vault: vault::VaultGauges,
    healthy: Gauge,
    /// By remote, when bytes last moved.
    moved_at: Mutex<BTreeMap<RemoteName, Instant>>,
    /// When the vault was last read.
    read_at: Mutex<Option<Instant>>,
    /// Somebody reads it: a disk that hangs holds up one thread, not one for each question.
    is_reading: AtomicBool,
}

impl Metrics {
    pub(crate) fn new(options: &AgentOptions, started_at: Timestamp) -> Self {
        let mut registry = Registry::with_prefix("stepvault");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version that runs", build);
        let started = Seconds::default();
        started.set(seconds(started_at));
        registry.register(
            "agent_start_timestamp_seconds",
            "When the agent started, in seconds since 1970",
            started,
        );
        let metrics = Self {
            sealed_steps: Counter::default(),
            warnings: Counter::default(),
            moved_bytes: Family::default(),
            copied_bytes: Family::default(),
            durable_steps: Family::default(),
            removed_steps: Family::default(),
            upload_failures: Family::default(),
            last_durable: Family::default(),
            remote_failing: Family::default(),
            steps_failed: Family::default(),
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
            "Steps that were taken over into the vault since the agent started",
            self.sealed_steps.clone(),
        );
        registry.register(
            "warnings",
            "Warnings that the agent has given",
            self.warnings.clone(),
        );
        registry.register(
            "uploaded_bytes",
            "Bytes of checkpoints sent to the remote, and read back from it where that is how they are proved",
            self.moved_bytes.clone(),
        );
        registry.register(
            "copied_bytes",
            "Bytes of checkpoints that the remote copied from an earlier step, instead of their being sent",
            self.copied_bytes.clone(),
        );
        registry.register(
            "durable_steps",
            "Steps that became durable on the remote since the agent started",
            self.durable_steps.clone(),
        );
        registry.register(
            "removed_steps",
            "Steps that retention removed from the tier, which is local or a remote's name",
            self.removed_steps.clone(),
        );
        registry.register(
            "upload_failures",
            "Uploads that failed and are tried again, unless the step is given up",
            self.upload_failures.clone(),
        );
        registry.register(
            "last_durable_timestamp_seconds",
            "When a step last became durable on the remote, in seconds since 1970; absent before the first since the \
             agent started",
            self.last_durable.clone(),
        );
        registry.register(
            "remote_failing",
            "1 while uploads to the remote fail for a reason that concerns the remote as a whole",
            self.remote_failing.clone(),
        );
        registry.register(
            "steps_failed",
            "Steps that are given up on the remote until the agent is started again",
            self.steps_failed.clone(),
        );
        registry.register(
            "agent_healthy",
            "1 when the health check has nothing to say",
            self.healthy.clone(),
        );
    }

    /// Counters that are there from the start can be told from those that are missing.
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
            for remote in &run.remotes {
                let labels = OnRunRemote::new(&run.run, remote);
                self.upload_failures.get_or_create(&labels).inc_by(0);
            }
        }
    }

    /// Everything as text in the `OpenMetrics` format, which Prometheus reads.
    ///
    /// # Errors
    /// When the vault cannot be read in time.
    pub(crate) async fn text(self: &Arc<Self>, desk: &Desk) -> Result<String> {
        self.read_vault(desk).await?;
        self.read_board(desk);
        self.healthy.set(i64::from(self.complaints(desk).is_empty()));
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the metrics").caused_by(error))?;
        Ok(text)
    }

    async fn read_vault(self: &Arc<Self>, desk: &Desk) -> Result<()> {
        let is_fresh = {
            let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            read_at.is_some_and(|time| time.elapsed() < FRESH_FOR)
        };
        if is_fresh || self.is_reading.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (metrics, vault) = (Arc::clone(self), desk.shared.vault.clone());
        let runs = desk.runs.clone();
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

    fn read_board(&self, desk: &Desk) {
        let board = &desk.shared.board;
        for served in &desk.runs {
            for remote in &served.remotes {
                let labels = OnRunRemote::new(&served.run, remote.name());
                let pulse = board.pulse(&served.run, remote.name());
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
                let (_, _, failed) = board.on_remote(&served.run, remote.name());
                self.steps_failed
                    .get_or_create(&labels)
                    .set(whole(failed.len() as u64));
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
