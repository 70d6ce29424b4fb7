//! Pieces of evidence.

use schemars::JsonSchema;
use serde::Serialize;

use super::Cause;
use super::texts::Open;

/// How a piece of evidence is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It was measured just now.
    Now,
    /// The failure left it behind: files, records, the history of starts.
    Left,
    /// A log contains it.
    Said,
}

/// A position in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, from 1; `None` if the preceding lines were not counted.
    pub line: Option<u64>,
    /// The offset of the line, in bytes.
    pub offset_bytes: u64,
    /// How many lines of the log contain it; this position is the last one.
    pub times: u64,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The cause it points to.
    pub cause: Cause,
    /// How it is known.
    pub kind: Kind,
    /// How strong it is by itself, from 1 to 100.
    pub weight: u32,
    /// How recent it is, from 0 to 1000: 1000 is now, or the end of the newest log.
    pub recency: u32,
    /// What it leaves undetermined.
    pub open: Open,
    /// What was found.
    pub text: String,
    /// Its position in a log.
    pub place: Option<Place>,
    /// The quoted text of the log, shortened.
    pub quote: Option<String>,
}

impl Evidence {
    /// Returns evidence that was measured just now.
    pub fn now(cause: Cause, weight: u32, text: impl Into<String>) -> Self {
        Self::plain(cause, Kind::Now, weight, text.into())
    }

    /// Returns evidence that the failure left behind.
    pub fn left(cause: Cause, weight: u32, text: impl Into<String>) -> Self {
        Self::plain(cause, Kind::Left, weight, text.into())
    }

    fn plain(cause: Cause, kind: Kind, weight: u32, text: String) -> Self {
        Self {
            cause,
            kind,
            weight,
            recency: 1000,
            open: Open::Nothing,
            text,
            place: None,
            quote: None,
        }
    }

    /// Returns the same evidence with an earlier time.
    #[must_use]
    pub fn earlier(self, recency: u32) -> Self {
        Self { recency, ..self }
    }

    /// Returns the points that it adds to its cause: current facts count most, logs least, and later log lines count
    /// more than earlier ones.
    pub(super) fn points(&self) -> u32 {
        let factor = match self.kind {
            Kind::Now => 20,
            Kind::Left => 15,
            Kind::Said => 10,
        };
        let recency = 750 + self.recency.min(1000) / 4;
        self.weight.min(100) * factor * recency / 10_000
    }
}
