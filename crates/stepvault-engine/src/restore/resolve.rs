//! From a candidate to the files it holds and the tiers each can come from.

use std::collections::BTreeMap;

use globset::{GlobBuilder, GlobSetBuilder};
use stepvault_core::codec::encode;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::StepId;
use stepvault_core::manifest::{DirectoryEntry, FileEntry, PartManifest, Shape, SymlinkEntry};
use stepvault_core::observe::Tier;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;

use super::candidates::Candidate;
use super::{RestoreContext, RestoreRequest};
use crate::blocking::blocking;
use crate::catalog::{is_outage, read_commit, read_manifests};
use crate::local_digest::ensure_manifest;
use crate::run_remote::RunRemote;

/// A tier that holds the step, consistently.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// The local vault.
    Local(SealedStep),
    /// A remote.
    Remote(RunRemote),
}

impl Source {
    pub(super) fn tier(&self) -> Tier {
        match self {
            Self::Local(_) => Tier::Local,
            Self::Remote(remote) => remote.tier.clone(),
        }
    }
}

/// A step with readable, consistent records.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) id: StepId,
    pub(super) name: String,
    pub(super) shape: Shape,
    /// Files to restore, after `include`.
    pub(super) files: Vec<FileEntry>,
    pub(super) directories: Vec<DirectoryEntry>,
    pub(super) symlinks: Vec<SymlinkEntry>,
    /// Tiers in the order in which they are asked.
    pub(super) sources: Vec<Source>,
    /// Identity of what will stand at the target.
    pub(super) identity: String,
}

impl Resolved {
    pub(super) fn data_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }
}

/// The step's records from whichever tier has them right; the reasons against it when none has.
///
/// # Errors
/// Only for what is no fault of the step: a remote that cannot be reached, a wrong pattern.
pub(super) async fn resolve(
    context: &RestoreContext,
    request: &RestoreRequest,
    candidate: &Candidate,
) -> Result<std::result::Result<Resolved, Vec<String>>> {
    let mut reasons = candidate.reasons.clone();
    let mut outage = None;
    let mut holders: Vec<(Source, Vec<PartManifest>)> = Vec::new();
    if let Some(step) = &candidate.local {
        match local_manifest(context, step).await {
            Ok(manifest) => holders.push((Source::Local(step.clone()), vec![manifest])),
            Err(error) => reasons.push(format!("local: {error}")),
        }
    }
    for remote in &candidate.remotes {
        match remote_manifests(remote, candidate.id).await {
            Ok(manifests) => holders.push((Source::Remote(remote.clone()), manifests)),
            Err(error) if is_outage(&error) => outage = Some(error),
            Err(error) => reasons.push(format!("{}: {error}", remote.name())),
        }
    }
    // A committed record outranks the local one: that is what the other nodes see.
    let reference = holders
        .iter()
        .position(|(source, _)| matches!(source, Source::Remote(_)))
        .or(if holders.is_empty() { None } else { Some(0) });
    let Some(reference) = reference else {
        return match outage {
            Some(error) => Err(error),
            None => Ok(Err(reasons)),
        };
    };
    let identity = identity_of(&holders[reference].1)?;
    let mut sources = Vec::new();
    for (source, manifests) in &holders {
        if identity_of(manifests)? == identity {
            sources.push(source.clone());
        } else {
            tracing::warn!(tier = %source.tier(), step = %candidate.id, "holds other files than the commit says");
        }
    }
    let manifests = holders.swap_remove(reference).1;
    match merge(candidate.id, manifests) {
        Ok(merged) => select(request, merged, sources, &identity).map(Ok),
        Err(error) => {
            reasons.push(error.to_string());
            Ok(Err(reasons))
        }
    }
}

async fn local_manifest(context: &RestoreContext, step: &SealedStep) -> Result<PartManifest> {
    let (step, observer) = (step.clone(), context.observer.clone());
    blocking(move || ensure_manifest(&step, observer.as_ref())).await
}

async fn remote_manifests(remote: &RunRemote, id: StepId) -> Result<Vec<PartManifest>> {
    let commit = read_commit(remote, id).await?;
    read_manifests(remote, &commit).await
}

fn identity_of(manifests: &[PartManifest]) -> Result<Sha256Digest> {
    let mut digests = Vec::new();
    for manifest in manifests {
        digests.extend_from_slice(Sha256Digest::of(&encode(manifest)?).as_bytes());
    }
    Ok(Sha256Digest::of(&digests))
}

/// The files of all nodes as one tree. Files that several nodes hold have to be the same.
fn merge(id: StepId, manifests: Vec<PartManifest>) -> Result<Resolved> {
    let damaged =
        |path: &str| Error::new(ErrorKind::Damaged, "the parts of a step contradict each other").on(path);
    let mut files: BTreeMap<_, FileEntry> = BTreeMap::new();
    let mut directories: BTreeMap<_, DirectoryEntry> = BTreeMap::new();
    let mut symlinks: BTreeMap<_, SymlinkEntry> = BTreeMap::new();
    let mut named: Option<(String, Shape)> = None;
    for manifest in manifests {
        named = Some((manifest.name.clone(), manifest.shape));
        for file in manifest.files {
            if let Some(other) = files.get(&file.path)
                && other.sha256 != file.sha256
            {
                return Err(damaged(file.path.as_str()));
            }
            files.insert(file.path.clone(), file);
        }
        directories.extend(
            manifest
                .directories
                .into_iter()
                .map(|entry| (entry.path.clone(), entry)),
        );
        for link in manifest.symlinks {
            if symlinks
                .get(&link.path)
                .is_some_and(|other| other.target != link.target)
            {
                return Err(damaged(link.path.as_str()));
            }
            symlinks.insert(link.path.clone(), link);
        }
    }
    let (name, shape) = named.ok_or_else(|| damaged("no part"))?;
    Ok(Resolved {
        id,
        name,
        shape,
        files: files.into_values().collect(),
        directories: directories.into_values().collect(),
        symlinks: symlinks.into_values().collect(),
        sources: Vec::new(),
        identity: String::new(),
    })
}

/// Takes the files that `include` names and the directories they need.
fn select(
    request: &RestoreRequest,
    mut resolved: Resolved,
    sources: Vec<Source>,
    identity: &Sha256Digest,
) -> Result<Resolved> {
    resolved.sources = sources;
    resolved.identity = format!("{identity}\n{}", request.include.join("\n"));
    if request.include.is_empty() {
        return Ok(resolved);
    }
    let mut globs = GlobSetBuilder::new();
    for pattern in &request.include {
        let glob = GlobBuilder::new(pattern).build().map_err(|error| {
            Error::new(ErrorKind::Usage, "not a pattern")
                .on(pattern)
                .caused_by(error)
        })?;
        globs.add(glob);
    }
    let globs = globs
        .build()
        .map_err(|error| Error::new(ErrorKind::Usage, "cannot use the patterns").caused_by(error))?;
    let some_paths: Vec<String> = resolved
        .files
        .iter()
        .take(5)
        .map(|file| file.path.to_string())
        .collect();
    resolved.files.retain(|file| globs.is_match(file.path.as_str()));
    resolved
        .symlinks
        .retain(|link| globs.is_match(link.path.as_str()));
    if resolved.files.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no file matches --include")
            .on(request.include.join(", "))
            .because(format!("the step holds {}", some_paths.join(", ")))
            .hint("quote the pattern so that the shell leaves it alone"));
    }
    let needed: std::collections::BTreeSet<String> = resolved
        .files
        .iter()
        .map(|file| &file.path)
        .chain(resolved.symlinks.iter().map(|link| &link.path))
        .flat_map(|path| path.ancestors().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    resolved.directories.retain(|entry| {
        entry
            .path
            .as_ref()
            .is_none_or(|path| needed.contains(path.as_str()))
    });
    Ok(resolved)
}
