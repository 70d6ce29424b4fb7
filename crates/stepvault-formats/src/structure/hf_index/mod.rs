//! Weights split over several files, and the index that maps tensors to files: `model.safetensors.index.json`,
//! `pytorch_model.bin.index.json`, `diffusion_pytorch_model.safetensors.index.json`, and the output of DCP's
//! `HuggingFaceStorageWriter`.
//!
//! # Blind spots
//!
//! - For torch shards (`.bin`), only the file names are checked here: another check tests whether the files are
//!   whole, and no table states which tensors are in them.
//! - An index and shards of two saves with the same tensor names fit each other.
//! - `metadata.total_size` is not compared, because writers count it in different ways.

mod index;
mod sharded;

use std::collections::BTreeMap;

use stepvault_core::words;

pub use self::index::{Listed, MAX_WEIGHTS, listed};
pub use self::sharded::{check_sharded, holds_shards};

use super::holes;
use super::rank_set::{Gap, RankPattern, are_missing};
use super::safetensors::{self, Tensor};
use super::text::shown;
use crate::soundness::{Fault, broken, unknown, worst_of};
use crate::tree::{EntryKind, OpenFile, Tree, joined};

/// Returns whether a path has the name of an index.
pub fn is_index(path: &str) -> bool {
    [".safetensors.index.json", ".bin.index.json"].iter().any(|ending| path.ends_with(ending))
}

/// Checks that every file which an index names exists, numbered without a gap, and that safetensors files among them
/// are sound and hold the tensors that the index places in them. Reads the index and the files' headers.
///
/// # Errors
/// [`Fault::Broken`] if a file or a tensor is missing or not sound, [`Fault::Unknown`] if a limit or a symbolic link
/// prevents the check.
pub fn check(tree: &Tree, index_path: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let weights = index::read(&*files.open(index_path)?)?;
    let directory = index_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    if let Some(gap) = first_gap(weights.keys().map(String::as_str))? {
        let missing = are_missing(&gap.missing, gap.missing_count);
        return Err(broken!("{missing} from the index, which names others of the {}", gap.world));
    }
    let shards = weights.iter();
    worst_of(shards.map(|(file, names)| shard(tree, &joined(directory, file), names, files)))
}

/// Returns the missing file of a set numbered `-00001-of-00003`, which must be numbered from 1 to the last.
fn first_gap<'a>(names: impl Iterator<Item = &'a str>) -> Result<Option<Gap>, Fault> {
    let mut sets: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some(around) = around_numbers(name) {
            sets.entry(around).or_default().push(name);
        }
    }
    for ((stem, ending), names) in sets {
        let Some(pattern) = RankPattern::new(&format!("{stem}{{rank}}-of-{{world}}{ending}"), 1) else {
            continue;
        };
        let gap = pattern.gap(names, None).map_err(Fault::broken)?;
        if let Some(gap) = gap.filter(|gap| gap.missing_count > 0) {
            return Ok(Some(gap));
        }
    }
    Ok(None)
}

/// Returns `model-` and `.safetensors` of `model-00001-of-00003.safetensors`.
fn around_numbers(name: &str) -> Option<(&str, &str)> {
    let (before, after) = name.rsplit_once("-of-")?;
    let stem = before.trim_end_matches(|character: char| character.is_ascii_digit());
    let ending = after.trim_start_matches(|character: char| character.is_ascii_digit());
    (stem.len() < before.len() && ending.len() < after.len()).then_some((stem, ending))
}

fn shard(tree: &Tree, path: &str, names: &[String], files: &dyn OpenFile) -> Result<(), Fault> {
    let shown_path = shown(path);
    match tree.get(path).map(|entry| &entry.kind) {
        Some(EntryKind::File { .. }) => {}
        Some(EntryKind::Symlink { .. }) => {
            return Err(unknown!(
                "{shown_path}, which the index names, is a symbolic link and is not followed"
            ));
        }
        Some(EntryKind::Directory | EntryKind::Other) | None => {
            let tensors = words::count(names.len() as u64, "tensor");
            return Err(broken!("{shown_path} is missing, and the index places {tensors} in it"));
        }
    }
    if !path.ends_with(".safetensors") {
        return Ok(());
    }
    let held = tensors_of(path, files)?;
    let is_held = |name: &String| held.binary_search_by(|tensor| tensor.name.cmp(name)).is_ok();
    match names.iter().find(|name| !is_held(name)) {
        None => Ok(()),
        Some(name) => Err(broken!(
            "the index places tensor {} in {shown_path}, which does not have it: index and file are from different \
             saves",
            shown(name)
        )),
    }
}

/// Returns the tensors of a safetensors file that passes its check; faults name its path.
fn tensors_of(path: &str, files: &dyn OpenFile) -> Result<Vec<Tensor>, Fault> {
    let source = files.open(path)?;
    let tensors = safetensors::tensors(&*source).and_then(|tensors| {
        let doubt = holes::unwritten_end(&*source)?.map(Fault::Unknown);
        doubt.map_or(Ok(tensors), Err)
    });
    tensors.map_err(|fault| match fault.prefixed(&shown(path)) {
        // The offset is in a file other than the index.
        Fault::Broken { why, .. } => Fault::broken(why),
        other => other,
    })
}
