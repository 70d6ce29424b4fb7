//! Counts the engine's events.

use std::sync::{Arc, PoisonError};

use prometheus_client::metrics::counter::Counter;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::{Event, Observer, Operation, OperationKind, Tier};
use tokio::time::Instant;

use super::Metrics;
use super::tables::{ByOne, of_remote, of_tier};
use crate::throughput::Throughput;

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

impl Metrics {
    fn count(&self, event: &Event<'_>) {
        self.uploads.count(event);
        match event {
            Event::Finished { operation, .. } => self.count_finished(operation),
            Event::Warning { .. } => {
                self.of_events.warnings.inc();
            }
            Event::BytesMoved { tier: Tier::Remote(remote), bytes } => {
                self.count_bytes(&self.of_events.uploaded_bytes, remote, *bytes);
            }
            Event::BytesCopied { tier: Tier::Remote(remote), bytes } => {
                self.count_bytes(&self.of_events.copied_bytes, remote, *bytes);
            }
            Event::Durable { tier: Tier::Remote(remote), .. } => {
                let steps = self.of_events.durable_steps.get_or_create(&of_remote(remote));
                steps.inc();
            }
            _ => {}
        }
    }

    fn count_finished(&self, operation: &Operation<'_>) {
        match operation.kind {
            OperationKind::Seal => {
                self.of_events.sealed_steps.inc();
            }
            OperationKind::Removal => {
                let labels = of_tier(operation.tier);
                self.of_events.removed_steps.get_or_create(&labels).inc();
            }
            OperationKind::Transfer => {}
        }
    }

    fn count_bytes(&self, counters: &ByOne<Counter>, remote: &RemoteName, bytes: u64) {
        counters.get_or_create(&of_remote(remote)).inc_by(bytes);
        self.moved_at.lock().unwrap_or_else(PoisonError::into_inner).insert(remote.clone(), Instant::now());
    }
}
