//! Traces of steps, for OpenTelemetry: one trace for each step, from its save until it is durable.
//!
//! Spans are made from the engine's events. They go into a bounded queue, from which a task sends them in batches. Nothing
//! waits for a collector: what does not fit into the queue, or is refused, is dropped and counted.

mod export;
mod otlp;
mod spans;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepvault_core::config::Config;
use stepvault_core::observe::{Event, Observer};
use stepvault_core::{Error, ErrorKind, NodeName, Result, words};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::export::Exporter;
use self::spans::{Span, StepSpans};
pub use self::target::TraceTarget;

/// Maximum number of spans that wait.
const QUEUE: usize = 2048;

/// Numbers of spans.
#[derive(Debug, Default)]
struct SpanCounts {
    /// Those that are in the queue, or being sent.
    waiting: AtomicU64,
    /// Those that were not delivered.
    dropped: AtomicU64,
    /// Why the last try of a request failed.
    refusal: parking_lot::Mutex<Option<Error>>,
}

impl SpanCounts {
    fn drop_waiting(&self, spans: u64) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }
}

/// The traces of a process. Dropping it does not end its task.
#[derive(Debug)]
pub struct Traces {
    target: TraceTarget,
    spans: StepSpans,
    queue: mpsc::Sender<Span>,
    counts: Arc<SpanCounts>,
    closing: CancellationToken,
    task: Mutex<JoinHandle<()>>,
}

impl Traces {
    /// Starts to send the traces of this node's steps. Must be called inside the runtime.
    pub fn start(target: TraceTarget, node: &NodeName, config: &Config) -> Self {
        let (queue, spans) = mpsc::channel(QUEUE);
        let (counts, closing) = (Arc::<SpanCounts>::default(), CancellationToken::new());
        let exporter =
            Exporter { target: target.clone(), node: node.clone(), spans, counts: Arc::clone(&counts) };
        let task = Mutex::new(tokio::spawn(exporter.work(closing.clone())));
        let spans = StepSpans::new(node.clone(), config.clone());
        Self { target, spans, queue, counts, closing, task }
    }

    /// Returns the number of spans that were not delivered.
    pub(crate) fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Sends what waits, until the deadline at most, and ends the task.
    ///
    /// # Errors
    /// When spans were dropped since the start.
    pub async fn finish(&self, deadline: Instant) -> Result<()> {
        self.closing.cancel();
        let mut task = self.task.lock().await;
        if timeout_at(deadline, &mut *task).await.is_err() {
            task.abort();
            self.counts.drop_waiting(self.counts.waiting.load(Ordering::Relaxed));
        }
        let dropped = match self.dropped() {
            0 => return Ok(()),
            dropped => format!("{} dropped", words::count(dropped, "span")),
        };
        let refusal = self.counts.refusal.lock().take();
        Err(Error::new(ErrorKind::Unreachable, "cannot send every span of the traces")
            .on(&self.target)
            .because(refusal.map_or_else(|| dropped.clone(), |refusal| format!("{dropped}; {refusal}")))
            .hint("check that the collector accepts OTLP over HTTP as JSON"))
    }
}

impl Observer for Traces {
    fn on_event(&self, event: &Event<'_>) {
        for span in self.spans.of_event(event) {
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            if self.queue.try_send(span).is_err() {
                self.counts.drop_waiting(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::config::{Sources, load};
    use stepvault_core::observe::{Operation, OperationKind, Tier};

    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_into_the_queue_is_dropped_and_counted() {
        // Nothing listens there, and nothing is sent before the first await.
        let target = TraceTarget::find(Some(&"http://127.0.0.1:1/v1/traces".parse().unwrap()), &|_| None);
        let config = load(&Sources::default()).unwrap();
        let traces = Traces::start(target.unwrap().unwrap(), &"node-0".parse().unwrap(), &config);
        let operation = Operation {
            kind: OperationKind::Seal,
            run: &"demo".parse().unwrap(),
            tier: &Tier::Local,
            id: stepvault_core::StepId::from_label("000000000007.a1").unwrap(),
            location: "",
            files: 1,
            bytes: None,
        };
        for _ in 0..QUEUE + 10 {
            traces.on_event(&Event::Finished { operation, copied_bytes: 0, seconds: 0.0 });
        }
        assert_eq!(traces.dropped(), 10);
        let error = traces.finish(Instant::now()).await.unwrap_err();
        assert_eq!(traces.dropped(), QUEUE as u64 + 10);
        assert!(error.to_string().ends_with(" spans dropped"), "{error}");
    }
}
