//! `restore`: the newest valid step, or the one asked for, back on disk.

use std::path::PathBuf;
use std::time::Instant;

use clap::{ArgGroup, Args};
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::ids::{Attempt, Step};
use stepvault_engine::restore::{
    RestoreContext, RestoreDecision, RestoreReport, RestoreRequest, SkippedStep, Target, plan, restore,
};
use stepvault_local::staging::Existing;

use super::Session;
use crate::arguments::values::checked;
use crate::context::{DefaultVault, Settings, Tiers, vault_beside};
use crate::exit_code::ExitCode;
use crate::output::{Report, human};

/// Put the newest valid step back, or the one asked for
///
/// Each byte is verified as it arrives; damaged steps are passed over, and the reason is given. The target appears
/// whole or not at all. An interrupted restore goes on where it ended.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["into", "exact"]))]
pub(crate) struct RestoreArguments {
    /// The directory to put the step into, under its own name
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// The path that the step itself is to have
    #[arg(long = "as", id = "exact", value_name = "PATH")]
    exact: Option<PathBuf>,
    /// This step instead of the newest valid one
    #[arg(long, value_name = "N", value_parser = checked::<Step>)]
    step: Option<Step>,
    /// Of this attempt
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Only files that match; repeatable: --include '*.safetensors'
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Print what would be restored from where, and do nothing
    #[arg(long)]
    plan: bool,
    /// Put the step in the place of something else that has its name
    #[arg(long)]
    replace: bool,
}

/// What a restore came to, or would.
#[derive(Serialize)]
struct RestoreDocument {
    run: String,
    step: u64,
    attempt: u32,
    path: PathBuf,
    files: u64,
    bytes: u64,
    sources: Vec<SourceDocument>,
    skipped: Vec<SkippedStep>,
    unreachable: Vec<UnreachableDocument>,
    /// Whether nothing was done because only the plan was wanted.
    planned: bool,
    /// Whether the target held just this before.
    already_there: bool,
    /// Bytes that an interrupted restore had left, and that were right.
    resumed_bytes: u64,
    seconds: f64,
    /// What to tell the framework so that it resumes here; null where that is not known.
    resume: Option<String>,
}

#[derive(Serialize)]
struct SourceDocument {
    tier: String,
    /// Bytes that came from there; null in a plan.
    bytes: Option<u64>,
}

#[derive(Serialize)]
struct UnreachableDocument {
    tier: String,
    message: String,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: RestoreArguments) -> Result<ExitCode> {
    let began = Instant::now();
    let settings = Settings::load(session)?;
    let (step_path, target) = match (arguments.into, arguments.exact) {
        (Some(directory), _) => (directory.join("step"), Target::Into(directory)),
        (None, path) => {
            let path = path.unwrap_or_default();
            (path.clone(), Target::As(path))
        }
    };
    // A target that leaves no place for a vault has none, which is fine here.
    let default = vault_beside(&step_path).map_or(DefaultVault::None, DefaultVault::Existing);
    let tiers = Tiers::open(&settings, default, &session.output).await?;
    tiers.require_any()?;
    let context = restore_context(&tiers);
    let request = RestoreRequest {
        run: tiers.run_name().clone(),
        target,
        step: arguments.step,
        attempt: arguments.attempt,
        include: arguments.include,
        existing: if arguments.replace {
            Existing::Replace
        } else {
            Existing::Refuse
        },
    };
    let mut document = if arguments.plan {
        planned(&tiers, plan(&context, &request).await?)
    } else {
        restored(&tiers, restore(&context, &request).await?)
    };
    document.seconds = began.elapsed().as_secs_f64();
    tiers.progress.finish();
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

/// What the engine restores with.
pub(super) fn restore_context(tiers: &Tiers) -> RestoreContext {
    RestoreContext {
        vault: tiers.vault.clone(),
        remotes: tiers.remotes.clone(),
        budget: tiers.budget.clone(),
        observer: tiers.observer(),
    }
}

fn planned(tiers: &Tiers, decision: RestoreDecision) -> RestoreDocument {
    let unreachable = decision.unreachable.into_iter();
    RestoreDocument {
        run: tiers.run_name().to_string(),
        step: decision.id.step.number(),
        attempt: decision.id.attempt.number(),
        path: decision.path,
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
        skipped: decision.skipped,
        unreachable: unreachable
            .map(|(tier, message)| UnreachableDocument {
                tier: tier.to_string(),
                message,
            })
            .collect(),
        planned: true,
        already_there: false,
        resumed_bytes: 0,
        seconds: 0.0,
        resume: None,
    }
}

fn restored(tiers: &Tiers, report: RestoreReport) -> RestoreDocument {
    let fetched = report.fetched;
    let sources = fetched
        .bytes_by_tier
        .iter()
        .map(|(tier, bytes)| SourceDocument {
            tier: tier.to_string(),
            bytes: Some(*bytes),
        })
        .collect();
    RestoreDocument {
        sources,
        planned: false,
        already_there: report.already_there,
        resumed_bytes: fetched.kept_bytes,
        ..planned(tiers, report.decision)
    }
}

impl Report for RestoreDocument {
    fn human(&self) -> String {
        let mut lines = Vec::new();
        for step in &self.skipped {
            lines.push(format!(
                "passed over step {} (attempt {}): {}",
                step.step,
                step.attempt,
                step.reasons.join("; ")
            ));
        }
        lines.extend(
            self.unreachable
                .iter()
                .map(|tier| format!("could not ask {}: {}", tier.tier, tier.message)),
        );
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
        let path = self.path.display();
        lines.push(match (self.planned, self.already_there) {
            (true, _) => format!("would restore {what} from {} to {path}", sources.join(", then ")),
            (false, true) => format!("{path} holds {what} already"),
            (false, false) => {
                let mut parts = sources;
                if self.resumed_bytes > 0 {
                    parts.push(format!("{} kept from before", human::bytes(self.resumed_bytes)));
                }
                format!("restored {what} ({}) to {path}", parts.join(", "))
            }
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> RestoreDocument {
        RestoreDocument {
            run: "demo".to_owned(),
            step: 40,
            attempt: 1,
            path: PathBuf::from("/data/step_40"),
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
            }],
            unreachable: Vec::new(),
            planned: false,
            already_there: false,
            resumed_bytes: 0,
            seconds: 0.5,
            resume: None,
        }
    }

    #[test]
    fn says_what_was_passed_over_and_what_was_restored() {
        assert_eq!(
            document().human(),
            "passed over step 50 (attempt 1): main: damaged\n\
             restored step 40 (attempt 1) of 'demo': 3 files, 4.0 KiB (4.0 KiB from main) to /data/step_40"
        );
    }

    #[test]
    fn the_document_has_the_published_keys() {
        let text = crate::output::json::document(&document()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["format"], 1);
        for key in [
            "run", "step", "attempt", "path", "bytes", "sources", "skipped", "resume",
        ] {
            assert!(document.get(key).is_some(), "{key} is missing: {text}");
        }
        assert_eq!(document["skipped"][0]["reasons"][0], "main: damaged");
    }
}
