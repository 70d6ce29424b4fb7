//! The output of a restore.

use std::path::{Path, PathBuf};

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::given_up::GivenUpStep;
use stepvault_core::{Error, ErrorKind, Result, RunName, StepId, Tier, Timestamp};
use stepvault_engine::restore::{BestStep, MovedAside, RestorePlan, RestoreReport, SkippedStep};
use stepvault_formats::handoff::{HandoffPlan, PlannedPointer};
use stepvault_formats::pointer::PointerContent;

use crate::commands::node_records::{GivenUpDocument, known_records};
use crate::context::Tiers;
use crate::output::{Report, human};

/// The result or the plan of a restore.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct RestoreDocument {
    /// The run.
    run: String,
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    pub(in crate::commands) id: StepId,
    /// Path of the restored step; for a step of several paths, their directory.
    pub(in crate::commands) path: PathBuf,
    /// The step's own paths: `path`, or those of a step of several in the order in which they appear.
    paths: Vec<PathBuf>,
    /// Number of the selected files.
    files: u64,
    /// Bytes of the selected files.
    bytes: u64,
    /// The tiers that the bytes came from, or would come from, in order.
    sources: Vec<SourceDocument>,
    /// Newer steps that were skipped, the newest first.
    pub(in crate::commands) skipped: Vec<SkippedStep>,
    /// Tiers that could not be listed and may hold newer steps.
    unreachable: Vec<UnreachableDocument>,
    /// Steps that nodes gave up to free disk space, by node: newer ones than this, and those given up since
    /// it was written.
    given_up: Vec<GivenUpDocument>,
    #[serde(skip)]
    written_at: Timestamp,
    /// Whether this is only a plan, because of `--plan`.
    planned: bool,
    /// Whether the target already held exactly this step.
    already_there: bool,
    /// Valid bytes reused from an interrupted restore.
    resumed_bytes: u64,
    /// Duration in seconds.
    pub(super) seconds: f64,
    #[serde(flatten)]
    handoff: HandoffDocument,
}

/// What was done, or would be done, for the trainer.
#[derive(Default, Serialize, JsonSchema)]
struct HandoffDocument {
    /// The profile detected for the trainer's directory; null with `--include`.
    framework: Option<String>,
    /// Paths on which the trainer would have failed, or from which it would have resumed instead, and their
    /// new paths.
    moved_aside: Vec<MovedDocument>,
    /// The pointers that the trainer reads to find the step.
    pointers: Vec<PointerDocument>,
    /// The steps that the restored one names as the best, and that are restored beside it.
    best: Vec<BestStep>,
    /// A complete step in the directory that is newer than any tier's, from which the trainer resumes;
    /// usually null.
    kept: Option<PathBuf>,
    #[serde(skip)]
    kept_has_its_path: bool,
    /// How to start the trainer so that it resumes from the step; null with `--include`.
    resume: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct SourceDocument {
    /// `local` or the remote's name.
    tier: String,
    /// Bytes fetched from the tier; null in a plan.
    bytes: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct UnreachableDocument {
    /// `local` or the remote's name.
    tier: String,
    /// The failed operation, its subject and the cause.
    message: String,
}

#[derive(Serialize, JsonSchema)]
struct MovedDocument {
    /// The original path.
    path: PathBuf,
    /// The new path; null in a plan.
    to: Option<PathBuf>,
}

#[derive(Serialize, JsonSchema)]
struct PointerDocument {
    /// Its path.
    path: PathBuf,
    /// Its text, its target, or the step that it is a copy of.
    says: String,
    /// Whether the pointer is a copy of the step; for the text output.
    #[serde(skip)]
    is_copy: bool,
    /// Whether the pointer already had this content.
    #[serde(skip)]
    is_right: bool,
}

/// The document of another rank's restore.
#[derive(Serialize)]
#[serde(transparent)]
pub(in crate::commands) struct SharedDocument(pub(in crate::commands) serde_json::Value);

impl Report for SharedDocument {
    fn human(&self) -> String {
        format!(
            "another rank has restored step {}: {}",
            self.0["step"],
            self.0["path"].as_str().unwrap_or_default()
        )
    }
}

/// Returns whether the step of a restore's document is still in its place.
pub(in crate::commands) fn is_there(document: &serde_json::Value) -> bool {
    let paths = document["paths"].as_array().into_iter().flatten();
    let paths: Vec<&str> = match document["kept"].as_str() {
        Some(kept) => vec![kept],
        None => paths.filter_map(serde_json::Value::as_str).collect(),
    };
    !paths.is_empty() && paths.iter().all(|path| PathBuf::from(path).symlink_metadata().is_ok())
}

/// Builds the document of a plan.
pub(in crate::commands) fn planned(run: &RunName, plan: RestorePlan) -> RestoreDocument {
    let source = |tier: Tier| SourceDocument { tier: tier.to_string(), bytes: None };
    let unreachable =
        |(tier, message): (Tier, String)| UnreachableDocument { tier: tier.to_string(), message };
    let (files, bytes) = (plan.file_count(), plan.data_bytes());
    let handoff = plan.handoff.map(|handoff| HandoffDocument::of(handoff, &plan.directory));
    RestoreDocument {
        run: run.to_string(),
        id: plan.id,
        path: plan.path,
        paths: plan.paths,
        files,
        bytes,
        sources: plan.sources.into_iter().map(source).collect(),
        skipped: plan.skipped,
        unreachable: plan.unreachable.into_iter().map(unreachable).collect(),
        given_up: Vec::new(),
        written_at: plan.written_at,
        planned: true,
        already_there: false,
        resumed_bytes: 0,
        seconds: 0.0,
        handoff: HandoffDocument { best: plan.best, ..handoff.unwrap_or_default() },
    }
}

/// Builds the document of a finished restore.
pub(in crate::commands) fn restored(run: &RunName, report: RestoreReport) -> RestoreDocument {
    let source = |(tier, bytes): (Tier, u64)| SourceDocument { tier: tier.to_string(), bytes: Some(bytes) };
    let moved = |moved: MovedAside| MovedDocument { path: moved.from, to: Some(moved.to) };
    let mut document = RestoreDocument {
        sources: report.fetched.bytes_by_tier.into_iter().map(source).collect(),
        planned: false,
        already_there: report.already_there,
        resumed_bytes: report.fetched.kept_bytes,
        ..planned(run, report.plan)
    };
    document.handoff.moved_aside = report.moved_aside.into_iter().map(moved).collect();
    document
}

impl HandoffDocument {
    fn of(plan: HandoffPlan, directory: &Path) -> Self {
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
        let moved = |path| MovedDocument { path: directory.join(path), to: None };
        Self {
            framework: Some(plan.framework),
            moved_aside: plan.aside.into_iter().map(moved).collect(),
            pointers: plan.pointers.into_iter().map(pointer).collect(),
            best: Vec::new(),
            kept: plan.kept.map(|path| directory.join(path)),
            kept_has_its_path: plan.kept_has_its_path,
            resume: Some(plan.resume),
        }
    }
}

impl RestoreDocument {
    /// Adds the given-up steps recorded in the vault and on the remotes that answered: newer steps, and those given up
    /// since this one was written.
    pub(in crate::commands) async fn ask_given_up(&mut self, tiers: &Tiers) {
        let failed = self.unreachable.iter().map(|tier| &*tier.tier).collect_vec();
        let records = known_records(tiers, &failed).await;
        let is_missed = |step: &GivenUpStep| step.id > self.id || step.given_up_at > self.written_at;
        let missed = records.iter().filter_map(|record| record.only(is_missed));
        self.given_up = missed.map(GivenUpDocument::from).collect();
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
        self.handoff.resume.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot print how to resume")
                .on(self.path.display())
                .because("only some of the step's files were restored")
                .hint("restore the whole step, without --include")
        })
    }

    /// Returns the actions of the resume handoff, one line each.
    fn handoff_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for moved in &self.handoff.moved_aside {
            let path = moved.path.display();
            lines.push(match &moved.to {
                Some(to) => format!("moved {path} aside, to {}", to.display()),
                None => format!("would move {path} aside"),
            });
        }
        if let Some(kept) = &self.handoff.kept {
            lines.push(format!(
                "the trainer resumes from {}, which is complete, newer, and on no tier; to use the older step, restore with --step {}",
                kept.display(),
                self.id.step
            ));
        }
        for best in &self.handoff.best {
            let what = match (self.planned, best.already_there) {
                (true, _) => "goes to",
                (false, true) => "is already in",
                (false, false) => "is in",
            };
            let (step, path, bytes) = (best.id.step, best.path.display(), human::bytes(best.data_bytes));
            lines.push(format!("the best step so far, {step} ({bytes}), {what} {path}"));
        }
        for pointer in &self.handoff.pointers {
            let says = match (pointer.is_copy, self.planned && !pointer.is_right) {
                (true, false) => "is a copy of",
                (true, true) => "would be a copy of",
                (false, false) => "points to",
                (false, true) => "would point to",
            };
            lines.push(format!("{} {says} {}", pointer.path.display(), pointer.says));
        }
        let resume = self.handoff.resume.as_ref();
        lines.extend(resume.map(|resume| format!("to resume: {resume}")));
        lines
    }
}

impl Report for RestoreDocument {
    fn human(&self) -> String {
        let skipped = self.skipped.iter();
        let mut lines = skipped.map(|step| format!("skipped {step}")).collect_vec();
        let demoted = self.skipped.iter().find(|skipped| skipped.demoted);
        let demoted = demoted.map(|skipped| skipped.id.step);
        lines.extend(demoted.map(|step| format!("to restore step {step} anyway: --step {step}")));
        for tier in &self.unreachable {
            lines.push(format!("cannot list {}: {}", tier.tier, tier.message));
        }
        lines.extend(self.given_up.iter().map(|record| record.text.clone()));
        let source = |source: &SourceDocument| match source.bytes {
            Some(bytes) => format!("{} from {}", human::bytes(bytes), source.tier),
            None => source.tier.clone(),
        };
        let mut sources = self.sources.iter().map(source).collect_vec();
        if self.resumed_bytes > 0 {
            let bytes = human::bytes(self.resumed_bytes);
            sources.push(format!("{bytes} reused from an interrupted restore"));
        }
        let what = format!(
            "{} of '{}': {}, {}",
            self.id,
            self.run,
            human::count(self.files, "file"),
            human::bytes(self.bytes)
        );
        let path = self.place();
        lines.push(match (self.planned, self.already_there) {
            _ if self.handoff.kept_has_its_path => {
                format!("not restored, as {path} has newer content: {what}")
            }
            (true, _) => format!("would restore {what} from {} to {path}", sources.join(", then ")),
            (false, true) if self.paths.len() > 1 => format!("{path} already hold {what}"),
            (false, true) => format!("{path} already holds {what}"),
            (false, false) => format!("restored {what} ({}) to {path}", sources.join(", ")),
        });
        lines.extend(self.handoff_lines());
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use stepvault_formats::pointer::PointerWrite;

    use super::*;

    fn document() -> RestoreDocument {
        RestoreDocument {
            run: "demo".to_owned(),
            id: StepId::from_label("000000000040.a1").unwrap(),
            path: PathBuf::from("/data/global_step40"),
            paths: vec![PathBuf::from("/data/global_step40")],
            files: 3,
            bytes: 4096,
            sources: vec![SourceDocument { tier: "main".to_owned(), bytes: Some(4096) }],
            skipped: vec![SkippedStep {
                id: StepId::from_label("000000000050.a1").unwrap(),
                reasons: vec!["main: damaged".to_owned()],
                unread: false,
                demoted: false,
                damaged: true,
            }],
            unreachable: Vec::new(),
            given_up: Vec::new(),
            written_at: Timestamp::default(),
            planned: false,
            already_there: false,
            resumed_bytes: 0,
            seconds: 0.5,
            handoff: HandoffDocument::default(),
        }
    }

    fn handed_over() -> HandoffPlan {
        HandoffPlan {
            framework: "deepspeed".to_owned(),
            why: Vec::new(),
            kept: None,
            kept_has_its_path: false,
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
    fn says_what_was_skipped_and_what_was_restored() {
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
        demoted.skipped[0].demoted = true;
        assert!(demoted.human().starts_with(
            "skipped step 50 (attempt 1): restored 3 times, and the trainer crashed\n\
             to restore step 50 anyway: --step 50\n"
        ));
    }

    #[test]
    fn names_the_first_of_several_paths() {
        let mut several = document();
        several.path = PathBuf::from("/data");
        several.paths = ["/data/ep1-rank0.pt", "/data/ep1-rank1.pt"].map(PathBuf::from).to_vec();
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
        done.handoff = HandoffDocument::of(handed_over(), Path::new("/data"));
        done.handoff.moved_aside[0].to = Some(PathBuf::from("/.stepvault/moved-aside/0001-global_step50"));
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
        let handed_over =
            HandoffPlan { kept: Some("global_step60".to_owned()), kept_has_its_path: false, ..handed_over() };
        plan.handoff = HandoffDocument::of(handed_over, Path::new("/data"));
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
        done.handoff = HandoffDocument::of(handed_over(), Path::new("/data"));
        let text = crate::output::document(&done).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["format"], 1);
        for key in ["run", "step", "attempt", "path", "bytes", "sources", "skipped", "resume"] {
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
