//! PyTorch's distributed checkpoint: one file for each rank, in which every piece of a tensor is an archive by
//! `torch.save`, and a table of contents.

use super::super::amount::{plus, scaled, times, total};
use super::super::model::Model;
use super::super::optimizer::Tensors;
use super::super::ranks::{Ranks, Sharding};
use super::part::{Part, line, mean, on_first};
use super::single_file::extra;
use stepvault_core::error::Result;

/// Size of a piece's archive without its data and padding.
const PIECE_BYTES: u64 = 1_513;
/// Records of an archive begin at multiples of this.
const ALIGNMENT_BYTES: u64 = 64;
/// An item that is not a tensor: a learning rate, a step.
const OBJECT_BYTES: u64 = 1_261;
/// Settings of a parameter group of `AdamW`, each an item, and two values of the trainer.
const OBJECTS: u64 = 12 + 2;
/// The table of contents without items.
const TABLE_BYTES: u64 = 630;
/// Its entry for a tensor, which contains the name twice.
const TABLE_TENSOR_BYTES: u64 = 77;
/// Its entry for a piece or an object.
const TABLE_ITEM_BYTES: u64 = 166;
/// What Megatron adds to each entry: the plan of every rank.
const MEGATRON_ITEM_BYTES: u64 = 97;
/// The states of a rank's random number generators in Megatron's step.
const MEGATRON_RANDOM_BYTES: u64 = 6_633;
/// `common.pt` without the arguments of a run, and `metadata.json`.
const MEGATRON_OTHER_BYTES: u64 = 1_319 + 119;
/// Writer threads of each rank, each with its own file: `thread_count` of Megatron's writer.
const MEGATRON_FILES: u64 = 2;

/// Items and their bytes.
#[derive(Default)]
struct Items {
    tensors: u64,
    count: u64,
    bytes: u64,
}

impl Items {
    /// Returns the weights and the optimizer's states, each tensor divided into this many pieces, and other tensors.
    fn of(model: &Model, pieces: u64) -> Result<Self> {
        let mut items = Self::default();
        items.add(model.weight_tensors()?, pieces)?;
        for state in model.state_tensors()? {
            items.add(state, pieces)?;
        }
        items.add(extra(model), 1)?;
        Ok(items)
    }

    /// Adds tensors of which each is divided into this many pieces.
    fn add(&mut self, tensors: Tensors, pieces: u64) -> Result<()> {
        let count = times(tensors.count, pieces)?;
        let piece_bytes = piece(mean(tensors.bytes, count))?;
        self.tensors = plus(self.tensors, tensors.count)?;
        self.add_objects(count, piece_bytes)
    }

    fn add_objects(&mut self, count: u64, bytes_each: u64) -> Result<()> {
        self.count = plus(self.count, count)?;
        self.bytes = plus(self.bytes, times(count, bytes_each)?)?;
        Ok(())
    }

    fn table_bytes(&self, item_bytes: u64) -> Result<u64> {
        line(line(TABLE_BYTES, self.tensors, TABLE_TENSOR_BYTES)?, self.count, item_bytes)
    }
}

/// Returns the size of a piece with its archive. The data of the next record begins at a multiple of 64 bytes, after
/// its header.
fn piece(bytes: u64) -> Result<u64> {
    let data_bytes = times(scaled(bytes, 1, ALIGNMENT_BYTES)?, ALIGNMENT_BYTES)?;
    let header_bytes = if bytes < ALIGNMENT_BYTES { 0 } else { ALIGNMENT_BYTES };
    total([PIECE_BYTES, data_bytes, header_bytes])
}

pub(super) fn dcp(model: &Model, sharding: Sharding, ranks: Ranks) -> Result<Vec<Part>> {
    let on_all_nodes = sharding == Sharding::Sharded;
    let pieces = if on_all_nodes { pieces(model, ranks) } else { 1 };
    let mut items = Items::of(model, pieces)?;
    items.add(model.step_tensors()?, 1)?;
    if model.has_optimizer() {
        items.add_objects(OBJECTS, OBJECT_BYTES)?;
    }
    let data = Part { what: "shards", files: ranks.count(), bytes: items.bytes, on_all_nodes };
    Ok(vec![data, on_first("table of contents", 1, items.table_bytes(TABLE_ITEM_BYTES)?)])
}

pub(super) fn megatron(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let mut items = Items::of(model, pieces(model, ranks))?;
    items.add_objects(ranks.count(), MEGATRON_RANDOM_BYTES)?;
    let data = Part {
        what: "shards",
        files: times(ranks.count(), MEGATRON_FILES)?,
        bytes: items.bytes,
        on_all_nodes: true,
    };
    let table_bytes = items.table_bytes(TABLE_ITEM_BYTES + MEGATRON_ITEM_BYTES)?;
    Ok(vec![
        data,
        on_first("table of contents", 1, table_bytes),
        on_first("other state", 2, MEGATRON_OTHER_BYTES),
    ])
}

/// Returns the number of pieces of a tensor of mean size: one for each rank, and none smaller than an element.
fn pieces(model: &Model, ranks: Ranks) -> u64 {
    let elements = model.parameters.checked_div(model.tensors).unwrap_or(1);
    ranks.count().min(elements).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_dcp_wrote() {
        for (bytes, expected) in [(4, 1577), (32, 1577), (64, 1641), (128, 1705), (1024, 2601), (2048, 3625)]
        {
            assert_eq!(piece(bytes).unwrap(), expected, "{bytes}");
        }
    }
}
