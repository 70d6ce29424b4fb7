//! Metrics of a command that ends, in a file that the node exporter's collector of text files reads.

use std::path::Path;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::{Clock as _, Result};
use stepvault_local::{SystemClock, durable};

use super::events::EventMetrics;
use super::tables::{ByOne, Seconds, of_tier};
use super::{TextFormat, seconds};

/// Counts what a command does.
#[derive(Debug)]
pub struct CommandMetrics {
    registry: Registry,
    events: EventMetrics,
    moved_bytes: ByOne<Counter>,
    exit_code: Gauge,
    ended: Seconds,
}

impl CommandMetrics {
    /// Creates metrics whose samples carry the command's name, and the run's if there is one.
    pub fn new(command: &'static str, run: Option<&str>) -> Self {
        let run = run.map(|run| ("run".into(), run.to_owned().into()));
        let labels = std::iter::once(("command".into(), command.into())).chain(run);
        let mut registry = Registry::with_prefix_and_labels("stepvault_command", labels);
        let events = EventMetrics::register(&mut registry);
        let moved_bytes = ByOne::<Counter>::default();
        let help = "Checkpoint bytes that were sent to the tier or read from it";
        registry.register("moved_bytes", help, moved_bytes.clone());
        let (exit_code, ended) = (Gauge::default(), Seconds::default());
        registry.register("exit_code", "Exit code of the command", exit_code.clone());
        let help = "Time at which the command ended, in seconds since 1970";
        registry.register("end_timestamp_seconds", help, ended.clone());
        Self { registry, events, moved_bytes, exit_code, ended }
    }

    /// Replaces the file by the metrics of the command, which ends with this code.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &Path, exit_code: u8) -> Result<()> {
        self.exit_code.set(exit_code.into());
        self.ended.set(seconds(SystemClock.now()));
        let text = TextFormat::Prometheus.write(&self.registry)?;
        durable::replace(file, text.as_bytes())
    }
}

impl Observer for CommandMetrics {
    fn on_event(&self, event: &Event<'_>) {
        self.events.count(event);
        if let Event::BytesMoved { tier: tier @ Tier::Remote(_), bytes } = event {
            self.moved_bytes.get_or_create(&of_tier(tier)).inc_by(*bytes);
        }
    }
}
