//! `import`: makes steps that another program has written steps of a run, where they are.

use std::time::Duration;

use clap::Args;
use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::document::{ErrorInfo, StepIdMembers};
use stepvault_core::{Attempt, Clock as _, Error, ErrorKind, RemoteUrl, Result, StepId};
use stepvault_engine::import::{
    ImportOutcome, ImportPlan, ImportRequest, Imports, LeftAlone, StepToImport, import_steps, plan_import,
    remote_with,
};
use stepvault_formats::find::FindOptions;
use stepvault_local::clock::SystemClock;

use crate::arguments::values::{checked, duration};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

/// Make steps that another program has written steps of a run, where they are
///
/// The objects stay where they are: records are written beside them, after every byte was read once, or with the checksums
/// of the store instead. Incomplete and damaged steps are left alone. An import that was interrupted goes on, and a later one adds what is new.
#[derive(Debug, Args)]
#[expect(clippy::doc_markdown, reason = "the comments are the help texts")]
pub(crate) struct ImportArguments {
    /// URL of the steps, such as s3://bucket/old/run, below the URL of a remote of the run
    #[arg(value_name = "URL")]
    url: String,
    /// Print what would be imported, and what it takes; write nothing and read only headers
    #[arg(long)]
    dry_run: bool,
    /// Attempt of the imported steps; by default the lowest one of the run, and no step is newer than the run's own
    #[arg(long, value_name = "N", value_parser = checked::<Attempt>)]
    attempt: Option<Attempt>,
    /// Take the CRC-32C or CRC-64/NVME that S3 or Google Cloud Storage keeps of a whole object, and read only objects without one
    #[arg(long)]
    trust_store: bool,
    /// Framework that wrote the steps; detected by default
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Time without writes after which a save counts as finished, if nothing else proves it
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    quiet_time: Duration,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// It would be imported.
    Planned,
    /// It was imported.
    Imported,
    /// It had been imported before.
    AlreadyImported,
    /// It could not be imported.
    Failed,
    /// It was not tried, because the remote had stopped answering.
    NotTried,
}

/// The result of `import`.
#[derive(Serialize, JsonSchema)]
pub(super) struct ImportDocument {
    /// The run.
    run: String,
    /// The remote that has the objects, and gets the records.
    remote: String,
    /// URL, without options.
    url: String,
    /// Whether this is only a plan.
    dry_run: bool,
    /// The name of the profile by which the steps were found.
    framework: String,
    /// The steps of the run that lie there.
    steps: Vec<StepDocument>,
    /// What is left alone.
    left: Vec<LeftDocument>,
    /// What a user should know besides.
    warnings: Vec<String>,
    /// Bytes that are read to import the planned steps, once: all of them, but for those of the next member.
    read_bytes: u64,
    /// Bytes of the files of the planned steps that are not read, because the store's checksum is taken.
    trusted_bytes: u64,
    /// About how many requests that takes, besides those of the plan.
    requests: u64,
}

#[derive(Serialize, JsonSchema)]
struct StepDocument {
    /// Its identity in the run.
    #[serde(flatten, with = "StepIdMembers")]
    id: StepId,
    /// Its path, relative to URL.
    path: String,
    /// What became of it.
    outcome: Outcome,
    /// Bytes of its files; null if it had been imported before.
    bytes: Option<u64>,
    /// Number of its files; null if it had been imported before.
    files: Option<u64>,
    /// Number of its files that are not read, because the store's checksum is taken; null if it had been imported before.
    trusted_files: Option<u64>,
    /// Why it could not be imported; null if it could.
    error: Option<ErrorInfo>,
}

#[derive(Serialize, JsonSchema)]
struct LeftDocument {
    /// Its path, relative to URL.
    path: String,
    /// The number of the step; null if it has none, or is no step.
    step: Option<u64>,
    /// Why it is left alone.
    reasons: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: ImportArguments) -> Result<ExitCode> {
    let url = url_of(&arguments.url)?;
    let tiers = Tiers::load_to_read(session).await?;
    let remote = remote_with(&tiers.remotes, &url)?;
    let mut others = tiers.all_remotes().await?;
    others.retain(|other| other.name() != remote.name());
    let request = ImportRequest {
        remote: remote.clone(),
        others,
        vault: tiers.vault.clone(),
        url: url.clone(),
        profiles: tiers.settings.profiles()?,
        profile: arguments.profile,
        options: FindOptions { quiet_seconds: arguments.quiet_time.as_secs(), ..FindOptions::default() },
        attempt: arguments.attempt,
        trusts_store: arguments.trust_store,
    };
    let plan = plan_import(&request, SystemClock.now()).await?;
    let outcomes = if arguments.dry_run || plan.steps.is_empty() {
        Vec::new()
    } else {
        let observer = &tiers.observer();
        let digest = tiers.run.digest;
        let imports = Imports { remote, vault: tiers.vault.as_ref(), digest, observer };
        import_steps(&imports, &plan.steps).await?
    };
    tiers.progress.finish();
    for (_, outcome) in &outcomes {
        if let Err(error) = outcome {
            session.output.error_beside_report(error);
        }
    }
    let is_empty = plan.steps.is_empty() && plan.known.is_empty();
    let code = if is_empty { ExitCode::NoneValid } else { ExitCode::of_any_tiers(&outcomes) };
    let mut document = ImportDocument {
        run: tiers.run_name().to_string(),
        remote: remote.name().to_string(),
        url: url.to_string(),
        dry_run: arguments.dry_run,
        framework: plan.framework.clone(),
        read_bytes: plan.steps.iter().map(StepToImport::read_bytes).sum(),
        trusted_bytes: plan.steps.iter().map(StepToImport::trusted_bytes).sum(),
        requests: plan.steps.iter().map(|step| step.requests).sum(),
        steps: Vec::new(),
        left: plan.left.iter().map(LeftDocument::of).collect(),
        warnings: warnings(&plan),
    };
    document.add_steps(plan, outcomes);
    session.output.result(&document)?;
    Ok(code)
}

/// Returns the URL of the steps. The options of a store are those of the remote.
fn url_of(text: &str) -> Result<RemoteUrl> {
    let (url, options) = RemoteUrl::parse(text)?;
    if options.is_empty() {
        return Ok(url);
    }
    Err(Error::new(ErrorKind::Usage, "cannot import")
        .on(&url)
        .because("it has options, and those of the run's remote apply")
        .hint("write them into the URL of --remote, or into the configuration"))
}

fn warnings(plan: &ImportPlan) -> Vec<String> {
    let unread = plan.reads.unread.iter().map(|(path, why)| format!("{path}: not checked: {why}"));
    let ignored = plan.reads.ignored;
    let ignored = (ignored > 0).then(|| {
        let objects = human::count(ignored, "object");
        format!("{objects} with a name that no file can have: no step has them")
    });
    plan.warnings.iter().cloned().chain(unread).chain(ignored).collect()
}

impl LeftDocument {
    fn of(left: &LeftAlone) -> Self {
        Self { path: left.path.clone(), step: left.step, reasons: left.reasons.clone() }
    }
}

impl ImportDocument {
    fn add_steps(&mut self, plan: ImportPlan, outcomes: Vec<(StepId, Result<ImportOutcome>)>) {
        let known = plan.known.into_iter().map(|(id, path)| StepDocument {
            id,
            path,
            outcome: Outcome::AlreadyImported,
            bytes: None,
            files: None,
            trusted_files: None,
            error: None,
        });
        self.steps.extend(known);
        let mut outcomes = outcomes.into_iter();
        for step in plan.steps {
            let outcome = outcomes.next().map(|(_, outcome)| outcome);
            self.steps.push(StepDocument {
                id: step.id,
                trusted_files: Some(step.trusted_files()),
                path: step.path,
                bytes: Some(step.bytes),
                files: Some(step.files),
                outcome: match &outcome {
                    None if self.dry_run => Outcome::Planned,
                    None => Outcome::NotTried,
                    Some(Ok(ImportOutcome::Imported)) => Outcome::Imported,
                    Some(Ok(ImportOutcome::AlreadyImported)) => Outcome::AlreadyImported,
                    Some(Err(_)) => Outcome::Failed,
                },
                error: outcome.and_then(|outcome| outcome.as_ref().err().map(ErrorInfo::from)),
            });
        }
        self.steps.sort_by_key(|step| step.id);
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.steps.iter().filter(|step| step.outcome == outcome).count() as u64
    }

    fn conclusion(&self) -> String {
        let steps = |outcome| human::count(self.count(outcome), "step");
        let words = [
            (Outcome::Imported, "imported"),
            (Outcome::AlreadyImported, "imported before"),
            (Outcome::Failed, "failed"),
            (Outcome::NotTried, "not tried"),
        ];
        let mut parts = Vec::new();
        if self.dry_run {
            let (bytes, requests) = (human::bytes(self.read_bytes), self.requests);
            let planned = steps(Outcome::Planned);
            parts.push(format!("would import {planned}: {bytes} to read, about {requests} requests"));
        }
        let counted = words.into_iter().filter(|(outcome, _)| self.count(*outcome) > 0);
        parts.extend(counted.map(|(outcome, word)| format!("{} {word}", steps(outcome))));
        if self.trusted_bytes > 0 {
            let files = self.steps.iter().filter_map(|step| step.trusted_files).sum();
            let (files, bytes) = (human::count(files, "file"), human::bytes(self.trusted_bytes));
            parts.push(format!("{files} of {bytes} by the store's checksums, not read"));
        }
        if parts.is_empty() {
            parts.push("no step can be imported".to_owned());
        }
        format!("{}: {}", self.remote, parts.join(", "))
    }
}

impl Report for ImportDocument {
    fn human(&self) -> String {
        let mut lines = Vec::new();
        if !self.steps.is_empty() {
            let rows = self.steps.iter().map(|step| {
                let outcome = match step.outcome {
                    Outcome::Planned => "would be imported",
                    Outcome::Imported => "imported",
                    Outcome::AlreadyImported => "imported before",
                    Outcome::Failed => "failed",
                    Outcome::NotTried => "not tried",
                };
                [
                    step.id.step.to_string(),
                    super::inventory::attempt_text(step.id),
                    step.bytes.map(human::bytes).unwrap_or_default(),
                    outcome.to_owned(),
                    step.path.clone(),
                ]
            });
            lines.push(table::text(&["step", "attempt", "size", "", "path"], &[0, 1, 2], rows));
        }
        let left =
            self.left.iter().map(|left| format!("left alone: {}: {}", left.path, left.reasons.join("; ")));
        lines.extend(left);
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.push(self.conclusion());
        lines.into_iter().join("\n")
    }
}
