//! The step to resume from, and the commands for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::StepIdMembers;
use stepvault_core::ids::{Revision, RunName, StepId};
use stepvault_core::words::shell_word;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::explain::{NotLookedAt, ResumeOnDisk, quoted};
use stepvault_engine::restore::{RestorePlan, RestoreRequest, SkippedStep, Target, plan};
use stepvault_local::vault::Vault;

use crate::commands::restore::restore_context;
use crate::commands::starts::demoted_steps;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::session::Session;

/// Timeout for listing the tiers.
const TIERS_DEADLINE: Duration = Duration::from_mins(1);

/// The inputs of the choice.
pub(super) struct Resume<'a> {
    pub(super) session: &'a Session,
    pub(super) settings: &'a Settings,
    pub(super) run: Option<&'a RunName>,
    pub(super) vault: Option<&'a Vault>,
    pub(super) directories: &'a [PathBuf],
    pub(super) on_disk: Vec<ResumeOnDisk>,
    pub(super) not_looked_at: &'a mut Vec<NotLookedAt>,
}

/// A step to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct ResumeDocument {
    /// The step's number; null if it has none.
    pub(super) step: Option<u64>,
    /// Its attempt; null if only the trainer's directory has the step.
    pub(super) attempt: Option<u32>,
    /// Its revision; omitted when it is the first.
    #[serde(skip_serializing_if = "Revision::is_first")]
    pub(super) revision: Revision,
    /// Its path, after the commands have run.
    pub(super) path: PathBuf,
    /// The tiers that it would be restored from, in order; empty if only the trainer's directory has the
    /// step.
    pub(super) tiers: Vec<String>,
    /// Shell commands to run in this order; empty if the trainer finds the step by itself.
    pub(super) commands: Vec<String>,
    /// How to start the trainer; null if the commands print it.
    pub(super) trainer: Option<String>,
    /// Newer steps of the tiers that are not valid, the newest first.
    pub(super) skipped: Vec<SkippedNewer>,
}

/// A newer step that no tier has completely.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct SkippedNewer {
    /// The step.
    #[serde(flatten, with = "StepIdMembers")]
    pub(super) id: StepId,
    /// The reasons, as text; never empty.
    pub(super) reasons: Vec<String>,
}

/// Returns the newest valid step of the tiers, or of the trainer's directories if they have a newer one.
pub(super) async fn resume_from(resume: Resume<'_>) -> Option<ResumeDocument> {
    let found = resume.on_disk.iter();
    let newest = found.max_by_key(|found| (found.resumable, found.step)).cloned();
    let planned = tokio::time::timeout(TIERS_DEADLINE, on_tiers(&resume, newest.as_ref())).await;
    let planned = planned.unwrap_or_else(|_| {
        let why = format!("they did not answer within {} s", TIERS_DEADLINE.as_secs());
        Err(Error::new(ErrorKind::Unreachable, why))
    });
    let planned = planned.unwrap_or_else(|error| {
        resume.not_looked_at.push(NotLookedAt::named("the tiers", error.to_string()));
        None
    });
    let step_on_disk = newest.as_ref().and_then(|found| found.step);
    match planned {
        Some((plan, into)) if step_on_disk.is_none_or(|step| step <= plan.id.step.number()) => {
            for (tier, why) in &plan.unreachable {
                resume.not_looked_at.push(NotLookedAt::named(&tier.to_string(), why.clone()));
            }
            Some(from_tiers(&resume, resume.run?, &into, plan))
        }
        _ => newest.map(from_disk),
    }
}

/// Returns what a restore would choose, if there is a run with a tier. Fetches no data.
async fn on_tiers(
    resume: &Resume<'_>,
    on_disk: Option<&ResumeOnDisk>,
) -> Result<Option<(RestorePlan, PathBuf)>> {
    let (Some(run), Some(first)) = (resume.run, resume.directories.first()) else {
        return Ok(None);
    };
    let parent = on_disk.and_then(|found| found.path.parent());
    let into = parent.unwrap_or(first).to_path_buf();
    let settings = resume.settings.clone().with_run(run.clone());
    let vault = resume.vault.map(|vault| vault.root().to_path_buf());
    let default = vault.map_or(DefaultVault::None, DefaultVault::Existing);
    let tiers = Tiers::open(&settings, default, &resume.session.output).await?;
    tiers.progress.finish();
    if tiers.require_any().is_err() {
        return Ok(None);
    }
    let request = RestoreRequest {
        demoted: demoted_steps(&tiers).await,
        ..RestoreRequest::newest(run.clone(), Target::Into(into.clone()))
    };
    match plan(&restore_context(&tiers), &request).await {
        Ok(plan) => Ok(Some((plan, into))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn from_disk(found: ResumeOnDisk) -> ResumeDocument {
    ResumeDocument {
        step: found.step,
        attempt: None,
        revision: Revision::FIRST,
        path: found.path,
        tiers: Vec::new(),
        commands: found.commands,
        trainer: Some(found.resume).filter(|text| !text.is_empty()),
        skipped: Vec::new(),
    }
}

fn from_tiers(resume: &Resume<'_>, run: &RunName, into: &Path, plan: RestorePlan) -> ResumeDocument {
    let global = &resume.session.global;
    // The command must name a vault that was found without being configured.
    let is_configured = resume.settings.local_directory().is_some();
    let found = resume.vault.filter(|_| !is_configured).map(|vault| vault.root().to_path_buf());
    let local = global.local.clone().or(found);
    let (step, attempt) = (plan.id.step.number(), plan.id.attempt.number());
    let mut words = vec!["stepvault restore --into".to_owned(), quoted(into)];
    let revision = plan.id.revision;
    words.push(format!("--step {step} --attempt {attempt}"));
    words.extend((!revision.is_first()).then(|| format!("--revision {revision}")));
    words.push(format!("--run {}", shell_word(run.as_str())));
    let path =
        |flag: &str, path: &Option<PathBuf>| path.as_ref().map(|path| format!("--{flag} {}", quoted(path)));
    words.extend(path("config", &global.config));
    words.extend(path("local", &local));
    let remotes = global.remote.iter();
    words.extend(remotes.map(|remote| format!("--remote {}", shell_word(remote))));
    words.extend(global.node.as_ref().map(|node| format!("--node {node}")));
    let skipped = |SkippedStep { id, reasons, .. }: SkippedStep| SkippedNewer { id, reasons };
    ResumeDocument {
        step: Some(step),
        attempt: Some(attempt),
        revision,
        path: plan.path,
        tiers: plan.sources.iter().map(ToString::to_string).collect(),
        commands: vec![words.join(" ")],
        trainer: None,
        skipped: plan.skipped.into_iter().map(skipped).collect(),
    }
}
