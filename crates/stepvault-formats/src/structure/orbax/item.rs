//! One item of a step: a tree of arrays, JSON, or a user's own kind.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;

use super::leaves::{Kind, Structure};
use super::{Item, holds_arrays};
use crate::soundness::Fault;
use crate::structure::place::{in_file, joined, json};
use crate::structure::zarr::Presence;
use crate::structure::{msgpack, ocdbt, zarr};
use crate::tree::{OpenFile, Tree};

/// The file that describes a tree of arrays.
const STRUCTURE_NAME: &str = "_METADATA";
/// Its counterpart in older versions, as `MessagePack`, with small arrays inside.
const AGGREGATE_NAME: &str = "checkpoint";
/// The file with the leaves that are strings.
const STRINGS_NAME: &str = "_strings.json";
/// The file that records how arrays were distributed over devices.
const SHARDING_NAME: &str = "_sharding";
/// The file of a JSON item.
const JSON_NAME: &str = "metadata";
/// The maximum size of a JSON file of an item: a structure names each array once, in some hundred bytes.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Returns whether a directory is a tree of arrays.
pub(super) fn is_pytree(tree: &Tree, directory: &str) -> bool {
    [STRUCTURE_NAME, AGGREGATE_NAME, ocdbt::MANIFEST_NAME]
        .into_iter()
        .any(|name| tree.is_file(&joined(directory, name)))
}

pub(super) fn check(tree: &Tree, item: &Item, files: &dyn OpenFile) -> Result<(), Fault> {
    let directory = item.directory.as_str();
    let handler = item.handler.as_deref().unwrap_or_default();
    let wrote = |class: &str| {
        handler
            .rsplit('.')
            .next()
            .is_some_and(|name| name.starts_with(class))
    };
    if is_pytree(tree, directory) || wrote("PyTree") || wrote("Standard") {
        check_pytree(tree, directory, files)
    } else if wrote("Json") {
        let path = joined(directory, JSON_NAME);
        json::<IgnoredAny>(tree, &path, files, MAX_JSON_BYTES)?
            .map(drop)
            .ok_or_else(|| missing(&path))
    } else {
        Ok(())
    }
}

fn check_pytree(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let structure_path = joined(directory, STRUCTURE_NAME);
    let structure: Option<Structure> = json(tree, &structure_path, files, MAX_JSON_BYTES)?;
    let aggregate_path = joined(directory, AGGREGATE_NAME);
    if tree.is_file(&aggregate_path) {
        let source = files.open(&aggregate_path)?;
        msgpack::check(&*source).map_err(|fault| in_file(&aggregate_path, fault))?;
    }
    let structure = match structure {
        Some(structure) => structure,
        // Older versions keep the structure, and all data that has no file of its own, in one file.
        None if tree.is_file(&aggregate_path) => Structure::default(),
        None => {
            return Err(Fault::broken(format!(
                "{structure_path} is missing, and the structure of the arrays in {directory} is unknown without it"
            )));
        }
    };
    json::<IgnoredAny>(tree, &joined(directory, SHARDING_NAME), files, MAX_JSON_BYTES)?;
    check_strings(tree, directory, files, &structure)?;
    // A leaf in the aggregate has no separate array.
    let arrays = if tree.is_file(&aggregate_path) {
        BTreeSet::new()
    } else {
        structure.names(Kind::Array)
    };
    if tree.is_file(&joined(directory, ocdbt::MANIFEST_NAME)) {
        let stored = ocdbt::read(tree, directory, files)?;
        stored.check()?;
        if let Some(name) = arrays.iter().find(|name| stored.get(name).is_none()) {
            return Err(no_array(
                &structure_path,
                name,
                "the database in the same directory",
            ));
        }
        if structure.stores_every_chunk() {
            stored.check_chunks()?;
        }
        return Ok(());
    }
    if structure.is_in_ocdbt() || (!arrays.is_empty() && !holds_arrays(tree, directory)) {
        return Err(Fault::broken(format!(
            "{directory} holds no array, but {structure_path} names {}",
            arrays.len()
        )));
    }
    check_directories(tree, directory, files, &structure, &arrays)
}

/// Checks the arrays that are directories.
fn check_directories(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
    structure: &Structure,
    arrays: &BTreeSet<String>,
) -> Result<(), Fault> {
    let presence = if structure.stores_every_chunk() {
        Presence::Required
    } else {
        Presence::Optional
    };
    for name in arrays {
        if !zarr::is_array(tree, &joined(directory, name)) {
            let structure_path = joined(directory, STRUCTURE_NAME);
            return Err(no_array(&structure_path, name, "a directory of that name"));
        }
    }
    let children = tree.children(directory).map(|(name, _)| joined(directory, name));
    for path in children.filter(|path| zarr::is_array(tree, path)) {
        zarr::check(tree, &path, files, presence)?;
    }
    Ok(())
}

fn check_strings(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
    structure: &Structure,
) -> Result<(), Fault> {
    let path = joined(directory, STRINGS_NAME);
    let strings: Option<serde_json::Map<String, serde_json::Value>> =
        json(tree, &path, files, MAX_JSON_BYTES)?;
    let names = structure.names(Kind::Text);
    let Some(strings) = strings else {
        return if names.is_empty() {
            Ok(())
        } else {
            Err(missing(&path))
        };
    };
    match names.iter().find(|name| !strings.contains_key(name.as_str())) {
        Some(name) => Err(no_array(&joined(directory, STRUCTURE_NAME), name, &path)),
        None => Ok(()),
    }
}

fn no_array(structure_path: &str, name: &str, place: &str) -> Fault {
    Fault::broken(format!(
        "{structure_path} names {name}, but {place} does not have it: part of the save is missing"
    ))
}

fn missing(path: &str) -> Fault {
    Fault::broken(format!("{path} is missing"))
}
