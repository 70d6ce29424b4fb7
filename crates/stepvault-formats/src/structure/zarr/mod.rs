//! Zarr arrays, version 2 (`.zarray`) and 3 (`zarr.json`), each a directory with one file per chunk.
//!
//! The rules are those of the specifications at zarr-specs.readthedocs.io. Groups are not arrays.
//!
//! # Blind spots
//!
//! A missing chunk stands for the fill value, so a lost chunk is detected only if the writer states that it stores
//! every chunk ([`Presence::Required`]). The containers of uncompressed, zstd and Blosc chunks are checked; other
//! chunks must only not be empty. The checksums of chunks are compared by [`crate::deep`] alone.

mod description;

use description::Container;
pub use description::{Description, Version};

use crate::deep::{Checksum, Span};
use crate::soundness::{Fault, broken, broken_at, read_array};
use crate::structure::cursor::number;
use crate::structure::directory::whole;
use crate::structure::zstd;
use crate::tree::{OpenFile, ReadAt, Tree, joined};

/// The maximum size of the description of an array.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// The size of the header of a Blosc buffer.
const BLOSC_HEADER_BYTES: usize = 16;

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
        check_chunk(&*source, &description).map_err(|fault| fault.in_file(&path))?;
    }
    match description.chunk_count() {
        Some(expected) if presence == Presence::Required && present < expected => Err(broken!(
            "{directory} holds {present} of the {expected} chunks of the array: part of the save is missing"
        )),
        _ => Ok(()),
    }
}

/// Returns the description of an array; `None` for a group.
fn describe(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<Option<Description>, Fault> {
    let version = version_of(tree, directory)
        .ok_or_else(|| broken!("{directory} contains neither .zarray nor zarr.json"))?;
    let path = joined(directory, version.file());
    let bytes = whole(tree, &path, files, MAX_DESCRIPTION_BYTES)?.unwrap_or_default();
    Description::parse(&bytes, version).map_err(|why| broken!("{path} does not describe an array: {why}"))
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
    Ok(Some(Span::new(0..end, Checksum::Crc32c(u32::from_le_bytes(checksum)), "the chunk")))
}

fn version_of(tree: &Tree, directory: &str) -> Option<Version> {
    [Version::Two, Version::Three]
        .into_iter()
        .find(|version| tree.is_file(&joined(directory, version.file())))
}

/// Checks a chunk's file.
fn check_chunk(source: &dyn ReadAt, description: &Description) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the chunk is empty: it was never written"));
    }
    let chunk_bytes = description.chunk_bytes();
    match description.container {
        Container::Raw { trailer_bytes } => {
            let expected = chunk_bytes.and_then(|bytes| bytes.checked_add(trailer_bytes));
            if expected.is_some_and(|expected| expected != size_bytes) {
                return Err(differs("the chunk is", size_bytes, expected));
            }
            Ok(())
        }
        Container::Zstd => match zstd::check(source)? {
            Some(stated) if chunk_bytes.is_some_and(|bytes| bytes != stated) => {
                Err(differs("the chunk decompresses to", stated, chunk_bytes))
            }
            _ => Ok(()),
        },
        Container::Blosc => check_blosc(source, chunk_bytes),
        Container::Other => Ok(()),
    }
}

/// Checks a Blosc header: four bytes of version and flags, then three lengths of four bytes, little-endian:
/// decompressed, block, compressed with the header (`README_CHUNK_FORMAT.rst` of c-blosc).
fn check_blosc(source: &dyn ReadAt, chunk_bytes: Option<u64>) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes < BLOSC_HEADER_BYTES as u64 {
        return Err(broken!(
            "the chunk is {size_bytes} bytes long, less than the minimum of a Blosc buffer: it was cut off"
        ));
    }
    let header: [u8; BLOSC_HEADER_BYTES] = read_array(source, 0, "the Blosc header")?;
    let (content_bytes, buffer_bytes) = (number(&header, 4, 4), number(&header, 12, 4));
    if buffer_bytes != size_bytes {
        return Err(broken_at!(
            12,
            "the Blosc buffer states a length of {buffer_bytes} bytes, but the file has {size_bytes}: it was cut off \
             or overwritten"
        ));
    }
    if chunk_bytes.is_some_and(|bytes| bytes != content_bytes) {
        return Err(differs("the chunk decompresses to", content_bytes, chunk_bytes));
    }
    Ok(())
}

fn differs(what: &str, found: u64, expected: Option<u64>) -> Fault {
    broken!(
        "{what} {found} bytes instead of {}: it was cut off or belongs to another array",
        expected.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(compressor: &str) -> Description {
        let text = format!(
            r#"{{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"<f4","compressor":{compressor}}}"#
        );
        Description::parse(text.as_bytes(), Version::Two).unwrap().unwrap()
    }

    fn why(bytes: &[u8], compressor: &str) -> String {
        check_chunk(&bytes.to_vec(), &description(compressor))
            .map_or_else(|fault| fault.to_string(), |()| "sound".to_owned())
    }

    #[test]
    fn an_uncompressed_chunk_has_its_length() {
        assert_eq!(why(&[0; 16], "null"), "sound");
        assert_eq!(why(&[], "null"), "the chunk is empty: it was never written");
        assert_eq!(
            why(&[0; 15], "null"),
            "the chunk is 15 bytes instead of 16: it was cut off or belongs to another array"
        );
        assert_eq!(why(&[0; 15], r#"{"id":"lz4"}"#), "sound");
    }

    #[test]
    fn a_blosc_chunk_says_its_length() {
        let blosc = r#"{"id":"blosc"}"#;
        let mut bytes = vec![2, 1, 0, 4, 16, 0, 0, 0, 16, 0, 0, 0, 20, 0, 0, 0, 1, 2, 3, 4];
        assert_eq!(why(&bytes, blosc), "sound");
        assert_eq!(
            why(&bytes[..19], blosc),
            "the Blosc buffer states a length of 20 bytes, but the file has 19: it was cut off or overwritten"
        );
        assert_eq!(
            why(&bytes[..9], blosc),
            "the chunk is 9 bytes long, less than the minimum of a Blosc buffer: it was cut off"
        );
        bytes[4] = 17;
        assert_eq!(
            why(&bytes, blosc),
            "the chunk decompresses to 17 bytes instead of 16: it was cut off or belongs to another array"
        );
    }
}
