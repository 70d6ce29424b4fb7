//! A directory of PyTorch's distributed checkpoint (DCP): `.metadata`, and the files whose pieces it names.
//!
//! `.metadata` is a pickle that gives the file, the first byte and the length of each item
//! (torch/distributed/checkpoint/filesystem.py). It is written last, under another name, and renamed. Each item is a
//! `torch.save` file of its own. Files that no item names are ignored: a rank without items leaves an empty one.
//!
//! # Blind spots
//! - The number of ranks, which DCP does not record. Whether all files of a rank exist is known only from the items.
//! - The bytes of tensors, and two files of equal layout that were swapped.
//! - `.metadata` carries no checksum (see [`crate::pickle`]). A flipped bit in an item's name or shape makes another
//!   name or shape; a flipped bit in its file, offset or length is detected.
//! - If each node keeps its files on its own disk, the table names the files of all nodes. The files of the other
//!   nodes are reported missing, unless the node is known to be one of several. Then, on a node without the table,
//!   the check can only test that each file ends where an item ends.
//! - A save over an older one that was cut off before it replaced the first file leaves the older checkpoint, whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use super::text::shown;
use super::torch;
use super::zip::FIRST_BYTES;
use crate::pickle::{self, Keep, Pickle, Value};
use crate::soundness::{Fault, Finding, broken, broken_at, read_head, read_tail, unknown};
use crate::tree::{EntryKind, OpenFile, ReadAt, Tree, Window, joined};

/// The name of the marker and table of contents.
const METADATA: &str = ".metadata";
/// The first bytes of a ZIP archive, the format of an item of `torch.save`.
const LOCAL_HEADER: [u8; 4] = FIRST_BYTES[0];
/// The first bytes of the record at its end.
const END_RECORD: [u8; 4] = FIRST_BYTES[1];
/// The length of that record, which is followed by no comment.
const END_RECORD_BYTES: u64 = 22;

/// Checks a directory that DCP saved to. `directory` is a path of the tree, `""` the tree's own.
///
/// Returns one finding for each table of contents and for each file that one names, including missing ones; the worst
/// of each.
///
/// # Errors
/// When a file could not be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> io::Result<Vec<Finding>> {
    let tables = tables(tree, directory);
    if tables.is_empty() {
        let why = "the directory has no .metadata, which DCP writes last: the save was cut off or is still in progress";
        return Ok(vec![Finding::broken(joined(directory, METADATA), why)]);
    }
    let mut findings = Vec::new();
    if let Some(missing) = missing_rank(&tables) {
        let name = format!("__{missing}{METADATA}");
        let why = "the rank that writes this table of contents is missing, and higher ranks are present";
        findings.push(Finding::broken(joined(directory, &name), why));
    }
    findings.extend(check_tables(tree, directory, tables, files, &|_| true)?);
    Ok(findings)
}

/// Checks the files of a part of a DCP checkpoint: those of the ranks of one node of several. If the table of contents
/// exists, which also names files of other nodes, the check uses it; otherwise it tests whether the last item of each
/// file is whole.
///
/// # Errors
/// When a file could not be read.
pub fn check_part(tree: &Tree, directory: &str, files: &dyn OpenFile) -> io::Result<Vec<Finding>> {
    let tables = tables(tree, directory);
    if !tables.is_empty() {
        return check_tables(tree, directory, tables, files, &|path| tree.is_file(path));
    }
    tree.file_names(directory)
        .filter(|name| name.ends_with(".distcp"))
        .map(|name| {
            let path = joined(directory, name);
            let outcome = check_end(&*files.open(&path)?);
            Finding::of(path, outcome)
        })
        .collect()
}

/// Tests that the last item has an end, which an item that was cut off lacks. A file without items is empty: a rank
/// may have none.
fn check_end(source: &dyn ReadAt) -> Result<(), Fault> {
    let length_bytes = source.size_bytes();
    if length_bytes == 0 {
        return Ok(());
    }
    if read_head(source, LOCAL_HEADER.len() as u64)? == LOCAL_HEADER {
        let at = length_bytes.saturating_sub(END_RECORD_BYTES);
        if !read_tail(source, END_RECORD_BYTES)?.starts_with(&END_RECORD) {
            return Err(broken_at!(
                at,
                "its last item does not end where the file does: the save was cut off or is still in progress"
            ));
        }
    }
    Err(unknown!("the table of its items is on another node"))
}

/// A file, described by its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedFile {
    /// Its path, relative to the table's directory.
    pub path: String,
    /// The end of its last item. A file that DCP wrote has nothing after it.
    pub bytes: u64,
    /// The number of its items.
    pub items: u64,
}

/// Returns the files that a table of contents names, by name. A rank without items leaves an empty file that no item
/// names.
///
/// # Errors
/// As [`read_metadata`]; [`Fault::Broken`] if a path leads outside the directory or the end of an item overflows.
pub fn claimed_files(source: &dyn ReadAt) -> Result<Vec<ClaimedFile>, Fault> {
    let mut files: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for item in read_metadata(source)? {
        is_inside(&item.relative_path)?;
        let Some(end) = item.offset_bytes.checked_add(item.length_bytes) else {
            return Err(broken!("one of its items ends beyond the largest possible file"));
        };
        let (bytes, items) = files.entry(item.relative_path.to_string()).or_default();
        *bytes = end.max(*bytes);
        *items += 1;
    }
    let files = files.into_iter();
    Ok(files.map(|(path, (bytes, items))| ClaimedFile { path, bytes, items }).collect())
}

/// Checks tables of contents and those of their files for which `asked` returns true.
fn check_tables(
    tree: &Tree,
    directory: &str,
    tables: Vec<String>,
    files: &dyn OpenFile,
    asked: &dyn Fn(&str) -> bool,
) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for table in tables {
        let table_path = joined(directory, &table);
        let items = match read_metadata(&*files.open(&table_path)?) {
            Ok(items) => items,
            Err(fault) => {
                findings.push(Finding::of(table_path, Err(fault))?);
                continue;
            }
        };
        let mut by_file: BTreeMap<&str, Vec<&StorageItem>> = BTreeMap::new();
        for item in &items {
            by_file.entry(&item.relative_path).or_default().push(item);
        }
        let mut of_table = Ok(());
        for (name, mut items) in by_file {
            if let Err(fault) = is_inside(name) {
                of_table = Err(fault);
                continue;
            }
            items.sort_by_key(|item| (item.offset_bytes, item.length_bytes));
            let path = joined(directory, name);
            if !asked(&path) {
                continue;
            }
            let outcome = check_file(tree, &path, &table_path, &items, files);
            findings.push(Finding::of(path, outcome)?);
        }
        findings.push(Finding::of(table_path, of_table)?);
    }
    Ok(findings)
}

/// Returns the tables of contents of a directory: one, or one per rank if the ranks saved without communicating
/// (`use_collectives=False`).
fn tables(tree: &Tree, directory: &str) -> Vec<String> {
    if tree.file_names(directory).any(|name| name == METADATA) {
        return vec![METADATA.to_owned()];
    }
    let of_ranks = tree.file_names(directory).filter_map(|name| Some((rank_of(name)?, name)));
    let by_rank: BTreeSet<(u64, &str)> = of_ranks.collect();
    by_rank.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// Returns the rank of `__7.metadata`.
fn rank_of(name: &str) -> Option<u64> {
    name.strip_prefix("__")?.strip_suffix(METADATA)?.parse().ok()
}

/// Returns the first rank whose table of contents is missing from a series.
fn missing_rank(tables: &[String]) -> Option<u64> {
    let ranks = tables.iter().filter_map(|name| rank_of(name));
    (0..).zip(ranks).find(|(expected, rank)| expected != rank).map(|(expected, _)| expected)
}

/// Refuses a path in a table of contents that is not in its directory.
fn is_inside(path: &str) -> Result<(), Fault> {
    let odd = |segment: &str| matches!(segment, "" | "." | "..");
    let why = if path.starts_with('/') {
        "which is not in its directory"
    } else if path.split('/').any(odd) || path.contains('\0') {
        "which leads outside its directory or is not a path"
    } else {
        return Ok(());
    };
    Err(broken!("it names the file {}, {why}", shown(path)))
}

/// Checks one file against the items that should be in it, in order of their offsets.
fn check_file(
    tree: &Tree,
    path: &str,
    table_path: &str,
    items: &[&StorageItem],
    files: &dyn OpenFile,
) -> Result<(), Fault> {
    let table = shown(table_path);
    let Some(entry) = tree.get(path) else {
        return Err(broken!("{table} names this file, and it is missing"));
    };
    let EntryKind::File { size_bytes, .. } = entry.kind else {
        return Err(broken!("{table} names this file, and it is not a regular file"));
    };
    check_ranges(items, size_bytes, &table)?;
    if tree.get(table_path).is_some_and(|table| entry.mtime > table.mtime) {
        return Err(broken!(
            "it was written after {table}, which is written last: a save over an older one was cut off"
        ));
    }
    let source = files.open(path)?;
    if source.size_bytes() != size_bytes {
        return Err(unknown!(
            "it was {size_bytes} bytes long when the directory was read and is {} bytes long now",
            source.size_bytes()
        ));
    }
    let mut undecided = Ok(());
    for item in items {
        match check_item(&*source, item) {
            Err(fault @ Fault::Unknown(_)) => undecided = Err(fault),
            decided => decided?,
        }
    }
    undecided?;
    check_gaps(items, size_bytes, &table)
}

/// Checks one item, which is a file of `torch.save` unless it was transformed or is in safetensors format.
fn check_item(source: &dyn ReadAt, item: &StorageItem) -> Result<(), Fault> {
    let (offset, length) = (item.offset_bytes, item.length_bytes);
    let what = format!("the item of {length} bytes at byte {offset}");
    if item.transformed {
        return Err(unknown!("{what} was transformed when it was saved"));
    }
    let Some(window) = Window::new(source, offset, length) else {
        return Err(broken_at!(offset, "{what} is not all in the file"));
    };
    torch::check(&window).map_err(|fault| fault.in_piece(&what, offset))
}

/// Checks that items, in order of their offsets, lie inside a file of `size_bytes` and do not overlap.
fn check_ranges(items: &[&StorageItem], size_bytes: u64, table: &str) -> Result<(), Fault> {
    let mut previous_end = 0;
    for item in items {
        let (start, length) = (item.offset_bytes, item.length_bytes);
        let Some(end) = start.checked_add(length).filter(|end| *end <= size_bytes) else {
            return Err(broken_at!(
                start,
                "{table} names an item of {length} bytes at byte {start}, and the file has {size_bytes}: it is cut off \
                 or from another save"
            ));
        };
        if start < previous_end {
            return Err(broken_at!(
                start,
                "{table} names an item at byte {start}, inside the one before it, which ends at {previous_end}"
            ));
        }
        previous_end = end;
    }
    Ok(())
}

/// Checks that the items fill their file. DCP itself writes them without gaps. Another writer may leave gaps, so a
/// gap only means that its bytes are unknown.
fn check_gaps(items: &[&StorageItem], size_bytes: u64, table: &str) -> Result<(), Fault> {
    let mut previous_end = 0;
    let ranges = items.iter().map(|item| (item.offset_bytes, item.length_bytes));
    for (start, length) in ranges.chain([(size_bytes, 0)]) {
        if start > previous_end {
            return Err(unknown!("its bytes {previous_end} to {start} belong to no item that {table} names"));
        }
        previous_end = start.saturating_add(length);
    }
    Ok(())
}

/// The longest `.metadata` that is read, in bytes: a few million items.
pub const MAX_METADATA_BYTES: u64 = 1 << 30;
/// The maximum number of attributes of an object of DCP's own whose attributes are read.
const MAX_ATTRIBUTES: usize = 64;

/// The longest path of a file in a step, in bytes. Items may share a path, and every mention of a longer one would
/// cost its length.
const MAX_PATH_BYTES: usize = 1024;
/// The Python module of the classes that describe items.
const METADATA_MODULE: &str = "torch.distributed.checkpoint.metadata";

/// The location of an item's bytes: a `_StorageInfo` of torch/distributed/checkpoint/filesystem.py.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageItem {
    /// The file, relative to the directory of `.metadata`. As written: it may be absolute or lead elsewhere. Shared
    /// by the items of one file.
    pub relative_path: Arc<str>,
    /// The offset of its first byte in the file.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
    /// Whether the bytes were transformed, for example compressed: `transform_descriptors` is set.
    pub transformed: bool,
}

/// Reads the items of a `.metadata`, in its order.
///
/// # Errors
/// [`Fault::Broken`] if it is not one whole pickle, if an item lacks its location, or if it holds
/// fewer locations than pieces of items; [`Fault::Unknown`] if it holds no `Metadata`, is of another kind of
/// storage, or too large.
pub fn read_metadata(source: &dyn ReadAt) -> Result<Vec<StorageItem>, Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the file is empty: it was created and never written"));
    }
    if size_bytes > MAX_METADATA_BYTES {
        return Err(unknown!("it is {size_bytes} bytes long, more than the limit of {MAX_METADATA_BYTES}"));
    }
    let pickle = pickle::read_whole(source, 0..size_bytes, Keep::Values)?;
    let attributes = attributes_of(&pickle, pickle.root, (METADATA_MODULE, "Metadata"))
        .ok_or_else(|| unknown!("it holds no Metadata of torch.distributed.checkpoint"))?;
    let (Some(described), Some(places)) =
        (attributes.get(&pickle, "state_dict_metadata"), attributes.get(&pickle, "storage_data"))
    else {
        return Err(broken!("its Metadata lacks the list of items or their locations"));
    };
    let described = pickle
        .entries(described)
        .ok_or_else(|| broken!("its state_dict_metadata, which lists the items, is not a dictionary"))?;
    let places = match places {
        Value::None if described.is_empty() => &[],
        places => pickle
            .entries(places)
            .ok_or_else(|| broken!("its storage_data, which locates the items, is not a dictionary"))?,
    };
    let pieces: usize = described.iter().map(|(_, value)| pieces_of(&pickle, *value)).sum();
    if places.len() < pieces {
        return Err(broken!("it describes {pieces} pieces, and locates {} of them", places.len()));
    }
    let mut paths = HashMap::new();
    places.iter().map(|(_, value)| item(&pickle, *value, &mut paths)).collect()
}

/// Returns the number of pieces of an item: a tensor has a list of them, anything else is one piece.
fn pieces_of(pickle: &Pickle, value: Value) -> usize {
    attributes_of(pickle, value, (METADATA_MODULE, "TensorStorageMetadata"))
        .and_then(|attributes| pickle.elements(attributes.get(pickle, "chunks")?))
        .map_or(1, <[_]>::len)
}

fn item(pickle: &Pickle, value: Value, paths: &mut HashMap<Value, Arc<str>>) -> Result<StorageItem, Fault> {
    let class = ("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    let Some(attributes) = attributes_of(pickle, value, class) else {
        return Err(unknown!(
            "its items are stored by something other than the file storage, so their locations are \
             unknown"
        ));
    };
    let transforms = attributes.get(pickle, "transform_descriptors").unwrap_or(Value::None);
    let untransformed = transforms == Value::None || pickle.elements(transforms).is_some_and(<[_]>::is_empty);
    let mut read = || {
        let path = attributes.get(pickle, "relative_path")?;
        let text = pickle.text(path).filter(|text| text.len() <= MAX_PATH_BYTES)?;
        Some(StorageItem {
            relative_path: Arc::clone(paths.entry(path).or_insert_with(|| text.into())),
            offset_bytes: pickle.unsigned(attributes.get(pickle, "offset")?)?,
            length_bytes: pickle.unsigned(attributes.get(pickle, "length")?)?,
            transformed: !untransformed,
        })
    };
    read().ok_or_else(|| broken!("one of its items lacks its file, offset or length"))
}

/// The attributes of an object.
struct Attributes<'a>(&'a [(Value, Value)]);

impl Attributes<'_> {
    fn get(&self, pickle: &Pickle, name: &str) -> Option<Value> {
        let found = |(key, _): &&(Value, Value)| pickle.text(*key) == Some(name);
        self.0.iter().rev().find(found).map(|(_, value)| *value)
    }
}

/// Returns the attributes that a pickle sets on an object of a class. Objects may share them, so a limit on their
/// number keeps the work in proportion to the file.
fn attributes_of<'a>(pickle: &'a Pickle, value: Value, class: (&str, &str)) -> Option<Attributes<'a>> {
    let call = pickle.call(value)?;
    if pickle.global(call.callable)? != class {
        return None;
    }
    let entries = pickle.entries(call.state)?;
    (entries.len() <= MAX_ATTRIBUTES).then_some(Attributes(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(ranges: &[(u64, u64)], size_bytes: u64) -> Result<(), String> {
        let items: Vec<_> = ranges
            .iter()
            .map(|(offset_bytes, length_bytes)| StorageItem {
                relative_path: "__0_0.distcp".into(),
                offset_bytes: *offset_bytes,
                length_bytes: *length_bytes,
                transformed: false,
            })
            .collect();
        let items: Vec<_> = items.iter().collect();
        check_ranges(&items, size_bytes, ".metadata")
            .and_then(|()| check_gaps(&items, size_bytes, ".metadata"))
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn items_lie_inside_and_apart() {
        assert_eq!(outcome(&[(0, 10), (10, 5)], 15), Ok(()));
        assert_eq!(outcome(&[(0, 0), (0, 15), (15, 0)], 15), Ok(()));
        assert_eq!(
            outcome(&[(0, 10), (10, 5)], 14),
            Err(".metadata names an item of 5 bytes at byte 10, and the file has 14: it is cut off or from another \
                save"
                .to_owned())
        );
        assert!(outcome(&[(u64::MAX, 5)], 14).is_err());
        assert_eq!(
            outcome(&[(0, 10), (9, 6)], 15),
            Err(".metadata names an item at byte 9, inside the one before it, which ends at 10".to_owned())
        );
        assert_eq!(
            outcome(&[(0, 10), (12, 3)], 15),
            Err("its bytes 10 to 12 belong to no item that .metadata names".to_owned())
        );
        assert_eq!(
            outcome(&[(0, 10)], 15),
            Err("its bytes 10 to 15 belong to no item that .metadata names".to_owned())
        );
    }
}
