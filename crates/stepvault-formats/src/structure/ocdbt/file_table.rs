//! The table of data files at the start of a manifest or node; entries name files by their number in it.

use std::rc::Rc;

use super::store::Budget;
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
