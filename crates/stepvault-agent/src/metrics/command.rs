//! Metrics of a command that ends, for a file that the node exporter's collector of text files reads, or for a Pushgateway.

use std::path::Path;
use std::sync::OnceLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::config::ServiceUrl;
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::{Clock as _, NodeName, Result, RunName};
use stepvault_local::SystemClock;

use super::events::EventMetrics;
use super::push::push;
use super::tables::{ByOne, Seconds, of_tier, seconds};
use super::{TextFormat, write_readable};

/// Counts what a command does.
#[derive(Debug)]
pub struct CommandMetrics {
    command: &'static str,
    events: EventMetrics,
    moved_bytes: ByOne<Counter>,
    /// Where the command runs and for which run, once that is known. A command of several runs has no run.
    subject: OnceLock<(NodeName, Option<RunName>)>,
}

impl CommandMetrics {
    /// Creates metrics whose samples carry the command's name.
    pub fn new(command: &'static str) -> Self {
        let (events, moved_bytes) = (EventMetrics::new(), ByOne::default());
        Self { command, events, moved_bytes, subject: OnceLock::new() }
    }

    /// Sets the node and the run that the samples carry; later calls have no effect.
    pub fn set_subject(&self, node: NodeName, run: Option<RunName>) {
        let _ = self.subject.set((node, run));
    }

    /// Replaces the file by the metrics of the command, which ends with this code.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &Path, exit_code: u8) -> Result<()> {
        write_readable(file, &self.text(exit_code)?)
    }

    /// Replaces the group of this command, run and node on a Pushgateway by the metrics of the command, which ends with this
    /// code.
    ///
    /// # Errors
    /// When the Pushgateway does not accept them.
    pub async fn push(&self, gateway: &ServiceUrl, exit_code: u8) -> Result<()> {
        let (node, run) = self.subject.get().map_or((None, None), |(node, run)| (Some(node), run.as_ref()));
        let run = run.map(|run| ("run", run.as_str()));
        let node = node.map(|node| ("node", node.as_str()));
        let group = std::iter::once(("command", self.command)).chain(run).chain(node);
        push(gateway, group, self.text(exit_code)?).await
    }

    fn text(&self, exit_code: u8) -> Result<String> {
        let labels = std::iter::once(("command".into(), self.command.into()));
        let mut registry = Registry::with_prefix_and_labels("stepvault_command", labels);
        self.events.register_operations(&mut registry);
        // An operation names its run itself.
        let run = self.subject.get().and_then(|(_, run)| run.clone());
        let run = run.map(|run| ("run".into(), run.to_string().into()));
        let of_run = registry.sub_registry_with_labels(run.into_iter());
        self.events.register(of_run);
        let help = "Checkpoint bytes that were sent to the tier or read from it";
        of_run.register("moved_bytes", help, self.moved_bytes.clone());
        let (code, ended) = (Gauge::<i64>::default(), Seconds::default());
        code.set(exit_code.into());
        of_run.register("exit_code", "Exit code of the command", code);
        ended.set(seconds(SystemClock.now()));
        let help = "Time at which the command ended, in seconds since 1970";
        of_run.register("end_timestamp_seconds", help, ended);
        TextFormat::Prometheus.write(&registry)
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
