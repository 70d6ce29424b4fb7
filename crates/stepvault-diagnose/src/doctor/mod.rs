//! Checks before training: findings, each with the measured value and a remedy.
//!
//! Other crates gather the facts from disks and networks. The rules that judge them are here, so that each can be
//! tested without either.

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

use schemars::JsonSchema;
use serde::Serialize;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is as it should be.
    Pass,
    /// It works, but has a cost.
    Warn,
    /// It does not work.
    Fail,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// The check, in fixed words: `hard links`, `conditional create`.
    pub check: String,
    /// The object of the check: a path, the name of a remote, a variable.
    pub subject: String,
    /// The result.
    pub outcome: Outcome,
    /// What was measured, with its units.
    pub measured: String,
    /// What to do about it; null if nothing has to be done.
    pub remedy: Option<String>,
}

impl Finding {
    /// Returns a finding that passes.
    pub fn pass(check: &str, subject: impl Into<String>, measured: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, check, subject.into(), measured.into(), None)
    }

    /// Returns a warning: it works but has a cost, and this is the remedy.
    pub fn warn(
        check: &str,
        subject: impl Into<String>,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self::new(Outcome::Warn, check, subject.into(), measured.into(), remedy)
    }

    /// Returns a failure and its remedy.
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

/// Returns the seconds that `bytes` take at this rate; a rate of 0 counts as 1.
#[expect(clippy::cast_precision_loss, reason = "a forecast, not an account")]
fn seconds_for(bytes: u64, bytes_per_second: u64) -> f64 {
    bytes as f64 / bytes_per_second.max(1) as f64
}

/// Returns the worst outcome; `Pass` without findings.
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
        let warn = Finding::warn("write rate", "/ckpt", "40.0 MiB/s", "use a local disk");
        let fail = Finding::fail("writable", "/ckpt", "permission denied", "chown it");
        assert_eq!(worst(&[]), Outcome::Pass);
        assert_eq!(worst(&[pass.clone(), warn.clone()]), Outcome::Warn);
        assert_eq!(worst(&[fail, warn, pass]), Outcome::Fail);
    }
}
