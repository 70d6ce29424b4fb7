//! Counts the engine's events.

use std::sync::{Arc, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::{Event, Observer, Operation, OperationKind, Tier};
use tokio::time::Instant;

use super::{Metrics, OnRemote, OnTier};

/// Counts events and forwards them.
#[derive(Debug)]
pub(crate) struct CountingObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) next: Arc<dyn Observer>,
}

impl Observer for CountingObserver {
    fn on_event(&self, event: &Event<'_>) {
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
                self.warnings.inc();
            }
            Event::BytesMoved {
                tier: Tier::Remote(remote),
                bytes,
            } => self.count_bytes(&self.moved_bytes, remote, *bytes),
            Event::BytesCopied {
                tier: Tier::Remote(remote),
                bytes,
            } => self.count_bytes(&self.copied_bytes, remote, *bytes),
            Event::Durable {
                tier: Tier::Remote(remote),
                ..
            } => {
                self.durable_steps.get_or_create(&OnRemote::new(remote)).inc();
            }
            _ => {}
        }
    }

    fn count_finished(&self, operation: &Operation<'_>) {
        match operation.kind {
            OperationKind::Seal => {
                self.sealed_steps.inc();
            }
            OperationKind::Removal => {
                let tier = operation.tier.to_string();
                self.removed_steps.get_or_create(&OnTier { tier }).inc();
            }
            OperationKind::Transfer => {}
        }
    }

    fn count_bytes(&self, counters: &Family<OnRemote, Counter>, remote: &RemoteName, bytes: u64) {
        counters.get_or_create(&OnRemote::new(remote)).inc_by(bytes);
        self.moved_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(remote.clone(), Instant::now());
    }
}
