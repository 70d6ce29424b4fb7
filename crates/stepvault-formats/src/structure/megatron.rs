//! A step that Megatron-LM wrote: `iter_0000100` or `release`.
//!
//! `metadata.json` is written last and states how the tensors are stored. `.metadata` and the shards that it names
//! are not checked here: they are those of `PyTorch`'s own distributed checkpoints. The rules are those of
//! `megatron/core/dist_checkpointing/{core,integrity}.py` and `megatron/training/checkpointing.py`.
//!
//! # Blind spots
//!
//! `integrity.json` lists SHA-256 digests without lengths, so a file that it lists is only checked for existence;
//! [`listed_digests`] returns the list for callers that read the files anyway. Whether `common.pt` is required
//! depends on the version of Megatron, which the step does not record: without `integrity.json`, a missing
//! `common.pt` is detected only on loading.

use std::collections::BTreeMap;

use serde::Deserialize;
use stepvault_core::digest::Sha256Digest;

use crate::soundness::{Fault, broken, unknown};
use crate::structure::directory::json;
use crate::tree::{EntryKind, OpenFile, Tree, joined};

/// The file that states how the tensors of a step are stored.
pub const METADATA_NAME: &str = "metadata.json";
/// The file that lists the digests of a step's files, if the run was configured to write it.
pub const INTEGRITY_NAME: &str = "integrity.json";
/// The description of shards, as in `PyTorch`'s distributed checkpoints.
const SHARDS_NAME: &str = ".metadata";
/// The data that is not sharded; newer versions keep it with the shards.
const COMMON_NAME: &str = "common.pt";
/// The files that each rank of an unsharded step writes, with or without a separate file for the optimizer.
const LEGACY_NAMES: [&str; 2] = ["model_optim_rng.pt", "model_rng.pt"];
/// The maximum size of the JSON of a step: a name and a digest for each file.
const MAX_JSON_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct Metadata {
    sharded_backend: String,
}

#[derive(Deserialize)]
struct Integrity {
    algorithm: Option<String>,
    files: BTreeMap<String, String>,
}

/// Checks the step in `directory` of the tree; `""` when the tree is the step.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Unknown`] for storage formats other than `torch_dist`;
/// [`Fault::Read`] when a file cannot be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    let path = joined(directory, METADATA_NAME);
    let Some(metadata) = json::<Metadata>(tree, &path, files, MAX_JSON_BYTES)? else {
        return check_legacy(tree, directory);
    };
    if metadata.sharded_backend != "torch_dist" {
        return Err(unknown!(
            "{path} says that tensors are stored by {}, which is not checked",
            metadata.sharded_backend
        ));
    }
    let shards = joined(directory, SHARDS_NAME);
    written(tree, &shards, || broken!("{shards} is missing, and tensors cannot be found without it"))?;
    let common = joined(directory, COMMON_NAME);
    if tree.file_size_bytes(&common) == Some(0) {
        return Err(empty(&common));
    }
    let integrity = joined(directory, INTEGRITY_NAME);
    for name in listed_digests(tree, directory, files)?.keys() {
        written(tree, &joined(directory, name), || {
            broken!("{integrity} lists {name}, and that file is missing")
        })?;
    }
    Ok(())
}

/// Returns the digests that `integrity.json` lists, by path below the step; none if the file does not exist.
///
/// # Errors
/// [`Fault::Broken`] when it cannot be parsed as a list of digests, or names files outside the step;
/// [`Fault::Unknown`] for digests other than SHA-256; [`Fault::Read`] when it cannot be read.
pub fn listed_digests(
    tree: &Tree,
    directory: &str,
    files: &dyn OpenFile,
) -> Result<BTreeMap<String, Sha256Digest>, Fault> {
    let path = joined(directory, INTEGRITY_NAME);
    let Some(integrity) = json::<Integrity>(tree, &path, files, MAX_JSON_BYTES)? else {
        return Ok(BTreeMap::new());
    };
    let algorithm = integrity.algorithm.as_deref().unwrap_or("sha256");
    if algorithm != "sha256" {
        return Err(unknown!("{path} lists digests of the unknown kind {algorithm}"));
    }
    let digest = |(name, digest): (String, String)| {
        let is_inside =
            !name.is_empty() && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        match Sha256Digest::from_hex(&digest) {
            Ok(digest) if is_inside => Ok((name, digest)),
            Ok(_) => Err(broken!("{path} lists {name:?}, which is not a file of the step")),
            Err(_) => Err(broken!("{path} lists {name} with a value that is not a SHA-256")),
        }
    };
    integrity.files.into_iter().map(digest).collect()
}

/// Checks a step without `metadata.json`: it is an older one, with a directory per rank, or it was not finished.
fn check_legacy(tree: &Tree, directory: &str) -> Result<(), Fault> {
    let mut ranks = 0;
    let children = tree.children(directory);
    for (name, _) in
        children.filter(|(name, entry)| name.starts_with("mp_rank_") && entry.kind == EntryKind::Directory)
    {
        ranks += 1;
        let rank = joined(directory, name);
        let sizes = LEGACY_NAMES.map(|file| tree.file_size_bytes(&joined(&rank, file)));
        match sizes.into_iter().flatten().max() {
            None => return Err(broken!("{rank} holds no {}", LEGACY_NAMES[0])),
            Some(0) => return Err(empty(&joined(&rank, LEGACY_NAMES[0]))),
            Some(_) => {}
        }
    }
    if ranks == 0 {
        return Err(broken!(
            "{}, which is written last, is missing: the save was not finished",
            joined(directory, METADATA_NAME)
        ));
    }
    Ok(())
}

/// Refuses a file that is missing or empty.
fn written(tree: &Tree, path: &str, missing: impl FnOnce() -> Fault) -> Result<(), Fault> {
    match tree.file_size_bytes(path) {
        None => Err(missing()),
        Some(0) => Err(empty(path)),
        Some(_) => Ok(()),
    }
}

fn empty(path: &str) -> Fault {
    broken!("{path} is empty: it was never written")
}
