//! The frame of every piece of OCDBT metadata: magic number, length, body, checksum.

use std::borrow::Cow;
use std::io::Read;

use ruzstd::decoding::StreamingDecoder;
use stepvault_core::digest::Crc32c;

use super::store::{Budget, MAX_PIECE_BYTES};
use crate::soundness::{Fault, broken, unknown};
use crate::structure::cursor::Cursor;

/// The size of magic number, length, the shortest version and compression, and checksum.
const LEAST_BYTES: usize = 4 + 8 + 1 + 1 + 4;
/// The maximum window size: no piece within the limit needs a larger one.
const MAX_WINDOW_BYTES: u64 = MAX_PIECE_BYTES;

/// The magic number of a manifest.
pub(super) const MANIFEST_MAGIC: [u8; 4] = [0x0c, 0xdb, 0x3a, 0x2a];
/// The magic number of a node.
pub(super) const NODE_MAGIC: [u8; 4] = [0x0c, 0xdb, 0x20, 0xde];

/// Checks the frame around `encoded` and decompresses its body. `what` names the piece in messages.
pub(super) fn unpack<'a>(
    encoded: &'a [u8],
    magic: [u8; 4],
    what: &'a str,
    budget: &mut Budget,
) -> Result<Cow<'a, [u8]>, Fault> {
    let size_bytes = encoded.len();
    if size_bytes < LEAST_BYTES {
        return Err(broken!("{what} is {size_bytes} bytes long, less than the minimum: it was cut off"));
    }
    let mut header = Cursor::new(encoded, what);
    if header.array::<4>("magic number")? != magic {
        return Err(broken!(
            "{what} does not begin with its magic number: it was overwritten with other bytes"
        ));
    }
    let stated = u64::from_le_bytes(header.array("length")?);
    if stated != size_bytes as u64 {
        return Err(broken!(
            "{what} declares {stated} bytes, but has {size_bytes}: it was cut off or overwritten"
        ));
    }
    let Some((covered, checksum)) = encoded.split_last_chunk::<4>() else {
        return Err(broken!("{what} has no checksum"));
    };
    if Crc32c::of(covered).0 != u32::from_le_bytes(*checksum) {
        return Err(broken!(
            "{what} does not match its checksum: its bytes have changed since they were written"
        ));
    }
    let mut rest = Cursor::new(covered.get(12..).unwrap_or_default(), what);
    let version = rest.varint("version")?;
    if version != 0 {
        return Err(unknown!("{what} is of version {version}, and only version 0 is known"));
    }
    match rest.varint("compression")? {
        0 => Ok(Cow::Borrowed(rest.into_rest())),
        1 => unpack_zstd(rest.into_rest(), what, budget).map(Cow::Owned),
        other => Err(unknown!("{what} is compressed by the unknown method {other}")),
    }
}

fn unpack_zstd(packed: &[u8], what: &str, budget: &mut Budget) -> Result<Vec<u8>, Fault> {
    let damaged = |error: &dyn std::fmt::Display| broken!("{what} cannot be decompressed: {error}");
    let mut source = packed;
    let decoder = StreamingDecoder::new_with_max_window_size(&mut source, MAX_WINDOW_BYTES)
        .map_err(|error| damaged(&error))?;
    let limit_bytes = budget.piece_limit_bytes();
    let mut body = Vec::new();
    decoder.take(limit_bytes.saturating_add(1)).read_to_end(&mut body).map_err(|error| damaged(&error))?;
    if body.len() as u64 > limit_bytes {
        return Err(unknown!("{what} decompresses to more than the limit of {limit_bytes} bytes"));
    }
    budget.spend(body.len() as u64, what)?;
    if !source.is_empty() {
        return Err(broken!("{what} continues for {} bytes after its compressed body", source.len()));
    }
    Ok(body)
}
