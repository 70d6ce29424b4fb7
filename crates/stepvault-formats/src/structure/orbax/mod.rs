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
mod leaves;
mod processes;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::soundness::Fault;
use crate::structure::place::{joined, json};
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
    #[serde(default)]
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
    Ok(if stamp.is_some() {
        Stamp::Given
    } else {
        Stamp::Null
    })
}

/// Checks the step in `directory` of the tree; `""` when the tree is the step.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Unknown`] if the check cannot decide; [`Fault::Read`] when a
/// file cannot be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    unfinished(tree, directory)?;
    let path = joined(directory, STEP_METADATA_NAME);
    let metadata: Option<StepMetadata> = json(tree, &path, files, MAX_METADATA_BYTES)?;
    if let Some(metadata) = &metadata
        && metadata.commit_timestamp_nsecs == Stamp::Null
    {
        return Err(Fault::broken(format!(
            "{path} has no commit time: the save was not finished"
        )));
    }
    let items = items_of(tree, directory, metadata.as_ref())?;
    if items.is_empty() {
        let step = if directory.is_empty() {
            "the step"
        } else {
            directory
        };
        return Err(Fault::broken(format!(
            "{step} contains no items: nothing was saved in it"
        )));
    }
    for item in &items {
        item::check(tree, item, files)?;
    }
    processes::check_iterators(tree, directory, files)?;
    for item in &items {
        processes::check_array_metadatas(tree, &item.directory, files)?;
    }
    Ok(())
}

/// An item of a step.
struct Item {
    directory: String,
    /// The class that wrote it, if the step names it.
    handler: Option<String>,
}

fn unfinished(tree: &Tree, directory: &str) -> Result<(), Fault> {
    let own = directory.rsplit('/').next().unwrap_or(directory);
    let inside = tree.children(directory).map(|(name, _)| name);
    match std::iter::once(own)
        .chain(inside)
        .find(|name| name.contains(TEMPORARY_INFIX))
    {
        Some(name) => Err(Fault::broken(format!(
            "{name} was never renamed to its final name: the save was not finished"
        ))),
        None => Ok(()),
    }
}

fn items_of(tree: &Tree, directory: &str, metadata: Option<&StepMetadata>) -> Result<Vec<Item>, Fault> {
    match metadata.and_then(|metadata| metadata.item_handlers.as_ref()) {
        Some(ItemHandlers::ByItem(handlers)) => handlers
            .iter()
            .map(|(name, handler)| {
                let item = joined(directory, name);
                if tree.is_directory(&item) {
                    Ok(Item {
                        directory: item,
                        handler: handler.clone(),
                    })
                } else {
                    Err(Fault::broken(format!(
                        "{} names the item {name}, but no directory of that name exists",
                        joined(directory, STEP_METADATA_NAME)
                    )))
                }
            })
            .collect(),
        Some(ItemHandlers::Single(handler)) => Ok(vec![Item {
            directory: directory.to_owned(),
            handler: Some(handler.clone()),
        }]),
        Some(ItemHandlers::Other(_)) | None => Ok(items_found(tree, directory)),
    }
}

/// Returns the items of a step without a list: the step itself if it is a tree of arrays, otherwise its directories.
fn items_found(tree: &Tree, directory: &str) -> Vec<Item> {
    let unnamed = |directory: String| Item {
        directory,
        handler: None,
    };
    if item::is_pytree(tree, directory) {
        return vec![unnamed(directory.to_owned())];
    }
    tree.children(directory)
        .filter(|(_, entry)| entry.kind == EntryKind::Directory)
        .map(|(name, _)| unnamed(joined(directory, name)))
        .collect()
}

/// Returns whether a directory holds arrays in a form that Orbax writes.
fn holds_arrays(tree: &Tree, directory: &str) -> bool {
    tree.is_file(&joined(directory, ocdbt::MANIFEST_NAME))
        || zarr::is_array(tree, directory)
        || tree
            .children(directory)
            .any(|(name, _)| zarr::is_array(tree, &joined(directory, name)))
}

#[cfg(test)]
mod tests;
