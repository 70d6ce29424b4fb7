//! The file of one chunk: checks that its container is whole, without decompressing it.

use super::description::{Container, Description};
use crate::soundness::{Fault, read_piece};
use crate::source::ReadAt;
use crate::structure::zstd;

/// The size of the header of a Blosc buffer.
const BLOSC_HEADER_BYTES: u64 = 16;

/// Checks a chunk's file.
pub(super) fn check(source: &dyn ReadAt, description: &Description) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(Fault::broken("the chunk is empty: it was never written"));
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
        Container::Zstd => {
            let stated = zstd::check(source)?;
            if stated.is_some() && chunk_bytes.is_some() && stated != chunk_bytes {
                return Err(differs(
                    "the chunk decompresses to",
                    stated.unwrap_or_default(),
                    chunk_bytes,
                ));
            }
            Ok(())
        }
        Container::Blosc => check_blosc(source, chunk_bytes),
        Container::Other => Ok(()),
    }
}

/// Checks a Blosc header: four bytes of version and flags, then three lengths of four bytes, little-endian:
/// decompressed, block, compressed with the header (`README_CHUNK_FORMAT.rst` of c-blosc).
fn check_blosc(source: &dyn ReadAt, chunk_bytes: Option<u64>) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes < BLOSC_HEADER_BYTES {
        return Err(Fault::broken(format!(
            "the chunk is {size_bytes} bytes long, less than the minimum of a Blosc buffer: it was cut off"
        )));
    }
    let header = read_piece(
        source,
        0,
        BLOSC_HEADER_BYTES,
        BLOSC_HEADER_BYTES,
        "the Blosc header",
    )?;
    let length = |start: usize| {
        let bytes = header.get(start..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
    };
    if length(12) != size_bytes {
        return Err(Fault::at(
            12,
            format!(
                "the Blosc buffer states a length of {} bytes, but the file has {size_bytes}: it was cut off or \
                 overwritten",
                length(12)
            ),
        ));
    }
    if chunk_bytes.is_some_and(|bytes| bytes != length(4)) {
        return Err(differs("the chunk decompresses to", length(4), chunk_bytes));
    }
    Ok(())
}

fn differs(what: &str, found: u64, expected: Option<u64>) -> Fault {
    Fault::broken(format!(
        "{what} {found} bytes instead of {}: it was cut off or belongs to another array",
        expected.unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structure::zarr::Version;

    fn description(compressor: &str) -> Description {
        let text = format!(
            r#"{{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"<f4","compressor":{compressor}}}"#
        );
        Description::parse(text.as_bytes(), Version::Two)
            .unwrap()
            .unwrap()
    }

    fn why(bytes: &[u8], compressor: &str) -> String {
        check(&bytes.to_vec(), &description(compressor))
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
