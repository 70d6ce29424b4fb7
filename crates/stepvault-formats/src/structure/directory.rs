//! A directory of a tree, and how to read its files: what a check of several files works on.

use serde::de::DeserializeOwned;

use crate::soundness::{Fault, broken, read_piece};
use crate::tree::{OpenFile, Tree, joined};

/// A directory whose files belong together.
#[derive(Clone, Copy)]
pub(super) struct Directory<'a> {
    pub(super) tree: &'a Tree,
    /// Its path; `""` is the tree's own.
    pub(super) path: &'a str,
    pub(super) files: &'a dyn OpenFile,
}

impl Directory<'_> {
    /// Returns the path of an entry in the tree.
    pub(super) fn path_of(&self, name: &str) -> String {
        joined(self.path, name)
    }

    /// Returns whether there is a regular file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tree.is_file(&self.path_of(name))
    }

    /// Reads a JSON file; `None` when there is no regular file of this name.
    pub(super) fn json<T: DeserializeOwned>(&self, name: &str, limit_bytes: u64) -> Result<Option<T>, Fault> {
        json(self.tree, &self.path_of(name), self.files, limit_bytes)
    }
}

/// Reads a whole small file; `None` when there is no regular file at the path.
pub(super) fn whole(
    tree: &Tree,
    path: &str,
    files: &dyn OpenFile,
    limit_bytes: u64,
) -> Result<Option<Vec<u8>>, Fault> {
    if !tree.is_file(path) {
        return Ok(None);
    }
    let source = files.open(path)?;
    read_piece(&*source, 0, source.size_bytes(), limit_bytes, path).map(Some)
}

/// Reads a JSON file; `None` when there is no regular file at the path.
pub(super) fn json<T: DeserializeOwned>(
    tree: &Tree,
    path: &str,
    files: &dyn OpenFile,
    limit_bytes: u64,
) -> Result<Option<T>, Fault> {
    let Some(bytes) = whole(tree, path, files, limit_bytes)? else {
        return Ok(None);
    };
    if bytes.is_empty() {
        return Err(broken!("{path} is empty: it was never written"));
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| broken!("{path} of {} bytes is not the expected JSON ({error})", bytes.len()))
}
