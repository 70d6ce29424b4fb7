//! Weights in safetensors, and the files that Hugging Face's trainers write beside them.

use super::super::amount::{plus, scaled, times};
use super::super::model::Model;
use super::super::ranks::Ranks;
use super::part::{Part, line, of_every_rank, on_first, share};
use super::single_file::{extra, optimizer_file};
use super::torch_zip;
use stepvault_core::error::Result;

/// The length field before the header.
const PREFIX_BYTES: u64 = 8;
/// `{"__metadata__":{"format":"pt"},…}` without its tensors.
const HEADER_BYTES: u64 = 26;
/// Name, dtype, shape and offsets of a tensor with a name of 10 characters; one of 40 takes 30 more.
const TENSOR_HEADER_BYTES: u64 = 75;
/// The same with what DCP's writer adds: the position of this shard in the tensor.
const SHARDED_HEADER_BYTES: u64 = 125;
/// A line of an index that maps a tensor to a file.
const INDEX_LINE_BYTES: u64 = 83;
/// The same, written by DCP's writer.
const DCP_INDEX_LINE_BYTES: u64 = 60;
/// `config.json` and `generation_config.json` of a Llama.
const CONFIGS_BYTES: u64 = 715 + 195;

/// `scheduler.pt` by transformers.
const SCHEDULER_BYTES: u64 = 1_465;
/// `training_args.bin`.
const TRAINING_ARGUMENTS_BYTES: u64 = 5_265;
/// `trainer_state.json` with one line of its log; each further line adds some 150 bytes.
const TRAINER_STATE_BYTES: u64 = 930;
/// The states of the random number generators of Python, `NumPy` and torch.
const RANDOM_STATES_BYTES: u64 = 14_455;
/// `scheduler.bin` by accelerate.
const ACCELERATE_SCHEDULER_BYTES: u64 = 1_401;

/// Returns the files of `save_pretrained`: weights, an index if they are in several files, and the model's
/// configuration.
fn weights(model: &Model, files: impl Fn(u64) -> u64) -> Result<Vec<Part>> {
    let mut parts = weight_files(model, files)?;
    parts.push(on_first("configuration", 2, CONFIGS_BYTES));
    Ok(parts)
}

/// Returns the same, with other tensors in a separate file.
pub(super) fn pretrained(model: &Model, files: impl Fn(u64) -> u64) -> Result<Vec<Part>> {
    let mut parts = weights(model, files)?;
    parts.extend(other_state("state", model)?);
    Ok(parts)
}

pub(super) fn trainer(model: &Model, files: impl Fn(u64) -> u64, ranks: Ranks) -> Result<Vec<Part>> {
    let mut parts = weights(model, files)?;
    let state_bytes = SCHEDULER_BYTES + TRAINING_ARGUMENTS_BYTES + TRAINER_STATE_BYTES;
    parts.extend(optimizer_part("optimizer", model)?);
    parts.push(on_first("trainer's state", 3, state_bytes));
    parts.push(of_every_rank("random states", ranks, RANDOM_STATES_BYTES)?);
    Ok(parts)
}

pub(super) fn accelerate(model: &Model, files: impl Fn(u64) -> u64, ranks: Ranks) -> Result<Vec<Part>> {
    let mut parts = weight_files(model, files)?;
    parts.extend(optimizer_part("optimizer", model)?);
    parts.push(on_first("trainer's state", 1, ACCELERATE_SCHEDULER_BYTES));
    parts.push(of_every_rank("random states", ranks, RANDOM_STATES_BYTES)?);
    Ok(parts)
}

/// Returns the files of DCP's `HuggingFaceStorageWriter` with `save_distributed` and `enable_consolidation`: every
/// rank's shards stay beside the consolidated files.
pub(super) fn by_dcp(model: &Model, files: impl Fn(u64) -> u64, ranks: Ranks) -> Result<Vec<Part>> {
    let weights = model.weight_tensors()?;
    let bytes = plus(weights.bytes, model.extra_bytes)?;
    let files = files(bytes);
    let mut parts =
        vec![on_first("weights", files, safetensors(bytes, weights.count, files, TENSOR_HEADER_BYTES)?)];
    let index_bytes = times(weights.count, DCP_INDEX_LINE_BYTES)?;
    parts.push(on_first("index", 1, index_bytes));
    let shard_bytes = safetensors(share(bytes, ranks), weights.count, files, SHARDED_HEADER_BYTES)?;
    let shards = of_every_rank("shards", ranks, shard_bytes)?;
    parts.push(Part { files: times(shards.files, files)?, ..shards });
    Ok(parts)
}

fn weight_files(model: &Model, files: impl Fn(u64) -> u64) -> Result<Vec<Part>> {
    let weights = model.weight_tensors()?;
    let files = files(weights.bytes);
    let bytes = safetensors(weights.bytes, weights.count, files, TENSOR_HEADER_BYTES)?;
    let mut parts = vec![on_first("weights", files, bytes)];
    if files > 1 {
        let index_bytes = times(weights.count, INDEX_LINE_BYTES)?;
        parts.push(on_first("index", 1, index_bytes));
    }
    Ok(parts)
}

/// Returns the size of safetensors files that contain this many tensors in total. Headers are padded to multiples of 8
/// bytes.
fn safetensors(data_bytes: u64, tensors: u64, files: u64, tensor_header_bytes: u64) -> Result<u64> {
    let tensors_each = tensors.div_ceil(files.max(1));
    let header = scaled(line(HEADER_BYTES, tensors_each, tensor_header_bytes)?, 1, 8)?;
    let around_bytes = times(files, plus(PREFIX_BYTES, times(header, 8)?)?)?;
    plus(data_bytes, around_bytes)
}

fn optimizer_part(archive: &str, model: &Model) -> Result<Option<Part>> {
    if model.has_optimizer() {
        return Ok(Some(on_first("optimizer", 1, optimizer_file(archive, model)?)));
    }
    other_state(archive, model)
}

fn other_state(archive: &str, model: &Model) -> Result<Option<Part>> {
    if model.extra_bytes == 0 {
        return Ok(None);
    }
    let bytes = torch_zip::size(archive, torch_zip::STATE_PICKLE_BYTES, &[extra(model)])?;
    Ok(Some(on_first("other state", 1, bytes)))
}
