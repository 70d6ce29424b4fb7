//! Resolves a candidate to its files and to the tiers that hold each of them.

use std::collections::BTreeSet;

use stepvault_core::codec::encode;
use stepvault_core::commit::Commit;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::StepId;
use stepvault_core::links::check_links;
use stepvault_core::manifest::{DirectoryEntry, FileEntry, PartManifest, Shape, SymlinkEntry};
use stepvault_core::members::{self, MemberSet};
use stepvault_core::observe::{Event, Tier};
use stepvault_core::path::RelativePath;
use stepvault_core::restore_plan::{self, CandidateState, CandidateTier, IncludeFilter};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::sealed::SealedStep;

use super::candidates::Candidate;
use super::{Parts, RestoreContext, RestoreRequest, Target};
use crate::blocking::blocking;
use crate::catalog::{is_outage, read_commit, read_manifests};
use crate::local_digest::ensure_manifest;
use crate::run_remote::RunRemote;

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
pub(super) struct Resolved {
    pub(super) id: StepId,
    pub(super) name: String,
    pub(super) shape: Shape,
    /// Files to restore, after `include`.
    pub(super) files: Vec<FileEntry>,
    pub(super) directories: Vec<DirectoryEntry>,
    pub(super) symlinks: Vec<SymlinkEntry>,
    /// The paths that the trainer keeps side by side, in the order in which they are to appear; empty if the step is,
    /// or is to be, one directory or file.
    pub(super) members: Vec<RelativePath>,
    /// Tiers in the order in which they are read.
    pub(super) sources: Vec<Source>,
    /// Identity of what will be at the target.
    pub(super) identity: String,
}

impl Resolved {
    pub(super) fn data_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
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
            files: files.filter(|file| set.holds(&file.path)).cloned().collect(),
            directories: self.directories.iter().filter(leads).cloned().collect(),
            symlinks: symlinks.filter(|link| set.holds(&link.path)).cloned().collect(),
            members: members.to_vec(),
            sources: self.sources.clone(),
            identity: self.identity.clone(),
        }
    }
}

/// A step according to the tiers' records.
#[derive(Debug)]
pub(super) struct Records {
    /// The step as recorded by each group of tiers that agree, in the plan's order: several only if tiers disagree
    /// about the step; none if no tier has valid records.
    pub(super) groups: Vec<Resolved>,
    /// The proven faults, one for each tier.
    pub(super) reasons: Vec<String>,
    /// The tiers that may have valid records but could not be read.
    pub(super) unread: Vec<String>,
}

/// Reads the step's records on every tier that has it.
///
/// # Errors
/// Only for causes that concern neither the step nor a tier: an interruption, or an invalid pattern.
pub(super) async fn resolve(
    context: &RestoreContext,
    request: &RestoreRequest,
    candidate: &Candidate,
) -> Result<Records> {
    let mut reasons = candidate.reasons.clone();
    let mut unread = candidate.unread.clone();
    let mut tiers = Vec::new();
    let mut holders: Vec<(Source, Vec<PartManifest>)> = Vec::new();
    for remote in &candidate.remotes {
        let state = match remote_records(remote, candidate.id).await {
            Ok((commit, manifests)) => {
                holders.push((Source::Remote(remote.clone()), manifests));
                CandidateState::Committed(Box::new(commit))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) if is_outage(&error) => {
                unread.push(format!("{}: {}", remote.name(), error.text_with_hint()));
                continue;
            }
            Err(error) => CandidateState::Unreadable(error.to_string()),
        };
        tiers.push(CandidateTier {
            tier: remote.tier.clone(),
            state,
        });
    }
    if let Some(step) = &candidate.local {
        match local_manifest(context, step).await {
            // A commit overrides the local record: other nodes see the commit.
            Ok(manifest) if disagrees(&manifest, &holders) => {
                reasons.push("local: its files differ from the commit".to_owned());
            }
            // One node's files are not the step, unless all nodes have agreed to restore their own parts.
            Ok(_)
                if holders.is_empty()
                    && step.record().is_one_of_several()
                    && request.parts != Parts::OwnSealed =>
            {
                reasons.push(format!(
                    "local: it holds only the part of {}, and the step of {} is not durable",
                    step.record().node,
                    step.record().nodes()
                ));
            }
            Ok(manifest) => {
                holders.push((Source::Local(Box::new(step.clone())), vec![manifest]));
                tiers.push(CandidateTier {
                    tier: Tier::Local,
                    state: CandidateState::Sealed,
                });
            }
            Err(error) if is_outage(&error) => unread.push(format!("local: {}", error.text_with_hint())),
            Err(error) => reasons.push(format!("local: {error}")),
        }
    }
    let planned = restore_plan::plan(
        vec![restore_plan::Candidate {
            id: candidate.id,
            name: String::new(),
            tiers,
        }],
        &restore_plan::RestoreRequest::default(),
        &context
            .remotes
            .iter()
            .map(|remote| remote.name().clone())
            .collect::<Vec<_>>(),
    );
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => {
            if unread.is_empty() {
                reasons.push(error.to_string());
            }
            return Ok(Records {
                groups: Vec::new(),
                reasons,
                unread,
            });
        }
    };
    for tier in &unread {
        context.observer.on_event(&Event::Warning {
            message: &format!(
                "{} is not restored from a tier that cannot be read: {tier}",
                candidate.id
            ),
        });
    }
    let mut groups = Vec::new();
    for step in planned.to_try() {
        reasons.extend(step.unusable.iter().cloned());
        match group(request, candidate.id, &step.sources, &holders)? {
            Ok(one) => groups.push(one),
            Err(reason) => reasons.push(reason),
        }
    }
    Ok(Records {
        groups,
        reasons,
        unread,
    })
}

/// Merges what the sources of one planned step hold into one tree.
fn group(
    request: &RestoreRequest,
    id: StepId,
    tiers: &[Tier],
    holders: &[(Source, Vec<PartManifest>)],
) -> Result<std::result::Result<Resolved, String>> {
    let of = |tier: &Tier| holders.iter().find(|(source, _)| source.tier() == *tier);
    let sources: Vec<Source> = tiers
        .iter()
        .filter_map(|tier| Some(of(tier)?.0.clone()))
        .collect();
    // Prefers a commit's records: the local copy may be a single node's part.
    let records = tiers
        .iter()
        .filter(|tier| **tier != Tier::Local)
        .chain(tiers)
        .find_map(of);
    let Some((_, manifests)) = records else {
        return Ok(Err("no tier holds it".to_owned()));
    };
    let identity = identity_of(manifests)?;
    let manifests = match request.parts.choose(manifests) {
        Ok(manifests) => manifests,
        Err(error) => return Err(error.on(id)),
    };
    match merge(id, &manifests) {
        Ok(merged) => select(request, merged, sources, &identity).map(Ok),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Whether every existing commit differs from the sealed copy in this node's part.
fn disagrees(local: &PartManifest, holders: &[(Source, Vec<PartManifest>)]) -> bool {
    let mut known = holders.iter().flat_map(|(_, manifests)| manifests);
    !holders.is_empty() && known.all(|manifest| manifest != local)
}

async fn local_manifest(context: &RestoreContext, step: &SealedStep) -> Result<PartManifest> {
    let (step, observer) = (step.clone(), context.observer.clone());
    blocking(move || ensure_manifest(&step, observer.as_ref())).await
}

async fn remote_records(remote: &RunRemote, id: StepId) -> Result<(Commit, Vec<PartManifest>)> {
    let commit = read_commit(remote, id).await?;
    let manifests = read_manifests(remote, &commit).await?;
    Ok((commit, manifests))
}

fn identity_of(manifests: &[PartManifest]) -> Result<Sha256Digest> {
    let mut digests = Vec::new();
    for manifest in manifests {
        digests.extend_from_slice(Sha256Digest::of(&encode(manifest)?).as_bytes());
    }
    Ok(Sha256Digest::of(&digests))
}

/// Merges the files of all nodes into one tree. Files that several nodes hold must be equal.
fn merge(id: StepId, manifests: &[&PartManifest]) -> Result<Resolved> {
    let damaged =
        |path: &str| Error::new(ErrorKind::Damaged, "the parts of a step contradict each other").on(path);
    let members = members::merged(manifests.iter().map(|manifest| manifest.members.as_slice()));
    let named = manifests
        .last()
        .map(|manifest| (manifest.name.clone(), manifest.shape));
    let all = || manifests.iter();
    let files = of_all(
        all().flat_map(|manifest| &manifest.files),
        |file| Some(&file.path),
        |file, other| file.sha256 == other.sha256,
    )
    .map_err(damaged)?;
    let directories = of_all(
        all().flat_map(|manifest| &manifest.directories),
        |entry| entry.path.as_ref(),
        |_, _| true,
    )
    .map_err(damaged)?;
    let symlinks = of_all(
        all().flat_map(|manifest| &manifest.symlinks),
        |link| Some(&link.path),
        |link, other| link.target == other.target,
    )
    .map_err(damaged)?;
    let (name, shape) = named.ok_or_else(|| damaged("no part"))?;
    if let Some(why) = members::fault(
        &members,
        shape,
        files.iter().map(|file| &file.path),
        &directories,
        &symlinks,
    ) {
        return Err(damaged(&name).because(why));
    }
    // Combined links of two nodes may lead where neither node's links do.
    check_links(&symlinks).map_err(|error| damaged(&name).because(error))?;
    Ok(Resolved {
        id,
        name,
        shape,
        files,
        directories,
        symlinks,
        members,
        sources: Vec::new(),
        identity: String::new(),
    })
}

/// Returns the entries of all nodes sorted by path. Entries with equal paths must be equal, otherwise the path is
/// returned as the error; the last node's entry is used.
fn of_all<'a, T: Clone + 'a>(
    entries: impl Iterator<Item = &'a T>,
    path: impl Fn(&'a T) -> Option<&'a RelativePath>,
    are_same: impl Fn(&T, &T) -> bool,
) -> std::result::Result<Vec<T>, &'a str> {
    let mut entries: Vec<&'a T> = entries.collect();
    // The sort is stable, so entries with equal paths keep the order of the nodes.
    entries.sort_by_key(|entry| path(entry));
    let has_path_of = |one: &'a T, other: &'a T| path(one) == path(other);
    let differing = entries
        .windows(2)
        .find(|pair| has_path_of(pair[0], pair[1]) && !are_same(pair[0], pair[1]));
    if let Some(pair) = differing {
        return Err(path(pair[0]).map_or("", RelativePath::as_str));
    }
    let is_last = |&(index, entry): &(usize, &'a T)| {
        let next = entries.get(index + 1);
        next.is_none_or(|next| !has_path_of(entry, next))
    };
    Ok(entries
        .iter()
        .copied()
        .enumerate()
        .filter(is_last)
        .map(|(_, entry)| entry.clone())
        .collect())
}

/// Selects the files that match `include`, and the directories they need.
fn select(
    request: &RestoreRequest,
    mut resolved: Resolved,
    sources: Vec<Source>,
    identity: &Sha256Digest,
) -> Result<Resolved> {
    resolved.sources = sources;
    // A path given by the user is the path of one directory.
    if matches!(request.target, Target::As(_)) {
        resolved.members.clear();
    }
    resolved.identity = format!("{identity}\n{}\n{}", request.parts, request.include.join("\n"));
    if request.include.is_empty() {
        return Ok(resolved);
    }
    let filter = IncludeFilter::new(&request.include)?;
    filter.check(&resolved.files.iter().map(|file| &file.path).collect::<Vec<_>>())?;
    resolved.files.retain(|file| filter.takes(&file.path));
    resolved.symlinks.retain(|link| filter.takes(&link.path));
    let taken = resolved
        .files
        .iter()
        .map(|file| &file.path)
        .chain(resolved.symlinks.iter().map(|link| &link.path));
    let needed: BTreeSet<String> = taken
        .flat_map(|path| path.ancestors().chain([path.as_str()]))
        .map(str::to_owned)
        .collect();
    resolved.members.retain(|member| needed.contains(member.as_str()));
    resolved.directories.retain(|entry| {
        entry
            .path
            .as_ref()
            .is_none_or(|path| needed.contains(path.as_str()))
    });
    Ok(resolved)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use stepvault_core::codec::FORMAT;
    use stepvault_core::digest::PartDigest;
    use stepvault_core::ids::{Attempt, NodeName, RunName, Step};
    use stepvault_core::timestamp::Timestamp;

    use super::*;

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text).unwrap()
    }

    fn file(name: &str, bytes: &[u8]) -> FileEntry {
        let time = Timestamp::from_seconds(1);
        FileEntry::from_parts(path(name), 0o644, time, &[PartDigest::of(bytes)]).unwrap()
    }

    fn link(name: &str, target: &str) -> SymlinkEntry {
        SymlinkEntry {
            path: path(name),
            target: target.to_owned(),
        }
    }

    fn directory(name: Option<&str>) -> DirectoryEntry {
        DirectoryEntry {
            path: name.map(path),
            mode: 0o755,
            mtime: Timestamp::from_seconds(1),
        }
    }

    fn step_id() -> StepId {
        StepId::new(Attempt::new(1).unwrap(), Step::new(4).unwrap())
    }

    fn part(node: &str, bytes: &[u8], target: &str) -> PartManifest {
        PartManifest {
            format: FORMAT,
            run: RunName::new("run").unwrap(),
            id: step_id(),
            node: NodeName::new(node).unwrap(),
            name: "4".to_owned(),
            shape: Shape::Directory,
            written_at: Timestamp::from_seconds(1),
            metrics: BTreeMap::new(),
            shared_tree_sha256: None,
            files: vec![file(node, b"own"), file("tokenizer", bytes)],
            directories: vec![directory(None)],
            symlinks: vec![link("latest", target)],
            members: Vec::new(),
        }
    }

    #[test]
    fn parts_may_share_what_is_the_same_in_all_of_them() {
        let merge_with = |bytes: &[u8], target| {
            let parts = [part("node-0", b"same", "node-0"), part("node-1", bytes, target)];
            merge(step_id(), &parts.each_ref()).map_err(|error| error.to_string())
        };
        let merged = merge_with(b"same", "node-0").unwrap();
        let names: Vec<_> = merged.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["node-0", "node-1", "tokenizer"]);
        assert_eq!(merged.symlinks, [link("latest", "node-0")]);
        for (bytes, target, at) in [
            (&b"other"[..], "node-0", "tokenizer"),
            (b"same", "node-1", "latest"),
        ] {
            let error = merge_with(bytes, target).unwrap_err();
            assert_eq!(error, format!("the parts of a step contradict each other: {at}"));
        }
    }

    #[test]
    fn one_path_of_a_step_is_its_files_and_the_directories_around_them() {
        let step = Resolved {
            id: step_id(),
            name: "4".to_owned(),
            shape: Shape::Directory,
            files: ["actor/4/x", "critic/4/x"]
                .map(|name| file(name, b"12345"))
                .to_vec(),
            directories: [
                None,
                Some("actor"),
                Some("actor/4"),
                Some("actor/4/empty"),
                Some("critic"),
                Some("critic/4"),
            ]
            .map(directory)
            .to_vec(),
            symlinks: ["actor/4/link", "critic/4/link"]
                .map(|name| link(name, "x"))
                .to_vec(),
            members: ["actor/4", "critic/4"].map(path).to_vec(),
            sources: Vec::new(),
            identity: String::new(),
        };
        assert_eq!(step.data_bytes(), 10);
        let one = step.only(&[path("actor/4")]);
        assert_eq!(
            (one.data_bytes(), one.files),
            (5, vec![file("actor/4/x", b"12345")])
        );
        let around = [None, Some("actor"), Some("actor/4"), Some("actor/4/empty")].map(directory);
        assert_eq!(one.directories, around);
        assert_eq!(one.symlinks, [link("actor/4/link", "x")]);
        assert_eq!(one.members, [path("actor/4")]);
    }
}
