//! Prints results on stdout and everything else on stderr.
//!
//! A closed pipe causes no panic: output that cannot be printed is dropped, and the exit code still reports the result.

pub(crate) mod human;
pub(crate) mod json;
pub(crate) mod table;
pub(crate) mod wrap;

use std::io::{self, IsTerminal as _, Write as _};

use indicatif::MultiProgress;
use serde::Serialize;
use stepvault_core::{Error, Result};

/// A result that can be printed for people and for programs.
pub(crate) trait Report: Serialize {
    /// Formats the result for people: lines without a trailing newline.
    fn human(&self) -> String;

    /// Formats the result for people, with long text wrapped at `width` columns where that does not harm.
    fn fitted(&self, _width: usize) -> String {
        self.human()
    }
}

/// The destination and format of printed output.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    bars: MultiProgress,
}

impl Output {
    /// Creates an output that prints JSON documents if `json`, and only results and errors if `quiet`.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            quiet,
            bars: MultiProgress::new(),
        }
    }

    /// Returns whether the result is printed as one JSON document.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns whether progress and warnings are suppressed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns the progress bars on stderr; lines are printed above them.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Prints the result of a command.
    pub(crate) fn result(&self, report: &impl Report) -> Result<()> {
        let text = if self.json {
            json::document(report)?
        } else {
            human::printable(&report.fitted(wrap::width_of(io::stdout()))).into_owned()
        };
        self.text(&text);
        Ok(())
    }

    /// Prints text on stdout unchanged, such as completions and manual pages.
    pub(crate) fn text(&self, text: &str) {
        self.bars.suspend(|| {
            let mut stdout = io::stdout().lock();
            // A closed pipe is not an error.
            let _ = writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush());
        });
    }

    /// Prints a line on stderr, wrapped under its own text on a terminal.
    pub(crate) fn line(&self, text: &str) {
        let text = wrap::fit(&human::printable(text), wrap::width_of(io::stderr()));
        write_error(&self.bars, format!("{text}\n").as_bytes());
    }

    /// Prints a warning on stderr, unless quiet.
    pub(crate) fn warn(&self, message: &str) {
        if !self.quiet {
            self.line(&format!("warning: {message}"));
        }
    }

    /// Prints an error that accompanies a report, on stderr only: stdout holds the report.
    pub(crate) fn error_beside_report(&self, error: &Error) {
        self.line(&human::error(error));
    }

    /// Prints the error that ended a command on stderr, and as a JSON document if JSON is selected.
    pub(crate) fn error(&self, error: &Error) {
        self.error_beside_report(error);
        if self.json {
            self.text(&json::error_document(error));
        }
    }
}

/// Writes bytes to stderr above the bars; the log uses it too.
pub(crate) fn write_error(bars: &MultiProgress, bytes: &[u8]) {
    bars.suspend(|| {
        let _ = io::stderr().lock().write_all(bytes);
    });
}

/// Returns whether stderr is a terminal.
pub(crate) fn draws_on_terminal() -> bool {
    io::stderr().is_terminal()
}
