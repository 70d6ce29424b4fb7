//! What is known of the requests to a remote, from when it is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use stepvault_core::observe::{Event, Observer};

/// Counts the requests to one remote, and forwards every event. A remote is opened before the agent has metrics.
#[derive(Debug)]
pub(crate) struct RequestCounts {
    pub(super) requests: AtomicU64,
    pub(super) retries: AtomicU64,
    /// How far the remote's clock was ahead at its last answer that shows it.
    pub(super) ahead_seconds: Mutex<Option<i64>>,
    next: Arc<dyn Observer>,
}

impl RequestCounts {
    pub(crate) fn of(next: Arc<dyn Observer>) -> Self {
        Self {
            requests: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            ahead_seconds: Mutex::default(),
            next,
        }
    }
}

impl Observer for RequestCounts {
    fn on_event(&self, event: &Event<'_>) {
        let counter = match event {
            Event::Requested { .. } => Some(&self.requests),
            Event::Retrying { .. } => Some(&self.retries),
            Event::ClockCompared { ahead_seconds, .. } => {
                *self.ahead_seconds.lock() = Some(*ahead_seconds);
                None
            }
            _ => None,
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        self.next.on_event(event);
    }
}
