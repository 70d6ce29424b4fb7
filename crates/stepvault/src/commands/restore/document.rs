//! The output of a restore.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use stepvault_core::given_up::GivenUpStep;
use stepvault_core::ids::StepId;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::restore::{RestoreDecision, RestoreReport, SkippedStep};
use stepvault_formats::handoff::{HandoffPlan, PlannedPointer};
use stepvault_formats::pointer::PointerContent;

use crate::commands::given_up::{GivenUpDocument, known_records};
use crate::context::Tiers;
use crate::output::{Report, human};

/// The result or the plan of a restore.
#[derive(Serialize)]
pub(in crate::commands) struct RestoreDocument {
    run: String,
    step: u64,
    attempt: u32,
    path: PathBuf,
    /// Every path of the step at the target.
    paths: Vec<PathBuf>,
    /// The directory to which the paths of the resume handoff are relative.
    #[serde(skip)]
    directory: PathBuf,
    files: u64,
    bytes: u64,
    sources: Vec<SourceDocument>,
    skipped: Vec<SkippedStep>,
    /// The skipped steps from which the trainer crashed repeatedly.
    #[serde(skip)]
    demoted: Vec<u64>,
    unreachable: Vec<UnreachableDocument>,
    /// Steps that nodes gave up to free space: newer ones, and those given up after this one was written.
    given_up: Vec<GivenUpDocument>,
    #[serde(skip)]
    id: StepId,
    #[serde(skip)]
    written_at: Timestamp,
    /// Whether this is only a plan.
    planned: bool,
    /// Whether the target already held exactly this step.
    already_there: bool,
    /// Valid bytes reused from an interrupted restore.
    resumed_bytes: u64,
    pub(super) seconds: f64,
    /// The profile detected for the trainer's directory.
    framework: Option<String>,
    /// Paths that were moved aside so that the trainer resumes from the step.
    moved_aside: Vec<MovedDocument>,
    /// The pointers that the trainer reads to find the step.
    pointers: Vec<PointerDocument>,
    /// A newer complete step in the directory that no tier has.
    kept: Option<PathBuf>,
    /// How to start the trainer so that it resumes from the step; null if only some files were restored.
    resume: Option<String>,
}

#[derive(Serialize)]
struct SourceDocument {
    tier: String,
    /// Bytes fetched from the tier; null in a plan.
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct UnreachableDocument {
    tier: String,
    message: String,
}

#[derive(Serialize)]
struct MovedDocument {
    path: PathBuf,
    /// The new path; null in a plan.
    to: Option<PathBuf>,
}

#[derive(Serialize)]
struct PointerDocument {
    path: PathBuf,
    says: String,
    /// Whether the pointer is a copy of the step; for the text output.
    #[serde(skip)]
    is_copy: bool,
    /// Whether the pointer already had this content.
    #[serde(skip)]
    is_right: bool,
}

/// Builds the document of a plan.
pub(in crate::commands) fn planned(
    tiers: &Tiers,
    decision: RestoreDecision,
    demoted: &BTreeMap<StepId, String>,
) -> RestoreDocument {
    let unreachable = decision.unreachable.into_iter();
    let mut document = RestoreDocument {
        run: tiers.run_name().to_string(),
        step: decision.id.step.number(),
        attempt: decision.id.attempt.number(),
        files: decision.file_count,
        bytes: decision.data_bytes,
        sources: decision
            .sources
            .iter()
            .map(|tier| SourceDocument {
                tier: tier.to_string(),
                bytes: None,
            })
            .collect(),
        demoted: decision
            .skipped
            .iter()
            .map(|skipped| skipped.step)
            .filter(|step| demoted.keys().any(|id| id.step.number() == *step))
            .collect(),
        skipped: decision.skipped,
        unreachable: unreachable
            .map(|(tier, message)| UnreachableDocument {
                tier: tier.to_string(),
                message,
            })
            .collect(),
        given_up: Vec::new(),
        id: decision.id,
        written_at: decision.written_at,
        planned: true,
        already_there: false,
        resumed_bytes: 0,
        seconds: 0.0,
        framework: None,
        moved_aside: Vec::new(),
        pointers: Vec::new(),
        kept: None,
        resume: None,
        path: decision.path,
        paths: decision.paths,
        directory: decision.directory,
    };
    if let Some(plan) = decision.handoff {
        document.add(plan);
    }
    document
}

/// Builds the document of a finished restore.
pub(in crate::commands) fn restored(
    tiers: &Tiers,
    report: RestoreReport,
    demoted: &BTreeMap<StepId, String>,
) -> RestoreDocument {
    let fetched = report.fetched;
    let sources = fetched
        .bytes_by_tier
        .iter()
        .map(|(tier, bytes)| SourceDocument {
            tier: tier.to_string(),
            bytes: Some(*bytes),
        })
        .collect();
    let moved_aside = report.moved_aside.into_iter();
    RestoreDocument {
        sources,
        planned: false,
        already_there: report.already_there,
        resumed_bytes: fetched.kept_bytes,
        moved_aside: moved_aside
            .map(|moved| MovedDocument {
                path: moved.from,
                to: Some(moved.to),
            })
            .collect(),
        ..planned(tiers, report.decision, demoted)
    }
}

impl RestoreDocument {
    /// Adds the given-up steps recorded in the vault and on the remotes that answered: newer steps, and those given up
    /// since this one was written.
    pub(in crate::commands) async fn ask_given_up(&mut self, tiers: &Tiers) {
        let mut remotes = tiers.remotes.clone();
        remotes.retain(|remote| {
            !self
                .unreachable
                .iter()
                .any(|tier| tier.tier == remote.name().as_str())
        });
        let records = known_records(tiers.vault.as_ref(), &remotes, tiers.run_name()).await;
        let (id, written_at) = (self.id, self.written_at);
        let is_missed = |step: &GivenUpStep| step.id > id || step.given_up_at > written_at;
        let missed = records.iter().filter_map(|record| record.only(is_missed));
        self.given_up = missed.map(GivenUpDocument::from).collect();
    }

    fn add(&mut self, plan: HandoffPlan) {
        let directory = self.directory.clone();
        let pointer = |PlannedPointer { write, is_right }| PointerDocument {
            path: directory.join(write.path),
            is_copy: matches!(write.content, PointerContent::CopyOf(_)),
            says: match write.content {
                PointerContent::Text(says) | PointerContent::Symlink(says) | PointerContent::CopyOf(says) => {
                    says
                }
            },
            is_right,
        };
        self.framework = Some(plan.framework);
        self.pointers = plan.pointers.into_iter().map(pointer).collect();
        let moved = plan.aside.iter().map(|path| MovedDocument {
            path: directory.join(path),
            to: None,
        });
        self.moved_aside = moved.collect();
        self.kept = plan.kept.map(|path| directory.join(path));
        self.resume = Some(plan.resume);
    }

    /// Returns the location of the step for people.
    fn place(&self) -> String {
        match self.paths.as_slice() {
            [first, rest @ ..] if !rest.is_empty() => format!("{} and {} more", first.display(), rest.len()),
            _ => self.path.display().to_string(),
        }
    }

    /// Returns how to start the trainer, for `--print-resume`.
    pub(super) fn resume_line(&self) -> Result<&str> {
        self.resume.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot print how to resume")
                .on(self.path.display())
                .because("only some of the step's files were restored")
                .hint("restore the whole step, without --include")
        })
    }

    /// Returns the actions of the resume handoff, one line each.
    fn handoff_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for moved in &self.moved_aside {
            let path = moved.path.display();
            lines.push(match &moved.to {
                Some(to) => format!("moved {path} aside, to {}", to.display()),
                None => format!("would move {path} aside"),
            });
        }
        if let Some(kept) = &self.kept {
            lines.push(format!(
                "the trainer resumes from {}, which is complete, newer, and on no tier; to use the older step, restore with --step {}",
                kept.display(),
                self.step
            ));
        }
        for pointer in &self.pointers {
            let says = match (pointer.is_copy, self.planned && !pointer.is_right) {
                (true, false) => "is a copy of",
                (true, true) => "would be a copy of",
                (false, false) => "points to",
                (false, true) => "would point to",
            };
            lines.push(format!("{} {says} {}", pointer.path.display(), pointer.says));
        }
        lines.extend(self.resume.as_ref().map(|resume| format!("to resume: {resume}")));
        lines
    }
}

impl Report for RestoreDocument {
    fn human(&self) -> String {
        let mut lines = Vec::new();
        for step in &self.skipped {
            lines.push(format!(
                "skipped step {} (attempt {}): {}",
                step.step,
                step.attempt,
                step.reasons.join("; ")
            ));
        }
        lines.extend(
            self.demoted
                .first()
                .map(|step| format!("to restore step {step} anyway: --step {step}")),
        );
        lines.extend(
            self.unreachable
                .iter()
                .map(|tier| format!("cannot list {}: {}", tier.tier, tier.message)),
        );
        lines.extend(self.given_up.iter().map(GivenUpDocument::text));
        let sources: Vec<String> = self
            .sources
            .iter()
            .map(|source| match source.bytes {
                Some(bytes) => format!("{} from {}", human::bytes(bytes), source.tier),
                None => source.tier.clone(),
            })
            .collect();
        let what = format!(
            "step {} (attempt {}) of '{}': {}, {}",
            self.step,
            self.attempt,
            self.run,
            human::count(self.files, "file"),
            human::bytes(self.bytes)
        );
        let path = self.place();
        lines.push(match (self.planned, self.already_there) {
            (true, _) => format!("would restore {what} from {} to {path}", sources.join(", then ")),
            (false, true) if self.paths.len() > 1 => format!("{path} already hold {what}"),
            (false, true) => format!("{path} already holds {what}"),
            (false, false) => {
                let mut parts = sources;
                if self.resumed_bytes > 0 {
                    parts.push(format!(
                        "{} reused from an interrupted restore",
                        human::bytes(self.resumed_bytes)
                    ));
                }
                format!("restored {what} ({}) to {path}", parts.join(", "))
            }
        });
        lines.extend(self.handoff_lines());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use stepvault_core::ids::{Attempt, Step};
    use stepvault_formats::pointer::PointerWrite;

    use super::*;

    fn document() -> RestoreDocument {
        RestoreDocument {
            run: "demo".to_owned(),
            step: 40,
            attempt: 1,
            path: PathBuf::from("/data/global_step40"),
            paths: vec![PathBuf::from("/data/global_step40")],
            directory: PathBuf::from("/data"),
            files: 3,
            bytes: 4096,
            sources: vec![SourceDocument {
                tier: "main".to_owned(),
                bytes: Some(4096),
            }],
            skipped: vec![SkippedStep {
                step: 50,
                attempt: 1,
                reasons: vec!["main: damaged".to_owned()],
                unread: false,
            }],
            demoted: Vec::new(),
            unreachable: Vec::new(),
            given_up: Vec::new(),
            id: StepId::new(Attempt::FIRST, Step::new(40).unwrap()),
            written_at: Timestamp::from_seconds(0),
            planned: false,
            already_there: false,
            resumed_bytes: 0,
            seconds: 0.5,
            framework: None,
            moved_aside: Vec::new(),
            pointers: Vec::new(),
            kept: None,
            resume: None,
        }
    }

    fn handed_over() -> HandoffPlan {
        HandoffPlan {
            framework: "deepspeed".to_owned(),
            why: Vec::new(),
            kept: None,
            aside: vec!["global_step50".to_owned()],
            pointers: vec![PlannedPointer {
                write: PointerWrite {
                    path: "latest".to_owned(),
                    content: PointerContent::Text("global_step40".to_owned()),
                },
                is_right: false,
            }],
            resume: "call load_checkpoint".to_owned(),
        }
    }

    #[test]
    fn says_what_was_passed_over_and_what_was_restored() {
        assert_eq!(
            document().human(),
            "skipped step 50 (attempt 1): main: damaged\n\
             restored step 40 (attempt 1) of 'demo': 3 files, 4.0 KiB (4.0 KiB from main) to /data/global_step40"
        );
    }

    #[test]
    fn says_how_to_take_a_step_that_the_trainer_did_not_survive() {
        let mut demoted = document();
        demoted.skipped[0].reasons = vec!["restored 3 times, and the trainer crashed".to_owned()];
        demoted.demoted = vec![50];
        assert!(demoted.human().starts_with(
            "skipped step 50 (attempt 1): restored 3 times, and the trainer crashed\n\
             to restore step 50 anyway: --step 50\n"
        ));
    }

    #[test]
    fn names_the_first_of_several_paths() {
        let mut several = document();
        several.path = PathBuf::from("/data");
        several.paths = ["/data/ep1-rank0.pt", "/data/ep1-rank1.pt"]
            .map(PathBuf::from)
            .to_vec();
        assert!(several.human().ends_with(" to /data/ep1-rank0.pt and 1 more"));
        several.already_there = true;
        let text = several.human();
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "/data/ep1-rank0.pt and 1 more already hold step 40 (attempt 1) of 'demo': 3 files, 4.0 KiB"
        );
    }

    #[test]
    fn says_what_was_done_for_the_trainer_and_ends_with_how_to_start_it() {
        let mut done = document();
        done.add(handed_over());
        done.moved_aside[0].to = Some(PathBuf::from("/.stepvault/moved-aside/0001-global_step50"));
        let text = done.human();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "moved /data/global_step50 aside, to /.stepvault/moved-aside/0001-global_step50",
                "/data/latest points to global_step40",
                "to resume: call load_checkpoint",
            ]
        );
        let mut plan = document();
        plan.planned = true;
        plan.add(HandoffPlan {
            kept: Some("global_step60".to_owned()),
            ..handed_over()
        });
        let text = plan.human();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "would move /data/global_step50 aside",
                "the trainer resumes from /data/global_step60, which is complete, newer, and on no tier; to use the \
                 older step, restore with --step 40",
                "/data/latest would point to global_step40",
                "to resume: call load_checkpoint",
            ]
        );
        assert_eq!(plan.resume_line().unwrap(), "call load_checkpoint");
        assert_eq!(
            document().resume_line().unwrap_err().to_string(),
            "cannot print how to resume: /data/global_step40: only some of the step's files were restored"
        );
    }

    #[test]
    fn the_document_has_the_published_keys() {
        let mut done = document();
        done.add(handed_over());
        let text = crate::output::json::document(&done).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["format"], 1);
        for key in [
            "run", "step", "attempt", "path", "bytes", "sources", "skipped", "resume",
        ] {
            assert!(document.get(key).is_some(), "{key} is missing: {text}");
        }
        assert_eq!(document["skipped"][0]["reasons"][0], "main: damaged");
        assert_eq!(
            document["pointers"],
            serde_json::json!([{ "path": "/data/latest", "says": "global_step40" }])
        );
        assert_eq!(
            document["moved_aside"],
            serde_json::json!([{ "path": "/data/global_step50", "to": null }])
        );
    }
}
