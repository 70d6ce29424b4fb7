//! The lengths of elements, by the names that formats give to their types, as data in `elements.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Elements {
    /// Dtypes of safetensors with the bits of an element.
    pub(super) safetensors_bits: BTreeMap<String, u64>,
    /// Storage classes of torch with the bytes of an element.
    pub(super) torch_storage_bytes: BTreeMap<String, u64>,
    /// Data types of Zarr with the bytes of an element.
    pub(super) zarr_bytes: BTreeMap<String, u64>,
    /// Types of GGUF, by their numbers.
    pub(super) ggml_blocks: BTreeMap<String, Block>,
}

/// The block of a type of GGUF.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    pub(super) name: String,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

// A test reads the file.
pub(super) static ELEMENTS: LazyLock<Elements> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());
const TEXT: &str = include_str!("elements.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_read() {
        let elements: Elements = toml::from_str(TEXT).unwrap();
        assert_eq!(elements.safetensors_bits.len(), 22);
        assert_eq!(elements.ggml_blocks.len(), 34);
        assert!(elements.ggml_blocks.values().all(|block| block.elements > 0));
    }
}
