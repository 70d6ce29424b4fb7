//! `gc`: deletes orphans and aborts abandoned uploads.

use std::time::Duration;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_engine::gc::{GcReport, run_gc};

use crate::arguments::values::duration;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::{Report, human};
use crate::session::Session;
use stepvault_core::document::ErrorInfo;

/// Delete objects that no step references, left by unfinished uploads or interrupted deletions
///
/// An orphan is deleted once two gc runs have seen it and it is older than the grace period. Objects that stepvault did
/// not write are never touched.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    /// Print what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep objects younger than this, by the store's clock
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration)]
    grace: Duration,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct GcDocument {
    /// The run.
    run: String,
    /// Whether this is only a plan.
    dry_run: bool,
    /// One entry for each remote.
    remotes: Vec<GcRemote>,
}

#[derive(Serialize, JsonSchema)]
struct GcRemote {
    /// The remote's name.
    remote: String,
    /// What gc found and did, or would do in a dry run; null if it failed.
    report: Option<GcReport>,
    /// Why it failed; null if it did not.
    error: Option<ErrorInfo>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &GcArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    settings.require_remote(&tiers.run)?;
    let observer = tiers.observer();
    let mut results = Vec::new();
    for remote in &tiers.remotes {
        let report = run_gc(remote, arguments.grace, arguments.dry_run, &observer).await;
        results.push((remote.name(), report));
    }
    tiers.progress.finish();
    let code = ExitCode::of_any_tiers(&results);
    session.output.errors_beside_report(results.iter().map(|(_, result)| result));
    let remotes = results.into_iter().map(|(remote, result)| GcRemote {
        remote: remote.to_string(),
        error: result.as_ref().err().map(ErrorInfo::from),
        report: result.ok(),
    });
    session.output.result(&GcDocument {
        run: tiers.run_name().to_string(),
        dry_run: arguments.dry_run,
        remotes: remotes.collect(),
    })?;
    Ok(code)
}

impl Report for GcDocument {
    fn human(&self) -> String {
        let line = |GcRemote { remote, report, error }: &GcRemote| match (report, error) {
            (Some(report), _) => format!("{remote}: {}", sentence(report, self.dry_run)),
            (None, Some(error)) => format!("{remote}: gc failed: {}", error.message),
            (None, None) => format!("{remote}: gc failed"),
        };
        self.remotes.iter().map(line).join("\n")
    }
}

fn sentence(report: &GcReport, dry_run: bool) -> String {
    let orphans = |number| human::count(number, "orphan");
    let would = if dry_run { "would have " } else { "" };
    let removed = orphans(report.removed.len() as u64);
    let mut parts = vec![
        format!("{would}removed {removed} ({})", human::bytes(report.removed_bytes)),
        format!("{would}aborted {}", human::count(report.aborted_uploads, "upload")),
    ];
    if !report.marked.is_empty() {
        let marked = orphans(report.marked.len() as u64);
        parts.push(if dry_run {
            format!("{marked} would be marked")
        } else {
            format!("{marked} marked for deletion by the next gc")
        });
    }
    if report.young > 0 {
        parts.push(format!("{} within the grace period", orphans(report.young)));
    }
    if report.unmarked > 0 {
        let unmarked = orphans(report.unmarked);
        parts.push(format!("{unmarked} more to be marked by a later gc"));
    }
    if report.retired_steps > 0 {
        let steps = human::count(report.retired_steps, "removed step");
        parts.push(format!("merged the tombstones of {steps}"));
    }
    if !report.unlisted_steps.is_empty() {
        parts.push(format!(
            "kept all objects of {}: the store does not list all files of the step under their names (run 'stepvault \
             verify' to see which)",
            report.unlisted_steps.iter().join(", ")
        ));
    }
    if report.foreign > 0 {
        let objects = human::count(report.foreign, "object");
        parts.push(format!("kept {objects} that stepvault did not write"));
    }
    if !report.pending_uploads_listed {
        parts.push(
            "this store cannot list pending uploads: set a lifecycle rule on the bucket that aborts them"
                .to_owned(),
        );
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_doctor_calls_old_goes_without_another_grace() {
        let arguments = <GcArguments as clap::FromArgMatches>::from_arg_matches(
            &GcArguments::augment_args(clap::Command::new("gc")).get_matches_from(["gc"]),
        )
        .unwrap();
        assert_eq!(arguments.grace.as_secs(), stepvault_diagnose::doctor::remote::GC_UPLOADS_AFTER_SECONDS);
    }

    #[test]
    fn a_gc_run_in_words() {
        let report = GcReport {
            removed: vec!["x".to_owned()],
            removed_bytes: 1024,
            young: 2,
            pending_uploads_listed: true,
            ..GcReport::default()
        };
        assert_eq!(
            sentence(&report, false),
            "removed 1 orphan (1.0 KiB); aborted 0 uploads; 2 orphans within the grace period"
        );
        assert!(sentence(&report, true).starts_with("would have removed 1 orphan"));
    }
}
