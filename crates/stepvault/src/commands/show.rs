//! `show`: shows one step and its files.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde::Serialize;
use stepvault_core::Result;
use stepvault_core::ids::{Attempt, Step, StepId};
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_engine::blocking::blocking;
use stepvault_engine::catalog::{read_commit, read_manifests};

use super::Session;
use super::inventory::{Inventory, ListedStep};
use super::list::FailedTier;
use crate::context::{DefaultVault, Settings, Tiers};
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use stepvault_core::document::ErrorInfo;

/// Show the tiers and files of one step
#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// Step number
    #[arg(value_name = "STEP", value_parser = crate::arguments::values::checked::<Step>)]
    step: Step,
    /// Attempt; by default the newest that has the step
    #[arg(long, value_name = "N", value_parser = crate::arguments::values::checked::<Attempt>)]
    attempt: Option<Attempt>,
}

#[derive(Serialize)]
struct ShowDocument {
    run: String,
    #[serde(flatten)]
    listed: ListedStep,
    /// Every file, with its digest if it has been hashed.
    entries: Vec<EntryDocument>,
    failed: Vec<FailedTier>,
}

#[derive(Serialize)]
struct EntryDocument {
    path: String,
    bytes: u64,
    /// Permission bits in octal.
    mode: String,
    modified_at: String,
    /// The manifest's digest: SHA-256 over the digests of the file's parts. Null until the file has been hashed.
    digest: Option<String>,
    /// SHA-256 of the bytes; null for a file of several parts.
    sha256: Option<String>,
    crc32c: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, arguments: &ShowArguments) -> Result<ExitCode> {
    let settings = Settings::load(session)?;
    let tiers = Tiers::open(&settings, DefaultVault::None, &session.output).await?;
    tiers.require_any()?;
    let inventory = Inventory::gather(&tiers).await?;
    let (id, listed, failed) = inventory.find(arguments.step, arguments.attempt)?;
    let entries = entries(&tiers, id, &listed).await?;
    tiers.progress.finish();
    for (tier, error) in &failed {
        session.output.warn(&format!("cannot list {tier}: {error}"));
    }
    let failed = failed.iter().map(|(tier, error)| FailedTier {
        tier: tier.clone(),
        error: ErrorInfo::from(error),
    });
    let document = ShowDocument {
        run: tiers.run_name().to_string(),
        listed,
        entries,
        failed: failed.collect(),
    };
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

/// Returns the files from a remote's manifests, else from the seal record.
async fn entries(tiers: &Tiers, id: StepId, listed: &ListedStep) -> Result<Vec<EntryDocument>> {
    for remote in tiers
        .remotes
        .iter()
        .filter(|remote| listed.remotes.contains(&remote.name().to_string()))
    {
        let commit = read_commit(remote, id).await?;
        match read_manifests(remote, &commit).await {
            Ok(manifests) => return Ok(of_manifests(&manifests)),
            Err(error) => tracing::warn!(%error, remote = %remote.name(), "cannot read a manifest"),
        }
    }
    let Some(vault) = tiers.vault.clone() else {
        return Ok(Vec::new());
    };
    let run = tiers.run_name().clone();
    blocking(move || {
        let Some(step) = vault.step(&run, id)? else {
            return Ok(Vec::new());
        };
        if let Some(manifest) = step.manifest()? {
            return Ok(of_manifests(&[manifest]));
        }
        let files = step.record().files.iter().map(|file| EntryDocument {
            path: file.path.to_string(),
            bytes: file.size_bytes,
            mode: format!("{:04o}", file.mode),
            modified_at: file.mtime.to_rfc3339(),
            digest: None,
            sha256: None,
            crc32c: None,
        });
        Ok(files.collect())
    })
    .await
}

/// Returns each file once, even if the parts of several nodes hold it.
fn of_manifests(manifests: &[PartManifest]) -> Vec<EntryDocument> {
    let files: BTreeMap<&str, &FileEntry> = manifests
        .iter()
        .flat_map(|manifest| &manifest.files)
        .map(|file| (file.path.as_str(), file))
        .collect();
    let mut seen = BTreeSet::new();
    files
        .into_values()
        .filter(|file| seen.insert(file.path.as_str()))
        .map(|file| EntryDocument {
            path: file.path.to_string(),
            bytes: file.size_bytes,
            mode: format!("{:04o}", file.mode),
            modified_at: file.mtime.to_rfc3339(),
            digest: Some(file.sha256.to_string()),
            sha256: match file.parts_sha256.as_slice() {
                [only] => Some(only.to_string()),
                _ => None,
            },
            crc32c: Some(file.crc32c.to_string()),
        })
        .collect()
}

impl Report for ShowDocument {
    fn human(&self) -> String {
        let step = &self.listed;
        let mut lines = vec![format!(
            "step {} (attempt {}) of '{}'",
            step.step, step.attempt, self.run
        )];
        let mut line = |word: &str, text: String| {
            if !text.is_empty() {
                lines.push(format!("  {word:<9}{text}"));
            }
        };
        line("name", step.name.clone().unwrap_or_default());
        line("written", step.written_at.clone().unwrap_or_default());
        line("size", step.bytes.map(human::bytes).unwrap_or_default());
        let local = step
            .local
            .map(|state| format!("local ({})", format!("{state:?}").to_lowercase()));
        line(
            "where",
            local
                .into_iter()
                .chain(step.remotes.iter().cloned())
                .collect::<Vec<_>>()
                .join(", "),
        );
        line(
            "pinned",
            if step.pinned {
                "yes".to_owned()
            } else {
                String::new()
            },
        );
        line("metrics", human::metrics(&step.metrics));
        step.faults.iter().for_each(|fault| line("fault", fault.clone()));
        let mut files = table::table(&["file", "size", "mode", "digest"], &[1]);
        for entry in &self.entries {
            let digest = entry
                .digest
                .clone()
                .unwrap_or_else(|| "not hashed yet".to_owned());
            files.add_row([
                entry.path.clone(),
                human::bytes(entry.bytes),
                entry.mode.clone(),
                digest,
            ]);
        }
        format!("{}\n\n{}", lines.join("\n"), table::text(&files))
    }
}
