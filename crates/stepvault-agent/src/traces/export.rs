//! Sends spans to a collector, in batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::{NodeName, Result};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::otlp::document;
use super::spans::Span;
use super::{SpanCounts, TraceTarget};
use crate::pause::Pause;

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of spans in a request.
const MAX_BATCH: usize = 512;
/// Number of tries of a request.
const TRIES: u32 = 4;
/// Maximum pause between two tries, also if the collector asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The task that sends spans.
#[derive(Debug)]
pub(super) struct Exporter {
    pub(super) target: TraceTarget,
    pub(super) node: NodeName,
    pub(super) spans: mpsc::Receiver<Span>,
    pub(super) counts: Arc<SpanCounts>,
}

impl Exporter {
    /// Sends what waits, in rounds, and once more when `closing` is cancelled.
    pub(super) async fn work(mut self, closing: CancellationToken) {
        let mut was_refused = false;
        loop {
            let is_over = timeout(INTERVAL, closing.cancelled()).await.is_ok();
            loop {
                let batch = self.batch();
                if batch.is_empty() {
                    break;
                }
                let sent = self.send(&batch).await;
                let is_first = !was_refused;
                was_refused = sent.is_err();
                let Err(error) = sent else {
                    self.counts.waiting.fetch_sub(batch.len() as u64, Ordering::Relaxed);
                    continue;
                };
                self.counts.drop_waiting(batch.len() as u64);
                // An outage is reported once.
                if is_first {
                    tracing::warn!(%error, "traces are not delivered");
                }
            }
            if is_over {
                return;
            }
        }
    }

    fn batch(&mut self) -> Vec<Span> {
        std::iter::from_fn(|| self.spans.try_recv().ok()).take(MAX_BATCH).collect()
    }

    async fn send(&self, batch: &[Span]) -> Result<()> {
        let document = document(&self.node, batch);
        let mut pause = Pause::default();
        loop {
            let Err(error) = self.target.outbound.send(document.clone()).await else {
                return Ok(());
            };
            *self.counts.refusal.lock() = Some(error.clone());
            pause.failed(LONGEST_PAUSE, error.retry_after_wait().map(|wait| wait.min(LONGEST_PAUSE)));
            if !error.is_transient() || pause.failures >= TRIES {
                return Err(error);
            }
            pause.wait().await;
        }
    }
}
