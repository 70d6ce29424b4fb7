//! The layouts in which every rank writes files of its own: PyTorch's distributed checkpoint (an archive by `torch.save`
//! for every piece of a tensor, and a table of contents), FSDP's files, DeepSpeed's and Orbax's.

use stepvault_core::error::Result;

use super::part::{Part, line, mean, of_every_rank, on_first};
use super::single_file::{extra, of_one_rank};
use super::torch_zip;
use crate::estimate::amount::{plus, scaled, times, total};
use crate::estimate::dtype::Dtype;
use crate::estimate::model::Model;
use crate::estimate::optimizer::Tensors;
use crate::estimate::ranks::{Ranks, Sharding};

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

/// The mesh of ranks, which the first tensor describes.
const FSDP_WEIGHTS_PICKLE_BYTES: u64 = 500;
/// Pickle data that rebuilds a `DTensor`: device mesh, placement, shape and the shard itself.
const FSDP_WEIGHT_PICKLE_BYTES: u64 = 350;
/// The mesh and a parameter group.
const FSDP_OPTIMIZER_PICKLE_BYTES: u64 = 700;
/// A `DTensor` of an optimizer, whose names are numbers.
const FSDP_STATE_PICKLE_BYTES: u64 = 246;
/// The ranks of the mesh: a tensor of two numbers for two ranks.
const FSDP_MESH_RANK_BYTES: u64 = 4;
/// `extra_state_*.pt`: random states and the scheduler.
const FSDP_RANK_STATE_BYTES: u64 = 6_929;
/// `fsdp_config.json`, `huggingface/config.json` and `data.pt`.
const FSDP_OTHER_BYTES: u64 = 46 + 643 + 1_307;

const FSDP_WEIGHTS_ARCHIVE: &str = "model_world_size_2_rank_0";
const FSDP_OPTIMIZER_ARCHIVE: &str = "optim_world_size_2_rank_0";

pub(super) fn fsdp_files(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let mesh = Tensors::of(1, times(ranks.count(), FSDP_MESH_RANK_BYTES)?);
    let mut weights = of_one_rank(&[model.weight_tensors()?], ranks)?;
    weights.push(mesh);
    let pickle_bytes = line(FSDP_WEIGHTS_PICKLE_BYTES, model.tensors, FSDP_WEIGHT_PICKLE_BYTES)?;
    let weights_bytes = torch_zip::size(FSDP_WEIGHTS_ARCHIVE, pickle_bytes, &weights)?;
    let mut parts = vec![of_every_rank("weights", ranks, weights_bytes)?];
    if model.has_optimizer() {
        let states = model.state_tensors()?;
        let count = total(states.iter().map(|state| state.count))?;
        let mut storages = of_one_rank(&states, ranks)?;
        storages.extend([model.step_tensors()?, mesh]);
        let pickle_bytes = line(FSDP_OPTIMIZER_PICKLE_BYTES, count, FSDP_STATE_PICKLE_BYTES)?;
        let bytes = torch_zip::size(FSDP_OPTIMIZER_ARCHIVE, pickle_bytes, &storages)?;
        parts.push(of_every_rank("optimizer", ranks, bytes)?);
    }
    parts.push(of_every_rank("random states", ranks, FSDP_RANK_STATE_BYTES)?);
    let other_bytes = total([FSDP_OTHER_BYTES, extra(model).bytes])?;
    parts.push(on_first("other state", 3, other_bytes));
    Ok(parts)
}

/// The engine's data in the module's file: configuration, versions, counters.
const DEEPSPEED_MODULE_PICKLE_BYTES: u64 = 700;
/// Its entry for a tensor: the view of the flattened weights, and name and shape once more.
const DEEPSPEED_MODULE_TENSOR_PICKLE_BYTES: u64 = 125;
/// The fixed data of an optimizer's file.
const DEEPSPEED_OPTIMIZER_PICKLE_BYTES: u64 = 1_600;
/// Its entry for a tensor in the rank's part.
const DEEPSPEED_OPTIMIZER_TENSOR_PICKLE_BYTES: u64 = 15;
/// The type of the copy of the weights, if no other is given.
pub(super) const DEEPSPEED_MASTER: Dtype = Dtype::Fp32;
/// The step of the whole flattened group.
const DEEPSPEED_STEP: Tensors = Tensors { count: 1, bytes: 4 };

const DEEPSPEED_MODULE_ARCHIVE: &str = "mp_rank_00_model_states";
const DEEPSPEED_SHARD_MODULE_ARCHIVE: &str = "zero_pp_rank_0_mp_rank_00_model_states";
const DEEPSPEED_OPTIMIZER_ARCHIVE: &str = "zero_pp_rank_0_mp_rank_00_optim_states";

pub(super) fn stages_1_and_2(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let weights = Tensors::of(1, model.weight_tensors()?.bytes);
    let bytes =
        torch_zip::size(DEEPSPEED_MODULE_ARCHIVE, deepspeed_module_pickle(model)?, &[weights, extra(model)])?;
    Ok(vec![on_first("module", 1, bytes), deepspeed_optimizer(model, ranks)?])
}

pub(super) fn stage_3(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let bytes =
        torch_zip::size(DEEPSPEED_SHARD_MODULE_ARCHIVE, deepspeed_module_pickle(model)?, &[extra(model)])?;
    Ok(vec![of_every_rank("module", ranks, bytes)?, deepspeed_optimizer(model, ranks)?])
}

fn deepspeed_module_pickle(model: &Model) -> Result<u64> {
    line(DEEPSPEED_MODULE_PICKLE_BYTES, model.tensors, DEEPSPEED_MODULE_TENSOR_PICKLE_BYTES)
}

fn deepspeed_optimizer(model: &Model, ranks: Ranks) -> Result<Part> {
    let flat = |bytes: u64| Tensors::of(1, bytes);
    // There always is a copy of the weights: the given one replaces it.
    let master = model.master.unwrap_or(DEEPSPEED_MASTER).bytes_of(model.parameters)?;
    let mut tensors = vec![flat(master)];
    tensors.extend(model.optimizer_states()?.iter().map(|state| flat(state.bytes)));
    let mut storages = of_one_rank(&tensors, ranks)?;
    storages.extend((model.step_tensors()?.count > 0).then_some(DEEPSPEED_STEP));
    let tensors_each = model.tensors.div_ceil(ranks.count());
    let pickle_bytes =
        line(DEEPSPEED_OPTIMIZER_PICKLE_BYTES, tensors_each, DEEPSPEED_OPTIMIZER_TENSOR_PICKLE_BYTES)?;
    let bytes = torch_zip::size(DEEPSPEED_OPTIMIZER_ARCHIVE, pickle_bytes, &storages)?;
    of_every_rank("optimizer", ranks, bytes)
}

/// The step, `default`, `array_metadatas`, `d`, `ocdbt.process_0` and its `d`.
pub(super) const ORBAX_DIRECTORIES: u64 = 6;
/// Markers, manifests and nodes of the key-value store.
const ORBAX_FIXED_BYTES: u64 = 2_600;
/// Entries of an array in `_METADATA`, `_sharding` and `array_metadatas`, and its entry and `.zarray` in the store.
const ORBAX_ARRAY_BYTES: u64 = 270 + 98 + 119 + 250;
/// Markers, metadata and manifests.
const ORBAX_FILES: u64 = 9;
/// Data files of a process: one for each flush.
const ORBAX_DATA_FILES: u64 = 5;

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
        Part { files: times(data.files, ORBAX_DATA_FILES)?, bytes, on_all_nodes: true, ..data },
        on_first("metadata", ORBAX_FILES, line(ORBAX_FIXED_BYTES, arrays, ORBAX_ARRAY_BYTES)?),
    ])
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
