//! Steps that consist of several paths: one file for each rank, or a directory and a file that records the progress.
//!
//! Such a step is stored as one checkpoint with the paths relative to the trainer's directory. The paths are recorded,
//! because a directory that only leads to one of them belongs to the trainer and not to the step.

use std::collections::BTreeSet;

use crate::entries::{DirectoryEntry, Shape, SymlinkEntry};
use crate::path::RelativePath;

/// Determines which paths belong to a step of several paths.
#[derive(Debug)]
pub struct MemberSet<'a> {
    members: BTreeSet<&'a str>,
    above: BTreeSet<&'a str>,
}

impl<'a> MemberSet<'a> {
    /// Returns the set for these paths.
    pub fn new(members: &'a [RelativePath]) -> Self {
        Self {
            members: members.iter().map(RelativePath::as_str).collect(),
            above: members.iter().flat_map(RelativePath::ancestors).collect(),
        }
    }

    /// Returns whether `path` is one of them.
    pub fn has(&self, path: &RelativePath) -> bool {
        self.members.contains(path.as_str())
    }

    /// Returns whether `path` is one of them or below one.
    pub fn holds(&self, path: &RelativePath) -> bool {
        self.has(path) || self.is_below(path)
    }

    /// Returns whether `path` is a directory above one of them.
    pub fn leads_through(&self, path: &RelativePath) -> bool {
        self.above.contains(path.as_str())
    }

    fn is_below(&self, path: &RelativePath) -> bool {
        path.ancestors().any(|above| self.members.contains(above))
    }
}

/// Merges the paths of a step to which several nodes contribute. A path that several nodes name takes its position
/// from the last of them, so that the file that makes the trainer see the step stays last.
pub fn merged<'a>(parts: impl DoubleEndedIterator<Item = &'a [RelativePath]>) -> Vec<RelativePath> {
    let mut seen = BTreeSet::new();
    let last_first = parts.rev().flat_map(|part| part.iter().rev());
    let mut members: Vec<RelativePath> = last_first.filter(|member| seen.insert(*member)).cloned().collect();
    members.reverse();
    members
}

/// Returns what is wrong with the `members` of a record that lists these entries; `None` if the record has no members
/// or they are valid.
pub fn fault<'a>(
    members: &[RelativePath],
    shape: Shape,
    files: impl Iterator<Item = &'a RelativePath>,
    directories: &'a [DirectoryEntry],
    symlinks: &'a [SymlinkEntry],
) -> Option<String> {
    if members.is_empty() {
        return None;
    }
    if shape == Shape::File {
        return Some("a single file cannot be a step of several paths".to_owned());
    }
    let set = MemberSet::new(members);
    if set.members.len() != members.len() {
        return Some("one of the step's paths is listed twice".to_owned());
    }
    if let Some(inner) = members.iter().find(|member| set.is_below(member)) {
        return Some(format!("{inner} lies inside another of the step's paths"));
    }
    let directories = directories.iter().filter_map(|entry| entry.path.as_ref());
    let directories = directories.filter(|path| !set.leads_through(path));
    let mut listed = BTreeSet::new();
    for path in files.chain(directories) {
        if set.has(path) {
            listed.insert(path.as_str());
        } else if !set.is_below(path) {
            return Some(outside(path));
        }
    }
    if let Some(link) = symlinks.iter().find(|link| !set.is_below(&link.path)) {
        return Some(outside(&link.path));
    }
    let missing = members.iter().find(|member| !listed.contains(member.as_str()));
    missing.map(|member| {
        format!("{member} is one of the step's paths, but is not listed as a file or directory")
    })
}

fn outside(path: &RelativePath) -> String {
    format!("{path} lies outside the step's paths")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::codec::{FORMAT, decode, encode};
    use crate::ids::{Attempt, NodeName, RunName, Step, StepId};
    use crate::manifest::{FileEntry, PartManifest};
    use crate::timestamp::Timestamp;

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text).unwrap()
    }

    fn paths(texts: &[&str]) -> Vec<RelativePath> {
        texts.iter().map(|text| path(text)).collect()
    }

    fn directories(texts: &[&str]) -> Vec<DirectoryEntry> {
        let own = [None].into_iter();
        own.chain(texts.iter().map(|text| Some(path(text))))
            .map(|path| DirectoryEntry { path, mode: 0o755, mtime: Timestamp::default() })
            .collect()
    }

    fn of(members: &[&str], files: &[&str], listed: &[&str]) -> Option<String> {
        let files = paths(files);
        fault(&paths(members), Shape::Directory, files.iter(), &directories(listed), &[])
    }

    #[test]
    fn files_directories_and_what_leads_there_are_a_step() {
        let (files, listed) = (["a/b/c/file", "info.json"], ["a", "a/b", "a/b/c"]);
        assert_eq!(of(&[], &files, &listed), None);
        assert_eq!(of(&["info.json", "a/b"], &files, &listed), None);
        let members = paths(&["a/b"]);
        let set = MemberSet::new(&members);
        assert!(set.holds(&path("a/b")) && set.holds(&path("a/b/c")) && !set.holds(&path("a/bc")));
        assert!(set.leads_through(&path("a")) && !set.leads_through(&path("a/b")));
    }

    #[test]
    fn every_path_belongs_to_just_one_of_them() {
        let (files, listed) = (["a/file", "b"], ["a"]);
        let says = |members: &[&str]| of(members, &files, &listed).unwrap();
        assert_eq!(says(&["a", "b", "a"]), "one of the step's paths is listed twice");
        assert_eq!(says(&["a", "a/file", "b"]), "a/file lies inside another of the step's paths");
        assert_eq!(says(&["a"]), "b lies outside the step's paths");
        assert_eq!(
            says(&["a", "b", "c"]),
            "c is one of the step's paths, but is not listed as a file or directory"
        );
        assert_eq!(of(&["a"], &["a"], &["empty"]).unwrap(), "empty lies outside the step's paths");
    }

    #[test]
    fn what_several_nodes_name_comes_last() {
        let parts = [paths(&["a", "info"]), paths(&["b", "info"])];
        let all = merged(parts.iter().map(Vec::as_slice));
        assert_eq!(all, paths(&["a", "b", "info"]));
    }

    #[test]
    fn a_manifest_without_any_does_not_mention_them() {
        let empty = [crate::digest::PartDigest::of(b"")];
        let mut manifest = PartManifest {
            format: FORMAT,
            digest: crate::digest::DigestAlgorithm::Sha256,
            run: RunName::new("run").unwrap(),
            id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
            node: NodeName::new("node-0").unwrap(),
            name: "areal-recover-1".to_owned(),
            shape: Shape::Directory,
            written_at: Timestamp::default(),
            metrics: BTreeMap::new(),
            shared_tree_sha256: None,
            files: vec![FileEntry::from_parts(path("b"), 0o644, Timestamp::default(), &empty).unwrap()],
            directories: directories(&["a"]),
            symlinks: Vec::new(),
            imported: None,
            members: Vec::new(),
            origin: crate::step_origin::StepOrigin::default(),
        };
        let plain = String::from_utf8(encode(&manifest).unwrap()).unwrap();
        assert!(!plain.contains("members"), "{plain}");
        // One spelling: an empty list is none of it.
        let spelled = plain.replace("\"name\"", "\"members\":[],\"name\"");
        let refused = decode::<PartManifest>(spelled.as_bytes(), "part").unwrap_err();
        assert!(refused.to_string().contains("not in canonical form"), "{refused}");

        manifest.members = paths(&["b", "a"]);
        let bytes = encode(&manifest).unwrap();
        assert_eq!(decode::<PartManifest>(&bytes, "part").unwrap(), manifest);
        manifest.members = paths(&["a"]);
        let refused = decode::<PartManifest>(&encode(&manifest).unwrap(), "part").unwrap_err();
        assert!(refused.to_string().contains("b lies outside the step's paths"), "{refused}");
    }

    #[test]
    fn a_link_is_none_of_them_and_a_single_file_has_none() {
        let links = [SymlinkEntry { path: path("latest"), target: "a".to_owned() }];
        let (members, files) = (paths(&["a"]), paths(&["a"]));
        assert_eq!(
            fault(&members, Shape::Directory, files.iter(), &directories(&[]), &links).unwrap(),
            "latest lies outside the step's paths"
        );
        assert_eq!(
            fault(&members, Shape::File, files.iter(), &[], &[]).unwrap(),
            "a single file cannot be a step of several paths"
        );
    }
}
