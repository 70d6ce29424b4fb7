//! From a candidate to the files it holds and the tiers each can come from.

use std::collections::{BTreeMap, BTreeSet};

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

/// A tier that holds the step, consistently.
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
    /// The paths that the trainer has side by side, in the order in which they are to appear; none where the step is one
    /// directory or file, or is to be one.
    pub(super) members: Vec<RelativePath>,
    /// Tiers in the order in which they are asked.
    pub(super) sources: Vec<Source>,
    /// Identity of what will stand at the target.
    pub(super) identity: String,
}

impl Resolved {
    pub(super) fn data_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }

    /// Nothing of the step but these of its paths, and the directories that lead to them.
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

/// The step's records from whichever tiers have them right, as the plan groups them: more than one only where tiers
/// disagree about what the step is. The reasons against it when no tier has it right.
///
/// # Errors
/// Only for what is no fault of the step: a remote that cannot be reached, a wrong pattern.
pub(super) async fn resolve(
    context: &RestoreContext,
    request: &RestoreRequest,
    candidate: &Candidate,
) -> Result<std::result::Result<Vec<Resolved>, Vec<String>>> {
    let mut reasons = candidate.reasons.clone();
    let mut outages = Vec::new();
    let mut tiers = Vec::new();
    let mut holders: Vec<(Source, Vec<PartManifest>)> = Vec::new();
    for remote in &candidate.remotes {
        let state = match remote_records(remote, candidate.id).await {
            Ok((commit, manifests)) => {
                holders.push((Source::Remote(remote.clone()), manifests));
                CandidateState::Committed(Box::new(commit))
            }
            Err(error) if is_outage(&error) => {
                outages.push(error);
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
            // A committed record outranks the local one: that is what everybody else sees.
            Ok(manifest) if disagrees(&manifest, &holders)? => {
                reasons.push("local: holds other files than the commit says".to_owned());
            }
            // One node's files are not the step, unless all nodes have agreed to take their own.
            Ok(_)
                if holders.is_empty()
                    && step.record().is_one_of_several()
                    && request.parts != Parts::OwnSealed =>
            {
                reasons.push(format!(
                    "local: it holds {}'s part alone, and the step of {} is not durable",
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
            if let Some(outage) = outages.pop() {
                return Err(outage);
            }
            reasons.push(error.to_string());
            return Ok(Err(reasons));
        }
    };
    // Should the tiers that show it turn out damaged, an older step comes in its place.
    for error in outages {
        context.observer.on_event(&Event::Warning {
            message: &format!(
                "{} is not taken from where it cannot be read: {error}",
                candidate.id
            ),
        });
    }
    let mut resolved = Vec::new();
    for step in planned.to_try() {
        reasons.extend(step.unusable.iter().cloned());
        match group(request, candidate.id, &step.sources, &holders)? {
            Ok(one) => resolved.push(one),
            Err(reason) => reasons.push(reason),
        }
    }
    Ok(if resolved.is_empty() {
        Err(reasons)
    } else {
        Ok(resolved)
    })
}

/// What the sources of one planned step hold, as one tree.
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
    // A commit, where there is one: the local copy may be one node's part alone.
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
    match merge(id, manifests) {
        Ok(merged) => select(request, merged, sources, &identity).map(Ok),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Whether every commit there is says something else of this node's part than the sealed copy does.
fn disagrees(local: &PartManifest, holders: &[(Source, Vec<PartManifest>)]) -> Result<bool> {
    let local = encode(local)?;
    for (_, manifests) in holders {
        for manifest in manifests {
            if encode(manifest)? == local {
                return Ok(false);
            }
        }
    }
    Ok(!holders.is_empty())
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

/// The files of all nodes as one tree. Files that several nodes hold have to be the same.
fn merge(id: StepId, manifests: Vec<PartManifest>) -> Result<Resolved> {
    let damaged =
        |path: &str| Error::new(ErrorKind::Damaged, "the parts of a step contradict each other").on(path);
    let members = members::merged(manifests.iter().map(|manifest| manifest.members.as_slice()));
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
    let (directories, symlinks): (Vec<_>, Vec<_>) = (
        directories.into_values().collect(),
        symlinks.into_values().collect(),
    );
    if let Some(why) = members::fault(&members, shape, files.keys(), &directories, &symlinks) {
        return Err(damaged(&name).because(why));
    }
    // Links of two nodes may lead where those of neither do.
    check_links(&symlinks).map_err(|error| damaged(&name).because(error))?;
    Ok(Resolved {
        id,
        name,
        shape,
        files: files.into_values().collect(),
        directories,
        symlinks,
        members,
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
    // A path of the user's own is the path of one directory.
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
            let parts = vec![part("node-0", b"same", "node-0"), part("node-1", bytes, target)];
            merge(step_id(), parts).map_err(|error| error.to_string())
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
