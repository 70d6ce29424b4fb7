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

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny, MapAccess};
use stepvault_core::words;

use super::json::{self, Entries, ReadEntry, Skipped};
use super::rank_set::{Gap, RankPattern, are_missing};
use super::safetensors::{self, MAX_TENSORS, Tensor};
use super::text::shown;
use crate::soundness::{Fault, broken, unknown, worst_of};
use crate::tree::{EntryKind, OpenFile, ReadAt, Tree, joined};

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
    let weights = read(&*files.open(index_path)?)?;
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
        let doubt = safetensors::unwritten_end(&*source)?.map(Fault::Unknown);
        doubt.map_or(Ok(tensors), Err)
    });
    tensors.map_err(|fault| match fault.prefixed(&shown(path)) {
        // The offset is in a file other than the index.
        Fault::Broken { why, .. } => Fault::broken(why),
        other => other,
    })
}

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
///
/// The output of DCP's `HuggingFaceStorageWriter` before the weights are consolidated: for every rank and every file
/// of the final set, `shard-<rank>-model-<i>-of-<n>.safetensors`, beside or below the final files (`hf_storage.py` in
/// `torch.distributed.checkpoint`).
///
/// A rank that has nothing to write for a file of the set writes no file. This is usual with pipeline stages, and
/// with replicas it can apply to a whole rank. So the check counts the elements of every tensor, not the files, if
/// the final files exist for comparison.
///
/// # Blind spots
///
/// Without the final files, the number of ranks is unknown: the highest may be missing. A shard from another save of
/// the same model with the same shapes fits.
pub fn check_sharded(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let weights = |directory| tree.file_names(directory).filter(|name| name.ends_with(".safetensors"));
    let shards: Vec<_> = weights(directory).filter_map(|name| Some((name, shard_set(name)?))).collect();
    if let Some(gap) = first_gap(shards.iter().map(|(_, (_, file))| *file))? {
        let missing = are_missing(&gap.missing, gap.missing_count);
        return Err(broken!("{missing}: no rank has a shard of it"));
    }
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

/// The maximum number of tensors of an index.
pub const MAX_WEIGHTS: usize = 1_000_000;
/// The maximum number of bytes of names.
const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;

/// The names of tensors, by the file that holds them.
type WeightMap = BTreeMap<String, Vec<String>>;

/// Reads the map of an index, which names no file outside of its directory.
fn read(source: &dyn ReadAt) -> Result<WeightMap, Fault> {
    let mut index = Index::default();
    match json::read(source, Entries(&mut index)) {
        Err(Fault::Broken { .. }) if index.refused => {
            return Err(unknown!(
                "the index names more than {MAX_WEIGHTS} tensors or {MAX_NAME_BYTES} bytes of names, the limits"
            ));
        }
        parsed => parsed?,
    }
    if index.files.is_empty() {
        return Err(broken!("the index has no weight_map that names a tensor"));
    }
    index.files.keys().try_for_each(|file| inside(file))?;
    Ok(index.files)
}

/// Refuses a path that leads outside the index's directory.
fn inside(file: &str) -> Result<(), Fault> {
    let leads_out = file.split(['/', '\\']).any(|part| matches!(part, "" | "." | ".."));
    // `C:` starts an absolute path on Windows.
    if leads_out || file.contains(':') || file.contains('\0') {
        return Err(broken!(
            "the index places tensors in {}, which is not a file name in its directory",
            shown(file)
        ));
    }
    Ok(())
}

#[derive(Default)]
struct Index {
    files: WeightMap,
    weights: usize,
    name_bytes: usize,
    refused: bool,
}

impl Index {
    fn add(&mut self, weight: String, file: String) -> Result<(), &'static str> {
        self.weights = self.weights.saturating_add(1);
        self.name_bytes = self.name_bytes.saturating_add(weight.len());
        if !self.files.contains_key(&file) {
            self.name_bytes = self.name_bytes.saturating_add(file.len());
        }
        if self.weights > MAX_WEIGHTS || self.name_bytes > MAX_NAME_BYTES {
            self.refused = true;
            return Err("too many tensors");
        }
        self.files.entry(file).or_default().push(weight);
        Ok(())
    }
}

/// The object under `weight_map`.
struct Weights<'a>(&'a mut Index);

impl<'de> ReadEntry<'de> for Index {
    const EXPECTED: &'static str = "an object with a weight_map";

    fn read_entry<A: MapAccess<'de>>(&mut self, key: String, entries: &mut A) -> Result<(), A::Error> {
        if key == "weight_map" {
            entries.next_value_seed(Entries(&mut Weights(self)))
        } else {
            entries.next_value::<Skipped>().map(drop)
        }
    }
}

impl<'de> ReadEntry<'de> for Weights<'_> {
    const EXPECTED: &'static str = "an object that places tensors in files";

    fn read_entry<A: MapAccess<'de>>(&mut self, weight: String, entries: &mut A) -> Result<(), A::Error> {
        let file = entries.next_value()?;
        self.0.add(weight, file).map_err(A::Error::custom)
    }
}

/// The files that an index names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Each file, relative to the index's directory, and the number of its tensors.
    pub files: Vec<(String, u64)>,
    /// The bytes of all tensors, if the index states them. Writers count tensors that share their bytes once or
    /// twice.
    pub total_bytes: Option<u64>,
}

/// Reads the files that an index names.
///
/// # Errors
/// As [`check`], of the index alone.
pub fn listed(source: &dyn ReadAt) -> Result<Listed, Fault> {
    let weights = read(source)?;
    let head = json::read(source, PhantomData::<Head>)?;
    let total_bytes = match head.metadata.and_then(|metadata| metadata.total_size) {
        Some(Total::Whole(bytes)) => Some(bytes),
        Some(Total::Other(_)) | None => None,
    };
    let files = weights.into_iter();
    Ok(Listed { files: files.map(|(file, names)| (file, names.len() as u64)).collect(), total_bytes })
}

/// An index; only its total is kept.
#[derive(Deserialize)]
struct Head {
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    total_size: Option<Total>,
}

/// A length, or an invalid value, which is ignored because the total is only informative.
#[derive(Deserialize)]
#[serde(untagged)]
enum Total {
    Whole(u64),
    Other(IgnoredAny),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Listed, String> {
        listed(&text.as_bytes().to_vec()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn files_and_the_total_are_read() {
        let index =
            r#"{"metadata":{"total_size":107136,"x":[1]},"weight_map":{"a":"m-1","b":"m-2","c":"m-2"}}"#;
        let expected =
            Listed { files: vec![("m-1".to_owned(), 1), ("m-2".to_owned(), 2)], total_bytes: Some(107_136) };
        assert_eq!(list(index).unwrap(), expected);
        for metadata in ["", r#""metadata":{},"#, r#""metadata":{"total_size":1.5},"#, r#""metadata":null,"#]
        {
            let index = format!("{{{metadata}\"weight_map\":{{\"a\":\"m\"}}}}");
            assert_eq!(list(&index).unwrap().total_bytes, None, "{index}");
        }
        let outside = list(r#"{"weight_map":{"a":"../m"}}"#).unwrap_err();
        assert_eq!(outside, "the index places tensors in ../m, which is not a file name in its directory");
    }
}
