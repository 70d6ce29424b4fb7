//! The findings of a check of a directory, file by file.

use std::io;

use crate::soundness::{Fault, Soundness, judged};

/// The result of a check for one file of a directory, or for one that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path in the tree that was checked.
    pub path: String,
    /// The result.
    pub soundness: Soundness,
}

impl Finding {
    /// Turns the outcome of a check into a finding.
    ///
    /// # Errors
    /// When the file could not be read.
    pub fn of(path: impl Into<String>, outcome: Result<(), Fault>) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            soundness: judged(outcome)?,
        })
    }

    /// Returns a finding of a broken rule.
    pub fn broken(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            soundness: Soundness::Broken {
                offset: None,
                why: why.into(),
            },
        }
    }

    /// Returns a finding of unknown soundness.
    pub fn unknown(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            soundness: Soundness::Unknown { why: why.into() },
        }
    }
}

/// Prefixes a fault's reason with `what` and adds `start` to its offset: for a piece of a file that was checked as a
/// file of its own.
pub(crate) fn inside(fault: Fault, what: &str, start: u64) -> Fault {
    match fault {
        Fault::Broken { offset, why } => Fault::Broken {
            offset: offset.map(|offset| offset.saturating_add(start)),
            why: format!("{what}: {why}"),
        },
        Fault::Unknown(why) => Fault::Unknown(format!("{what}: {why}")),
        Fault::Read(error) => Fault::Read(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_inside_a_piece_is_told_from_the_file() {
        let fault = inside(Fault::at(3, "it is cut off"), "the item at byte 100", 100);
        assert!(
            matches!(&fault, Fault::Broken { offset: Some(103), why } if why == "the item at byte 100: it is cut off")
        );
    }
}
