//! The findings, as a table and as a document.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_diagnose::doctor::feasibility::Feasibility;
use stepvault_diagnose::doctor::{Finding, Outcome, worst};

use crate::output::wrap::UNLIMITED;
use crate::output::{Report, human, table};

/// The result of `doctor`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct DoctorDocument {
    /// The worst outcome of all checks.
    pub(super) outcome: Outcome,
    /// The results of the checks.
    findings: Vec<Finding>,
    /// Feasibility for each run, from the measurements, in entries like those of `findings`.
    feasibility: Vec<Finding>,
    /// Configuration lines that would make infeasible runs feasible; empty if all are feasible.
    suggested: Vec<String>,
    /// Duration in seconds.
    seconds: f64,
}

impl DoctorDocument {
    pub(super) fn new(findings: Vec<Finding>, feasible: Feasibility, took: Duration) -> Self {
        let outcome = worst(&findings).max(worst(&feasible.findings));
        Self {
            outcome,
            findings,
            feasibility: feasible.findings,
            suggested: feasible.suggested,
            seconds: took.as_secs_f64(),
        }
    }

    /// Returns `1 failed, 2 warned, 12 passed, in 2.3s`.
    fn summary(&self) -> String {
        let all = || self.findings.iter().chain(&self.feasibility);
        let count = |outcome: Outcome| all().filter(|finding| finding.outcome == outcome).count();
        format!(
            "{} failed, {} warned, {} passed, in {}",
            count(Outcome::Fail),
            count(Outcome::Warn),
            count(Outcome::Pass),
            human::seconds(self.seconds)
        )
    }
}

impl Report for DoctorDocument {
    fn human(&self) -> String {
        self.fitted(UNLIMITED)
    }

    fn fitted(&self, width: usize) -> String {
        let mut parts = vec![lines(&self.findings, "check", width)];
        if !self.feasibility.is_empty() {
            parts.push(lines(&self.feasibility, "feasibility", width));
        }
        if !self.suggested.is_empty() {
            let title = "This configuration would be feasible:".to_owned();
            parts.push([&[title], self.suggested.as_slice()].concat().join("\n"));
        }
        parts.push(self.summary());
        parts.join("\n\n")
    }
}

/// Formats one line per finding, with the remedy below it.
fn lines(findings: &[Finding], title: &str, width: usize) -> String {
    let row = |finding: &Finding| {
        let outcome = match finding.outcome {
            Outcome::Pass => "pass",
            Outcome::Warn => "warn",
            Outcome::Fail => "FAIL",
        };
        let measured = match &finding.remedy {
            Some(remedy) => format!("{}\n-> {remedy}", finding.measured),
            None => finding.measured.clone(),
        };
        [outcome.to_owned(), finding.check.clone(), finding.subject.clone(), measured]
    };
    table::fitted(&["", title, "subject", "measured"], &[], findings.iter().map(row), width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_diagnose::doctor::Check;

    #[test]
    fn the_table_says_what_to_do_below_what_was_measured() {
        let findings = vec![
            Check::new("directory", "vault /v").pass("works"),
            Check::new("free bytes", "vault on /v").fail("0 B of 1.0 GiB free", "delete something"),
        ];
        let feasible = Feasibility {
            findings: Vec::new(),
            suggested: vec!["[keep.local]".to_owned(), "last = 2".to_owned()],
        };
        let document = DoctorDocument::new(findings, feasible, Duration::from_millis(1500));
        assert_eq!(document.outcome, Outcome::Fail);
        assert_eq!(
            document.human(),
            "      CHECK       SUBJECT      MEASURED\n\
             pass  directory   vault /v     works\n\
             FAIL  free bytes  vault on /v  0 B of 1.0 GiB free\n\
             \x20                              -> delete something\n\n\
             This configuration would be feasible:\n[keep.local]\nlast = 2\n\n\
             1 failed, 0 warned, 1 passed, in 1.5s"
        );
    }
}
