//! Prints results on stdout and everything else on stderr.
//!
//! Every line of a service begins with `stepvault: `, and with the node if the run has several: a log may hold the lines of
//! many processes. If a stream is the journal, each line says its priority. A result that cannot be printed is an error,
//! unless people have closed the pipe, as `head` does; a message that cannot be printed is dropped.

pub(crate) mod human;
pub(crate) mod record;
pub(crate) mod table;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use console::Color;
use indicatif::MultiProgress;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_agent::{CommandMetrics, TraceTarget, Traces};
use stepvault_core::config::Config;
use stepvault_core::document::{Document, ErrorAnswer, ErrorInfo};
use stepvault_core::observe::{Event, Observer as _};
use stepvault_core::{Error, ErrorKind, NodeName, NodePlace, Result};

use self::record::{About, Record};

/// A result that can be printed for people and for programs.
pub(crate) trait Report: Serialize {
    /// Formats the result for people: lines without a trailing newline. A report has this or [`Self::fitted`].
    fn human(&self) -> String {
        self.fitted(table::UNLIMITED)
    }

    /// Formats the result for people, with long text wrapped at `width` columns where that does not harm.
    fn fitted(&self, width: usize) -> String {
        table::fit(&self.human(), width)
    }

    /// Returns the words that are coloured on a terminal: verdicts.
    fn verdicts(&self) -> &'static [(&'static str, Color)] {
        &[]
    }

    /// Returns the priority of the lines in the journal.
    fn priority(&self) -> Priority {
        Priority::Info
    }
}

/// Colours each of these words, unless standard output is no terminal or the environment wants no colours.
fn coloured(text: String, words: &[(&str, Color)]) -> String {
    if !console::colors_enabled() {
        return text;
    }
    let colour = |word: &str| words.iter().find(|(verdict, _)| *verdict == word).map(|(_, colour)| *colour);
    let pieces = text.split_inclusive([' ', '\n']).map(|piece| {
        let word = piece.trim_end_matches([' ', '\n']);
        match colour(word) {
            Some(colour) => format!("{}{}", console::style(word).fg(colour), &piece[word.len()..]),
            None => piece.to_owned(),
        }
    });
    pieces.collect()
}

/// The priority of a line, as a number of syslog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

/// The document of the error that ended a command.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ErrorDocument {
    /// What happened, for the command that prints a document for each event. Omitted by all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<ErrorEvent>,
    #[serde(flatten)]
    answer: ErrorAnswer,
}

/// The last event of a command that ended with an error.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum ErrorEvent {
    /// The command failed.
    Error,
}

impl ErrorDocument {
    fn new(error: &Error, has_events: bool) -> Self {
        let answer = ErrorAnswer { error: ErrorInfo::from(error) };
        Self { event: has_events.then_some(ErrorEvent::Error), answer }
    }
}

/// The destination and format of printed output.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(crate) struct Output {
    /// Whether the result is printed as one JSON document.
    pub(crate) json: bool,
    /// Whether progress and warnings are suppressed.
    pub(crate) quiet: bool,
    /// The progress bars on stderr; lines are printed above them.
    pub(crate) bars: MultiProgress,
    is_service: bool,
    /// Whether each document is one line.
    has_events: bool,
    node: Arc<OnceLock<NodeName>>,
    /// Set once lines of a service are JSON.
    records: Arc<OnceLock<NodeName>>,
    /// Counts what the command does, if `--metrics-file` or `--metrics-push` asks for it.
    pub(crate) metrics: Option<Arc<CommandMetrics>>,
    traces: Arc<OnceLock<Arc<Traces>>>,
}

impl Output {
    /// Creates an output that prints JSON documents if `json`, and only results and errors if `quiet`.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            quiet,
            bars: MultiProgress::new(),
            is_service: false,
            has_events: false,
            node: Arc::default(),
            records: Arc::default(),
            metrics: None,
            traces: Arc::default(),
        }
    }

    /// Returns the output of a command whose lines may stand between those of other processes.
    #[must_use]
    pub(crate) fn of_service(self, is_service: bool) -> Self {
        Self { is_service, ..self }
    }

    /// Returns the output of a command that prints a document for each event, on a line of its own.
    #[must_use]
    pub(crate) fn of_events(self, has_events: bool) -> Self {
        Self { has_events, ..self }
    }

    fn encoded<Body: Serialize>(&self, body: &Body) -> Result<String> {
        if !self.has_events {
            return document(body);
        }
        serde_json::to_string(&Document::new(body)).map_err(not_encoded)
    }

    /// Names the node in each further line of a service, if the run has several nodes.
    pub(crate) fn name_node(&self, place: &NodePlace) {
        if self.is_service && place.nodes().is_several() {
            // It is the same node each time.
            let _ = self.node.set(place.node().clone());
        }
    }

    /// Writes each further line of a service as a JSON object, which names this node.
    pub(crate) fn write_records(&self, node: &NodeName) {
        if self.is_service {
            let _ = self.records.set(node.clone());
        }
    }

    /// Begins to send the traces of steps, if the configuration or the environment names a collector. Must be called inside
    /// the runtime.
    pub(crate) fn start_traces(&self, config: &Config, node: &NodeName) {
        if self.traces.get().is_some() {
            return;
        }
        match TraceTarget::find(config.traces.as_ref(), &|name| std::env::var(name).ok()) {
            Ok(None) => {}
            Ok(Some(target)) => _ = self.traces.get_or_init(|| Arc::new(Traces::start(target, node, config))),
            Err(error) => self.warn(&error.text_with_hint()),
        }
    }

    /// Returns the traces that are sent.
    pub(crate) fn traces(&self) -> Option<&Arc<Traces>> {
        self.traces.get()
    }

    /// Reports an event to what counts and traces the command's work.
    pub(crate) fn observe(&self, event: &Event<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.on_event(event);
        }
        if let Some(traces) = self.traces() {
            traces.on_event(event);
        }
    }

    /// Returns the node that JSON lines name; `None` for lines of text.
    pub(crate) fn record_node(&self) -> Option<&NodeName> {
        self.records.get()
    }

    /// Prints the result of a command.
    pub(crate) fn result(&self, report: &impl Report) -> Result<()> {
        let text = if self.json {
            self.encoded(report)?
        } else {
            let text = report.fitted(table::width_of(io::stdout()));
            let text = human::printable(&text).into_owned();
            if is_journal(io::stdout()) {
                with_beginning(&text, &format!("<{}>", report.priority() as u8))
            } else {
                coloured(text, report.verdicts())
            }
        };
        self.text(&text)
    }

    /// Prints text on stdout unchanged, such as completions and manual pages.
    ///
    /// # Errors
    /// [`ErrorKind::Failed`] when it cannot be written: on a full disk, or, if it is a JSON document, to a pipe that nobody
    /// reads any more.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        let printed = self.bars.suspend(|| {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush())
        });
        match printed {
            Err(error) if self.json || error.kind() != io::ErrorKind::BrokenPipe => Err(not_printed(error)),
            _ => Ok(()),
        }
    }

    /// Prints a line on stderr, wrapped under its own text on a terminal.
    pub(crate) fn line(&self, text: &str) {
        self.line_at(Priority::Info, text);
    }

    /// Prints a line of this priority on stderr.
    pub(crate) fn line_at(&self, priority: Priority, text: &str) {
        self.line_about(priority, text, About::default());
    }

    /// The same, for a line about a step.
    pub(crate) fn line_about(&self, priority: Priority, text: &str, about: About) {
        match self.record_node() {
            Some(node) => write_record(&Record::new(priority, text, node, about)),
            None => self.write_lines(priority, &human::printable(text), table::fit),
        }
    }

    /// Writes lines to stderr above the bars, each with the beginning of a service's lines; `wrapped` fits the text to a
    /// width.
    pub(crate) fn write_lines(
        &self,
        priority: Priority,
        text: &str,
        wrapped: impl Fn(&str, usize) -> String,
    ) {
        let mut beginning = String::new();
        if is_journal(io::stderr()) {
            beginning = format!("<{}>", priority as u8);
        }
        if self.is_service {
            beginning.push_str("stepvault: ");
        }
        if let Some(node) = self.node.get() {
            beginning.push_str(node.as_str());
            beginning.push_str(": ");
        }
        let width = table::width_of(io::stderr()).saturating_sub(beginning.len());
        let text = with_beginning(&wrapped(text, width), &beginning);
        self.bars.suspend(|| {
            let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
        });
    }

    /// Prints a warning on stderr, unless quiet. A service has no other way to report that something is not safe.
    pub(crate) fn warn(&self, message: &str) {
        if !self.quiet || self.is_service {
            self.line_at(Priority::Warning, &format!("warning: {message}"));
        }
    }

    /// Prints an error that accompanies a report, on stderr only: stdout holds the report.
    pub(crate) fn error_beside_report(&self, error: &Error) {
        self.line_at(Priority::Error, &human::error(error));
    }

    /// Prints the error of each result that has one, beside a report.
    pub(crate) fn errors_beside_report<'a, T: 'a>(&self, results: impl IntoIterator<Item = &'a Result<T>>) {
        let errors = results.into_iter().filter_map(|result| result.as_ref().err());
        errors.for_each(|error| self.error_beside_report(error));
    }

    /// Prints the error that ended a command on stderr, and as a JSON document if JSON is selected.
    pub(crate) fn error(&self, error: &Error) {
        self.error_beside_report(error);
        if self.json {
            // The exit code says that it failed already.
            let document = ErrorDocument::new(error, self.has_events);
            let _ = self.text(&self.encoded(&document).unwrap_or_default());
        }
    }
}

/// Writes a line of JSON to stderr.
fn write_record(record: &impl Serialize) {
    if let Ok(line) = serde_json::to_string(record) {
        let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
    }
}

/// Returns the error of a result that was not written to stdout.
pub(crate) fn not_printed(error: io::Error) -> Error {
    Error::new(ErrorKind::Failed, "cannot print the result").on("standard output").caused_by(error)
}

/// Puts `beginning` before each line.
fn with_beginning(text: &str, beginning: &str) -> String {
    let lines = text.split('\n');
    lines.map(|line| format!("{beginning}{line}")).join("\n")
}

/// Returns whether a stream of this process is the one to the journal that `JOURNAL_STREAM` names by device and inode. A
/// child of a service whose streams lead elsewhere has the variable, too.
fn is_journal(stream: impl AsFd) -> bool {
    let named = std::env::var("JOURNAL_STREAM").ok();
    let named = named.as_deref().and_then(|text| text.split_once(':'));
    let (Some((device, inode)), Ok(facts)) = (named, rustix::fs::fstat(stream)) else {
        return false;
    };
    device.parse() == Ok(facts.st_dev) && inode.parse() == Ok(facts.st_ino)
}

/// Returns whether stderr is a terminal.
pub(crate) fn draws_on_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Serializes a result as a JSON document, whose first member is its format version.
pub(crate) fn document<Body: Serialize>(body: &Body) -> Result<String> {
    serde_json::to_string_pretty(&Document::new(body)).map_err(not_encoded)
}

fn not_encoded(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Failed, "cannot write the JSON document").caused_by(error)
}

/// Serializes an error.
pub(crate) fn error_document(error: &Error) -> String {
    // Only strings, so this cannot fail.
    document(&ErrorDocument::new(error, false)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_document_with_kind_message_and_hint() {
        let error = Error::new(ErrorKind::NoneValid, "no valid checkpoint").on("run 'a'").hint("verify");
        let document: serde_json::Value = serde_json::from_str(&error_document(&error)).unwrap();
        let expected = serde_json::json!({
            "format": 1,
            "error": { "kind": "none-valid", "message": "no valid checkpoint: run 'a'", "hint": "verify" },
        });
        assert_eq!(document, expected);
        let without_hint = error_document(&Error::new(ErrorKind::Failed, "x"));
        assert!(without_hint.contains("\"hint\": null"), "{without_hint}");
        let last = serde_json::to_value(ErrorDocument::new(&error, true)).unwrap();
        assert_eq!(last, serde_json::json!({ "event": "error", "error": expected["error"] }));
    }
}
