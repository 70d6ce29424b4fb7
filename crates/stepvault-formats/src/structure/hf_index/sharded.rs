//! The output of DCP's `HuggingFaceStorageWriter` before the weights are consolidated: for every rank and every file
//! of the final set, `shard-<rank>-model-<i>-of-<n>.safetensors`, beside or below the final files (`hf_storage.py` in
//! `torch.distributed.checkpoint`).
//!
//! A rank that has nothing to write for a file of the set writes no file. This is usual with pipeline stages, and
//! with replicas it can apply to a whole rank. So the check counts the elements of every tensor, not the files, if
//! the final files exist for comparison.
//!
//! # Blind spots
//!
//! Without the final files, the number of ranks is unknown: the highest may be missing. A shard from another save of
//! the same model with the same shapes fits.

use std::collections::BTreeMap;

use super::{first_gap, tensors_of};
use crate::soundness::{Fault, broken, unknown};
use crate::structure::rank_set::{RankPattern, are_missing};
use crate::structure::safetensors::MAX_TENSORS;
use crate::structure::text::shown;
use crate::tree::{OpenFile, Tree, joined};

/// Returns whether a directory of a tree, `""` for its own, holds shards of ranks.
pub fn holds_shards(tree: &Tree, directory: &str) -> bool {
    tree.file_names(directory).any(|name| shard_set(name).is_some())
}

/// Checks a directory that holds shards of ranks. Each file must be a sound safetensors file; together they must be
/// of every file of the set; and no tensor may have fewer elements than it has in the final files, where these are in
/// the same directory or, for a directory `sharded`, in the one above.
///
/// # Errors
/// [`Fault::Broken`] if a requirement is not met; [`Fault::Unknown`] if a limit prevents the check, or if a rank
/// below the highest has no file and no final files show whether it should.
pub fn check_sharded(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let weights = |directory| tree.file_names(directory).filter(|name| name.ends_with(".safetensors"));
    let shards: Vec<_> = weights(directory).filter_map(|name| Some((name, shard_set(name)?))).collect();
    every_set(&shards)?;
    let mut found = Elements::default();
    for (name, _) in &shards {
        found.add(&joined(directory, name), files)?;
    }
    let above = match directory.rsplit_once('/') {
        Some((above, "sharded")) => above,
        None if directory == "sharded" => "",
        _ => directory,
    };
    let mut whole = Elements::default();
    for name in weights(above).filter(|name| shard_set(name).is_none()) {
        whole.add(&joined(above, name), files)?;
    }
    if whole.0.is_empty() {
        return every_rank(&shards);
    }
    for (tensor, elements) in &whole.0 {
        let there = found.0.get(tensor).copied().unwrap_or_default();
        if there < *elements {
            return Err(broken!(
                "the shards hold {there} of the {elements} elements of tensor {}: the file of a rank is missing",
                shown(tensor)
            ));
        }
    }
    Ok(())
}

/// Returns `00002` and the name of the final file for `shard-00002-model-00001-of-00003.safetensors`.
fn shard_set(name: &str) -> Option<(&str, &str)> {
    let (rank, file) = name.strip_prefix("shard-")?.split_once('-')?;
    let is_number = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && file.ends_with(".safetensors")).then_some((rank, file))
}

fn every_set(shards: &[(&str, (&str, &str))]) -> Result<(), Fault> {
    match first_gap(shards.iter().map(|(_, (_, file))| *file))? {
        None => Ok(()),
        Some(gap) => {
            let missing = are_missing(&gap.missing, gap.missing_count);
            Err(broken!("{missing}: no rank has a shard of it"))
        }
    }
}

fn every_rank(shards: &[(&str, (&str, &str))]) -> Result<(), Fault> {
    let Some(pattern) = RankPattern::new("shard-{rank}", 1) else {
        return Ok(());
    };
    let ranks: Vec<_> = shards.iter().map(|(_, (rank, _))| format!("shard-{rank}")).collect();
    let gap = pattern.gap(ranks.iter().map(String::as_str), None).map_err(Fault::broken)?;
    match gap.filter(|gap| gap.missing_count > 0) {
        None => Ok(()),
        Some(gap) => Err(unknown!(
            "{}: that rank had nothing to write, or was cut off",
            are_missing(&gap.missing, gap.missing_count)
        )),
    }
}

/// The number of elements of each tensor in all files together.
#[derive(Default)]
struct Elements(BTreeMap<String, u64>);

impl Elements {
    fn add(&mut self, path: &str, files: &dyn OpenFile) -> Result<(), Fault> {
        for tensor in tensors_of(path, files)? {
            let total = self.0.entry(tensor.name).or_default();
            *total = total.saturating_add(tensor.elements);
        }
        if self.0.len() > MAX_TENSORS {
            return Err(unknown!("the files hold more than {MAX_TENSORS} tensors, the limit"));
        }
        Ok(())
    }
}
