//! The output of `explain`.

use std::fmt::Write as _;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::ids::RunName;
use stepvault_diagnose::explain::{Cause, Evidence, Explanation, Kind, Likelihood};
use stepvault_engine::explain::NotLookedAt;

use super::resume::ResumeDocument;
use crate::output::wrap::{UNLIMITED, fit};
use crate::output::{Report, human};

/// Maximum number of pieces of evidence to print for one cause.
const MAXIMUM_EVIDENCE_TOLD: usize = 4;

/// Why a run failed.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct ExplainDocument {
    /// The run whose records were read; null if that is not exactly one run.
    run: Option<String>,
    /// The examined directories, absolute.
    directories: Vec<PathBuf>,
    /// Possible causes, the most likely first; empty if none was found.
    causes: Vec<CauseDocument>,
    /// The newest valid step, and how to resume from it; null if none was found.
    resume: Option<ResumeDocument>,
    /// Sources that could not be read, or only in part.
    not_looked_at: Vec<NotLookedAt>,
}

#[derive(Serialize, JsonSchema)]
struct CauseDocument {
    /// The cause.
    #[schemars(with = "String", extend("enum" = Cause::ALL.map(Cause::name)))]
    cause: Cause,
    /// How likely it is: very likely from 90 points, likely from 40.
    likelihood: Likelihood,
    /// The sum of its evidence; comparable only within one document.
    points: u32,
    /// What happened, in one sentence.
    explanation: &'static str,
    /// What to do about it.
    remedy: &'static str,
    /// The evidence for it, the strongest first, at most 8 pieces.
    evidence: Vec<EvidenceDocument>,
}

#[derive(Serialize, JsonSchema)]
struct EvidenceDocument {
    /// How it is known.
    kind: Kind,
    /// The finding; for a log line, the software that prints such lines.
    text: String,
    /// The log; null for other evidence.
    file: Option<String>,
    /// The line number, from 1; null for other evidence, or if the preceding lines were not counted.
    line: Option<u64>,
    /// Byte offset of the line in the log; null for other evidence.
    offset_bytes: Option<u64>,
    /// Number of such lines in the log; the last one is shown.
    times: u64,
    /// The text of the log or the record, at most 240 bytes of a log line; null if there is none.
    quote: Option<String>,
}

impl ExplainDocument {
    pub(super) fn new(
        run: Option<&RunName>,
        directories: &[PathBuf],
        explanations: Vec<Explanation>,
        resume: Option<ResumeDocument>,
        not_looked_at: Vec<NotLookedAt>,
    ) -> Self {
        Self {
            run: run.map(ToString::to_string),
            directories: directories.to_vec(),
            causes: explanations.into_iter().map(CauseDocument::of).collect(),
            resume,
            not_looked_at,
        }
    }
}

impl CauseDocument {
    fn of(explanation: Explanation) -> Self {
        let cause = explanation.cause;
        Self {
            cause,
            likelihood: explanation.likelihood,
            points: explanation.points,
            explanation: cause.explanation(),
            remedy: cause.remedy(),
            evidence: explanation
                .evidence
                .into_iter()
                .map(EvidenceDocument::of)
                .collect(),
        }
    }

    fn lines(&self, number: usize, lines: &mut Vec<String>) {
        let likelihood = self.likelihood.words();
        lines.push(format!(
            "{number}. {}, {likelihood}: {}",
            self.cause.name(),
            self.explanation
        ));
        lines.extend(
            self.evidence
                .iter()
                .take(MAXIMUM_EVIDENCE_TOLD)
                .map(EvidenceDocument::line),
        );
        let untold = self.evidence.len().saturating_sub(MAXIMUM_EVIDENCE_TOLD);
        if untold > 0 {
            lines.push(format!("   - and {untold} more, see --json"));
        }
        lines.push(format!("   to do: {}", self.remedy));
    }
}

impl EvidenceDocument {
    fn of(evidence: Evidence) -> Self {
        let place = evidence.place;
        Self {
            kind: evidence.kind,
            text: evidence.text,
            line: place.as_ref().and_then(|place| place.line),
            offset_bytes: place.as_ref().map(|place| place.offset_bytes),
            times: place.as_ref().map_or(1, |place| place.times),
            file: place.map(|place| place.file),
            quote: evidence.quote,
        }
    }

    fn line(&self) -> String {
        let mut line = "   - ".to_owned();
        if let Some(file) = &self.file {
            line.push_str(file);
            match (self.line, self.offset_bytes) {
                (Some(number), _) => {
                    let _ = write!(line, ":{number}");
                }
                (None, Some(offset)) if offset > 0 => {
                    let _ = write!(line, ", byte {offset}");
                }
                _ => {}
            }
            if self.times > 1 {
                let _ = write!(line, " (the last of {})", self.times);
            }
            line.push_str(": ");
        }
        match &self.quote {
            Some(quote) if self.file.is_some() => {
                let _ = write!(line, "{quote} [{}]", self.text);
            }
            Some(quote) => {
                let _ = write!(line, "{}: {quote}", self.text);
            }
            None => line.push_str(&self.text),
        }
        line
    }
}

impl ResumeDocument {
    fn lines(&self, lines: &mut Vec<String>) {
        for step in &self.skipped {
            lines.push(step.line());
        }
        let step = self
            .step
            .map_or_else(String::new, |step| format!("step {step}, "));
        let from = if self.tiers.is_empty() {
            "already in place".to_owned()
        } else {
            format!("from {}", self.tiers.join(", then "))
        };
        lines.push(format!("to resume from {step}{} ({from}):", self.path.display()));
    }

    /// Returns the commands and the start of the trainer, which are to be copied and therefore never wrapped.
    fn commands(&self) -> impl Iterator<Item = String> {
        let commands = self.commands.iter().chain(&self.trainer);
        commands.map(|command| format!("\n  {command}"))
    }
}

impl Report for ExplainDocument {
    fn human(&self) -> String {
        self.fitted(UNLIMITED)
    }

    fn fitted(&self, width: usize) -> String {
        let mut lines = Vec::new();
        if self.causes.is_empty() {
            lines.push("no cause of a failure was found".to_owned());
        }
        for (position, cause) in self.causes.iter().enumerate() {
            cause.lines(position + 1, &mut lines);
        }
        if !self.not_looked_at.is_empty() {
            lines.push(String::new());
            let what = human::count(self.not_looked_at.len() as u64, "source");
            lines.push(format!("{what} could not be read, or only in part:"));
            lines.extend(
                self.not_looked_at
                    .iter()
                    .map(|missed| format!("  {}: {}", missed.what, missed.why)),
            );
        }
        lines.push(String::new());
        match &self.resume {
            Some(resume) => resume.lines(&mut lines),
            None if self.run.is_none() && self.directories.is_empty() => {
                lines.push("give the directory of the steps to find the step to resume from".to_owned());
            }
            None => lines.push("no valid step to resume from was found".to_owned()),
        }
        let commands = self.resume.iter().flat_map(ResumeDocument::commands);
        fit(&lines.join("\n"), width) + &commands.collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::Revision;
    use stepvault_diagnose::explain::{Place, explanations};

    use super::*;

    #[test]
    fn causes_evidence_and_the_step_are_told_in_this_order() {
        let mut said = Evidence::now(Cause::DiskFull, 60, "the C library, ENOSPC");
        said.kind = Kind::Said;
        said.quote = Some("OSError: [Errno 28] No space left on device".to_owned());
        said.place = Some(Place {
            file: "trainer.log".to_owned(),
            line: Some(214),
            offset_bytes: 9000,
            times: 3,
        });
        let full = Evidence::now(Cause::DiskFull, 60, "/out: 0 B of 2.0 MiB free");
        let torn = Evidence::left(Cause::InterruptedSave, 30, "/out/step_2.pt: the save was cut off");
        let resume = ResumeDocument {
            step: Some(1),
            attempt: None,
            revision: Revision::FIRST,
            path: PathBuf::from("/out/step_1.pt"),
            tiers: Vec::new(),
            commands: Vec::new(),
            trainer: Some("load /out/step_1.pt".to_owned()),
            skipped: Vec::new(),
        };
        let document = ExplainDocument::new(
            None,
            &[PathBuf::from("/out")],
            explanations(vec![said, torn, full]),
            Some(resume),
            Vec::new(),
        );
        let disk = Cause::DiskFull;
        let save = Cause::InterruptedSave;
        assert_eq!(
            document.human(),
            format!(
                "1. disk-full, very likely: {}\n   - /out: 0 B of 2.0 MiB free\n   - trainer.log:214 (the last of 3): \
                 OSError: [Errno 28] No space left on device [the C library, ENOSPC]\n   to do: {}\n\
                 2. interrupted-save, likely: {}\n   - /out/step_2.pt: the save was cut off\n   to do: {}\n\n\
                 to resume from step 1, /out/step_1.pt (already in place):\n  load /out/step_1.pt",
                disk.explanation(),
                disk.remedy(),
                save.explanation(),
                save.remedy()
            )
        );
    }

    #[test]
    fn nothing_wrong_is_said_so() {
        let said = |directories: &[PathBuf]| {
            ExplainDocument::new(None, directories, Vec::new(), None, Vec::new()).human()
        };
        assert_eq!(
            said(&[PathBuf::from("/out")]),
            "no cause of a failure was found\n\nno valid step to resume from was found"
        );
        assert!(said(&[]).ends_with("\n\ngive the directory of the steps to find the step to resume from"));
    }
}
