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

mod metadata;
mod part;
mod ranges;
mod sizes;

use std::collections::BTreeMap;
use std::io;

use super::finding::{Finding, inside};
use super::place::joined;
use super::text::shown;
use super::torch;
use crate::soundness::{Fault, Soundness, judged};
use crate::source::{ReadAt, Window};
use crate::tree::{EntryKind, OpenFile, Tree};

pub use metadata::{MAX_METADATA_BYTES, StorageItem, read_metadata};
pub use part::check_part;
pub use sizes::{ClaimedFile, claimed_files};

/// The name of the marker and table of contents.
const METADATA: &str = ".metadata";

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
        let mut table_soundness = Soundness::Sound;
        for (name, mut items) in by_file {
            if let Some(why) = refusal_of_path(name) {
                table_soundness = Soundness::Broken {
                    offset: None,
                    why: format!("it names the file {}, {why}", shown(name)),
                };
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
        findings.push(Finding {
            path: table_path,
            soundness: table_soundness,
        });
    }
    Ok(findings)
}

/// Returns the tables of contents of a directory: one, or one per rank if the ranks saved without communicating
/// (`use_collectives=False`).
fn tables(tree: &Tree, directory: &str) -> Vec<String> {
    let names = || {
        tree.children(directory)
            .filter(|(_, entry)| matches!(entry.kind, EntryKind::File { .. }))
    };
    if names().any(|(name, _)| name == METADATA) {
        return vec![METADATA.to_owned()];
    }
    let mut ranks: Vec<(u64, String)> = names()
        .filter_map(|(name, _)| Some((rank_of(name)?, name.to_owned())))
        .collect();
    ranks.sort();
    ranks.into_iter().map(|(_, name)| name).collect()
}

/// Returns the rank of `__7.metadata`.
fn rank_of(name: &str) -> Option<u64> {
    name.strip_prefix("__")?.strip_suffix(METADATA)?.parse().ok()
}

/// Returns the first rank whose table of contents is missing from a series.
fn missing_rank(tables: &[String]) -> Option<u64> {
    let ranks = tables.iter().filter_map(|name| rank_of(name));
    (0..)
        .zip(ranks)
        .find(|(expected, rank)| expected != rank)
        .map(|(expected, _)| expected)
}

/// Returns why a path in a table of contents is not in its directory.
fn refusal_of_path(path: &str) -> Option<&'static str> {
    if path.starts_with('/') {
        return Some("which is not in its directory");
    }
    let odd = |segment: &str| matches!(segment, "" | "." | "..");
    (path.split('/').any(odd) || path.contains('\0'))
        .then_some("which leads outside its directory or is not a path")
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
    let entry = tree.get(path);
    let Some(entry) = entry else {
        return Err(Fault::broken(format!(
            "{table} names this file, and it is missing"
        )));
    };
    let EntryKind::File { size_bytes, .. } = entry.kind else {
        return Err(Fault::broken(format!(
            "{table} names this file, and it is not a regular file"
        )));
    };
    ranges::check(items, size_bytes, &table)?;
    if let Some(table_entry) = tree.get(table_path)
        && entry.mtime > table_entry.mtime
    {
        return Err(Fault::broken(format!(
            "it was written after {table}, which is written last: a save over an older one was cut off"
        )));
    }
    let source = files.open(path)?;
    if source.size_bytes() != size_bytes {
        return Err(Fault::Unknown(format!(
            "it was {size_bytes} bytes long when the directory was read and is {} bytes long now",
            source.size_bytes()
        )));
    }
    let mut unknown = None;
    for item in items {
        match judged(check_item(&*source, item))? {
            Soundness::Sound => {}
            Soundness::Broken { offset, why } => return Err(Fault::Broken { offset, why }),
            Soundness::Unknown { why } => unknown = Some(why),
        }
    }
    if let Some(why) = unknown {
        return Err(Fault::Unknown(why));
    }
    ranges::check_gaps(items, size_bytes, &table)
}

/// Checks one item, which is a file of `torch.save` unless it was transformed or is in safetensors format.
fn check_item(source: &dyn ReadAt, item: &StorageItem) -> Result<(), Fault> {
    let what = format!(
        "the item of {} bytes at byte {}",
        item.length_bytes, item.offset_bytes
    );
    if item.transformed {
        return Err(Fault::Unknown(format!(
            "{what} was transformed when it was saved"
        )));
    }
    let Some(window) = Window::new(source, item.offset_bytes, item.length_bytes) else {
        return Err(Fault::at(
            item.offset_bytes,
            format!("{what} is not all in the file"),
        ));
    };
    torch::check(&window).map_err(|fault| inside(fault, &what, item.offset_bytes))
}
