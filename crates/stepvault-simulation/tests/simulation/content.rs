//! The contents of a checkpoint for comparison: every path with the digest of its bytes.

use std::collections::BTreeMap;
use std::path::Path;

use stepvault_core::digest::{Crc32c, DigestAlgorithm, FileDigest, PartDigest};
use stepvault_core::file_parts::FileParts;
use stepvault_core::manifest::PartManifest;

/// By the CRC-32C, which a manifest has with digests by every algorithm.
pub type Content = BTreeMap<String, (u64, Crc32c)>;

/// Returns the digest of a file as in a manifest.
pub fn digest(algorithm: DigestAlgorithm, bytes: &[u8]) -> FileDigest {
    let cut = FileParts::of(bytes.len() as u64).unwrap();
    let parts: Vec<PartDigest> = (0..cut.count())
        .map(|index| {
            let range = cut.range(index);
            PartDigest::by(
                algorithm,
                &bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()],
            )
        })
        .collect();
    FileDigest::from_parts(&parts)
}

/// Names of files that somebody else than a trainer adds to its steps.
pub const NOTES: [&str; 2] = ["README.md", "eval_results.json"];

/// Returns the files that a trainer wrote.
pub fn without_notes(content: &Content) -> Content {
    let mut content = content.clone();
    content.retain(|path, _| !NOTES.contains(&path.as_str()));
    content
}

/// Returns all files below a directory.
pub fn of_directory(root: &Path) -> Content {
    fn walk(root: &Path, at: &Path, content: &mut Content) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, content);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            content.insert(name, (bytes.len() as u64, Crc32c::of(&bytes)));
        }
    }
    let mut content = Content::new();
    walk(root, root, &mut content);
    content
}

/// Returns the contents of a step according to its manifests.
pub fn of_manifests<'a>(manifests: impl IntoIterator<Item = &'a PartManifest>) -> Content {
    let files = manifests.into_iter().flat_map(|manifest| &manifest.files);
    files.map(|file| (file.path.to_string(), (file.size_bytes, file.digest().unwrap().crc32c))).collect()
}
