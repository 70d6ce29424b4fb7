//! Metrics of a running service. Runs and remotes are labels, as many as are configured; steps are values.

mod command;
mod events;
mod format;
pub(crate) mod labels;
mod page;
mod push;
pub(crate) mod requests;
mod tables;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use stepvault_core::config::ServiceUrl;
use stepvault_core::ids::{NodeName, RemoteName, RunName};
use stepvault_core::observe::{Event, Observer, Operation, OperationKind, Tier};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::durable;
use stepvault_local::vault::Vault;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::command::CommandMetrics;
use self::events::EventMetrics;
pub(crate) use self::format::TextFormat;
use self::labels::of_both;
pub(crate) use self::page::{MetricsAccess, routes};
use self::push::push;
use self::tables::{
    AgentEvents, ByOne, Seconds, StatusMetrics, VaultMetrics, of_error, of_remote, of_run, of_run_and_tier,
    of_tier, seconds, set, store, whole,
};
use crate::agent_status::{AgentStatus, RemoteState};
use crate::messages::UploadProgress;
use crate::options::{AgentOptions, AgentRemote};
use crate::remotes::ServedRun;
use crate::throughput::Throughput;
use crate::traces::Traces;

/// Maximum age of values read from the vault.
const FRESH_FOR: Duration = Duration::from_secs(5);
/// How long reading the vault may delay an answer.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Replaces a file of metrics, which the exporter reads as another user.
fn write_readable(file: &Path, text: &str) -> Result<()> {
    durable::replace(file, text.as_bytes())?;
    std::fs::set_permissions(file, Permissions::from_mode(0o644)).map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot make the metrics readable").on(file.display()).caused_by(error)
    })
}

/// Interval of the metrics file.
const WRITTEN_EVERY: Duration = Duration::from_secs(15);

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    status: Arc<AgentStatus>,
    remotes: Vec<AgentRemote>,
    traces: Option<Arc<Traces>>,
    runs: Arc<[ServedRun]>,
    registry: Registry,
    of_vault: Arc<MeasuredVault>,
    of_events: EventMetrics,
    of_agent: AgentEvents,
    of_status: StatusMetrics,
    /// When bytes were last sent to each remote.
    moved_at: Mutex<BTreeMap<RemoteName, Instant>>,
    /// The uploads in progress.
    pub(crate) uploads: Uploads,
}

/// The vault, whose metrics are read from the disk.
#[derive(Debug)]
struct MeasuredVault {
    vault: Vault,
    metrics: VaultMetrics,
    /// When it was last read.
    read_at: Mutex<Option<Instant>>,
    /// Whether it is being read: a disk that hangs blocks one thread, not one for each request.
    is_reading: AtomicBool,
}

impl MeasuredVault {
    /// Reads the vault again, unless that was done a moment ago.
    ///
    /// # Errors
    /// When it cannot be read in time.
    async fn read(self: &Arc<Self>, runs: &Arc<[ServedRun]>, status: &Arc<AgentStatus>) -> Result<()> {
        let is_fresh = {
            let read_at = *self.read_at.lock();
            read_at.is_some_and(|time| time.elapsed() < FRESH_FOR)
        };
        if is_fresh || self.is_reading.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (measured, runs, status) = (Arc::clone(self), Arc::clone(runs), Arc::clone(status));
        let reading = tokio::task::spawn_blocking(move || {
            let durable = |run: &_, remote: &_| status.remote(run, remote).newest_durable;
            let read = measured.metrics.read(&measured.vault, &runs, durable);
            if read.is_ok() {
                *measured.read_at.lock() = Some(Instant::now());
            }
            measured.is_reading.store(false, Ordering::Release);
            read
        });
        let fault =
            |why: String| Error::new(ErrorKind::Failed, "cannot read the vault for the metrics").because(why);
        match tokio::time::timeout(READ_WITHIN, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(fault(error.to_string())),
            Err(_) => Err(fault(format!("its disk did not answer within {} s", READ_WITHIN.as_secs()))),
        }
    }

    /// Reads it at the next call in any case: the last values are those of the end.
    fn expire(&self) {
        *self.read_at.lock() = None;
    }
}

/// Creates a registry with what does not change. Every sample names the node.
fn registry_of(node: &NodeName) -> Registry {
    let node = ("node".into(), node.to_string().into());
    let mut registry = Registry::with_prefix_and_labels("stepvault", std::iter::once(node));
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of stepvault", build);
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
        let mut registry = registry_of(options.node());
        let started = Seconds::default();
        started.set(seconds(started_at));
        let help = "Start time of the agent, in seconds since 1970";
        registry.register("agent_start_timestamp_seconds", help, started);
        let help = "Seconds from a step's last write by the trainer until it was durable on the remote";
        registry.register("save_to_durable_seconds", help, status.save_to_durable.clone());
        let mut metrics = Self {
            status,
            remotes: options.remotes.clone(),
            traces: options.traces.clone(),
            runs,
            of_vault: Arc::new(MeasuredVault {
                vault,
                metrics: VaultMetrics::register(&mut registry),
                read_at: Mutex::default(),
                is_reading: AtomicBool::new(false),
            }),
            of_events: EventMetrics::new(),
            of_agent: AgentEvents::register(&mut registry),
            of_status: StatusMetrics::register(&mut registry),
            moved_at: Mutex::default(),
            uploads: Uploads::default(),
            registry,
        };
        metrics.of_events.register_operations(&mut metrics.registry);
        metrics.of_events.register(&mut metrics.registry);
        if let Some(low_bytes) = options.local.limits.free_space_low_bytes {
            let low = Gauge::<i64>::default();
            low.set(whole(low_bytes));
            let help = "Free bytes below which local copies are removed (local.free-space-low); absent if not configured";
            metrics.registry.register("disk_low_mark_bytes", help, low);
        }
        metrics.begin_at_zero(options);
        metrics
    }

    /// Counters that exist from the start can be distinguished from missing ones.
    fn begin_at_zero(&self, options: &AgentOptions) {
        let events = &self.of_agent;
        events.removed_steps.get_or_create(&of_tier(&"local")).inc_by(0);
        for remote in &options.remotes {
            let name = &remote.settings.name;
            for counters in [&events.uploaded_bytes, &events.copied_bytes, &events.durable_steps] {
                counters.get_or_create(&of_remote(name)).inc_by(0);
            }
            events.removed_steps.get_or_create(&of_tier(name)).inc_by(0);
        }
        for run in self.runs.iter() {
            let given_up = &self.of_status.given_up_steps;
            given_up.get_or_create(&of_run(run.name())).inc_by(0);
            for remote in &run.remotes {
                let labels = of_both(run.name(), remote.name());
                self.of_status.upload_failures.get_or_create(&labels).inc_by(0);
            }
        }
    }

    /// Returns all metrics as text.
    ///
    /// # Errors
    /// When the vault cannot be read in time.
    pub(crate) async fn text(&self, format: TextFormat) -> Result<String> {
        self.of_vault.read(&self.runs, &self.status).await?;
        self.read_status();
        self.of_status.agent_healthy.set(i64::from(self.problems().is_empty()));
        format.write(&self.registry)
    }

    /// Replaces the file by the metrics, periodically and at the end.
    pub(crate) async fn write_to(self: Arc<Self>, file: PathBuf, end: CancellationToken) {
        loop {
            let is_over = end.is_cancelled();
            if is_over {
                self.of_vault.expire();
            }
            let (metrics, path) = (Arc::clone(&self), file.clone());
            let written = async move {
                let text = metrics.text(TextFormat::Prometheus).await?;
                blocking(move || write_readable(&path, &text)).await
            };
            if let Err(error) = written.await
                && self.status.is_new_warning("metrics-file", &error.to_string())
            {
                tracing::warn!(file = %file.display(), %error, "cannot write the metrics");
            }
            if is_over {
                return;
            }
            let _ = tokio::time::timeout(WRITTEN_EVERY, end.cancelled()).await;
        }
    }

    /// Replaces the metrics of this node and its runs on a Pushgateway.
    ///
    /// # Errors
    /// When the vault cannot be read in time, or the Pushgateway does not accept them.
    pub(crate) async fn push_to(&self, gateway: &ServiceUrl, node: &NodeName) -> Result<()> {
        self.of_vault.expire();
        let text = self.text(TextFormat::Prometheus).await?;
        // The group's labels replace those of the samples, so that several runs need another one.
        let names: Vec<&str> = self.runs.iter().map(|served| served.name().as_str()).collect();
        let (label, runs) = (if names.len() == 1 { "run" } else { "runs" }, names.join(","));
        let group = [(label, runs.as_str()), ("node", node.as_str())];
        push(gateway, group.into_iter(), text).await
    }

    fn read_status(&self) {
        let (status, metrics) = (&self.status, &self.of_status);
        metrics.upload_errors.clear();
        for remote in &self.remotes {
            self.of_events.take(&remote.settings.name, &remote.requests);
        }
        let dropped_spans = self.traces.as_ref().map_or(0, |traces| traces.dropped());
        self.of_agent.dropped_spans.inner().store(dropped_spans, Ordering::Relaxed);
        metrics.restart_loop.set(i64::from(status.report().restart_loop.is_some()));
        for served in self.runs.iter() {
            let (run, labels) = (served.name(), of_run(served.name()));
            for tier in served.remotes.iter().map(|remote| &remote.tier).chain([&Tier::Local]) {
                let is_blocked = status.is_retention_blocked(run, tier);
                set(&metrics.retention_blocked, &of_run_and_tier(run, tier), u64::from(is_blocked));
            }
            store(&metrics.given_up_steps, &labels, status.given_up_count(run));
            set(&metrics.unsealed_steps, &labels, status.unsealed_of(run, usize::MAX).len() as u64);
            let others = status.other_writers(run).len();
            set(&metrics.other_writers, &labels, others as u64);
            for remote in &served.remotes {
                let labels = of_both(run, remote.name());
                let state = status.remote(run, remote.name());
                store(&metrics.upload_failures, &labels, state.failures);
                if let Some(time) = state.durable_at {
                    let last = metrics.last_durable_timestamp_seconds.get_or_create(&labels);
                    last.set(seconds(time));
                }
                let is_failing = state.failing_since.is_some();
                set(&metrics.remote_failing, &labels, u64::from(is_failing));
                let for_operator = state.steps_for_operator().count();
                set(&metrics.steps_failed, &labels, for_operator as u64);
                let for_operator = state.fault.as_ref().is_some_and(|fault| fault.needs_operator);
                set(&metrics.remote_needs_operator, &labels, u64::from(for_operator));
                // Errors of a remote as a whole are present from the start.
                let of_remotes = [ErrorKind::Denied, ErrorKind::Unreachable, ErrorKind::Usage];
                let mut errors: BTreeMap<&str, u64> = of_remotes.map(|kind| (kind.name(), 0)).into();
                for kind in state.errors() {
                    *errors.entry(kind.name()).or_default() += 1;
                }
                for (kind, count) in errors {
                    set(&metrics.upload_errors, &of_error(run, remote.name(), kind), count);
                }
            }
        }
    }

    fn count(&self, event: &Event<'_>) {
        self.uploads.count(event);
        self.of_events.count(event);
        match event {
            Event::Finished { operation: Operation { kind: OperationKind::Seal, .. }, .. } => {
                self.of_agent.sealed_steps.inc();
            }
            Event::Finished { operation: Operation { kind: OperationKind::Removal, tier, .. }, .. } => {
                self.of_agent.removed_steps.get_or_create(&of_tier(tier)).inc();
            }
            Event::BytesMoved { tier: Tier::Remote(remote), bytes } => {
                self.count_bytes(&self.of_agent.uploaded_bytes, remote, *bytes);
            }
            Event::BytesCopied { tier: Tier::Remote(remote), bytes } => {
                self.count_bytes(&self.of_agent.copied_bytes, remote, *bytes);
            }
            Event::Durable { tier: Tier::Remote(remote), .. } => {
                let steps = self.of_agent.durable_steps.get_or_create(&of_remote(remote));
                steps.inc();
            }
            _ => {}
        }
    }

    fn count_bytes(&self, counters: &ByOne<Counter>, remote: &RemoteName, bytes: u64) {
        counters.get_or_create(&of_remote(remote)).inc_by(bytes);
        self.moved_at.lock().insert(remote.clone(), Instant::now());
    }

    /// Returns the problems that keep the service from its work; empty when there are none.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems_of_remotes().into_iter().map(|(run, _, problem)| format!("{run}: {problem}")).collect()
    }

    /// Returns them without the run's name in the text, with the run and the remote of each.
    pub(crate) fn problems_of_remotes(&self) -> Vec<(RunName, RemoteName, String)> {
        let moved_at = self.moved_at.lock().clone();
        let mut problems = Vec::new();
        for served in self.runs.iter() {
            let is_required = |remote: &&RunRemote| remote.settings.required;
            let some_required = served.remotes.iter().any(|remote| is_required(&remote));
            let counted = served.remotes.iter();
            for remote in counted.filter(|remote| is_required(remote) || !some_required) {
                let (run, remote) = (served.name(), remote.name());
                let state = self.status.remote(run, remote);
                let problem = problem(&state, remote, moved_at.get(remote).copied());
                problems.extend(problem.map(|text| (run.clone(), remote.clone(), text)));
            }
        }
        problems
    }
}

// Counts the engine's events.

/// Counts events and bytes, and forwards every event.
#[derive(Debug)]
pub(crate) struct AgentObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) throughput: Arc<Throughput>,
    pub(crate) next: Arc<dyn Observer>,
}

impl Observer for AgentObserver {
    fn on_event(&self, event: &Event<'_>) {
        self.throughput.count(event);
        self.metrics.count(event);
        self.next.on_event(event);
    }
}

/// The upload in progress to each remote. Of several at once, as of small steps, it is the one that began last.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<BTreeMap<RemoteName, UploadProgress>>);

impl Uploads {
    /// Returns the uploads in progress.
    pub(crate) fn all(&self) -> Vec<UploadProgress> {
        self.0.lock().values().cloned().collect()
    }

    fn count(&self, event: &Event<'_>) {
        match event {
            Event::BytesMoved { tier: Tier::Remote(remote), bytes }
            | Event::BytesCopied { tier: Tier::Remote(remote), bytes }
            | Event::BytesReused { tier: Tier::Remote(remote), bytes } => {
                if let Some(upload) = self.0.lock().get_mut(remote) {
                    upload.done_bytes = upload.done_bytes.saturating_add(*bytes).min(upload.bytes);
                }
            }
            Event::Started(Operation {
                kind: OperationKind::Upload,
                tier: Tier::Remote(remote),
                id,
                bytes,
                ..
            }) => {
                let (remote, bytes) = (remote.clone(), bytes.unwrap_or_default());
                let started = UploadProgress { remote: remote.clone(), id: *id, bytes, done_bytes: 0 };
                self.0.lock().insert(remote, started);
            }
            Event::Finished { operation, .. } | Event::Failed { operation, .. }
                if operation.kind == OperationKind::Upload =>
            {
                if let Tier::Remote(remote) = operation.tier {
                    self.0.lock().retain(|of, upload| of != remote || upload.id != operation.id);
                }
            }
            _ => {}
        }
    }
}

/// How long a required remote may be unreachable.
const AWAY_FOR: Duration = Duration::from_mins(5);
/// How long an upload may make no progress.
const STILL_FOR: Duration = Duration::from_mins(15);

/// Returns the problem of a run on a remote. `sent` is when bytes were last sent to the remote, for any run.
fn problem(state: &RemoteState, remote: &RemoteName, sent: Option<Instant>) -> Option<String> {
    if let Some(since) = state.failing_since
        && since.elapsed() >= AWAY_FOR
    {
        let seconds = since.elapsed().as_secs();
        let why = state.fault.as_ref().map_or("unknown cause", |fault| &fault.reason);
        return Some(format!("uploads to {remote} have failed for {seconds} s: {why}"));
    }
    let id = state.uploading?;
    let moved_at = state.moved_at.max(sent)?;
    (moved_at.elapsed() >= STILL_FOR).then(|| {
        let seconds = moved_at.elapsed().as_secs();
        format!("the upload of {id} to {remote} has not progressed for {seconds} s")
    })
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::StepId;

    use super::*;
    use crate::agent_status::Trouble;

    #[test]
    fn an_upload_counts_until_it_ends() {
        let remote: RemoteName = "main".parse().unwrap();
        let id = StepId::from_label("000000000007.a1").unwrap();
        let tier = &Tier::Remote(remote);
        let uploads = Uploads::default();
        uploads.count(&Event::BytesMoved { tier, bytes: 1 });
        assert_eq!(uploads.all(), []);
        let operation = Operation {
            kind: OperationKind::Upload,
            run: &"demo".parse().unwrap(),
            tier,
            id,
            location: "",
            files: 1,
            bytes: Some(10),
        };
        uploads.count(&Event::Started(operation));
        uploads.count(&Event::BytesMoved { tier, bytes: 2 });
        uploads.count(&Event::BytesCopied { tier, bytes: 3 });
        uploads.count(&Event::BytesReused { tier, bytes: 4 });
        let [upload] = uploads.all().try_into().unwrap();
        assert_eq!((upload.id, upload.bytes, upload.done_bytes), (id, 10, 9));
        uploads.count(&Event::Finished { operation, copied_bytes: 3, seconds: 1.0 });
        assert_eq!(uploads.all(), []);
    }

    /// Returns the problem reported after `later`, if from now on it is `uploading`, or the remote fails.
    async fn said_after(
        later: Duration,
        fails: bool,
        uploading: bool,
        moves_after: Option<Duration>,
    ) -> Option<String> {
        let remote = "main".parse().unwrap();
        let begun = Instant::now();
        let state = RemoteState {
            uploading: uploading.then(|| StepId::from_label("000000000007.a1").unwrap()),
            fault: Some(Trouble::waiting("cannot reach it".to_owned())),
            failing_since: fails.then_some(begun),
            moved_at: Some(begun),
            ..RemoteState::default()
        };
        tokio::time::advance(later).await;
        problem(&state, &remote, moves_after.map(|after| begun + after))
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_may_be_away_for_a_while() {
        assert_eq!(said_after(AWAY_FOR / 2, true, false, None).await, None);
        assert_eq!(
            said_after(AWAY_FOR, true, false, None).await.unwrap(),
            "uploads to main have failed for 300 s: cannot reach it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_moves_is_well_however_long_it_takes() {
        assert_eq!(said_after(STILL_FOR, false, false, None).await, None);
        assert_eq!(said_after(STILL_FOR, false, true, Some(STILL_FOR / 2)).await, None);
        assert_eq!(
            said_after(STILL_FOR, false, true, None).await.unwrap(),
            "the upload of step 7 (attempt 1) to main has not progressed for 900 s"
        );
    }
}
