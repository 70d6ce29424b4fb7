//! Pieces of evidence.

use serde::Serialize;

use super::Cause;
use super::texts::Open;

/// How something is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It was measured just now.
    Now,
    /// The failure left it: files, records, the history of starts.
    Left,
    /// A log says so.
    Said,
}

/// Where a log says something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, from 1; none where the lines before it were not counted.
    pub line: Option<u64>,
    /// Where the line begins, in bytes.
    pub offset_bytes: u64,
    /// How often it says so; the place is the last.
    pub times: u64,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// What it speaks for.
    pub cause: Cause,
    /// How it is known.
    pub kind: Kind,
    /// How much it says by itself, from 1 to 100.
    pub weight: u32,
    /// How late it is, from 0 to 1000: 1000 is now, or the end of the newest log.
    pub recency: u32,
    /// What it leaves open.
    pub open: Open,
    /// What was found, in words.
    pub text: String,
    /// Where a log says so.
    pub place: Option<Place>,
    /// The log's own words, cut.
    pub quote: Option<String>,
}

impl Evidence {
    /// Something that was measured just now.
    pub fn now(cause: Cause, weight: u32, text: impl Into<String>) -> Self {
        Self::plain(cause, Kind::Now, weight, text.into())
    }

    /// Something that the failure left.
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

    /// The same, of an earlier time.
    #[must_use]
    pub fn earlier(self, recency: u32) -> Self {
        Self { recency, ..self }
    }

    /// What it counts for its cause: what is so now most, what a log says least, and of that what comes later more.
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
