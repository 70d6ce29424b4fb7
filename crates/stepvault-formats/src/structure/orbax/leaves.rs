//! `_METADATA`: the leaves of a tree of arrays, and how they are stored.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// How a leaf is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As an array.
    Array,
    /// As a string in a file shared with the others.
    Text,
    /// In the structure itself (an empty container), or in an unknown way.
    Elsewhere,
}

/// The leaves of a tree.
#[derive(Deserialize, Default)]
pub(super) struct Structure {
    #[serde(default)]
    tree_metadata: BTreeMap<String, Leaf>,
    #[serde(default)]
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
    pub(super) fn names(&self, kind: Kind) -> BTreeSet<String> {
        self.tree_metadata
            .values()
            .filter(|leaf| leaf.value_metadata.kind() == kind)
            .map(Leaf::name)
            .collect()
    }

    /// Returns whether a missing chunk was lost, and does not just hold the fill value.
    pub(super) fn stores_every_chunk(&self) -> bool {
        self.store_array_data_equal_to_fill_value
    }

    pub(super) fn is_in_ocdbt(&self) -> bool {
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
        assert_eq!(
            structure.names(Kind::Array).into_iter().collect::<Vec<_>>(),
            ["params.0", "step"]
        );
        assert_eq!(structure.names(Kind::Text).into_iter().collect::<Vec<_>>(), ["7"]);
        assert!(structure.is_in_ocdbt() && !structure.stores_every_chunk());
    }
}
