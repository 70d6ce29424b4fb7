//! What was found, as a table and as a document.

use std::time::Duration;

use serde::Serialize;
use stepvault_core::doctor::feasibility::Feasibility;
use stepvault_core::doctor::{Finding, Outcome, worst};

use crate::output::{Report, human, table};

/// What was found.
#[derive(Debug, Serialize)]
pub(super) struct DoctorDocument {
    /// The worst of all.
    outcome: Outcome,
    findings: Vec<Finding>,
    /// What the measurements mean for each run.
    feasibility: Vec<Finding>,
    /// Lines of configuration that would make feasible what is not.
    suggested: Vec<String>,
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

    /// The worst of all.
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// `1 fails, 2 warnings, 12 pass; 2.3s`.
    fn summary(&self) -> String {
        let all = || self.findings.iter().chain(&self.feasibility);
        let count = |outcome: Outcome| all().filter(|finding| finding.outcome == outcome).count();
        format!(
            "{} failed, {} warned, {} passed, in {}",
            count(Outcome::Fail),
            count(Outcome::Warn),
            count(Outcome::Pass),
            human::duration(Duration::try_from_secs_f64(self.seconds).unwrap_or_default())
        )
    }
}

impl Report for DoctorDocument {
    fn human(&self) -> String {
        let mut parts = vec![lines(&self.findings, "what was looked at")];
        if !self.feasibility.is_empty() {
            parts.push(lines(&self.feasibility, "what fits"));
        }
        if !self.suggested.is_empty() {
            let title = "These lines of configuration would fit:".to_owned();
            parts.push([&[title], self.suggested.as_slice()].concat().join("\n"));
        }
        parts.push(self.summary());
        parts.join("\n\n")
    }
}

/// One line a finding, and below it what to do.
fn lines(findings: &[Finding], title: &str) -> String {
    let mut rows = table::table(&["", title, "of", "measured"], &[]);
    for finding in findings {
        let outcome = match finding.outcome {
            Outcome::Pass => "pass",
            Outcome::Warn => "warn",
            Outcome::Fail => "FAIL",
        };
        let measured = match &finding.remedy {
            Some(remedy) => format!("{}\n-> {remedy}", finding.measured),
            None => finding.measured.clone(),
        };
        rows.add_row([outcome, &finding.check, &finding.subject, &measured]);
    }
    table::text(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_to_do_below_what_was_measured() {
        let findings = vec![
            Finding::pass("directory", "vault /v", "works"),
            Finding::fail(
                "free bytes",
                "vault on /v",
                "0 B of 1.0 GiB free",
                "delete something",
            ),
        ];
        let feasible = Feasibility {
            findings: Vec::new(),
            suggested: vec!["[keep.local]".to_owned(), "last = 2".to_owned()],
        };
        let document = DoctorDocument::new(findings, feasible, Duration::from_millis(1500));
        assert_eq!(document.outcome(), Outcome::Fail);
        assert_eq!(
            document.human(),
            "      WHAT WAS LOOKED AT  OF           MEASURED\n\
             pass  directory           vault /v     works\n\
             FAIL  free bytes          vault on /v  0 B of 1.0 GiB free\n\
             \x20                                      -> delete something\n\n\
             These lines of configuration would fit:\n[keep.local]\nlast = 2\n\n\
             1 failed, 0 warned, 1 passed, in 1.5s"
        );
    }
}
