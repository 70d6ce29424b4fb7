//! A step's directory of DeepSpeed: whether the shard of every rank is there.
//!
//! DeepSpeed moves `latest` before it knows that the other ranks are done, so that only the shards themselves tell.
//! How many there must be, one of them says: `dp_world_size` and `mp_world_size` in every model file, and
//! `partition_count` in every ZeRO optimizer file, whose largest is what `zero_to_fp32.py` asserts
//! (`_save_checkpoint` and `_get_zero_ckpt_name` in deepspeed/runtime/engine.py).
//!
//! # Blind spots
//! - Without those numbers, a missing highest rank.
//! - The files of experts and of pipeline layers: how many there must be is not told by the files.
//! - Whether optimizer files are wanted at all when every one is missing and the model files do not say.

use std::collections::BTreeMap;
use std::{fmt, io};

use super::finding::Finding;
use super::torch;
use crate::pickle::{Pickle, Value};
use crate::soundness::Fault;
use crate::source::ReadAt;
use crate::tree::{EntryKind, OpenFile, Tree};

/// The most ranks that are counted to. More than any machine has, and few enough to list.
const MAX_RANKS: u64 = 1 << 20;
/// The most partition counts that are looked at: one for each group of parameters.
const MAX_PARTITION_COUNTS: usize = 4096;
/// How many missing files are reported one by one.
const MAX_REPORTED: usize = 16;

/// How many ranks wrote a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldSize {
    /// Ranks that share the data: `dp_world_size`.
    pub data_parallel: u64,
    /// Ranks that share the model: `mp_world_size`.
    pub model_parallel: u64,
}

/// The rank that a file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// `mp_rank_MM`.
    model: u64,
    /// `zero_pp_rank_D`, where the name has one.
    data: Option<u64>,
}

/// Reads the world size from a model file, or `None` where it does not say.
///
/// # Errors
/// As [`torch::read_object`].
pub fn read_world_size(source: &dyn ReadAt) -> Result<Option<WorldSize>, Fault> {
    Ok(world_size_of(&torch::read_object(source)?))
}

/// Reads the largest partition count from a ZeRO optimizer file, or `None` where it does not say.
///
/// # Errors
/// As [`torch::read_object`].
pub fn read_partition_count(source: &dyn ReadAt) -> Result<Option<u64>, Fault> {
    let pickle = torch::read_object(source)?;
    let counts = pickle
        .entry(pickle.root(), "optimizer_state_dict")
        .and_then(|state| pickle.entry(state, "partition_count"));
    Ok(counts.and_then(|counts| match pickle.elements(counts) {
        None => pickle.unsigned(counts),
        Some(counts) => counts
            .iter()
            .take(MAX_PARTITION_COUNTS)
            .filter_map(|count| pickle.unsigned(*count))
            .max(),
    }))
}

fn world_size_of(pickle: &Pickle) -> Option<WorldSize> {
    let number = |key| pickle.unsigned(pickle.entry(pickle.root(), key)?);
    Some(WorldSize {
        data_parallel: number("dp_world_size")?,
        model_parallel: number("mp_world_size")?,
    })
}

/// Checks that the files of every rank are in a step's directory, `""` for the tree's own: one finding for each that
/// is missing, up to a few, and one where the numbers are missing or contradict each other. None is well. Whether
/// each file that is there holds together is for [`torch::check`].
///
/// # Errors
/// When a file could not be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> io::Result<Vec<Finding>> {
    let path_of = |name: &str| match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    };
    let models = ranks(tree, directory, "_model_states.pt");
    let optimizers = ranks(tree, directory, "_optim_states.pt");
    let Some(first) = models.values().next().map(|name| path_of(name)) else {
        let why = "it is missing, and so is every other model file: the save was cut off";
        return Ok(vec![Finding::broken(path_of("mp_rank_00_model_states.pt"), why)]);
    };
    let object = match torch::read_object(&*files.open(&first)?) {
        Ok(object) => object,
        Err(fault) => return Ok(vec![Finding::of(first, Err(fault))?]),
    };
    let Some(world) = world_size_of(&object) else {
        let why =
            "it does not say dp_world_size and mp_world_size: how many files there must be is not known";
        return Ok(vec![Finding::unknown(first, why)]);
    };
    let total = world.data_parallel.checked_mul(world.model_parallel);
    if !total.is_some_and(|total| (1..=MAX_RANKS).contains(&total)) {
        let why = format!("it says {world}, which cannot be");
        return Ok(vec![Finding::broken(first, why)]);
    }
    let mut findings = Vec::new();
    // ZeRO-3 splits the model as well: a model file for every rank.
    let split = models.keys().any(|rank| rank.data.is_some());
    let wanted = world.ranks(split);
    findings.extend(missing(
        &wanted,
        &models,
        "mp_rank_00_model_states.pt",
        &first,
        world,
        path_of,
    ));
    if !optimizers.is_empty() || wants_optimizer_files(&object) {
        if let Some(path) = optimizers.values().next().map(|name| path_of(name)) {
            findings.extend(contradiction(&*files.open(&path)?, path, world)?);
        }
        let pattern = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
        findings.extend(missing(
            &world.ranks(true),
            &optimizers,
            pattern,
            &first,
            world,
            path_of,
        ));
    }
    Ok(findings)
}

impl WorldSize {
    /// Every rank of a world whose size has been held against the limit.
    fn ranks(self, of_data: bool) -> Vec<Rank> {
        let each = |model| -> Vec<Rank> {
            if of_data {
                let rank = |data| Rank {
                    model,
                    data: Some(data),
                };
                (0..self.data_parallel).map(rank).collect()
            } else {
                vec![Rank { model, data: None }]
            }
        };
        (0..self.model_parallel).flat_map(each).collect()
    }
}

impl fmt::Display for WorldSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "dp_world_size {} and mp_world_size {}",
            self.data_parallel, self.model_parallel
        )
    }
}

/// The files of a directory whose names end so, by the rank that they say. The rank is what counts: bf16 runs put a
/// word in front.
fn ranks(tree: &Tree, directory: &str, ending: &str) -> BTreeMap<Rank, String> {
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
        Some(Rank {
            model: model.parse().ok()?,
            data,
        })
    };
    tree.children(directory)
        .filter(|(_, entry)| matches!(entry.kind, EntryKind::File { .. }))
        .filter_map(|(name, _)| Some((parsed(name)?, name.to_owned())))
        .collect()
}

/// The findings for ranks without a file. `pattern` is how a file of the kind is called, where none is there to tell.
fn missing(
    wanted: &[Rank],
    found: &BTreeMap<Rank, String>,
    pattern: &str,
    first: &str,
    world: WorldSize,
    path_of: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let there = wanted.iter().filter(|rank| found.contains_key(rank)).count();
    let why = format!(
        "it is missing: {first} says {world}, and {there} of {} such files are there",
        wanted.len()
    );
    let ending = pattern.split_once("mp_rank_00").map_or("", |(_, ending)| ending);
    let prefix = if found.values().any(|name| name.starts_with("bf16_")) {
        "bf16_"
    } else {
        ""
    };
    let name_of = |rank: &Rank| match rank.data {
        Some(data) => format!("{prefix}zero_pp_rank_{data}_mp_rank_{:02}{ending}", rank.model),
        None => format!("mp_rank_{:02}{ending}", rank.model),
    };
    wanted
        .iter()
        .filter(|rank| !found.contains_key(rank))
        .take(MAX_REPORTED)
        .map(|rank| Finding::broken(path_of(&name_of(rank)), why.clone()))
        .collect()
}

/// What an optimizer file says against the world size, if anything.
fn contradiction(source: &dyn ReadAt, path: String, world: WorldSize) -> io::Result<Option<Finding>> {
    match read_partition_count(source) {
        Ok(Some(partitions)) if partitions != world.data_parallel => {
            let why = format!("it says {partitions} partitions, and the model file says {world}");
            Ok(Some(Finding::unknown(path, why)))
        }
        Ok(_) => Ok(None),
        Err(fault) => Finding::of(path, Err(fault)).map(Some),
    }
}

/// Whether a model file says that the optimizer's state is in files of its own: it is not in this one, and ZeRO is on.
fn wants_optimizer_files(object: &Pickle) -> bool {
    let root = object.root();
    let stage = object
        .entry(root, "ds_config")
        .and_then(|config| object.entry(config, "zero_optimization"))
        .and_then(|zero| object.unsigned(object.entry(zero, "stage")?));
    object.entry(root, "optimizer") == Some(Value::None) && stage.is_some_and(|stage| stage > 0)
}
