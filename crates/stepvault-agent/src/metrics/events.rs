//! Metrics of the engine's events, for the agent and for commands that end.

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
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
    operations: Family<Labels<3>, Counter>,
    durations: Durations<2>,
    verified_steps: Family<Labels<2>, Counter>,
    warnings: Counter,
}

impl EventMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            retries: Family::default(),
            operations: Family::default(),
            durations: durations(),
            verified_steps: Family::default(),
            warnings: Counter::default(),
        };
        let help = "Requests to the remote; each attempt counts";
        registry.register("requests", help, metrics.requests.clone());
        let help = "Requests to the remote that failed for a cause that may pass";
        registry.register("retries", help, metrics.retries.clone());
        let help = "Operations on steps that ended: seal, upload, restore, removal; the outcome is 'success', 'damaged' or \
                    'failure'";
        registry.register("operations", help, metrics.operations.clone());
        let help = "Duration of successful operations on steps, in seconds";
        registry.register("operation_duration_seconds", help, metrics.durations.clone());
        let help = "Steps that 'verify' checked; the outcome is 'success' or 'damaged'";
        registry.register("verified_steps", help, metrics.verified_steps.clone());
        registry.register("warnings", "Warnings that were emitted", metrics.warnings.clone());
        metrics
    }

    /// Takes over what was counted at a remote since it was opened.
    pub(super) fn take(&self, remote: &RemoteName, counts: &RequestCounts) {
        for (counters, count) in [(&self.requests, &counts.requests), (&self.retries, &counts.retries)] {
            store(counters, &of_remote(remote), count.load(Ordering::Relaxed));
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
            Event::Finished { operation, seconds, .. } => {
                self.ended(operation, "success");
                let Operation { kind, tier, .. } = operation;
                let labels = [("operation", kind.name().to_owned()), ("tier", tier.to_string())];
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
        let Operation { kind, tier, .. } = operation;
        let (operation, outcome) = (kind.name().to_owned(), outcome.to_owned());
        let labels = [("operation", operation), ("tier", tier.to_string()), ("outcome", outcome)];
        self.operations.get_or_create(&labels).inc();
    }
}
