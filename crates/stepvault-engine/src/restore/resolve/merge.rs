//! Merges the node parts of a step into the tree that is restored.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::ids::StepId;
use stepvault_core::include::IncludeFilter;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{FileEntry, PartManifest};
use stepvault_core::members;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};

use super::{ResolvedStep, Source};
use crate::restore::request::{RestoreRequest, Target};

/// Merges the node parts into one step. Files that several nodes hold must be equal.
///
/// # Errors
/// [`ErrorKind::Damaged`] when the parts contradict each other.
pub(super) fn merge(
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
pub(super) fn include(request: &RestoreRequest, mut resolved: ResolvedStep) -> Result<ResolvedStep> {
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
