//! Which tiers serve which version of a step, and what the parts of several nodes are together.

use std::collections::BTreeMap;

use proptest::prelude::*;
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
    SymlinkEntry { path: path(name), target: target.to_owned() }
}

fn directory(name: Option<&str>) -> DirectoryEntry {
    DirectoryEntry { path: name.map(path), mode: 0o755, mtime: Timestamp::from_seconds(1) }
}

fn step_id() -> StepId {
    StepId::new(Attempt::new(1).unwrap(), Step::new(4).unwrap())
}

fn part(node: &str, bytes: &[u8], target: &str) -> PartManifest {
    PartManifest {
        format: FORMAT,
        digest: stepvault_core::digest::DigestAlgorithm::Sha256,
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
        imported: None,
        members: Vec::new(),
        origin: StepOrigin::default(),
    }
}

#[test]
fn parts_may_share_what_is_the_same_in_all_of_them() {
    let merge_with = |bytes: &[u8], target| {
        let parts = [part("node-0", b"same", "node-0"), part("node-1", bytes, target)];
        merge(step_id(), &parts.each_ref(), Vec::new(), String::new()).map_err(|error| error.to_string())
    };
    let merged = merge_with(b"same", "node-0").unwrap();
    let names: Vec<_> = merged.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(names, ["node-0", "node-1", "tokenizer"]);
    assert_eq!(merged.symlinks, [link("latest", "node-0")]);
    for (bytes, target, at) in [(&b"other"[..], "node-0", "tokenizer"), (b"same", "node-1", "latest")] {
        let error = merge_with(bytes, target).unwrap_err();
        assert_eq!(error, format!("the parts of a step contradict each other: {at}"));
    }
}

#[test]
fn one_path_of_a_step_is_its_files_and_the_directories_around_them() {
    let step = ResolvedStep {
        id: step_id(),
        name: "4".to_owned(),
        shape: Shape::Directory,
        keys: part("node-0", b"", "x").file_keys(),
        files: ["actor/4/x", "critic/4/x"].map(|name| file(name, b"12345")).to_vec(),
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
        symlinks: ["actor/4/link", "critic/4/link"].map(|name| link(name, "x")).to_vec(),
        members: ["actor/4", "critic/4"].map(path).to_vec(),
        best: BTreeSet::new(),
        origin: StepOrigin::default(),
        sources: Vec::new(),
        identity: String::new(),
    };
    assert_eq!(step.data_bytes(), 10);
    let one = step.only(&[path("actor/4")]);
    assert_eq!((one.data_bytes(), one.files), (5, vec![file("actor/4/x", b"12345")]));
    let around = [None, Some("actor"), Some("actor/4"), Some("actor/4/empty")].map(directory);
    assert_eq!(one.directories, around);
    assert_eq!(one.symlinks, [link("actor/4/link", "x")]);
    assert_eq!(one.members, [path("actor/4")]);
}

/// What a remote holds, by a letter for each content: `x` and `y` differ.
fn on_remotes(contents: &[u8]) -> Vec<Version<String>> {
    let mut versions = Vec::new();
    for (number, content) in contents.iter().enumerate() {
        let manifests = vec![part("node-0", b"same", "a"), part("node-1", &[*content], "a")];
        add_remote(&mut versions, manifests, format!("remote {number}"));
    }
    versions
}

fn sources(versions: Vec<Version<String>>) -> Vec<Vec<String>> {
    versions.into_iter().map(|version| version.sources).collect()
}

#[test]
fn a_local_copy_serves_the_version_that_it_is_a_part_of_first() {
    for (own, expected) in [
        (b"x", [vec!["local", "remote 0", "remote 2"], vec!["remote 1"]]),
        (b"y", [vec!["remote 0", "remote 2"], vec!["local", "remote 1"]]),
    ] {
        let mut versions = on_remotes(b"xyx");
        assert!(add_local(&mut versions, part("node-1", own, "a"), "local".to_owned()));
        assert_eq!(sources(versions), expected);
    }
    let mut versions = on_remotes(b"xyx");
    assert!(!add_local(&mut versions, part("node-1", b"z", "a"), "local".to_owned()));
    assert_eq!(versions, on_remotes(b"xyx"), "it differs from every commit");
    let mut sources_of_step = Vec::new();
    assert!(add_local(&mut sources_of_step, part("node-1", b"z", "a"), "local".to_owned()));
    assert_eq!(sources(sources_of_step), [["local"]]);
}

proptest! {
    /// Every remote is a source of exactly one version, in the configured order, and no version mixes contents.
    #[test]
    fn remotes_that_disagree_are_never_mixed(contents in prop::collection::vec(b'x'..=b'z', 0..8)) {
        let versions = on_remotes(&contents);
        let expected = |content: u8| -> Vec<String> {
            let numbers = (0..contents.len()).filter(|number| contents[*number] == content);
            numbers.map(|number| format!("remote {number}")).collect()
        };
        let mut seen = Vec::new();
        for content in &contents {
            if !seen.contains(content) {
                seen.push(*content);
            }
        }
        let expected: Vec<Vec<String>> = seen.into_iter().map(expected).collect();
        prop_assert_eq!(sources(versions), expected);
    }
}
