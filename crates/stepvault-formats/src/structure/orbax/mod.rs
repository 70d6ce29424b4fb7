//! A step that Orbax wrote: a directory with `_CHECKPOINT_METADATA` and a directory for each item.
//!
//! The rules come from `orbax/checkpoint/_src/{path,metadata,handlers}` and from experiments with Orbax 0.12. A step
//! has its final name (Orbax renames it when it is complete) and records its commit time. Every item that it names
//! exists. Each tree of arrays has its structure (`_METADATA`, or a `MessagePack` file of older versions) and every
//! array that the structure names, in an OCDBT database or as a Zarr directory.
//!
//! `commit_success.txt` proves a step only on object stores. On a filesystem the name proves it, and Orbax before
//! 0.12.3 did not write the file, so it is not checked here. `ocdbt.process_*/manifest.ocdbt` is not checked either,
//! because nothing is restored through it.
//!
//! # Blind spots
//!
//! The blind spots of [`super::ocdbt`] and [`super::zarr`] apply. Items other than trees of arrays and JSON are only
//! checked for existence. If a step has no `_CHECKPOINT_METADATA` (older versions), a whole missing item is not
//! detected. A process whose data was never merged is detected by its missing chunks only if the writer stores all
//! chunks (the default).

mod item;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::soundness::{Fault, broken, unknown};
use crate::structure::directory::Directory;
use crate::structure::{ocdbt, zarr};
use crate::tree::{EntryKind, OpenFile, Tree};

/// The file that describes a step.
pub const STEP_METADATA_NAME: &str = "_CHECKPOINT_METADATA";
/// The text in the name of everything that Orbax has not finished.
const TEMPORARY_INFIX: &str = ".orbax-checkpoint-tmp";
/// The maximum size of the description of a step.
const MAX_METADATA_BYTES: u64 = 16 << 20;

/// The description of a step.
#[derive(Deserialize)]
struct StepMetadata {
    item_handlers: Option<ItemHandlers>,
    /// Missing in older versions, null until the step is committed.
    #[serde(default, deserialize_with = "present")]
    commit_timestamp_nsecs: Stamp,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ItemHandlers {
    ByItem(BTreeMap<String, Option<String>>),
    /// The step is itself the item.
    Single(String),
    Other(IgnoredAny),
}

#[derive(Default, PartialEq, Eq)]
enum Stamp {
    #[default]
    Absent,
    Null,
    Given,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Stamp, D::Error> {
    let stamp = Option::<IgnoredAny>::deserialize(deserializer)?;
    Ok(if stamp.is_some() { Stamp::Given } else { Stamp::Null })
}

/// Checks the step in `directory` of the tree; `""` when the tree is the step.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Unknown`] if the check cannot decide; [`Fault::Read`] when a
/// file cannot be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let step = Directory { tree, path: directory, files };
    unfinished(step)?;
    let metadata: Option<StepMetadata> = step.json(STEP_METADATA_NAME, MAX_METADATA_BYTES)?;
    if let Some(metadata) = &metadata
        && metadata.commit_timestamp_nsecs == Stamp::Null
    {
        let path = step.path_of(STEP_METADATA_NAME);
        return Err(broken!("{path} has no commit time: the save was not finished"));
    }
    let items = items_of(step, metadata.as_ref())?;
    if items.is_empty() {
        let step = if directory.is_empty() { "the step" } else { directory };
        return Err(broken!("{step} contains no items: nothing was saved in it"));
    }
    for item in &items {
        item::check(item.of(step), item.handler.as_deref())?;
    }
    check_iterators(step)?;
    for item in &items {
        check_array_metadatas(item.of(step))?;
    }
    Ok(())
}

/// An item of a step.
struct Item {
    directory: String,
    /// The class that wrote it, if the step names it.
    handler: Option<String>,
}

impl Item {
    fn of<'a>(&'a self, step: Directory<'a>) -> Directory<'a> {
        Directory { path: &self.directory, ..step }
    }
}

fn unfinished(step: Directory<'_>) -> Result<(), Fault> {
    let own = step.path.rsplit('/').next().unwrap_or(step.path);
    let inside = step.tree.children(step.path).map(|(name, _)| name);
    let mut names = std::iter::once(own).chain(inside);
    match names.find(|name| name.contains(TEMPORARY_INFIX)) {
        Some(name) => Err(broken!("{name} was never renamed to its final name: the save was not finished")),
        None => Ok(()),
    }
}

fn items_of(step: Directory<'_>, metadata: Option<&StepMetadata>) -> Result<Vec<Item>, Fault> {
    let item = |(name, handler): (&String, &Option<String>)| {
        let directory = step.path_of(name);
        if !step.tree.is_directory(&directory) {
            let path = step.path_of(STEP_METADATA_NAME);
            return Err(broken!("{path} names the item {name}, but no directory of that name exists"));
        }
        let handler = handler.clone();
        Ok(Item { directory, handler })
    };
    match metadata.and_then(|metadata| metadata.item_handlers.as_ref()) {
        Some(ItemHandlers::ByItem(handlers)) => handlers.iter().map(item).collect(),
        Some(ItemHandlers::Single(handler)) => {
            Ok(vec![Item { directory: step.path.to_owned(), handler: Some(handler.clone()) }])
        }
        Some(ItemHandlers::Other(_)) | None => Ok(items_found(step)),
    }
}

/// Returns the items of a step without a list: the step itself if it is a tree of arrays, otherwise its directories.
fn items_found(step: Directory<'_>) -> Vec<Item> {
    let unnamed = |directory: String| Item { directory, handler: None };
    if item::is_pytree(step) {
        return vec![unnamed(step.path.to_owned())];
    }
    let entries = step.tree.children(step.path);
    entries
        .filter(|(_, entry)| entry.kind == EntryKind::Directory)
        .map(|(name, _)| unnamed(step.path_of(name)))
        .collect()
}

/// Checks `iter/process_{i}-of-{n}.json`, in which `MaxText` keeps each process's position in its data: one file for
/// each of n.
fn check_iterators(step: Directory<'_>) -> Result<(), Fault> {
    let path = step.path_of("iter");
    let iterators = Directory { path: &path, ..step };
    let mut seen = BTreeSet::new();
    let mut declared = None;
    for (name, _) in step.tree.children(&path) {
        let rest = name.strip_prefix("process_");
        let Some(rest) = rest.and_then(|rest| rest.strip_suffix(".json")) else {
            continue;
        };
        iterators.json::<IgnoredAny>(name, MAX_METADATA_BYTES)?;
        let Some((Ok(index), Ok(count))) =
            rest.split_once("-of-").map(|(index, count)| (index.parse::<u64>(), count.parse::<u64>()))
        else {
            continue;
        };
        if *declared.get_or_insert(count) != count {
            return Err(broken!(
                "{} gives {count} processes, but another file in its directory gives a different number: two saves \
                 are mixed",
                iterators.path_of(name)
            ));
        }
        seen.insert(index);
    }
    let missing = first_gap(&seen);
    match declared {
        Some(count) if missing < count => {
            Err(broken!("{path} has no file of process {missing} of {count}: part of the save is missing"))
        }
        _ => Ok(()),
    }
}

/// Checks `array_metadatas/process_{i}`: a file of each process that wrote. Arrays can be restored without them, and
/// processes that hold only copies write none, so a gap proves nothing.
fn check_array_metadatas(item: Directory<'_>) -> Result<(), Fault> {
    let path = item.path_of("array_metadatas");
    let metadatas = Directory { path: &path, ..item };
    let mut seen = BTreeSet::new();
    for (name, _) in item.tree.children(&path) {
        let Some(Ok(index)) = name.strip_prefix("process_").map(str::parse::<u64>) else {
            continue;
        };
        metadatas.json::<IgnoredAny>(name, MAX_METADATA_BYTES)?;
        seen.insert(index);
    }
    let missing = first_gap(&seen);
    match seen.last() {
        Some(last) if missing < *last => Err(unknown!(
            "{path} has a file of process {last} but none of process {missing}: it was lost, or that process had \
             nothing to write"
        )),
        _ => Ok(()),
    }
}

/// Returns the smallest missing number.
fn first_gap(seen: &BTreeSet<u64>) -> u64 {
    (0..).zip(seen).take_while(|(expected, index)| expected == *index).count() as u64
}

/// Returns whether a directory holds arrays in a form that Orbax writes.
fn holds_arrays(item: Directory<'_>) -> bool {
    let mut names = item.tree.children(item.path).map(|(name, _)| name);
    item.has(ocdbt::MANIFEST_NAME)
        || zarr::is_array(item.tree, item.path)
        || names.any(|name| zarr::is_array(item.tree, &item.path_of(name)))
}

#[cfg(test)]
mod tests;
