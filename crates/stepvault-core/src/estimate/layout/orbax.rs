//! Orbax's arrays. They are compressed by zstd at level 1, which takes what the numbers leave it: this is an upper bound.

use super::super::amount::{times, total};
use super::super::model::Model;
use super::super::ranks::Ranks;
use super::{Part, Spread, line, of_every_rank, on_first};
use crate::error::Result;

/// The step, `default`, `array_metadatas`, `d`, `ocdbt.process_0` and its `d`.
pub(super) const DIRECTORIES: u64 = 6;
/// Markers, manifests and nodes of the key-value store.
const FIXED_BYTES: u64 = 2_600;
/// What `_METADATA`, `_sharding` and `array_metadatas` say of an array, and its entry and `.zarray` in the store.
const ARRAY_BYTES: u64 = 270 + 98 + 119 + 250;
/// Markers, metadata and manifests.
const FILES: u64 = 9;
/// Data files of a process: as many as it was flushed to.
const DATA_FILES: u64 = 5;

pub(super) fn orbax(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    // Of a step Optax counts one, for all arrays.
    let arrays = total([
        model.tensors,
        total(model.state_tensors()?.iter().map(|state| state.count))?,
        1,
    ])?;
    let bytes = total([
        model.weight_tensors()?.bytes,
        total(model.state_tensors()?.iter().map(|state| state.bytes))?,
        model.extra_bytes,
    ])?;
    let data = of_every_rank("arrays", ranks, 0)?;
    Ok(vec![
        Part {
            files: times(data.files, DATA_FILES)?,
            bytes,
            spread: Spread::AllNodes,
            ..data
        },
        on_first("metadata", FILES, line(FIXED_BYTES, arrays, ARRAY_BYTES)?),
    ])
}
