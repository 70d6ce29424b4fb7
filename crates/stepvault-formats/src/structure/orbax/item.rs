//! One item of a step: a tree of arrays, JSON, or a user's own kind.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::holds_arrays;
use crate::soundness::{Fault, broken};
use crate::structure::directory::Directory;
use crate::structure::zarr::Presence;
use crate::structure::{msgpack, ocdbt, zarr};

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
pub(super) fn is_pytree(item: Directory<'_>) -> bool {
    let names = [STRUCTURE_NAME, AGGREGATE_NAME, ocdbt::MANIFEST_NAME];
    names.into_iter().any(|name| item.has(name))
}

/// Checks an item. `handler` is the class that wrote it, if the step names it.
pub(super) fn check(item: Directory<'_>, handler: Option<&str>) -> Result<(), Fault> {
    let class = handler.and_then(|handler| handler.rsplit('.').next());
    let wrote = |name: &str| class.is_some_and(|class| class.starts_with(name));
    if is_pytree(item) || wrote("PyTree") || wrote("Standard") {
        check_pytree(item)
    } else if wrote("Json") {
        let value = item.json::<IgnoredAny>(JSON_NAME, MAX_JSON_BYTES)?;
        value.map(drop).ok_or_else(|| missing(item, JSON_NAME))
    } else {
        Ok(())
    }
}

fn check_pytree(item: Directory<'_>) -> Result<(), Fault> {
    let structure: Option<Structure> = item.json(STRUCTURE_NAME, MAX_JSON_BYTES)?;
    let has_aggregate = item.has(AGGREGATE_NAME);
    if has_aggregate {
        let path = item.path_of(AGGREGATE_NAME);
        msgpack::check(&*item.files.open(&path)?).map_err(|fault| fault.in_file(&path))?;
    }
    let structure_path = item.path_of(STRUCTURE_NAME);
    let structure = match structure {
        Some(structure) => structure,
        // Older versions keep the structure, and all data that has no file of its own, in one file.
        None if has_aggregate => Structure::default(),
        None => {
            return Err(broken!(
                "{structure_path} is missing, and the structure of the arrays in {} is unknown without it",
                item.path
            ));
        }
    };
    item.json::<IgnoredAny>(SHARDING_NAME, MAX_JSON_BYTES)?;
    check_strings(item, &structure)?;
    // A leaf in the aggregate has no separate array.
    let arrays = if has_aggregate { BTreeSet::new() } else { structure.names(Kind::Array) };
    if item.has(ocdbt::MANIFEST_NAME) {
        let stored = ocdbt::read(item.tree, item.path, item.files)?;
        stored.check()?;
        if let Some(name) = arrays.iter().find(|name| stored.get(name).is_none()) {
            return Err(no_array(item, name, "the database in the same directory"));
        }
        if structure.stores_every_chunk() {
            stored.check_chunks()?;
        }
        return Ok(());
    }
    if structure.is_in_ocdbt() || (!arrays.is_empty() && !holds_arrays(item)) {
        return Err(broken!("{} holds no array, but {structure_path} names {}", item.path, arrays.len()));
    }
    check_directories(item, &structure, &arrays)
}

/// Checks the arrays that are directories.
fn check_directories(
    item: Directory<'_>,
    structure: &Structure,
    arrays: &BTreeSet<String>,
) -> Result<(), Fault> {
    let presence = if structure.stores_every_chunk() { Presence::Required } else { Presence::Optional };
    let is_array = |name: &str| zarr::is_array(item.tree, &item.path_of(name));
    if let Some(name) = arrays.iter().find(|name| !is_array(name)) {
        return Err(no_array(item, name, "a directory of that name"));
    }
    let names = item.tree.children(item.path).map(|(name, _)| name);
    for name in names.filter(|name| is_array(name)) {
        zarr::check(item.tree, &item.path_of(name), item.files, presence)?;
    }
    Ok(())
}

fn check_strings(item: Directory<'_>, structure: &Structure) -> Result<(), Fault> {
    let strings: Option<serde_json::Map<String, serde_json::Value>> =
        item.json(STRINGS_NAME, MAX_JSON_BYTES)?;
    let names = structure.names(Kind::Text);
    if names.is_empty() {
        return Ok(());
    }
    let strings = strings.ok_or_else(|| missing(item, STRINGS_NAME))?;
    let lost = names.iter().find(|name| !strings.contains_key(name.as_str()));
    lost.map_or(Ok(()), |name| Err(no_array(item, name, &item.path_of(STRINGS_NAME))))
}

fn no_array(item: Directory<'_>, name: &str, place: &str) -> Fault {
    let structure_path = item.path_of(STRUCTURE_NAME);
    broken!("{structure_path} names {name}, but {place} does not have it: part of the save is missing")
}

fn missing(item: Directory<'_>, name: &str) -> Fault {
    broken!("{} is missing", item.path_of(name))
}

/// How a leaf is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As an array.
    Array,
    /// As a string in a file shared with the others.
    Text,
    /// In the structure itself (an empty container), or in an unknown way.
    Elsewhere,
}

/// The leaves of a tree.
#[derive(Deserialize, Default)]
struct Structure {
    #[serde(default)]
    tree_metadata: BTreeMap<String, Leaf>,
    use_ocdbt: Option<bool>,
    #[serde(default)]
    store_array_data_equal_to_fill_value: bool,
}

#[derive(Deserialize)]
struct Leaf {
    key_metadata: Vec<Key>,
    value_metadata: Stored,
}

#[derive(Deserialize)]
struct Key {
    key: KeyName,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum KeyName {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
struct Stored {
    value_type: String,
    #[serde(default)]
    skip_deserialize: bool,
}

impl Structure {
    /// Returns the names of the leaves that are stored in this way: the keys on the path to them, joined with dots
    /// (`param_name_from_keypath` in `orbax/checkpoint/_src/tree/utils.py`).
    fn names(&self, kind: Kind) -> BTreeSet<String> {
        self.tree_metadata
            .values()
            .filter(|leaf| leaf.value_metadata.kind() == kind)
            .map(Leaf::name)
            .collect()
    }

    /// Returns whether a missing chunk was lost, and does not just hold the fill value.
    fn stores_every_chunk(&self) -> bool {
        self.store_array_data_equal_to_fill_value
    }

    fn is_in_ocdbt(&self) -> bool {
        self.use_ocdbt == Some(true)
    }
}

impl Leaf {
    fn name(&self) -> String {
        let keys = self.key_metadata.iter().map(|key| match &key.key {
            KeyName::Text(text) => text.clone(),
            KeyName::Number(number) => number.to_string(),
        });
        keys.collect::<Vec<_>>().join(".")
    }
}

impl Stored {
    fn kind(&self) -> Kind {
        match self.value_type.as_str() {
            _ if self.skip_deserialize => Kind::Elsewhere,
            "jax.Array" | "np.ndarray" | "scalar" => Kind::Array,
            "string" => Kind::Text,
            _ => Kind::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_named_by_their_keys() {
        let text = r#"{"tree_metadata": {
            "a": {"key_metadata": [{"key": "params", "key_type": 2}, {"key": "0", "key_type": 1}],
                  "value_metadata": {"value_type": "jax.Array", "skip_deserialize": false}},
            "b": {"key_metadata": [{"key": "step", "key_type": 2}], "value_metadata": {"value_type": "scalar"}},
            "c": {"key_metadata": [{"key": 7, "key_type": 1}], "value_metadata": {"value_type": "string"}},
            "d": {"key_metadata": [{"key": "none", "key_type": 2}],
                  "value_metadata": {"value_type": "None", "skip_deserialize": true}}},
            "use_ocdbt": true, "use_zarr3": false}"#;
        let structure: Structure = serde_json::from_str(text).unwrap();
        assert_eq!(structure.names(Kind::Array).into_iter().collect::<Vec<_>>(), ["params.0", "step"]);
        assert_eq!(structure.names(Kind::Text).into_iter().collect::<Vec<_>>(), ["7"]);
        assert!(structure.is_in_ocdbt() && !structure.stores_every_chunk());
    }
}
