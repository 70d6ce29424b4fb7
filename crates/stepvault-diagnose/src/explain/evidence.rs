//! Pieces of evidence.

use schemars::JsonSchema;
use serde::Serialize;

use super::Cause;
use super::texts::Open;

/// How a piece of evidence is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub enum EvidenceSource {
    /// It was measured just now.
    #[serde(rename = "now")]
    Measured,
    /// The failure left it behind: files, records, the history of starts.
    #[serde(rename = "left")]
    Artifact,
    /// A log contains it.
    #[serde(rename = "said")]
    Log,
}

/// A position in a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LogPosition {
    /// The log; null for other evidence.
    pub file: Option<String>,
    /// The line number, from 1; null for other evidence, or if the preceding lines were not counted.
    pub line: Option<u64>,
    /// Byte offset of the line in the log; null for other evidence.
    pub offset_bytes: Option<u64>,
    /// Number of such lines in the log; the last one is shown.
    pub times: u64,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// The cause it points to.
    #[serde(skip)]
    pub cause: Cause,
    /// How it is known.
    pub kind: EvidenceSource,
    /// How strong it is by itself, from 1 to 100.
    #[serde(skip)]
    pub weight: u32,
    /// How recent it is, from 0 to 1000: 1000 is now, or the end of the newest log.
    #[serde(skip)]
    pub recency: u32,
    /// What it leaves undetermined.
    #[serde(skip)]
    pub open: Open,
    /// The finding; for a log line, the software that prints such lines.
    pub text: String,
    /// Its position in a log.
    #[serde(flatten)]
    pub position: LogPosition,
    /// The text of the log or the record, at most 240 bytes of a log line; null if there is none.
    pub quote: Option<String>,
}

impl LogPosition {
    /// The position of evidence that is in no log.
    const NONE: Self = Self { file: None, line: None, offset_bytes: None, times: 1 };
}

impl Evidence {
    /// Returns evidence that was measured just now.
    pub fn now(cause: Cause, weight: u32, text: impl Into<String>) -> Self {
        Self::plain(cause, EvidenceSource::Measured, weight, text.into())
    }

    /// Returns evidence that the failure left behind.
    pub fn left(cause: Cause, weight: u32, text: impl Into<String>) -> Self {
        Self::plain(cause, EvidenceSource::Artifact, weight, text.into())
    }

    fn plain(cause: Cause, kind: EvidenceSource, weight: u32, text: String) -> Self {
        Self {
            cause,
            kind,
            weight,
            recency: 1000,
            open: Open::Nothing,
            text,
            position: LogPosition::NONE,
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
            EvidenceSource::Measured => 20,
            EvidenceSource::Artifact => 15,
            EvidenceSource::Log => 10,
        };
        let recency = 750 + self.recency.min(1000) / 4;
        self.weight.min(100) * factor * recency / 10_000
    }
}
