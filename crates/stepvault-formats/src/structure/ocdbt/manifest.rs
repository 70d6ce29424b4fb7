//! `manifest.ocdbt`: the data files, and the root of the newest version's tree.

use super::file_table::{self, DataFile};
use super::frame::{self, MANIFEST_MAGIC};
use super::node::Statistics;
use super::store::{Budget, Location};
use crate::soundness::{Fault, unknown};
use crate::structure::cursor::Cursor;

/// The maximum binary logarithm of the arity of the version tree (tensorstore's `kMaxVersionTreeArityLog2`).
const MAX_VERSION_ARITY_LOG2: u8 = 16;

/// The root of the newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) height: u8,
    pub(super) statistics: Statistics,
    /// `None` for a database without keys.
    pub(super) place: Option<(DataFile, Location)>,
}

/// Reads a manifest. Returns the root of the newest version; `None` if the versions are in separate files, named
/// `manifest.` and the version in sixteen hexadecimal digits.
pub(super) fn read(encoded: &[u8], what: &str, budget: &mut Budget) -> Result<Option<Root>, Fault> {
    let body = frame::unpack(encoded, MANIFEST_MAGIC, what, budget)?;
    let mut cursor = Cursor::new(&body, what);
    cursor.array::<16>("identifier")?;
    let kind = cursor.byte("kind")?;
    cursor.varint("limit of inline values")?;
    cursor.varint("limit of nodes")?;
    let arity_log2 = cursor.byte("arity of versions")?;
    match cursor.varint("compression")? {
        0 => {}
        1 => drop(cursor.array::<4>("compression level")?),
        other => return Err(unknown!("{what} requires the unknown compression {other}")),
    }
    if !(1..=MAX_VERSION_ARITY_LOG2).contains(&arity_log2) {
        return Err(cursor.damaged("its arity of versions is out of range"));
    }
    let root = match kind {
        0 => Some(newest_root(&mut cursor, what, budget)?),
        1 => None,
        other => return Err(unknown!("{what} is of the unknown kind {other}")),
    };
    if !cursor.is_empty() {
        return Err(cursor.damaged("bytes follow its last field"));
    }
    Ok(root)
}

/// Reads the versions, of which the last is the one that is restored, and skips the references to older ones.
fn newest_root(cursor: &mut Cursor<'_>, what: &str, budget: &mut Budget) -> Result<Root, Fault> {
    let files = file_table::read(cursor, "", what, budget)?;
    // Generation, height, file, offset, length, three statistics, and eight bytes of time.
    let versions = cursor.count("number of versions", 16)?;
    let mut generation = 0;
    for _ in 0..versions {
        let next = cursor.varint("version number")?;
        if next <= generation {
            return Err(cursor.damaged("its versions are out of order"));
        }
        generation = next;
    }
    let heights = cursor.take(versions as u64, "heights of versions")?;
    let Some(height) = heights.last().copied() else {
        return Err(cursor.damaged("it lists no version"));
    };
    let mut last = |field: &str| {
        let mut value = 0;
        for _ in 0..versions {
            value = cursor.varint(field)?;
        }
        Ok::<_, Fault>(value)
    };
    let file = last("data file of a version")?;
    let location =
        Location { offset: last("offset of a version")?, length_bytes: last("length of a version")? };
    let statistics = Statistics {
        keys: last("number of keys of a version")?,
        tree_bytes: last("size of a version")?,
        value_bytes: last("size of the values of a version")?,
    };
    cursor.take((versions as u64).saturating_mul(8), "time of a version")?;
    skip_older_versions(cursor)?;
    let place = if location == Location::MISSING {
        if height != 0 || statistics != Statistics::default() {
            return Err(cursor.damaged("its newest version has keys but no tree"));
        }
        None
    } else {
        Some((file_table::at(&files, file, what)?.clone(), location))
    };
    Ok(Root { height, statistics, place })
}

/// Skips references to the nodes that hold older versions: nothing that is restored is in them.
fn skip_older_versions(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    // Generation, file, offset, length, count, eight bytes of time, height.
    let count = cursor.count("number of older versions", 14)?;
    for field in [
        "number of an older version",
        "data file of an older version",
        "offset of an older version",
        "length of an older version",
        "count of older versions",
    ] {
        for _ in 0..count {
            cursor.varint(field)?;
        }
    }
    cursor.take((count as u64).saturating_mul(9), "times of older versions")?;
    Ok(())
}
