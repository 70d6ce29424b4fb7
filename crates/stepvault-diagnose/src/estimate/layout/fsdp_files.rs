//! One file for each rank with its shard of every weight, and one with the optimizer's, as verl writes them.

use super::super::amount::{times, total};
use super::super::model::Model;
use super::super::optimizer::Tensors;
use super::super::ranks::Ranks;
use super::part::{Part, line, of_every_rank, on_first};
use super::single_file::{extra, of_one_rank};
use super::torch_zip;
use stepvault_core::error::Result;

/// The mesh of ranks, which the first tensor describes.
const WEIGHTS_PICKLE_BYTES: u64 = 500;
/// Pickle data that rebuilds a `DTensor`: device mesh, placement, shape and the shard itself.
const WEIGHT_PICKLE_BYTES: u64 = 350;
/// The mesh and a parameter group.
const OPTIMIZER_PICKLE_BYTES: u64 = 700;
/// A `DTensor` of an optimizer, whose names are numbers.
const STATE_PICKLE_BYTES: u64 = 246;
/// The ranks of the mesh: a tensor of two numbers for two ranks.
const MESH_RANK_BYTES: u64 = 4;
/// `extra_state_*.pt`: random states and the scheduler.
const RANK_STATE_BYTES: u64 = 6_929;
/// `fsdp_config.json`, `huggingface/config.json` and `data.pt`.
const OTHER_BYTES: u64 = 46 + 643 + 1_307;

const WEIGHTS_ARCHIVE: &str = "model_world_size_2_rank_0";
const OPTIMIZER_ARCHIVE: &str = "optim_world_size_2_rank_0";

pub(super) fn fsdp_files(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    let mesh = Tensors::of(1, times(ranks.count(), MESH_RANK_BYTES)?);
    let mut weights = of_one_rank(&[model.weight_tensors()?], ranks)?;
    weights.push(mesh);
    let pickle_bytes = line(WEIGHTS_PICKLE_BYTES, model.tensors, WEIGHT_PICKLE_BYTES)?;
    let weights_bytes = torch_zip::size(WEIGHTS_ARCHIVE, pickle_bytes, &weights)?;
    let mut parts = vec![of_every_rank("weights", ranks, weights_bytes)?];
    if model.has_optimizer() {
        let states = model.state_tensors()?;
        let count = total(states.iter().map(|state| state.count))?;
        let mut storages = of_one_rank(&states, ranks)?;
        storages.extend([model.step_tensors()?, mesh]);
        let pickle_bytes = line(OPTIMIZER_PICKLE_BYTES, count, STATE_PICKLE_BYTES)?;
        let bytes = torch_zip::size(OPTIMIZER_ARCHIVE, pickle_bytes, &storages)?;
        parts.push(of_every_rank("optimizer", ranks, bytes)?);
    }
    parts.push(of_every_rank("random states", ranks, RANK_STATE_BYTES)?);
    let other_bytes = total([OTHER_BYTES, extra(model).bytes])?;
    parts.push(on_first("other state", 3, other_bytes));
    Ok(parts)
}
