//! Zarr arrays, version 2 (`.zarray`) and 3 (`zarr.json`), each a directory with one file per chunk.
//!
//! The rules are those of the specifications at zarr-specs.readthedocs.io. Groups are not arrays.
//!
//! # Blind spots
//!
//! A missing chunk stands for the fill value, so a lost chunk is detected only if the writer states that it stores
//! every chunk ([`Presence::Required`]). The containers of uncompressed, zstd and Blosc chunks are checked; other
//! chunks must only not be empty. The checksums of chunks are compared by [`crate::deep`] alone.

mod chunk;
mod description;

use crate::deep::{Checksum, Span};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::structure::place::{in_file, joined, whole};
use crate::tree::{OpenFile, Tree};

pub use description::{Description, Version};

/// The maximum size of the description of an array.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// Whether a chunk may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A missing chunk stands for the fill value.
    Optional,
    /// The writer stores every chunk.
    Required,
}

/// Returns whether a directory is an array, by the file that describes it.
pub fn is_array(tree: &Tree, directory: &str) -> bool {
    version_of(tree, directory).is_some()
}

/// Checks an array: its description, and each chunk that exists.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Read`] when a file cannot be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile, presence: Presence) -> Result<(), Fault> {
    let Some(description) = describe(tree, directory, files)? else {
        return Ok(());
    };
    let inside = tree.below(directory);
    let mut present = 0_u64;
    for (key, _) in inside.files().filter(|(key, _)| description.is_chunk(key)) {
        present += 1;
        let path = joined(directory, key);
        let source = files.open(&path)?;
        chunk::check(&*source, &description).map_err(|fault| in_file(&path, fault))?;
    }
    match description.chunk_count() {
        Some(expected) if presence == Presence::Required && present < expected => {
            Err(Fault::broken(format!(
                "{directory} holds {present} of the {expected} chunks of the array: part of the save is missing"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the description of an array; `None` for a group.
fn describe(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<Option<Description>, Fault> {
    let version = version_of(tree, directory)
        .ok_or_else(|| Fault::broken(format!("{directory} contains neither .zarray nor zarr.json")))?;
    let path = joined(directory, version.file());
    let bytes = whole(tree, &path, files, MAX_DESCRIPTION_BYTES)?.unwrap_or_default();
    Description::parse(&bytes, version)
        .map_err(|why| Fault::broken(format!("{path} does not describe an array: {why}")))
}

/// Returns the paths of the chunks of an array that end with a checksum.
///
/// # Errors
/// Those of [`check`].
pub(crate) fn checksummed_chunks(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
) -> Result<Vec<String>, Fault> {
    let description = describe(tree, directory, files)?.filter(|description| description.has_checksum);
    let Some(description) = description else {
        return Ok(Vec::new());
    };
    let inside = tree.below(directory);
    let chunks = inside.files().filter(|(key, _)| description.is_chunk(key));
    Ok(chunks.map(|(key, _)| joined(directory, key)).collect())
}

/// Returns a chunk that ends with a checksum, without it; `None` for one that is too short.
pub(crate) fn chunk_span(chunk: &dyn ReadAt) -> Result<Option<Span>, Fault> {
    let Some(end) = chunk.size_bytes().checked_sub(4) else {
        return Ok(None);
    };
    let mut checksum = [0; 4];
    chunk.read_exact_at(end, &mut checksum)?;
    Ok(Some(Span {
        start: 0,
        end,
        checksum: Checksum::Crc32c(u32::from_le_bytes(checksum)),
        what: "the chunk".to_owned(),
    }))
}

fn version_of(tree: &Tree, directory: &str) -> Option<Version> {
    [Version::Two, Version::Three]
        .into_iter()
        .find(|version| tree.is_file(&joined(directory, version.file())))
}
