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

mod listed;
mod sharded;
mod weight_map;

use std::collections::BTreeMap;

pub use self::listed::{Listed, listed};
pub use self::sharded::{check_sharded, holds_shards};
pub use self::weight_map::MAX_WEIGHTS;

use super::holes;
use super::place::joined;
use super::rank_set::{Gap, RankPattern, are_missing};
use super::safetensors::{self, Tensor};
use super::text::{counted, shown};
use crate::soundness::Fault;
use crate::tree::{EntryKind, OpenFile, Tree};

/// Returns whether a path has the name of an index.
pub fn is_index(path: &str) -> bool {
    [".safetensors.index.json", ".bin.index.json"]
        .iter()
        .any(|ending| path.ends_with(ending))
}

/// Checks that every file which an index names exists, numbered without a gap, and that safetensors files among them
/// are sound and hold the tensors that the index places in them. Reads the index and the files' headers.
///
/// # Errors
/// [`Fault::Broken`] if a file or a tensor is missing or not sound, [`Fault::Unknown`] if a limit or a symbolic link
/// prevents the check.
pub fn check(tree: &Tree, index_path: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let weights = weight_map::read(&*files.open(index_path)?)?;
    let directory = index_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    for file in weights.keys() {
        inside(file)?;
    }
    if let Some(gap) = first_gap(weights.keys().map(String::as_str))? {
        let missing = are_missing(&gap.missing, gap.missing_count);
        return Err(Fault::broken(format!(
            "{missing} from the index, which names others of the {}",
            gap.world
        )));
    }
    let mut unknown = None;
    for (file, names) in &weights {
        match shard(tree, &joined(directory, file), names, files) {
            // Another shard may be broken, which takes precedence.
            Err(Fault::Unknown(why)) => unknown = unknown.or(Some(why)),
            done => done?,
        }
    }
    unknown.map_or(Ok(()), |why| Err(Fault::Unknown(why)))
}

/// Refuses a path that leads outside the index's directory.
fn inside(file: &str) -> Result<(), Fault> {
    let leads_out = file
        .split(['/', '\\'])
        .any(|part| matches!(part, "" | "." | ".."));
    // `C:` starts an absolute path on Windows.
    if leads_out || file.contains(':') || file.contains('\0') {
        return Err(Fault::broken(format!(
            "the index places tensors in {}, which is not a file name in its directory",
            shown(file)
        )));
    }
    Ok(())
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
            return Err(Fault::Unknown(format!(
                "{shown_path}, which the index names, is a symbolic link and is not followed"
            )));
        }
        Some(EntryKind::Directory | EntryKind::Other) | None => {
            let tensors = counted(names.len() as u64, "tensor");
            return Err(Fault::broken(format!(
                "{shown_path} is missing, and the index places {tensors} in it"
            )));
        }
    }
    if !path.ends_with(".safetensors") {
        return Ok(());
    }
    let held = tensors_of(path, files)?;
    let lacking = names.iter().find(|name| {
        held.binary_search_by(|tensor| tensor.name.as_str().cmp(name))
            .is_err()
    });
    match lacking {
        None => Ok(()),
        Some(name) => Err(Fault::broken(format!(
            "the index places tensor {} in {shown_path}, which does not have it: index and file are from different \
             saves",
            shown(name)
        ))),
    }
}

/// Returns the tensors of a safetensors file that passes its check; faults name its path.
fn tensors_of(path: &str, files: &dyn OpenFile) -> Result<Vec<Tensor>, Fault> {
    let source = files.open(path)?;
    let tensors = safetensors::tensors(&*source).map_err(|fault| of_file(fault, path))?;
    match holes::unwritten_end(&*source)? {
        None => Ok(tensors),
        Some(why) => Err(of_file(Fault::Unknown(why), path)),
    }
}

fn of_file(fault: Fault, path: &str) -> Fault {
    let path = shown(path);
    match fault {
        // The offset is in a file other than the index.
        Fault::Broken { why, .. } => Fault::broken(format!("{path}: {why}")),
        Fault::Unknown(why) => Fault::Unknown(format!("{path}: {why}")),
        Fault::Read(error) => Fault::Read(error),
    }
}
