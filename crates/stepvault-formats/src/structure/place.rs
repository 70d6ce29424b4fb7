//! The position of a check within a checkpoint.

use serde::de::DeserializeOwned;

use crate::soundness::{Fault, read_piece};
use crate::tree::{OpenFile, Tree};

/// Returns a path below a directory of a tree; `""` is the tree's own directory.
pub(crate) fn joined(directory: &str, path: &str) -> String {
    if directory.is_empty() {
        path.to_owned()
    } else {
        format!("{directory}/{path}")
    }
}

/// Adds the path of its file to a fault.
pub(super) fn in_file(path: &str, fault: Fault) -> Fault {
    match fault {
        Fault::Broken {
            offset: Some(offset),
            why,
        } => Fault::broken(format!("{path}, at byte {offset}: {why}")),
        Fault::Broken { offset: None, why } => Fault::broken(format!("{path}: {why}")),
        Fault::Unknown(why) => Fault::Unknown(format!("{path}: {why}")),
        Fault::Read(error) => Fault::Read(error),
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
        return Err(Fault::broken(format!("{path} is empty: it was never written")));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Fault::broken(format!(
            "{path} of {} bytes is not the expected JSON ({error})",
            bytes.len()
        ))
    })
}
