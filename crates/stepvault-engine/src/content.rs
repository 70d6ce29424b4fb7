//! Compares descriptions of a checkpoint: whether they mean the same files.

use std::collections::BTreeSet;

use stepvault_core::manifest::PartManifest;
use stepvault_core::path::RelativePath;
use stepvault_core::shares::tree_sha256;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::tree::Tree;

/// Whether a sealed step has the files of its node's manifest, by path, size and modification time.
pub fn record_matches_manifest(record: &SealRecord, manifest: &PartManifest) -> bool {
    let own = record.own_files();
    record.shape == manifest.shape
        && own.len() == manifest.files.len()
        && record.symlinks == manifest.symlinks
        && record.shared_tree_sha256() == manifest.shared_tree_sha256
        && own.iter().zip(&manifest.files).all(|(sealed, listed)| {
            sealed.path == listed.path
                && sealed.size_bytes == listed.size_bytes
                && sealed.mtime == listed.mtime
        })
}

/// Whether a scanned directory has the files of a sealed step, by path, size and time.
pub fn tree_matches_record(tree: &Tree, record: &SealRecord) -> bool {
    tree.shape == record.shape
        && tree.files.len() == record.files.len()
        && tree.symlinks == record.symlinks
        && tree.files.iter().zip(&record.files).all(|(found, sealed)| {
            found.path == sealed.path && found.size_bytes == sealed.size_bytes && found.mtime == sealed.mtime
        })
}

/// Whether a scanned directory has the files of a manifest by path and size, and whether by time too.
pub fn tree_matches_manifest(tree: &Tree, manifest: &PartManifest) -> ContentMatch {
    let same_names = tree.shape == manifest.shape
        && tree.files.len() == manifest.files.len()
        && tree.symlinks == manifest.symlinks
        && tree
            .files
            .iter()
            .zip(&manifest.files)
            .all(|(found, listed)| found.path == listed.path && found.size_bytes == listed.size_bytes);
    let same_times = tree
        .files
        .iter()
        .zip(&manifest.files)
        .all(|(found, listed)| found.mtime == listed.mtime);
    match (same_names, same_times) {
        (false, _) => ContentMatch::Different,
        (true, true) => ContentMatch::Same,
        (true, false) => ContentMatch::HashToTell,
    }
}

/// Whether a scanned directory is what a node made its part of, by paths, sizes and times.
pub fn tree_matches_part(tree: &Tree, part: &PartManifest) -> bool {
    if part.shared_tree_sha256.is_some() {
        let files: Vec<_> = tree
            .files
            .iter()
            .map(|file| (&file.path, file.size_bytes))
            .collect();
        return part.shared_tree_sha256 == Some(tree_sha256(&files, &tree.symlinks))
            && part.written_at == tree.newest_mtime();
    }
    matches!(tree_matches_manifest(tree, part), ContentMatch::Same)
}

/// Whether a scanned directory contains only files of a multi-node step, and all files that this node wrote of it, by
/// paths, sizes and times.
pub fn tree_is_of_step(tree: &Tree, own: &PartManifest, parts: &[PartManifest]) -> bool {
    type Identity<'a> = (&'a RelativePath, u64, Timestamp);
    let files = parts.iter().flat_map(|part| &part.files);
    let known: BTreeSet<Identity<'_>> = files
        .map(|file| (&file.path, file.size_bytes, file.mtime))
        .collect();
    let there: BTreeSet<Identity<'_>> = tree
        .files
        .iter()
        .map(|file| (&file.path, file.size_bytes, file.mtime))
        .collect();
    let paths: BTreeSet<&RelativePath> = there.iter().map(|(path, ..)| *path).collect();
    // Of a file that several nodes wrote, a restore takes one.
    there.is_subset(&known) && own.files.iter().all(|file| paths.contains(&file.path))
}

/// The result of comparing names, sizes and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentMatch {
    /// The files are the same.
    Same,
    /// The files differ.
    Different,
    /// The names and sizes are equal but the times differ: only hashing can decide.
    HashToTell,
}
