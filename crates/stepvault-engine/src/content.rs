//! Whether two descriptions of a checkpoint mean the same files.

use stepvault_core::manifest::PartManifest;
use stepvault_local::seal_record::SealRecord;
use stepvault_local::tree::Tree;

/// Whether a sealed step has the files of a manifest, by path, size and modification time.
pub fn record_matches_manifest(record: &SealRecord, manifest: &PartManifest) -> bool {
    record.shape == manifest.shape
        && record.files.len() == manifest.files.len()
        && record.symlinks == manifest.symlinks
        && record.files.iter().zip(&manifest.files).all(|(sealed, listed)| {
            sealed.path == listed.path
                && sealed.size_bytes == listed.size_bytes
                && sealed.mtime == listed.mtime
        })
}

/// Whether a directory as it was just scanned has the files of a sealed step, by path, size and time.
pub fn tree_matches_record(tree: &Tree, record: &SealRecord) -> bool {
    tree.shape == record.shape
        && tree.files.len() == record.files.len()
        && tree.symlinks == record.symlinks
        && tree.files.iter().zip(&record.files).all(|(found, sealed)| {
            found.path == sealed.path && found.size_bytes == sealed.size_bytes && found.mtime == sealed.mtime
        })
}

/// Whether a directory as it was just scanned has the files of a manifest by path and size, and whether by time too.
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

/// What names, sizes and times say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentMatch {
    /// The same files.
    Same,
    /// Other files.
    Different,
    /// The same names and sizes, other times: only the bytes can tell.
    HashToTell,
}
