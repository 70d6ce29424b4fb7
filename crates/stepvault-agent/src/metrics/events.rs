//! Metrics of the engine's events, for the agent and for commands that end.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::observe::{Event, Operation, Tier};
use stepvault_core::{ErrorKind, RemoteName};

use super::labels::{Durations, Labels, durations};
use super::requests::RequestCounts;
use super::tables::{ByOne, of_remote, store};

/// Counts requests, operations on steps and their durations. Clones share their counts.
#[derive(Debug, Clone)]
pub(super) struct EventMetrics {
    requests: ByOne<Counter>,
    retries: ByOne<Counter>,
    operations: Family<Labels<4>, Counter>,
    durations: Durations<3>,
    verified_steps: Family<Labels<2>, Counter>,
    clock_offsets: ByOne<Gauge>,
    warnings: Counter,
}

impl EventMetrics {
    pub(super) fn new() -> Self {
        Self {
            requests: Family::default(),
            retries: Family::default(),
            operations: Family::default(),
            durations: durations(),
            verified_steps: Family::default(),
            clock_offsets: Family::default(),
            warnings: Counter::default(),
        }
    }

    /// Registers those that name the run of each operation.
    pub(super) fn register_operations(&self, registry: &mut Registry) {
        let help = "Operations on steps that ended: seal, upload, restore, removal; the outcome is 'success', 'damaged' or \
                    'failure'";
        registry.register("operations", help, self.operations.clone());
        let help = "Duration of successful operations on steps, in seconds";
        registry.register("operation_duration_seconds", help, self.durations.clone());
    }

    /// Registers the others.
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Requests to the remote; each attempt counts";
        registry.register("requests", help, self.requests.clone());
        let help = "Requests to the remote that failed for a cause that may pass";
        registry.register("retries", help, self.retries.clone());
        let help = "Seconds by which the remote's clock is ahead of this machine's, as the last write that it acknowledged \
                    shows; negative if it is behind";
        registry.register("clock_offset_seconds", help, self.clock_offsets.clone());
        let help = "Steps that 'verify' checked; the outcome is 'success' or 'damaged'";
        registry.register("verified_steps", help, self.verified_steps.clone());
        registry.register("warnings", "Warnings that were emitted", self.warnings.clone());
    }

    /// Takes over what was counted at a remote since it was opened.
    pub(super) fn take(&self, remote: &RemoteName, counts: &RequestCounts) {
        for (counters, count) in [(&self.requests, &counts.requests), (&self.retries, &counts.retries)] {
            store(counters, &of_remote(remote), count.load(Ordering::Relaxed));
        }
        if let Some(ahead_seconds) = *counts.ahead_seconds.lock() {
            self.clock_offsets.get_or_create(&of_remote(remote)).set(ahead_seconds);
        }
    }

    pub(super) fn count(&self, event: &Event<'_>) {
        match event {
            Event::Requested { tier: Tier::Remote(remote) } => {
                self.requests.get_or_create(&of_remote(remote)).inc();
            }
            Event::Retrying { tier: Tier::Remote(remote), .. } => {
                self.retries.get_or_create(&of_remote(remote)).inc();
            }
            Event::ClockCompared { tier: Tier::Remote(remote), ahead_seconds } => {
                self.clock_offsets.get_or_create(&of_remote(remote)).set(*ahead_seconds);
            }
            Event::Finished { operation, seconds, .. } => {
                self.ended(operation, "success");
                let labels = of_operation(operation);
                self.durations.get_or_create(&labels).observe(*seconds);
            }
            Event::Failed { operation, error, .. } => {
                let is_damaged = error.kind() == ErrorKind::Damaged;
                self.ended(operation, if is_damaged { "damaged" } else { "failure" });
            }
            Event::Verified { tier, is_sound } => {
                let outcome = if *is_sound { "success" } else { "damaged" };
                let labels = [("tier", tier.to_string()), ("outcome", outcome.to_owned())];
                self.verified_steps.get_or_create(&labels).inc();
            }
            Event::Warning { .. } => {
                self.warnings.inc();
            }
            _ => {}
        }
    }

    fn ended(&self, operation: &Operation<'_>, outcome: &str) {
        let [run, operation, tier] = of_operation(operation);
        let labels = [run, operation, tier, ("outcome", outcome.to_owned())];
        self.operations.get_or_create(&labels).inc();
    }
}

fn of_operation(operation: &Operation<'_>) -> Labels<3> {
    let Operation { kind, run, tier, .. } = operation;
    [("run", run.to_string()), ("operation", kind.name().to_owned()), ("tier", tier.to_string())]
}
