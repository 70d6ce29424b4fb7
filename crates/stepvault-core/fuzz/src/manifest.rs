//! The part manifest: the paths that a restore creates.

use std::collections::BTreeMap;

use serde_json::Value;
use stepvault_core::codec::{decode, encode};
use stepvault_core::commit::{Commit, FoundPart};
use stepvault_core::digest::{
    ContentDigest, Crc32c, DigestAlgorithm, PartDigest, Sha256Digest, TrustedChecksum,
};
use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::{Attempt, NodeName, RunName, Step, StepId};
use stepvault_core::imported::Imported;
use stepvault_core::keys::{KeyKind, RunKeys};
use stepvault_core::manifest::{DirectoryEntry, FileEntry, FileProof, PartManifest, Shape, SymlinkEntry};
use stepvault_core::path::RelativePath;
use stepvault_core::timestamp::Timestamp;

use super::records::{canonical, read};

/// Parts of one file that are made up, where a file of a claimed size would need more, it stays as it is.
const MAX_PARTS_MADE: u32 = 16;

/// The bytes as they are, in their canonical spelling, and with the digests of their files made right: nothing behind
/// these would be looked at otherwise.
pub fn check(bytes: &[u8]) {
    check_one(bytes);
    if let Some(canonical) = canonical(bytes) {
        check_one(&canonical);
    }
    if let Some(repaired) = repaired(bytes) {
        check_one(&repaired);
    }
}

fn check_one(bytes: &[u8]) {
    let Some(manifest) = read::<PartManifest>(bytes) else {
        return;
    };
    let keys = RunKeys::new(manifest.run.clone());
    let paths = manifest.files.iter().map(|file| &file.path);
    let directories = manifest.directories.iter().filter_map(|entry| entry.path.as_ref());
    let links = manifest.symlinks.iter().map(|link| &link.path);
    for path in paths.chain(directories).chain(links).chain(&manifest.members) {
        assert_stays_inside(path);
    }
    for file in &manifest.files {
        if let Some(digests) = file.digests() {
            assert_eq!(file.parts().unwrap().count() as usize, digests.parts.len());
        }
        // What is uploaded under this key is told from everything else by it.
        if let Ok(key) = keys.data(&manifest.name, manifest.id, &file.path) {
            let expected =
                KeyKind::Data { id: manifest.id, name: manifest.name.clone(), path: file.path.clone() };
            assert_eq!(keys.classify(&key), Some(expected));
        }
    }
    let targets: BTreeMap<&str, &str> =
        manifest.symlinks.iter().map(|link| (link.path.as_str(), link.target.as_str())).collect();
    for path in targets.keys() {
        assert!(resolves_inside(path, &targets), "{path} leads out: {targets:?}");
    }
    let found = FoundPart::of(&manifest, Sha256Digest::of(bytes), bytes.len() as u64);
    let commit = Commit::of(vec![found]).unwrap();
    let committed = decode::<Commit>(&encode(&commit).unwrap(), "commit").unwrap();
    assert_eq!(committed.data_bytes(), manifest.data_bytes());
}

/// By the operating system's own idea of a path.
fn assert_stays_inside(path: &RelativePath) {
    let plain = std::path::Path::new(path.as_str())
        .components()
        .all(|component| matches!(component, std::path::Component::Normal(_)));
    assert!(plain && !path.as_str().contains('\0'), "{path:?}");
}

/// Follows a link as the kernel does: at most 40 others on the way.
fn resolves_inside(link: &str, targets: &BTreeMap<&str, &str>) -> bool {
    let mut place: Vec<&str> = Vec::new();
    let mut left: Vec<&str> = link.split('/').rev().collect();
    let mut followed = 0;
    while let Some(component) = left.pop() {
        match component {
            "" | "." => {}
            ".." => {
                if place.pop().is_none() {
                    return false;
                }
            }
            name => {
                place.push(name);
                if let Some(target) = targets.get(place.join("/").as_str()) {
                    followed += 1;
                    if followed > 40 || target.starts_with('/') {
                        return followed > 40;
                    }
                    place.pop();
                    left.extend(target.split('/').rev());
                }
            }
        }
    }
    true
}

/// The same JSON with part size, parts and digest of every file made to fit its size.
fn repaired(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    let algorithm = match value.get("digest") {
        Some(_) => DigestAlgorithm::Blake3,
        None => DigestAlgorithm::Sha256,
    };
    for file in value.get_mut("files")?.as_array_mut()? {
        let file = file.as_object_mut()?;
        let cut = FileParts::of(file.get("size_bytes")?.as_u64()?).ok()?;
        if cut.count() > MAX_PARTS_MADE {
            continue;
        }
        let digests = vec![PartDigest::by(algorithm, b"").content; cut.count() as usize];
        file.insert("part_size_bytes".to_owned(), cut.part_size_bytes().into());
        let whole = ContentDigest::of_parts(&digests).to_string();
        file.insert(algorithm.to_string(), whole.into());
        let digests: Vec<Value> = digests.iter().map(|digest| digest.to_string().into()).collect();
        file.insert(format!("parts_{algorithm}"), digests.into());
    }
    serde_json::to_vec(&value).ok()
}

/// Directories with files and links, several paths, and a single file.
pub fn seeds() -> Vec<Vec<u8>> {
    let path = |text: &str| RelativePath::new(text).unwrap();
    let mtime = Timestamp::from_seconds(1_760_000_000);
    let file = |text: &str, bytes: &[u8]| {
        FileEntry::from_parts(path(text), 0o644, mtime, &[PartDigest::of(bytes)]).unwrap()
    };
    let directory = |text: Option<&str>| DirectoryEntry { path: text.map(path), mode: 0o755, mtime };
    let link = |place: &str, target: &str| SymlinkEntry { path: path(place), target: target.to_owned() };
    let whole = PartManifest {
        format: 1,
        digest: DigestAlgorithm::Sha256,
        run: RunName::new("grpo/checkpoints").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(100).unwrap()),
        node: NodeName::new("node-0").unwrap(),
        name: "step_100".to_owned(),
        shape: Shape::Directory,
        written_at: mtime,
        metrics: [("eval_loss".to_owned(), 0.25)].into(),
        shared_tree_sha256: None,
        files: vec![file("a/b/model.pt", b"weights"), file("a/config.json", b"{}"), file("x", b"")],
        directories: vec![directory(None), directory(Some("a")), directory(Some("a/b"))],
        symlinks: vec![link("a/b/up", "../.."), link("in", "a/b/up/x"), link("last", "a/../x")],
        imported: None,
        members: Vec::new(),
        origin: stepvault_core::step_origin::StepOrigin::default(),
    };
    let several = PartManifest {
        symlinks: Vec::new(),
        files: vec![file("a/b/model.pt", b"weights"), file("x", b"")],
        members: vec![path("x"), path("a/b")],
        shared_tree_sha256: Some(Sha256Digest::of(b"tree")),
        ..whole.clone()
    };
    let single = PartManifest {
        name: "step_100.ckpt".to_owned(),
        shape: Shape::File,
        files: vec![file("step_100.ckpt", b"all")],
        directories: Vec::new(),
        symlinks: Vec::new(),
        ..whole.clone()
    };
    let by_blake3 = PartManifest {
        digest: DigestAlgorithm::Blake3,
        files: vec![
            FileEntry::from_parts(
                path("step_100.ckpt"),
                0o644,
                mtime,
                &[PartDigest::by(DigestAlgorithm::Blake3, b"all")],
            )
            .unwrap(),
        ],
        ..single.clone()
    };
    let checksum = FileProof::Trusted(TrustedChecksum::Crc32c(Crc32c::of(b"all")));
    let trusting = PartManifest {
        format: 3,
        imported: Some(Imported { prefix: Some(path("old/run")) }),
        files: vec![FileEntry::new(path("step_100.ckpt"), 0o644, mtime, 3, checksum).unwrap()],
        ..single.clone()
    };
    [whole, several, single, by_blake3, trusting].iter().map(|manifest| encode(manifest).unwrap()).collect()
}
