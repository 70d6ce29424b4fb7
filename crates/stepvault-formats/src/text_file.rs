//! Reading small files whole: pointers and JSON, never more than a limit.

use std::io;

use serde::de::DeserializeOwned;

use crate::tree::{OpenFile, Tree};

/// The most that is read of a pointer: a path, at most, and Linux' longest is this.
pub(crate) const TEXT_LIMIT_BYTES: u64 = 4096;

/// The most that is read of a JSON file. A long run's `trainer_state.json` holds every log entry: some megabytes.
pub(crate) const JSON_LIMIT_BYTES: u64 = 16 << 20;

/// A file's bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] beyond `limit_bytes`, [`io::ErrorKind::NotFound`] where there is no regular file, and
/// what the medium says.
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
    // The file may have grown since the tree was looked at.
    let length_bytes = file.size_bytes();
    let length = usize::try_from(length_bytes)
        .ok()
        .filter(|_| length_bytes <= limit_bytes);
    let mut bytes = vec![0; length.ok_or(io::ErrorKind::FileTooLarge)?];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// A file's text, without white space around it; an error when it is not UTF-8.
pub(crate) fn read_text(tree: &Tree, files: &dyn OpenFile, path: &str) -> io::Result<String> {
    let bytes = read_small(tree, files, path, TEXT_LIMIT_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(text.trim().to_owned())
}

/// A file's JSON; an error when it is not what is asked for.
pub(crate) fn read_json<T: DeserializeOwned>(tree: &Tree, files: &dyn OpenFile, path: &str) -> io::Result<T> {
    let bytes = read_small(tree, files, path, JSON_LIMIT_BYTES)?;
    serde_json::from_slice(&bytes).map_err(io::Error::from)
}
