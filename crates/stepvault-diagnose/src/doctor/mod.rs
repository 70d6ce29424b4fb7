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
pub mod notices;
pub mod remote;
pub mod room;
pub mod speed;
pub mod variables;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Number;

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
    pub check: &'static str,
    /// The object of the check: a path, the name of a remote, a variable.
    pub subject: String,
    /// The result.
    pub outcome: Outcome,
    /// What was measured, with its units.
    pub measured: String,
    /// The numbers in it, by names that end with their units; empty if there are none.
    pub numbers: BTreeMap<String, Number>,
    /// What to do about it; null if nothing has to be done.
    pub remedy: Option<String>,
}

/// A check of one subject, from which one finding follows.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    subject: String,
    numbers: BTreeMap<String, Number>,
}

impl Check {
    /// Returns the check of this name, in fixed words.
    pub fn new(name: &'static str, subject: impl Into<String>) -> Self {
        let subject = subject.into();
        Self { name, subject, numbers: BTreeMap::new() }
    }

    /// Adds a measured number, under a name that ends with its unit.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Number>) -> Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a measured duration, under a name that ends with `_seconds`.
    #[must_use]
    pub fn with_seconds(self, name: &str, seconds: f64) -> Self {
        match Number::from_f64(seconds) {
            Some(seconds) => self.with(name, seconds),
            None => self,
        }
    }

    /// Returns a finding that passes.
    pub fn pass(&self, measured: impl Into<String>) -> Finding {
        self.finding(Outcome::Pass, measured.into(), None)
    }

    /// Returns a warning: it works but has a cost, and this is the remedy.
    pub fn warn(&self, measured: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.finding(Outcome::Warn, measured.into(), Some(remedy.into()))
    }

    /// Returns a failure and its remedy.
    pub fn fail(&self, measured: impl Into<String>, remedy: impl Into<String>) -> Finding {
        self.finding(Outcome::Fail, measured.into(), Some(remedy.into()))
    }

    /// Returns that it passed, or works at a cost.
    pub fn pass_or_warn(
        &self,
        passes: bool,
        measured: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        if passes { self.pass(measured) } else { self.warn(measured, remedy) }
    }

    fn finding(&self, outcome: Outcome, measured: String, remedy: Option<String>) -> Finding {
        let (subject, numbers) = (self.subject.clone(), self.numbers.clone());
        Finding { check: self.name, subject, outcome, measured, numbers, remedy }
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
        let pass = Check::new("writable", "/ckpt").pass("written, synced and deleted");
        let warn = Check::new("write rate", "/ckpt").warn("40.0 MiB/s", "use a local disk");
        let fail = Check::new("writable", "/ckpt").fail("permission denied", "chown it");
        assert_eq!(worst(&[]), Outcome::Pass);
        assert_eq!(worst(&[pass.clone(), warn.clone()]), Outcome::Warn);
        assert_eq!(worst(&[fail, warn, pass]), Outcome::Fail);
    }
}
