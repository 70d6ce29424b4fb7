//! The log on stderr.

use std::io;

use itertools::Itertools as _;
use stepvault_core::{Error, ErrorKind, Result};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, ParseError, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

use crate::output::record::write_event;
use crate::output::table::wrap;
use crate::output::{Output, Priority};

const VARIABLE: &str = "STEPVAULT_LOG";
/// The column of a line at which the message begins, after the time and the level.
const MESSAGE_COLUMN: usize = 34;

/// Starts the log. `STEPVAULT_LOG` sets the filter, else the number of `-v` flags does.
pub(crate) fn start(output: &Output, verbose: u8) -> Result<()> {
    let given = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = parse(given.as_deref().unwrap_or(default_filter(verbose, output.quiet)))?;
    let writer = LogWriter { output: output.clone(), priority: Priority::Info };
    let (text, records) = (output.clone(), output.clone());
    let lines = fmt::layer()
        .with_writer(writer)
        .with_ansi(crate::output::draws_on_terminal())
        .with_target(verbose > 1)
        .with_filter(filter_fn(move |_| text.record_node().is_none()));
    registry()
        .with(lines.and_then(Records(records)).with_filter(filter.and(filter_fn(tells_no_secret))))
        .try_init()
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot start the log").because(error))
}

/// Writes events as JSON objects, once the output does so with its lines.
struct Records(Output);

impl<S: Subscriber> Layer<S> for Records {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if let Some(node) = self.0.record_node() {
            write_event(node, priority_of(event.metadata()), event);
        }
    }
}

fn priority_of(event: &Metadata<'_>) -> Priority {
    match *event.level() {
        Level::ERROR => Priority::Error,
        Level::WARN => Priority::Warning,
        Level::INFO => Priority::Info,
        Level::DEBUG | Level::TRACE => Priority::Debug,
    }
}

fn parse(text: &str) -> Result<Targets> {
    text.parse().map_err(|error: ParseError| {
        Error::new(ErrorKind::Usage, "invalid log filter")
            .on(format!("{VARIABLE}={text}"))
            .caused_by(error)
            .hint("give a level, or levels by module: info, stepvault_engine=debug,warn")
    })
}

/// Returns the default filter. Other crates log one level less than stepvault's own.
fn default_filter(verbose: u8, quiet: bool) -> &'static str {
    match (verbose, quiet) {
        (0, true) => "error",
        // A library's warning, such as a credentials source that it found empty, is returned as an error if it matters.
        (0, false) => "error,stepvault=warn",
        (1, _) => "warn,stepvault=info",
        (2, _) => "info,stepvault=debug",
        _ => "debug,stepvault=trace",
    }
}

/// Libraries whose log lines below warnings contain the credentials that they were given.
const SHOW_KEYS: [&str; 5] = ["aws_config::profile", "aws_runtime", "aws_sdk", "aws_sigv4", "aws_smithy"];

/// Returns whether an event may be logged. Trace events of libraries contain requests as sent, with keys, tokens and
/// signatures: no filter lets them through.
fn tells_no_secret(event: &Metadata<'_>) -> bool {
    let target = event.target();
    let most = if target.starts_with("stepvault") {
        Level::TRACE
    } else if SHOW_KEYS.iter().any(|library| target.starts_with(library)) {
        Level::WARN
    } else {
        Level::DEBUG
    };
    *event.level() <= most
}

/// Writes whole lines to an output, wrapped under the message on a terminal.
#[derive(Clone)]
struct LogWriter {
    output: Output,
    priority: Priority,
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> Self {
        Self { output: self.output.clone(), priority: priority_of(event) }
    }
}

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let wrapped = |text: &str, width| {
            let lines = text.lines();
            lines.map(|line| wrap(line, width, MESSAGE_COLUMN)).join("\n")
        };
        self.output.write_lines(self.priority, &text, wrapped);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_refused_and_not_ignored() {
        let error = parse("stepvault=loud").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(
            error.to_string().starts_with("invalid log filter: STEPVAULT_LOG=stepvault=loud: "),
            "{error}"
        );
        for verbose in 0..4 {
            parse(default_filter(verbose, true)).unwrap();
            parse(default_filter(verbose, false)).unwrap();
        }
    }
}
