//! OCDBT: tensorstore's key-value database in a directory, in which Orbax keeps every array of a checkpoint.
//!
//! `manifest.ocdbt` names the root of a B+tree whose nodes and values are in data files (`d/…`). The check covers the
//! frame, the CRC-32C and every field of the manifest and of each node of the newest version. It tests that parents
//! and children agree on levels, keys and sizes, that each value lies inside its file, and that each array has its
//! description and, if the description determines it, the right number of chunks. Older versions are not checked,
//! because nothing in them is restored.
//!
//! The rules are those of tensorstore's `tensorstore/kvstore/ocdbt/index.rst` and of the code in `format/` beside it.
//!
//! # Blind spots
//!
//! Values carry no checksum, so changed bytes in a chunk are not detected, unless the array has the codec `crc32c`
//! ([`crate::deep`]). A data file that is missing or cut off
//! where it holds nothing of the newest version passes: a process's own files (`ocdbt.process_*/d/…`) also hold what
//! it wrote before the databases were merged.

mod arrays;
mod file_table;
mod node;
mod store;

pub use self::arrays::{Arrays, StoredArray};
use self::file_table::{DataFile, MANIFEST_MAGIC};
use self::node::{Child, Expected, Statistics, Visit};
use self::store::{Budget, Location, MAX_PIECE_BYTES, Store};
use super::cursor::Cursor;
use crate::deep::Span;
use crate::soundness::{Fault, broken, unknown};
use crate::tree::{OpenFile, Tree};

/// The file that makes a directory a database.
pub const MANIFEST_NAME: &str = "manifest.ocdbt";
/// The maximum number of levels; three hold a billion keys.
const MAX_HEIGHT: u8 = 16;

/// Checks a database and returns its arrays.
///
/// # Errors
/// [`Fault::Broken`] when a rule is violated, with the file in the text; [`Fault::Unknown`] for unknown versions,
/// kinds and sizes; [`Fault::Read`] when a file cannot be read.
pub fn read(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<Arrays, Fault> {
    let mut store = Store::new(tree, directory, files);
    let mut budget = store.budget();
    let mut collected = arrays::Collector::default();
    let manifest_path = read_with(&mut store, &mut budget, &mut |store, key, value, budget| {
        collected.take(store, key, value, budget)
    })?;
    Ok(collected.finish(&manifest_path))
}

/// Passes every key of the newest version to `visit`, and returns the path of the manifest.
fn read_with(store: &mut Store<'_>, budget: &mut Budget, visit: &mut WalkVisit<'_>) -> Result<String, Fault> {
    let manifest_path = store.directory.path_of(MANIFEST_NAME);
    if !store.directory.has(MANIFEST_NAME) {
        return Err(broken!(
            "{manifest_path} is missing, and nothing in the directory can be found without it"
        ));
    }
    let root = if let Some(root) = read_manifest(store, MANIFEST_NAME, budget)? {
        root
    } else {
        let name = store.newest_numbered().ok_or_else(|| {
            broken!(
                "{manifest_path} keeps its versions in files named manifest. and a number, but no such file \
                     exists"
            )
        })?;
        read_manifest(store, &name, budget)?
            .ok_or_else(|| broken!("{} is damaged: it lists no version", store.directory.path_of(&name)))?
    };
    walk(store, &root, budget, visit)?;
    Ok(manifest_path)
}

/// Returns the checksum of every node, and of every chunk that ends with one, with the paths of their files.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn checksums(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
) -> Result<Vec<(String, Span)>, Fault> {
    let arrays = read(tree, directory, files)?;
    let mut store = Store::new(tree, directory, files);
    store.checksums = Some(Vec::new());
    let mut budget = store.budget();
    read_with(&mut store, &mut budget, &mut |store, key, value, _| {
        arrays::collect_checksum(&arrays, store, key, value)
    })?;
    Ok(store.checksums.unwrap_or_default())
}

/// Checks a database.
///
/// # Errors
/// Those of [`read`].
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    read(tree, directory, files)?.check()
}

fn read_manifest(store: &mut Store<'_>, name: &str, budget: &mut Budget) -> Result<Option<Root>, Fault> {
    let bytes = store.whole(name, MAX_PIECE_BYTES)?;
    let path = store.directory.path_of(name);
    store.collect(path.clone(), 0, &bytes, "the manifest");
    read_root(&bytes, &path, budget)
}

/// Reads every node below `root`, checks that each agrees with its parent's reference, and passes every key to
/// `visit`.
///
/// Levels strictly decrease and every byte is charged to the budget, so the walk ends whatever the nodes contain.
fn walk(
    store: &mut Store<'_>,
    root: &Root,
    budget: &mut Budget,
    visit: &mut WalkVisit<'_>,
) -> Result<(), Fault> {
    let Some((file, location)) = &root.place else {
        return Ok(());
    };
    if root.height > MAX_HEIGHT {
        return Err(unknown!(
            "the tree of keys has {} levels, more than the limit of {MAX_HEIGHT}",
            root.height
        ));
    }
    let first = Child {
        file: file.clone(),
        location: *location,
        statistics: root.statistics,
        prefix: Vec::new(),
        first_key: Vec::new(),
    };
    // The nodes that have not been read yet, each with its height.
    let mut pending = vec![(first, root.height)];
    while let Some((child, height)) = pending.pop() {
        let path = store.directory.path_of(&child.file.path);
        let what = format!("the index node at byte {} of {path}", child.location.offset);
        budget.spend(child.location.length_bytes, &what)?;
        let encoded = store.read(&child.file.path, child.location, MAX_PIECE_BYTES, &what)?;
        store.collect(path, child.location.offset, &encoded, "the index node");
        let expected =
            Expected { height, base: child.file.base(), prefix: &child.prefix, first_key: &child.first_key };
        let mut each: Box<Visit<'_>> = Box::new(|key, value, budget| visit(store, key, value, budget));
        let outcome = node::read(&encoded, &expected, &what, budget, &mut *each)?;
        drop(each);
        compare(child.statistics, outcome.statistics, &what)?;
        let below = outcome.children.into_iter().rev();
        pending.extend(below.map(|child| (child, height.saturating_sub(1))));
    }
    Ok(())
}

/// A callback for each key and its value, with access to the files.
type WalkVisit<'v> = dyn FnMut(&mut Store<'_>, &[u8], node::Value<'_>, &mut Budget) -> Result<(), Fault> + 'v;

fn compare(said: Statistics, found: Statistics, what: &str) -> Result<(), Fault> {
    if said == found {
        return Ok(());
    }
    let why = if said.keys == found.keys {
        "sizes other than those stated by the node that refers to it".to_owned()
    } else {
        format!("{} keys, but the node that refers to it states {}", found.keys, said.keys)
    };
    Err(broken!("{what} holds {why}"))
}

#[cfg(test)]
mod tests;

/// The maximum binary logarithm of the arity of the version tree (tensorstore's `kMaxVersionTreeArityLog2`).
const MAX_VERSION_ARITY_LOG2: u8 = 16;

/// The root of the newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Root {
    height: u8,
    statistics: Statistics,
    /// `None` for a database without keys.
    place: Option<(DataFile, Location)>,
}

/// Reads a manifest. Returns the root of the newest version; `None` if the versions are in separate files, named
/// `manifest.` and the version in sixteen hexadecimal digits.
fn read_root(encoded: &[u8], what: &str, budget: &mut Budget) -> Result<Option<Root>, Fault> {
    let body = file_table::unpack(encoded, MANIFEST_MAGIC, what, budget)?;
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
