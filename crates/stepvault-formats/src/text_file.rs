//! Reads small files whole, up to a limit: pointers and JSON.

use std::io;

use serde::de::DeserializeOwned;

use crate::tree::{OpenFile, Tree};

/// The maximum size of a pointer: it holds at most a path, and this is the longest path of Linux.
pub(crate) const TEXT_LIMIT_BYTES: u64 = 4096;

/// The maximum size of a JSON file. A long run's `trainer_state.json` holds every log entry: some megabytes.
pub(crate) const JSON_LIMIT_BYTES: u64 = 16 << 20;

/// Returns a file's bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] beyond `limit_bytes`, [`io::ErrorKind::NotFound`] if there is no regular file, and
/// errors of the medium.
pub(crate) fn read_small(
    tree: &Tree,
    files: &dyn OpenFile,
    path: &str,
    limit_bytes: u64,
) -> io::Result<Vec<u8>> {
    if !tree.is_file(path) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let file = files.open(path)?;
    // The file may have grown since the tree was read.
    let length_bytes = file.size_bytes();
    let length = usize::try_from(length_bytes).ok().filter(|_| length_bytes <= limit_bytes);
    let mut bytes = vec![0; length.ok_or(io::ErrorKind::FileTooLarge)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Returns a file's text without surrounding white space; an error when it is not UTF-8.
pub(crate) fn read_text(tree: &Tree, files: &dyn OpenFile, path: &str) -> io::Result<String> {
    let bytes = read_small(tree, files, path, TEXT_LIMIT_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(text.trim().to_owned())
}

/// Returns a file's JSON; an error when it does not match the type.
pub(crate) fn read_json<T: DeserializeOwned>(tree: &Tree, files: &dyn OpenFile, path: &str) -> io::Result<T> {
    let bytes = read_small(tree, files, path, JSON_LIMIT_BYTES)?;
    serde_json::from_slice(&bytes).map_err(io::Error::from)
}
