//! Everything that stepvault prints: results on stdout, everything else on stderr.
//!
//! Nothing here panics when the other end of a pipe has gone: what cannot be printed is dropped, and the exit code
//! still says how the command went.

pub(crate) mod human;
pub(crate) mod json;
pub(crate) mod table;

use std::io::{self, IsTerminal as _, Write as _};

use indicatif::MultiProgress;
use serde::Serialize;
use stepvault_core::{Error, Result};

/// A result that can be shown to people and to programs.
pub(crate) trait Report: Serialize {
    /// The result for people; lines without a trailing newline.
    fn human(&self) -> String;
}

/// Where and how to print.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    bars: MultiProgress,
}

impl Output {
    /// Prints JSON documents if `json`, and nothing but results and errors if `quiet`.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            quiet,
            bars: MultiProgress::new(),
        }
    }

    /// Whether the result is to be one JSON document.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether progress and warnings are unwanted.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The progress bars on stderr; lines are printed above them.
    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.bars
    }

    /// Prints the result of a command.
    pub(crate) fn result(&self, report: &impl Report) -> Result<()> {
        let text = if self.json {
            json::document(report)?
        } else {
            human::printable(&report.human()).into_owned()
        };
        self.text(&text);
        Ok(())
    }

    /// Prints text on stdout as it is; for completions and manual pages, which are no documents.
    pub(crate) fn text(&self, text: &str) {
        self.bars.suspend(|| {
            let mut stdout = io::stdout().lock();
            // Whoever closed the pipe has seen enough.
            let _ = writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush());
        });
    }

    /// Prints a line on stderr.
    pub(crate) fn line(&self, text: &str) {
        write_error(&self.bars, format!("{}\n", human::printable(text)).as_bytes());
    }

    /// Prints a warning on stderr, unless quiet.
    pub(crate) fn warn(&self, message: &str) {
        if !self.quiet {
            self.line(&format!("warning: {message}"));
        }
    }

    /// Prints an error that came with a report: on stderr alone, since the document is the report.
    pub(crate) fn error_beside_report(&self, error: &Error) {
        self.line(&human::error(error));
    }

    /// Prints the error that ended a command: on stderr, and as the document if one is wanted.
    pub(crate) fn error(&self, error: &Error) {
        self.error_beside_report(error);
        if self.json {
            self.text(&json::error_document(error));
        }
    }
}

/// Writes bytes to stderr above the bars; for the log as well.
pub(crate) fn write_error(bars: &MultiProgress, bytes: &[u8]) {
    bars.suspend(|| {
        let _ = io::stderr().lock().write_all(bytes);
    });
}

/// Whether progress can be drawn.
pub(crate) fn draws_on_terminal() -> bool {
    io::stderr().is_terminal()
}
