//! Compares descriptions of a checkpoint: whether they mean the same files.

use std::collections::BTreeSet;

use stepvault_core::manifest::PartManifest;
use stepvault_core::path::RelativePath;
use stepvault_core::shares::tree_sha256;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::seal_record::{SealRecord, SealedFile, SnapshotMethod};
use stepvault_local::tree::Tree;

/// What identifies a file without reading it.
pub(crate) type FileFacts<'a> = (&'a RelativePath, u64, Timestamp);

pub(crate) fn files_of_tree(tree: &Tree) -> impl Iterator<Item = FileFacts<'_>> {
    let files = tree.files.iter();
    files.map(|file| (&file.path, file.size_bytes, file.mtime))
}

pub(crate) fn files_of_manifest(manifest: &PartManifest) -> impl Iterator<Item = FileFacts<'_>> {
    let files = manifest.files.iter();
    files.map(|file| (&file.path, file.size_bytes, file.mtime))
}

fn sealed_file(file: &SealedFile) -> FileFacts<'_> {
    (&file.path, file.size_bytes, file.mtime)
}

/// Whether a sealed step has the files of its node's manifest, by path, size and modification time.
pub fn record_matches_manifest(record: &SealRecord, manifest: &PartManifest) -> bool {
    let own = record.own_files();
    record.shape == manifest.shape
        && record.symlinks == manifest.symlinks
        && record.shared_tree_sha256() == manifest.shared_tree_sha256
        && own.into_iter().map(sealed_file).eq(files_of_manifest(manifest))
}

/// Whether a scanned directory has the files of a sealed step, by path, size and time.
pub fn tree_matches_record(tree: &Tree, record: &SealRecord) -> bool {
    tree.shape == record.shape
        && tree.symlinks == record.symlinks
        && files_of_tree(tree).eq(record.files.iter().map(sealed_file))
}

/// Whether the vault has links to all files of a scanned directory that [matches](tree_matches_record) a sealed step.
pub fn tree_is_linked(tree: &Tree, record: &SealRecord) -> bool {
    let mut pairs = tree.files.iter().zip(&record.files);
    pairs.all(|(file, sealed)| sealed.method == SnapshotMethod::HardLink && sealed.inode == file.inode)
}

/// Whether a scanned directory is what a node made its part of, by paths, sizes and times.
pub fn tree_matches_part(tree: &Tree, part: &PartManifest) -> bool {
    if part.shared_tree_sha256.is_some() {
        let files: Vec<_> = tree.files.iter().map(|file| (&file.path, file.size_bytes)).collect();
        return part.shared_tree_sha256 == Some(tree_sha256(&files, &tree.symlinks))
            && part.written_at == tree.newest_mtime();
    }
    tree.shape == part.shape
        && tree.symlinks == part.symlinks
        && files_of_tree(tree).eq(files_of_manifest(part))
}

/// Whether a scanned directory contains only files of a multi-node step, and all files that this node wrote of it, by
/// paths, sizes and times.
pub fn tree_is_of_step(tree: &Tree, own: &PartManifest, parts: &[PartManifest]) -> bool {
    let known: BTreeSet<FileFacts<'_>> = parts.iter().flat_map(files_of_manifest).collect();
    let found: BTreeSet<FileFacts<'_>> = files_of_tree(tree).collect();
    let paths: BTreeSet<&RelativePath> = found.iter().map(|(path, ..)| *path).collect();
    // Of a file that several nodes wrote, a restore takes one.
    found.is_subset(&known) && own.files.iter().all(|file| paths.contains(&file.path))
}
