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

/// Returns a recognizer of a text that determines the cause.
pub(super) const fn text(
    cause: Cause,
    weight: u32,
    pattern: &'static str,
    source: &'static str,
    example: &'static str,
) -> Recogniser {
    Recogniser {
        cause,
        weight,
        open: Open::Nothing,
        pattern,
        source,
        example,
    }
}

/// Returns a recognizer of a text that leaves something undetermined.
pub(super) const fn vague(open: Open, text: Recogniser) -> Recogniser {
    Recogniser { open, ..text }
}
