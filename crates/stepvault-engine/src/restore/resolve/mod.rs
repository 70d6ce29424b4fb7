//! Resolves a candidate: determines its files, and the tiers that can serve each of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use stepvault_core::codec::sha256_of;
use stepvault_core::include::IncludeFilter;
use stepvault_core::keys::FileKeys;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{DirectoryEntry, FileEntry, PartManifest, Shape, SymlinkEntry};
use stepvault_core::members::{self, MemberSet};
use stepvault_core::step_origin::{BestName, StepOrigin};
use stepvault_core::{Error, ErrorKind, RelativePath, Result, Sha256Digest, StepId, Tier};
use stepvault_local::compare::Entries;
use stepvault_local::sealed::SealedStep;

use super::candidates::{Candidate, Faults};
use super::request::{Parts, Restore, RestoreContext, RestoreRequest, Target};
use crate::blocking::blocking;
use crate::local_digest::ensure_manifest;
use crate::tier::catalog::manifests_of;
use crate::tier::run_remote::RunRemote;

/// A tier that holds the step consistently.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// The local vault.
    Local(Box<SealedStep>),
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
pub(super) struct ResolvedStep {
    pub(super) id: StepId,
    pub(super) name: String,
    pub(super) shape: Shape,
    /// Where its files are on a remote.
    pub(super) keys: FileKeys,
    /// Files to restore, after `include`.
    pub(super) files: Vec<FileEntry>,
    pub(super) directories: Vec<DirectoryEntry>,
    pub(super) symlinks: Vec<SymlinkEntry>,
    /// The paths that the trainer keeps side by side, in the order in which they are to appear; empty if the step is,
    /// or is to be, one directory or file.
    pub(super) members: Vec<RelativePath>,
    /// Where its trainer keeps it, and what wrote it.
    pub(super) origin: StepOrigin,
    /// The steps that any of its nodes calls the best so far.
    pub(super) best: BTreeSet<BestName>,
    /// Tiers in the order in which they are read.
    pub(super) sources: Vec<Source>,
    /// Identifies what will be at the target: an interrupted restore of the same continues.
    pub(super) identity: String,
}

impl ResolvedStep {
    pub(super) fn data_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    pub(super) fn entries(&self) -> Entries<'_> {
        Entries { files: &self.files, directories: &self.directories, symlinks: &self.symlinks }
    }

    /// Returns the tier that is read first.
    pub(super) fn first_tier(&self) -> Tier {
        self.sources.first().map_or(Tier::Local, Source::tier)
    }

    /// Returns the disk space that the files need if holes are preserved.
    pub(super) fn room_bytes(&self) -> u64 {
        let room = |file: &FileEntry| file.size_bytes.saturating_sub(file.hole_bytes);
        self.files.iter().map(room).fold(0, u64::saturating_add)
    }

    /// Keeps only these paths of the step, and the directories that lead to them.
    pub(super) fn only(&self, members: &[RelativePath]) -> Self {
        let set = MemberSet::new(members);
        let leads = |entry: &&DirectoryEntry| {
            let mut path = entry.path.iter();
            path.all(|path| set.holds(path) || set.leads_through(path))
        };
        let (files, symlinks) = (self.files.iter(), self.symlinks.iter());
        Self {
            id: self.id,
            name: self.name.clone(),
            shape: self.shape,
            keys: self.keys.clone(),
            files: files.filter(|file| set.holds(&file.path)).cloned().collect(),
            directories: self.directories.iter().filter(leads).cloned().collect(),
            symlinks: symlinks.filter(|link| set.holds(&link.path)).cloned().collect(),
            members: members.to_vec(),
            origin: self.origin.clone(),
            best: self.best.clone(),
            sources: self.sources.clone(),
            identity: self.identity.clone(),
        }
    }
}

/// A candidate according to the tiers' records.
#[derive(Debug)]
pub(super) struct Resolution {
    /// The step as recorded by each group of tiers that agree, in the order in which they are tried: several only if
    /// remotes disagree about the step; none if no tier has valid records. Files of two versions are never mixed.
    pub(super) versions: VecDeque<ResolvedStep>,
    pub(super) faults: Faults,
}

/// The same manifests on one or several tiers.
#[derive(Debug, PartialEq)]
struct Version<S> {
    manifests: Vec<PartManifest>,
    /// The tiers that hold them, in the order in which they are read.
    sources: Vec<S>,
}

/// Reads the candidate's records on every tier that has it.
///
/// # Errors
/// Only for causes that concern neither the step nor a tier: an interruption, or an invalid pattern.
pub(super) async fn resolve(restore: Restore<'_>, candidate: Candidate) -> Result<Resolution> {
    let Restore { context, request } = restore;
    let (id, mut faults) = (candidate.id, candidate.faults);
    let mut versions = Vec::new();
    for remote in candidate.remotes {
        match manifests_of(&remote, id).await {
            Ok(manifests) => add_remote(&mut versions, manifests, Source::Remote(remote)),
            Err(error) => faults.add(&remote.tier, error)?,
        }
    }
    if let Some(step) = candidate.local {
        let record = step.record();
        // One node's files are not the step, unless all nodes have agreed to restore their own parts.
        let is_fragment = record.is_one_of_several() && request.parts != Parts::OwnSealed;
        match local_manifest(context, &step).await {
            Ok(_) if versions.is_empty() && is_fragment => faults.proven.push(format!(
                "local: it holds only the part of {}, and the step of {} is not durable",
                record.node,
                record.nodes()
            )),
            Ok(manifest) => {
                if !add_local(&mut versions, manifest, Source::Local(Box::new(step))) {
                    let fault = "local: its files differ from the commit";
                    faults.proven.push(fault.to_owned());
                }
            }
            Err(error) => faults.add(&Tier::Local, error)?,
        }
    }
    if !versions.is_empty() {
        for tier in &faults.unread {
            context.observer.warn(format!("{id} is not restored from a tier that cannot be read: {tier}"));
        }
    }
    let mut resolved = VecDeque::new();
    for version in versions {
        let identity = identity(request, &version.manifests)?;
        let parts = request.parts.choose(&version.manifests);
        let best = version.manifests.iter().flat_map(|part| &part.origin.best);
        let best = best.cloned().collect();
        match merge(id, &parts.map_err(|error| error.on(id))?, version.sources, identity) {
            Ok(step) => resolved.push_back(include(request, ResolvedStep { best, ..step })?),
            Err(error) => {
                faults.is_damaged = true;
                faults.proven.push(error.to_string());
            }
        }
    }
    Ok(Resolution { versions: resolved, faults })
}

/// Adds what a remote holds: to the version that has the same manifests, else as the last version.
fn add_remote<S>(versions: &mut Vec<Version<S>>, manifests: Vec<PartManifest>, source: S) {
    match versions.iter_mut().find(|version| version.manifests == manifests) {
        Some(version) => version.sources.push(source),
        None => versions.push(Version { manifests, sources: vec![source] }),
    }
}

/// Adds this node's sealed copy, which is read first: to the version that it is a part of. It is a version of its own
/// only if no remote has a valid commit. Returns `false` if every commit differs from it: other nodes see the commit.
fn add_local<S>(versions: &mut Vec<Version<S>>, manifest: PartManifest, source: S) -> bool {
    if versions.is_empty() {
        add_remote(versions, vec![manifest], source);
        return true;
    }
    let mut matching = versions.iter_mut();
    match matching.find(|version| version.manifests.contains(&manifest)) {
        Some(version) => version.sources.insert(0, source),
        None => return false,
    }
    true
}

async fn local_manifest(context: &RestoreContext, step: &SealedStep) -> Result<PartManifest> {
    let (step, observer) = (step.clone(), context.observer.clone());
    blocking(move || ensure_manifest(&step, observer.as_ref())).await
}

/// Identifies what the request restores of a version.
fn identity(request: &RestoreRequest, manifests: &[PartManifest]) -> Result<String> {
    let mut digests = Vec::new();
    for manifest in manifests {
        digests.extend_from_slice(sha256_of(manifest)?.as_bytes());
    }
    let digest = Sha256Digest::of(&digests);
    Ok(format!("{digest}\n{}\n{}", request.parts, request.include.join("\n")))
}

// Merges the node parts of a step into the tree that is restored.

/// Merges the node parts into one step. Files that several nodes hold must be equal.
///
/// # Errors
/// [`ErrorKind::Damaged`] when the parts contradict each other.
fn merge(
    id: StepId,
    manifests: &[&PartManifest],
    sources: Vec<Source>,
    identity: String,
) -> Result<ResolvedStep> {
    let damaged =
        |path: &str| Error::new(ErrorKind::Damaged, "the parts of a step contradict each other").on(path);
    let members = members::merged(manifests.iter().map(|manifest| manifest.members.as_slice()));
    let named = manifests.last().map(|manifest| (manifest.name.clone(), manifest.shape));
    let all = || manifests.iter();
    let known = |manifest: &&&PartManifest| !manifest.origin.is_unknown();
    let origin = manifests.iter().find(known).map(|manifest| manifest.origin.clone());
    let origin = origin.unwrap_or_default();
    let files = of_all(
        all().flat_map(|manifest| &manifest.files),
        |file| Some(&file.path),
        FileEntry::has_same_bytes,
    )
    .map_err(damaged)?;
    let directories =
        of_all(all().flat_map(|manifest| &manifest.directories), |entry| entry.path.as_ref(), |_, _| true)
            .map_err(damaged)?;
    let symlinks = of_all(
        all().flat_map(|manifest| &manifest.symlinks),
        |link| Some(&link.path),
        |link, other| link.target == other.target,
    )
    .map_err(damaged)?;
    let (name, shape) = named.ok_or_else(|| damaged("no part"))?;
    let mut keys: Vec<FileKeys> = manifests.iter().map(|manifest| manifest.file_keys()).collect();
    keys.dedup();
    let Some(keys) = keys.pop().filter(|_| keys.is_empty()) else {
        return Err(damaged(&name).because("its parts are in different places"));
    };
    if let Some(why) =
        members::fault(&members, shape, files.iter().map(|file| &file.path), &directories, &symlinks)
    {
        return Err(damaged(&name).because(why));
    }
    // Combined links of two nodes may lead where neither node's links do.
    check_links(&symlinks).map_err(|error| damaged(&name).because(error))?;
    Ok(ResolvedStep {
        id,
        name,
        shape,
        keys,
        files,
        directories,
        symlinks,
        members,
        origin,
        best: BTreeSet::new(),
        sources,
        identity,
    })
}

/// Returns the entries of all nodes sorted by path. Entries with equal paths must be equal, otherwise the path is
/// returned as the error; the last node's entry is used.
fn of_all<'a, T: Clone + 'a>(
    entries: impl Iterator<Item = &'a T>,
    path: impl Fn(&'a T) -> Option<&'a RelativePath>,
    are_same: impl Fn(&T, &T) -> bool,
) -> std::result::Result<Vec<T>, &'a str> {
    let mut by_path = BTreeMap::new();
    for entry in entries {
        let other = by_path.insert(path(entry), entry);
        if other.is_some_and(|other| !are_same(other, entry)) {
            return Err(path(entry).map_or("", RelativePath::as_str));
        }
    }
    Ok(by_path.into_values().cloned().collect())
}

/// Keeps the files that match `include`, and the directories that they need.
///
/// # Errors
/// [`ErrorKind::Usage`] for an invalid pattern, and for one that matches no file.
fn include(request: &RestoreRequest, mut resolved: ResolvedStep) -> Result<ResolvedStep> {
    // A path given by the user is the path of one directory.
    if matches!(request.target, Target::As(_)) {
        resolved.members.clear();
    }
    if request.include.is_empty() {
        return Ok(resolved);
    }
    let filter = IncludeFilter::new(&request.include)?;
    filter.check(&resolved.files.iter().map(|file| &file.path).collect::<Vec<_>>())?;
    resolved.files.retain(|file| filter.takes(&file.path));
    resolved.symlinks.retain(|link| filter.takes(&link.path));
    let taken =
        resolved.files.iter().map(|file| &file.path).chain(resolved.symlinks.iter().map(|link| &link.path));
    let needed: BTreeSet<String> =
        taken.flat_map(|path| path.ancestors().chain([path.as_str()])).map(str::to_owned).collect();
    resolved.members.retain(|member| needed.contains(member.as_str()));
    resolved
        .directories
        .retain(|entry| entry.path.as_ref().is_none_or(|path| needed.contains(path.as_str())));
    Ok(resolved)
}

#[cfg(test)]
mod tests;
