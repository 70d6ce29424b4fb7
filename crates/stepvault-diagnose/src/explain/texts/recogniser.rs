//! What recognizes one text.

use crate::explain::Cause;

/// What a text leaves undetermined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Open {
    /// Nothing.
    Nothing,
    /// Which disk, and whether bytes or inodes ran out.
    WhichSpace,
    /// Why a write failed.
    WhyWrite,
}

/// Recognizes one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recogniser {
    /// The cause it points to.
    pub cause: Cause,
    /// How strong it is by itself, from 1 to 100.
    pub weight: u32,
    /// What it leaves undetermined.
    pub open: Open,
    /// A regular expression over bytes.
    pub pattern: &'static str,
    /// The program or library that prints it.
    pub source: &'static str,
    /// An example line.
    pub example: &'static str,
}

/// Returns a recognizer of a text that `source` prints, which determines the cause. It needs a pattern and an example.
pub(super) const fn text(cause: Cause, weight: u32, source: &'static str) -> Recogniser {
    Recogniser { cause, weight, open: Open::Nothing, pattern: "", source, example: "" }
}

impl Recogniser {
    pub(super) const fn pattern(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    pub(super) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// For a text that leaves something undetermined.
    pub(super) const fn leaves_open(self, open: Open) -> Self {
        Self { open, ..self }
    }
}
