//! `show`: shows one step and its files.

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::{DigestAlgorithm, RelativePath, Result, Timestamp};
use stepvault_engine::blocking::blocking;
use stepvault_engine::tier::catalog::{read_commit, read_manifests};
use stepvault_engine::tier::measured::lets_writers_collide;

use super::inventory::{ChosenStep, FailedTier, Inventory, ListedStep};
use crate::context::Tiers;
use crate::exit_code::ExitCode;
use crate::output::{Report, human, table};
use crate::session::Session;

#[derive(Serialize, JsonSchema)]
pub(super) struct ShowDocument {
    /// The run.
    run: String,
    #[serde(flatten)]
    listed: ListedStep,
    /// The names of the steps that the trainer called the best when it saved this one, which may be its own.
    best: Vec<String>,
    /// The algorithms of the digests of its files: one, unless its nodes had different ones.
    algorithms: Vec<String>,
    /// Remotes that hold it and that were found not to refuse to overwrite an object: two writers of one step at the same
    /// time may not have noticed each other there.
    unguarded: Vec<String>,
    /// Where another program has written its files: URLs; empty for a step in stepvault's own layout.
    imported_from: Vec<String>,
    /// Every file.
    entries: Vec<EntryDocument>,
    /// Tiers that could not be listed and may hold the step.
    failed: Vec<FailedTier>,
}

#[derive(Serialize, JsonSchema)]
struct EntryDocument {
    /// Path inside the checkpoint.
    path: String,
    /// The file's length.
    bytes: u64,
    /// Permission bits in octal.
    mode: String,
    /// Modification time.
    modified_at: String,
    /// The digest over the digests of the file's parts (see the format), by the run's algorithm; null until it has been
    /// hashed, and for a file that is known by the store's checksum alone.
    digest: Option<String>,
    /// BLAKE3 of the bytes; null until it has been hashed, for a file of several parts, and where the run's algorithm is
    /// SHA-256.
    blake3: Option<String>,
    /// SHA-256 of the bytes; null until it has been hashed, for a file of several parts, and where the run's algorithm is
    /// BLAKE3.
    sha256: Option<String>,
    /// CRC-32C of the bytes in hexadecimal digits; null until it has been hashed.
    crc32c: Option<String>,
    /// The store's checksum, by which alone the file is known; null for a file that stepvault has read.
    trusted: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(session: &Session, chosen: &ChosenStep) -> Result<ExitCode> {
    let tiers = Tiers::load_to_read(session).await?;
    let mut inventory = Inventory::gather(&tiers, Some(chosen.step)).await?;
    let listed = chosen.find(tiers.run_name(), &mut inventory)?;
    let Content { best, algorithms, imported_from, entries } = content(&tiers, &listed).await?;
    let unguarded = unguarded(&tiers, &listed).await?;
    tiers.progress.finish();
    for (tier, error) in &inventory.failed {
        session.output.warn(&format!("cannot list {tier}: {error}"));
    }
    let document = ShowDocument {
        run: tiers.run_name().to_string(),
        listed,
        best,
        algorithms,
        unguarded,
        imported_from,
        entries,
        failed: FailedTier::all(&inventory.failed),
    };
    session.output.result(&document)?;
    Ok(ExitCode::Done)
}

/// What a step's records say of its content.
#[derive(Default)]
struct Content {
    best: Vec<String>,
    algorithms: Vec<String>,
    imported_from: Vec<String>,
    entries: Vec<EntryDocument>,
}

/// Returns the remotes of a step whose store lets writers collide, as far as this vault knows.
async fn unguarded(tiers: &Tiers, listed: &ListedStep) -> Result<Vec<String>> {
    let Some(vault) = &tiers.vault else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for remote in &tiers.remotes {
        if listed.is_on(remote) && lets_writers_collide(remote, vault).await? == Some(true) {
            names.push(remote.name().to_string());
        }
    }
    Ok(names)
}

/// Returns the content according to a remote's manifests, else to the seal record.
async fn content(tiers: &Tiers, listed: &ListedStep) -> Result<Content> {
    let id = listed.id;
    for remote in tiers.remotes.iter().filter(|remote| listed.is_on(remote)) {
        let commit = read_commit(remote, id).await?;
        match read_manifests(remote, &commit).await {
            Ok(manifests) => {
                let imported = manifests.iter().filter(|manifest| manifest.imported.is_some());
                let places = imported.map(|manifest| {
                    remote.describe(manifest.file_keys().prefix()).trim_end_matches('/').to_owned()
                });
                return Ok(Content { imported_from: places.collect(), ..of_manifests(&manifests) });
            }
            Err(error) => tracing::warn!(%error, remote = %remote.name(), "cannot read a manifest"),
        }
    }
    let Some(vault) = tiers.vault.clone() else {
        return Ok(Content::default());
    };
    let run = tiers.run_name().clone();
    blocking(move || {
        let Some(step) = vault.step(&run, id)? else {
            return Ok(Content::default());
        };
        if let Some(manifest) = step.manifest()? {
            return Ok(of_manifests(&[manifest]));
        }
        let files = step.record().files.iter();
        let entries =
            files.map(|file| EntryDocument::new(&file.path, file.size_bytes, file.mode, file.mtime));
        let best = step.record().origin.best.iter();
        Ok(Content {
            best: best.map(|best| best.name.clone()).collect(),
            algorithms: vec![step.record().digest.to_string()],
            imported_from: Vec::new(),
            entries: entries.collect(),
        })
    })
    .await
}

/// Returns each file once, even if the parts of several nodes hold it.
fn of_manifests(manifests: &[PartManifest]) -> Content {
    let best = manifests.iter().flat_map(|part| &part.origin.best);
    let best: BTreeSet<&String> = best.map(|best| &best.name).collect();
    let files = manifests.iter().flat_map(|manifest| &manifest.files);
    let files: BTreeMap<&str, &FileEntry> = files.map(|file| (file.path.as_str(), file)).collect();
    let entries = files.into_values().map(|file| EntryDocument {
        digest: file.digests().map(|digests| digests.content.to_string()),
        blake3: of_bytes(file, DigestAlgorithm::Blake3),
        sha256: of_bytes(file, DigestAlgorithm::Sha256),
        crc32c: file.digests().map(|digests| digests.crc32c.to_string()),
        trusted: file.trusted_checksum().map(|checksum| checksum.to_string()),
        ..EntryDocument::new(&file.path, file.size_bytes, file.mode, file.mtime)
    });
    let algorithms: BTreeSet<String> = manifests.iter().map(|part| part.digest.to_string()).collect();
    Content {
        best: best.into_iter().cloned().collect(),
        algorithms: algorithms.into_iter().collect(),
        imported_from: Vec::new(),
        entries: entries.collect(),
    }
}

impl EntryDocument {
    /// Returns a file that has not been hashed.
    fn new(path: &RelativePath, bytes: u64, mode: u32, modified: Timestamp) -> Self {
        Self {
            path: path.to_string(),
            bytes,
            mode: format!("{mode:04o}"),
            modified_at: modified.to_rfc3339(),
            digest: None,
            blake3: None,
            sha256: None,
            crc32c: None,
            trusted: None,
        }
    }
}

/// Returns the digest of a file's bytes if the file is of one part and its digests are by `algorithm`.
fn of_bytes(file: &FileEntry, algorithm: DigestAlgorithm) -> Option<String> {
    match file.digests()?.parts.as_slice() {
        [only] if only.algorithm() == algorithm => Some(only.to_string()),
        _ => None,
    }
}

impl Report for ShowDocument {
    fn human(&self) -> String {
        let step = &self.listed;
        let mut lines = vec![format!("{} of '{}'", step.id, self.run)];
        let mut line = |word: &str, text: String| {
            if !text.is_empty() {
                lines.push(format!("  {word:<9}{text}"));
            }
        };
        line("name", step.name.clone().unwrap_or_default());
        let written = step.written_at.map(Timestamp::to_rfc3339);
        line("written", written.unwrap_or_default());
        let began = step.began.as_ref();
        let began = began.map(|began| format!("attempt {}: {began}", step.id.attempt));
        line("began", began.unwrap_or_default());
        line("size", step.bytes.map(human::bytes).unwrap_or_default());
        let local = step.local.map(|state| format!("local ({})", format!("{state:?}").to_lowercase()));
        line("where", local.iter().chain(&step.remotes).join(", "));
        line("imported", self.imported_from.join(", "));
        line("pinned", if step.pinned { "yes" } else { "" }.to_owned());
        for remote in &self.unguarded {
            line(
                "note",
                format!(
                    "{remote} does not refuse to overwrite an object: let one writer at a time work on this run"
                ),
            );
        }
        let trusted = self.entries.iter().filter(|entry| entry.trusted.is_some()).count() as u64;
        let trusted = (trusted > 0).then(|| {
            format!("{} by the store's checksum, not read by stepvault", human::count(trusted, "file"))
        });
        line("digests", self.algorithms.iter().cloned().chain(trusted).join(", "));
        line("best", self.best.join(", "));
        line("metrics", human::metrics(&step.metrics));
        step.faults.iter().for_each(|fault| line("fault", fault.clone()));
        let files = self.entries.iter().map(|entry| {
            let digest = entry.digest.as_deref().or(entry.trusted.as_deref()).unwrap_or("not hashed yet");
            [entry.path.clone(), human::bytes(entry.bytes), entry.mode.clone(), digest.to_owned()]
        });
        let files = table::text(&["file", "size", "mode", "digest"], &[1], files);
        format!("{}\n\n{files}", lines.join("\n"))
    }
}
