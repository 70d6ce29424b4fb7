//! The frame around a manifest or node, and the table of data files at its start; entries name files by their number in it.

use std::borrow::Cow;
use std::io::Read;
use std::rc::Rc;

use ruzstd::decoding::StreamingDecoder;
use stepvault_core::digest::Crc32c;

use super::store::{Budget, MAX_PIECE_BYTES};
use crate::soundness::{Fault, broken, unknown};
use crate::structure::cursor::{Cursor, shared_bytes};

/// The longest path; tensorstore writes some fifty bytes.
const MAX_PATH_BYTES: usize = 4096;

/// A data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DataFile {
    /// Its path below the database's directory.
    pub(super) path: Rc<str>,
    /// The number of bytes of the path that form the base of paths in this file.
    base_bytes: usize,
}

impl DataFile {
    /// Returns the base of the paths in this file's own table.
    pub(super) fn base(&self) -> &str {
        self.path.get(..self.base_bytes).unwrap_or_default()
    }
}

/// Reads a table: lengths column by column, then the suffixes of the paths, each of which shares a prefix with the
/// previous path. `base` is the directory that the paths are relative to.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    base: &str,
    what: &str,
    budget: &mut Budget,
) -> Result<Vec<DataFile>, Fault> {
    let count = cursor.count("number of data files", 2)?;
    let shared = cursor.column_after_first(count, "path prefix length")?;
    let lengths = cursor.rows(count, ["path suffix length", "base path length"])?;
    budget.spend((count as u64).saturating_mul(size_of::<DataFile>() as u64 * 2), what)?;
    let mut files = Vec::with_capacity(count);
    let mut path: Vec<u8> = Vec::new();
    for (shared, [suffix, relative_base]) in shared.into_iter().zip(lengths) {
        let damaged = |field: &str| broken!("{what} is damaged: the {field} of a data file is out of range");
        let kept = shared_bytes(shared, path.len()).ok_or_else(|| damaged("path prefix"))?;
        path.truncate(kept);
        let suffix = cursor.take(suffix, "paths of data files")?;
        let full_bytes = base.len() + path.len() + suffix.len();
        if full_bytes > MAX_PATH_BYTES {
            return Err(unknown!(
                "{what} names a data file by {full_bytes} bytes, more than the limit of {MAX_PATH_BYTES}"
            ));
        }
        path.extend_from_slice(suffix);
        budget.spend(full_bytes as u64, what)?;
        let text = std::str::from_utf8(&path).map_err(|_| damaged("path"))?;
        let relative_base = usize::try_from(relative_base)
            .ok()
            .filter(|length| text.is_char_boundary(*length))
            .ok_or_else(|| damaged("base path"))?;
        files.push(DataFile {
            path: Rc::from(format!("{base}{text}")),
            base_bytes: base.len() + relative_base,
        });
    }
    Ok(files)
}

/// Returns the file that an entry names by `number`.
pub(super) fn at<'a>(files: &'a [DataFile], number: u64, what: &str) -> Result<&'a DataFile, Fault> {
    let file = usize::try_from(number).ok().and_then(|index| files.get(index));
    let tabled = files.len();
    file.ok_or_else(|| broken!("{what} is damaged: it names data file {number}, but the table has {tabled}"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn table(bytes: &[u8], base: &str) -> Result<Vec<DataFile>, String> {
        let mut cursor = Cursor::new(bytes, "the node");
        read(&mut cursor, base, "the node", &mut Budget::new(0)).map_err(|fault| fault.to_string())
    }

    #[test]
    fn paths_begin_as_the_one_before() {
        // "p0/d/ab" with base "p0/", then "p0/d/cd" which shares "p0/d/".
        let bytes = b"\x02\x05\x07\x02\x03\x03p0/d/abcd";
        let files = table(bytes, "x/").unwrap();
        let seen: Vec<_> = files.iter().map(|file| (&*file.path, file.base())).collect();
        assert_eq!(seen, [("x/p0/d/ab", "x/p0/"), ("x/p0/d/cd", "x/p0/")]);
        assert_eq!(
            at(&files, 2, "the node").unwrap_err().to_string(),
            "the node is damaged: it names data file 2, but the table has 2"
        );
    }

    #[test]
    fn damaged_tables_are_refused() {
        for (bytes, why) in [
            (
                &b"\x09\x00"[..],
                "the node is damaged: its number of data files is 9, but there is room for 0 only",
            ),
            (
                b"\x02\x05\x01\x01\x00\x00ab",
                "the node is damaged: the path prefix of a data file is out of range",
            ),
            (b"\x01\x01\x02a", "the node is damaged: the base path of a data file is out of range"),
            (b"\x01\x01\x00\xff", "the node is damaged: the path of a data file is out of range"),
            (b"\x01\x05\x00ab", "the node is damaged: it ends before its paths of data files"),
        ] {
            assert_eq!(table(bytes, ""), Err(why.to_owned()));
        }
    }
}
