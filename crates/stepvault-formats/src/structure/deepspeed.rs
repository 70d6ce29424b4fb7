//! A step's directory of DeepSpeed: checks that the shard of every rank exists.
//!
//! DeepSpeed moves `latest` before it knows that the other ranks are done, so only the shards themselves prove a
//! step. One shard states the number of shards: `dp_world_size` and `mp_world_size` are in every model file, and
//! `partition_count` is in every ZeRO optimizer file; `zero_to_fp32.py` asserts the largest of these
//! (`_save_checkpoint` and `_get_zero_ckpt_name` in deepspeed/runtime/engine.py).
//!
//! # Blind spots
//! - Without those numbers, a missing highest rank.
//! - The files of experts and of pipeline layers: the files do not state how many there must be.
//! - Whether optimizer files are required at all, if all of them are missing and the model files do not state it.

use std::collections::BTreeMap;
use std::{fmt, io};

use super::torch;
use crate::pickle::{Pickle, Value};
use crate::soundness::{Fault, Finding};
use crate::tree::{OpenFile, ReadAt, Tree, joined};

/// The maximum number of ranks. More than any machine has, and few enough to list.
const MAX_RANKS: u64 = 1 << 20;
/// The maximum number of partition counts that are read: one per parameter group.
const MAX_PARTITION_COUNTS: usize = 4096;
/// The maximum number of missing files that are reported individually.
const MAX_REPORTED: usize = 16;

/// The number of ranks that wrote a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldSize {
    /// Ranks that share the data: `dp_world_size`.
    pub data_parallel: u64,
    /// Ranks that share the model: `mp_world_size`.
    pub model_parallel: u64,
}

/// The rank in a file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// `mp_rank_MM`.
    model: u64,
    /// `zero_pp_rank_D`, if the name has it.
    data: Option<u64>,
}

/// Reads the largest partition count from a ZeRO optimizer file; `None` if the file does not state it.
///
/// # Errors
/// As [`torch::read_object`].
pub fn read_partition_count(source: &dyn ReadAt) -> Result<Option<u64>, Fault> {
    let pickle = torch::read_object(source)?;
    let counts = pickle
        .entry(pickle.root, "optimizer_state_dict")
        .and_then(|state| pickle.entry(state, "partition_count"));
    Ok(counts.and_then(|counts| match pickle.elements(counts) {
        None => pickle.unsigned(counts),
        Some(counts) => {
            counts.iter().take(MAX_PARTITION_COUNTS).filter_map(|count| pickle.unsigned(*count)).max()
        }
    }))
}

fn world_size_of(pickle: &Pickle) -> Option<WorldSize> {
    let number = |key| pickle.unsigned(pickle.entry(pickle.root, key)?);
    Some(WorldSize { data_parallel: number("dp_world_size")?, model_parallel: number("mp_world_size")? })
}

/// Checks that the files of every rank are in a step's directory, `""` for the tree's own. Returns one finding for
/// each missing file, up to a limit, and one if the numbers are missing or contradict each other; no findings means
/// that the check passed. [`torch::check`] checks whether each file is sound.
///
/// # Errors
/// When a file could not be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> io::Result<Vec<Finding>> {
    let models = RankFiles::of(tree, directory, "_model_states.pt");
    let optimizers = RankFiles::of(tree, directory, "_optim_states.pt");
    let Some(first) = models.first() else {
        let why = "it and every other model file are missing: the save was cut off";
        let path = joined(directory, "mp_rank_00_model_states.pt");
        return Ok(vec![Finding::broken(path, why)]);
    };
    let object = match torch::read_object(&*files.open(&first)?) {
        Ok(object) => object,
        Err(fault) => return Ok(vec![Finding::of(first, Err(fault))?]),
    };
    let Some(world) = world_size_of(&object) else {
        let why = "it lacks dp_world_size and mp_world_size, so the number of files is unknown";
        return Ok(vec![Finding::unknown(first, why)]);
    };
    let total = world.data_parallel.checked_mul(world.model_parallel);
    if !total.is_some_and(|total| (1..=MAX_RANKS).contains(&total)) {
        let why = format!("it gives {world}, which is impossible");
        return Ok(vec![Finding::broken(first, why)]);
    }
    let cause = format!("{first} gives {world}");
    // ZeRO-3 also splits the model: every rank has a model file.
    let is_split = models.names.keys().any(|rank| rank.data.is_some());
    let mut findings = models.missing(&world.ranks(is_split), &cause);
    let optimizer = optimizers.first();
    if optimizer.is_some() || wants_optimizer_files(&object) {
        if let Some(path) = optimizer {
            findings.extend(contradiction(&*files.open(&path)?, path, world)?);
        }
        findings.extend(optimizers.missing(&world.ranks(true), &cause));
    }
    Ok(findings)
}

impl WorldSize {
    /// Returns every rank of a world whose size is within the limit.
    fn ranks(self, of_data: bool) -> Vec<Rank> {
        let data_ranks = if of_data { self.data_parallel } else { 1 };
        let rank = move |model, data: u64| Rank { model, data: of_data.then_some(data) };
        let each = |model| (0..data_ranks).map(move |data| rank(model, data));
        (0..self.model_parallel).flat_map(each).collect()
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "dp_world_size {} and mp_world_size {}", self.data_parallel, self.model_parallel)
    }
}

/// The files of a directory with one ending.
struct RankFiles<'a> {
    directory: &'a str,
    ending: &'static str,
    /// By the rank in their names.
    names: BTreeMap<Rank, &'a str>,
}

impl<'a> RankFiles<'a> {
    /// Returns the files of a directory with this ending. Only the rank matters: bf16 runs put a word in front.
    fn of(tree: &'a Tree, directory: &'a str, ending: &'static str) -> Self {
        let parsed = |name: &str| {
            let name = name.strip_suffix(ending)?;
            let name = name.strip_prefix("bf16_").unwrap_or(name);
            let (data, model) = match name.strip_prefix("zero_pp_rank_") {
                Some(rest) => {
                    let (data, model) = rest.split_once("_mp_rank_")?;
                    (Some(data.parse().ok()?), model)
                }
                None => (None, name.strip_prefix("mp_rank_")?),
            };
            let model = model.parse().ok()?;
            Some(Rank { model, data })
        };
        let names = tree.file_names(directory);
        Self { directory, ending, names: names.filter_map(|name| Some((parsed(name)?, name))).collect() }
    }

    /// Returns the path of the first rank's file.
    fn first(&self) -> Option<String> {
        self.names.values().next().map(|name| joined(self.directory, name))
    }

    /// Returns the findings for ranks without a file. `cause` tells why there must be one.
    fn missing(&self, wanted: &[Rank], cause: &str) -> Vec<Finding> {
        let there = wanted.iter().filter(|rank| self.names.contains_key(rank)).count();
        let why = format!("it is missing: {cause}, and {there} of {} such files exist", wanted.len());
        let is_bf16 = self.names.values().any(|name| name.starts_with("bf16_"));
        let prefix = if is_bf16 { "bf16_" } else { "" };
        let name_of = |Rank { model, data }: &Rank| match data {
            Some(data) => format!("{prefix}zero_pp_rank_{data}_mp_rank_{model:02}{}", self.ending),
            None => format!("mp_rank_{model:02}{}", self.ending),
        };
        wanted
            .iter()
            .filter(|rank| !self.names.contains_key(rank))
            .take(MAX_REPORTED)
            .map(|rank| Finding::broken(joined(self.directory, &name_of(rank)), why.clone()))
            .collect()
    }
}

/// Returns how an optimizer file contradicts the world size, if it does.
fn contradiction(source: &dyn ReadAt, path: String, world: WorldSize) -> io::Result<Option<Finding>> {
    match read_partition_count(source) {
        Ok(Some(partitions)) if partitions != world.data_parallel => {
            let why = format!("it gives {partitions} partitions, and the model file gives {world}");
            Ok(Some(Finding::unknown(path, why)))
        }
        Ok(_) => Ok(None),
        Err(fault) => Finding::of(path, Err(fault)).map(Some),
    }
}

/// Returns whether a model file states that the optimizer's state is in separate files: it is not in this one, and
/// ZeRO is on.
fn wants_optimizer_files(object: &Pickle) -> bool {
    let root = object.root;
    let stage = object
        .entry(root, "ds_config")
        .and_then(|config| object.entry(config, "zero_optimization"))
        .and_then(|zero| object.unsigned(object.entry(zero, "stage")?));
    object.entry(root, "optimizer") == Some(Value::None) && stage.is_some_and(|stage| stage > 0)
}
