//! The output of `explain`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_diagnose::explain::{Evidence, Explanation};
use stepvault_engine::explain::NotLookedAt;

use super::ResumeDocument;
use crate::output::table::fit;
use crate::output::{Report, human};

/// Maximum number of pieces of evidence to print for one cause.
const MAXIMUM_EVIDENCE_TOLD: usize = 4;

/// Why a run failed.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct ExplainDocument {
    /// The run whose records were read; null if that is not exactly one run.
    pub(super) run: Option<String>,
    /// The examined directories, absolute.
    pub(super) directories: Vec<PathBuf>,
    /// Possible causes, the most likely first; empty if none was found.
    pub(super) causes: Vec<CauseDocument>,
    /// The newest valid step, and how to resume from it; null if none was found.
    pub(super) resume: Option<ResumeDocument>,
    /// Sources that could not be read, or only in part.
    pub(super) not_looked_at: Vec<NotLookedAt>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct CauseDocument {
    #[serde(flatten)]
    found: Explanation,
    /// What happened, in one sentence.
    explanation: &'static str,
    /// What to do about it.
    remedy: &'static str,
}

impl CauseDocument {
    pub(super) fn of(found: Explanation) -> Self {
        Self { explanation: found.cause.explanation(), remedy: found.cause.remedy(), found }
    }

    fn lines(&self, number: usize, lines: &mut Vec<String>) {
        let (cause, likelihood) = (self.found.cause, self.found.likelihood);
        lines.push(format!("{number}. {cause}, {likelihood}: {}", self.explanation));
        let evidence = &self.found.evidence;
        lines.extend(evidence.iter().take(MAXIMUM_EVIDENCE_TOLD).map(evidence_line));
        let untold = evidence.len().saturating_sub(MAXIMUM_EVIDENCE_TOLD);
        if untold > 0 {
            lines.push(format!("   - and {untold} more, see --json"));
        }
        lines.push(format!("   to do: {}", self.remedy));
    }
}

fn evidence_line(evidence: &Evidence) -> String {
    let Evidence { text, position, quote, .. } = evidence;
    let Some(file) = &position.file else {
        return match quote {
            Some(quote) => format!("   - {text}: {quote}"),
            None => format!("   - {text}"),
        };
    };
    let line = match (position.line, position.offset_bytes) {
        (Some(number), _) => format!(":{number}"),
        (None, Some(offset)) if offset > 0 => format!(", byte {offset}"),
        _ => String::new(),
    };
    let times = match position.times {
        0 | 1 => String::new(),
        times => format!(" (the last of {times})"),
    };
    match quote {
        Some(quote) => format!("   - {file}{line}{times}: {quote} [{text}]"),
        None => format!("   - {file}{line}{times}: {text}"),
    }
}

impl ResumeDocument {
    fn lines(&self, lines: &mut Vec<String>) {
        for step in &self.skipped {
            lines.push(format!("skipped {}: {}", step.id, step.reasons.join("; ")));
        }
        let step = self.step.map_or_else(String::new, |step| format!("step {step}, "));
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
            let missed = self.not_looked_at.iter();
            lines.extend(missed.map(|missed| format!("  {}: {}", missed.what, missed.why)));
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
    use stepvault_diagnose::explain::{Cause, EvidenceSource, LogPosition, explanations};

    use super::*;

    #[test]
    fn causes_evidence_and_the_step_are_told_in_this_order() {
        let mut said = Evidence::now(Cause::DiskFull, 60, "the C library, ENOSPC");
        said.kind = EvidenceSource::Log;
        said.quote = Some("OSError: [Errno 28] No space left on device".to_owned());
        said.position = LogPosition {
            file: Some("trainer.log".to_owned()),
            line: Some(214),
            offset_bytes: Some(9000),
            times: 3,
        };
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
        let causes = explanations(vec![said, torn, full]);
        let document = ExplainDocument {
            run: None,
            directories: vec![PathBuf::from("/out")],
            causes: causes.into_iter().map(CauseDocument::of).collect(),
            resume: Some(resume),
            not_looked_at: Vec::new(),
        };
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
            let nothing = ExplainDocument {
                run: None,
                directories: directories.to_vec(),
                causes: Vec::new(),
                resume: None,
                not_looked_at: Vec::new(),
            };
            nothing.human()
        };
        assert_eq!(
            said(&[PathBuf::from("/out")]),
            "no cause of a failure was found\n\nno valid step to resume from was found"
        );
        assert!(said(&[]).ends_with("\n\ngive the directory of the steps to find the step to resume from"));
    }
}
