//! What every piece of OCDBT metadata is wrapped in: magic number, length, body, checksum.

use std::borrow::Cow;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use stepvault_core::digest::Crc32c;

use super::budget::Budget;
use crate::soundness::Fault;
use crate::structure::cursor::Cursor;

/// Magic number and length, what the smallest version and compression take, checksum.
const LEAST_BYTES: usize = 4 + 8 + 1 + 1 + 4;
/// A window larger than this is not needed to unpack what may be unpacked.
const MAX_WINDOW_BYTES: u64 = super::MAX_PIECE_BYTES;

/// Which piece a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Manifest,
    Node,
}

impl Kind {
    fn magic(self) -> [u8; 4] {
        match self {
            Self::Manifest => [0x0c, 0xdb, 0x3a, 0x2a],
            Self::Node => [0x0c, 0xdb, 0x20, 0xde],
        }
    }
}

/// Checks the frame around `encoded` and unpacks its body. `what` names the piece in refusals.
pub(super) fn unpack<'a>(
    encoded: &'a [u8],
    kind: Kind,
    what: &'a str,
    budget: &mut Budget,
) -> Result<Cow<'a, [u8]>, Fault> {
    let size_bytes = encoded.len();
    if size_bytes < LEAST_BYTES {
        return Err(Fault::broken(format!(
            "{what} is {size_bytes} bytes long, less than any: it was cut off"
        )));
    }
    let mut header = Cursor::new(encoded, what);
    if header.array::<4>("magic number")? != kind.magic() {
        return Err(Fault::broken(format!(
            "{what} does not begin as one: other bytes are there"
        )));
    }
    let stated = u64::from_le_bytes(header.array("length")?);
    if stated != size_bytes as u64 {
        return Err(Fault::broken(format!(
            "{what} says it is {stated} bytes long, and {size_bytes} are there: it was cut off or overwritten"
        )));
    }
    let Some((covered, checksum)) = encoded.split_last_chunk::<4>() else {
        return Err(Fault::broken(format!("{what} has no checksum")));
    };
    if Crc32c::of(covered).0 != u32::from_le_bytes(*checksum) {
        return Err(Fault::broken(format!(
            "{what} does not match its checksum: its bytes are not those that were written"
        )));
    }
    let mut rest = Cursor::new(covered.get(12..).unwrap_or_default(), what);
    let version = rest.varint("version")?;
    if version != 0 {
        return Err(Fault::Unknown(format!(
            "{what} is of version {version}, and only version 0 is known"
        )));
    }
    match rest.varint("compression")? {
        0 => Ok(Cow::Borrowed(rest.into_rest())),
        1 => unpack_zstd(rest.into_rest(), what, budget).map(Cow::Owned),
        other => Err(Fault::Unknown(format!(
            "{what} is compressed by a method ({other}) that is not known"
        ))),
    }
}

fn unpack_zstd(packed: &[u8], what: &str, budget: &mut Budget) -> Result<Vec<u8>, Fault> {
    let damaged =
        |error: &dyn std::fmt::Display| Fault::broken(format!("{what} cannot be decompressed: {error}"));
    let mut source = packed;
    let decoder = StreamingDecoder::new_with_max_window_size(&mut source, MAX_WINDOW_BYTES)
        .map_err(|error| damaged(&error))?;
    let limit_bytes = budget.piece_limit_bytes();
    let mut body = Vec::new();
    decoder
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut body)
        .map_err(|error| damaged(&error))?;
    if body.len() as u64 > limit_bytes {
        return Err(Fault::Unknown(format!(
            "{what} decompresses to more than the {limit_bytes} bytes that are looked at"
        )));
    }
    budget.spend(body.len() as u64, what)?;
    if !source.is_empty() {
        return Err(Fault::broken(format!(
            "{what} goes on for {} bytes after its compressed body",
            source.len()
        )));
    }
    Ok(body)
}
