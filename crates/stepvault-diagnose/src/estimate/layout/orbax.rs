//! Orbax's arrays. They are compressed by zstd at level 1, and the result depends on the numbers: this is an upper
//! bound.

use super::super::amount::{times, total};
use super::super::model::Model;
use super::super::ranks::Ranks;
use super::part::{Part, line, of_every_rank, on_first};
use stepvault_core::error::Result;

/// The step, `default`, `array_metadatas`, `d`, `ocdbt.process_0` and its `d`.
pub(super) const DIRECTORIES: u64 = 6;
/// Markers, manifests and nodes of the key-value store.
const FIXED_BYTES: u64 = 2_600;
/// Entries of an array in `_METADATA`, `_sharding` and `array_metadatas`, and its entry and `.zarray` in the store.
const ARRAY_BYTES: u64 = 270 + 98 + 119 + 250;
/// Markers, metadata and manifests.
const FILES: u64 = 9;
/// Data files of a process: one for each flush.
const DATA_FILES: u64 = 5;

pub(super) fn orbax(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    // Optax has one step counter for all arrays.
    let arrays = total([model.tensors, total(model.state_tensors()?.iter().map(|state| state.count))?, 1])?;
    let bytes = total([
        model.weight_tensors()?.bytes,
        total(model.state_tensors()?.iter().map(|state| state.bytes))?,
        model.extra_bytes,
    ])?;
    let data = of_every_rank("arrays", ranks, 0)?;
    Ok(vec![
        Part { files: times(data.files, DATA_FILES)?, bytes, on_all_nodes: true, ..data },
        on_first("metadata", FILES, line(FIXED_BYTES, arrays, ARRAY_BYTES)?),
    ])
}
