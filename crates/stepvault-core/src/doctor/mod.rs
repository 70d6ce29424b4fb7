//! What is looked at before training: findings, each with what was measured and what to do.
//!
//! Facts are gathered where disks and networks are; what they mean is decided here, so that every rule can be tested
//! without either.

pub mod directory;
pub mod feasibility;
pub mod forecast;
pub mod leftovers;
pub mod links;
pub mod memory;
pub mod mount;
pub mod notices;
pub mod remote;
pub mod room;
pub mod speed;
pub mod variables;
mod words;

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Pass,
    /// Works, and will cost something.
    Warn,
    /// Will not work.
    Fail,
}

/// One line of what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in the same words every time: `hard links`, `conditional create`.
    pub check: String,
    /// On what: a path, the name of a remote, a variable.
    pub subject: String,
    /// How it came out.
    pub outcome: Outcome,
    /// What was measured, with its units.
    pub measured: String,
    /// What to do about it; none where nothing is to be done.
    pub remedy: Option<String>,
}

impl Finding {
    /// A check that came out well.
    pub fn pass(check: &str, subject: impl Into<String>, measured: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, check, subject.into(), measured.into(), None)
    }

    /// Something that works and will cost, and what to do about it.
    pub fn warn(
        check: &str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self::new(Outcome::Warn, check, subject.into(), measured.into(), remedy)
    }

    /// Something that will not work, and what to do about it.
    pub fn fail(
        check: &str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self::new(Outcome::Fail, check, subject.into(), measured.into(), remedy)
    }

    fn new(outcome: Outcome, check: &str, subject: String, measured: String, remedy: Option<String>) -> Self {
        Self {
            check: check.to_owned(),
            subject,
            outcome,
            measured,
            remedy,
        }
    }
}

/// The worst of all; a look that found nothing has found nothing wrong.
pub fn worst(findings: &[Finding]) -> Outcome {
    let outcomes = findings.iter().map(|finding| finding.outcome);
    outcomes.max().unwrap_or(Outcome::Pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts() {
        let pass = Finding::pass("writable", "/ckpt", "written, synced and deleted");
        let warn = Finding::warn("write rate", "/ckpt", "40 MB/s", "use a local disk");
        let fail = Finding::fail("writable", "/ckpt", "permission denied", "chown it");
        assert_eq!(worst(&[]), Outcome::Pass);
        assert_eq!(worst(&[pass.clone(), warn.clone()]), Outcome::Warn);
        assert_eq!(worst(&[fail, warn, pass]), Outcome::Fail);
    }
}
