//! `DeepSpeed`'s files: the module's states, and the optimizer's states of each rank. Its optimizer always has an fp32
//! copy of the weights, flattened and divided among the ranks.

use super::super::dtype::Dtype;
use super::super::model::Model;
use super::super::optimizer::Tensors;
use super::super::ranks::Ranks;
use super::part::{Part, line, of_every_rank, on_first};
use super::single_file::{extra, of_one_rank};
use super::torch_zip;
use stepvault_core::error::Result;

/// The engine's data in the module's file: configuration, versions, counters.
const MODULE_PICKLE_BYTES: u64 = 700;
/// Its entry for a tensor: the view of the flattened weights, and name and shape once more.
const MODULE_TENSOR_PICKLE_BYTES: u64 = 125;
/// The fixed data of an optimizer's file.
const OPTIMIZER_PICKLE_BYTES: u64 = 1_600;
/// Its entry for a tensor in the rank's part.
const OPTIMIZER_TENSOR_PICKLE_BYTES: u64 = 15;
/// The type of the copy of the weights, if no other is given.
pub(super) const MASTER: Dtype = Dtype::Fp32;
/// The step of the whole flattened group.
const STEP: Tensors = Tensors { count: 1, bytes: 4 };

const MODULE_ARCHIVE: &str = "mp_rank_00_model_states";
const SHARD_MODULE_ARCHIVE: &str = "zero_pp_rank_0_mp_rank_00_model_states";
const OPTIMIZER_ARCHIVE: &str = "zero_pp_rank_0_mp_rank_00_optim_states";

pub(super) fn stages_1_and_2(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let weights = Tensors::of(1, model.weight_tensors()?.bytes);
    let bytes = torch_zip::size(MODULE_ARCHIVE, module_pickle(model)?, &[weights, extra(model)])?;
    Ok(vec![on_first("module", 1, bytes), optimizer(model, ranks)?])
}

pub(super) fn stage_3(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let bytes = torch_zip::size(SHARD_MODULE_ARCHIVE, module_pickle(model)?, &[extra(model)])?;
    Ok(vec![of_every_rank("module", ranks, bytes)?, optimizer(model, ranks)?])
}

fn module_pickle(model: &Model) -> Result<u64> {
    line(MODULE_PICKLE_BYTES, model.tensors, MODULE_TENSOR_PICKLE_BYTES)
}

fn optimizer(model: &Model, ranks: Ranks) -> Result<Part> {
    let flat = |bytes: u64| Tensors::of(1, bytes);
    // There always is a copy of the weights: the given one replaces it.
    let master = model.master.unwrap_or(MASTER).bytes_of(model.parameters)?;
    let mut tensors = vec![flat(master)];
    tensors.extend(model.optimizer_states()?.iter().map(|state| flat(state.bytes)));
    let mut storages = of_one_rank(&tensors, ranks)?;
    storages.extend((model.step_tensors()?.count > 0).then_some(STEP));
    let tensors_each = model.tensors.div_ceil(ranks.count());
    let pickle_bytes = line(OPTIMIZER_PICKLE_BYTES, tensors_each, OPTIMIZER_TENSOR_PICKLE_BYTES)?;
    let bytes = torch_zip::size(OPTIMIZER_ARCHIVE, pickle_bytes, &storages)?;
    of_every_rank("optimizer", ranks, bytes)
}
