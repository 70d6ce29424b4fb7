//! Steps that are a single file by `torch.save`.

use super::super::amount::{plus, times, total};
use super::super::model::Model;
use super::super::optimizer::Tensors;
use super::super::ranks::Ranks;
use super::part::{Part, line, of_every_rank, on_first, share};
use super::torch_zip::{self, ARCHIVE};
use stepvault_core::error::Result;

/// State of Lightning's loops and callbacks, in addition to model and optimizer.
pub(super) const LIGHTNING_PICKLE_BYTES: u64 = 2_300;
/// The states of a rank's random number generators in a file; torch's own takes 5,056 bytes of it.
const RANK_FILE_BYTES: u64 = 6_647;
/// The header of the old format: magic number, version and sizes of types.
const LEGACY_HEAD_BYTES: u64 = 120;
/// Data of each storage in the old format: its key in a list, and its length before its bytes.
const LEGACY_STORAGE_BYTES: u64 = 25 + 8;

/// Returns one file with everything, and `more_bytes` in its pickle.
pub(super) fn torch(model: &Model, more_bytes: u64) -> Result<Part> {
    let pickle_bytes = plus(pickle(model)?, more_bytes)?;
    let bytes = torch_zip::size(ARCHIVE, pickle_bytes, &storages(model)?)?;
    Ok(on_first("torch.save", 1, bytes))
}

/// Returns one file in the old format, in which storages follow each other without padding.
pub(super) fn legacy(model: &Model) -> Result<Part> {
    let storages = storages(model)?;
    let count = total(storages.iter().map(|storage| storage.count))?;
    let data_bytes = total(storages.iter().map(|storage| storage.bytes))?;
    let around_bytes = line(LEGACY_HEAD_BYTES, count, LEGACY_STORAGE_BYTES)?;
    let bytes = total([around_bytes, pickle(model)?, data_bytes])?;
    Ok(on_first("torch.save", 1, bytes))
}

/// Returns one file for each rank with its share of every tensor.
pub(super) fn of_each_rank(model: &Model, is_legacy: bool, ranks: Ranks) -> Result<Vec<Part>> {
    let parameters = share(model.parameters, ranks);
    let shard = Model {
        parameters,
        tensors: model.tensors.min(parameters),
        adamw_parameters: share(model.adamw_parameters, ranks).min(parameters),
        extra_bytes: share(model.extra_bytes, ranks),
        ..model.clone()
    };
    let one = if is_legacy { legacy(&shard)? } else { torch(&shard, 0)? };
    Ok(vec![of_every_rank("torch.save", ranks, one.bytes)?])
}

pub(super) fn cycling_utils(model: &Model, ranks: Ranks) -> Result<Vec<Part>> {
    Ok(vec![torch(model, 0)?, of_every_rank("random states", ranks, RANK_FILE_BYTES)?])
}

fn pickle(model: &Model) -> Result<u64> {
    torch_zip::pickle_bytes(model.tensors, model.state_count()?, model.has_optimizer())
}

fn storages(model: &Model) -> Result<Vec<Tensors>> {
    let mut storages = vec![model.weight_tensors()?];
    storages.extend(model.state_tensors()?);
    storages.push(model.step_tensors()?);
    storages.push(extra(model));
    Ok(storages)
}

/// Returns the other tensors, as one tensor.
pub(super) fn extra(model: &Model) -> Tensors {
    Tensors::of(u64::from(model.extra_bytes > 0), model.extra_bytes)
}

/// Returns the size of a separate file with an optimizer's state, including its steps.
pub(super) fn optimizer_file(archive: &str, model: &Model) -> Result<u64> {
    let mut storages = model.state_tensors()?;
    storages.push(model.step_tensors()?);
    storages.push(extra(model));
    let pickle_bytes = torch_zip::pickle_bytes(0, model.state_count()?, model.has_optimizer())?;
    torch_zip::size(archive, pickle_bytes, &storages)
}

/// Returns one rank's bytes of tensors that are divided among ranks.
pub(super) fn of_one_rank(tensors: &[Tensors], ranks: Ranks) -> Result<Vec<Tensors>> {
    tensors
        .iter()
        .map(|tensors| {
            let bytes = share(tensors.bytes, ranks);
            times(bytes, ranks.count())?;
            Ok(Tensors::of(tensors.count.min(bytes), bytes))
        })
        .collect()
}
