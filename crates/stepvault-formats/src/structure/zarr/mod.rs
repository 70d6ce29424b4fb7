//! Zarr arrays, version 2 (`.zarray`) and 3 (`zarr.json`), each a directory with a file a chunk.
//!
//! Rules are those of the specifications at zarr-specs.readthedocs.io. Groups are no arrays.
//!
//! # Blind spots
//!
//! A chunk that is absent stands for the fill value, so a lost chunk is only seen where the writer says that it
//! stores every chunk ([`Presence::Required`]). Only the containers of uncompressed, zstd and Blosc chunks are looked
//! at; of the others, that they are not empty. Chunks carry no checksum here.

mod chunk;
mod description;

use crate::soundness::Fault;
use crate::structure::place::{in_file, joined, whole};
use crate::tree::{OpenFile, Tree};

pub use description::{Description, Version};

/// The most that the description of an array may be.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// Whether a chunk may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It stands for the fill value then.
    Optional,
    /// The writer stores every chunk.
    Required,
}

/// Whether a directory is an array by the file that describes it.
pub fn is_array(tree: &Tree, directory: &str) -> bool {
    version_of(tree, directory).is_some()
}

/// Checks an array: that it is described, and each chunk that is there.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Read`] when a file cannot be read.
pub fn check(tree: &Tree, directory: &str, files: &dyn OpenFile, presence: Presence) -> Result<(), Fault> {
    let version = version_of(tree, directory)
        .ok_or_else(|| Fault::broken(format!("{directory} holds neither .zarray nor zarr.json")))?;
    let path = joined(directory, version.file());
    let bytes = whole(tree, &path, files, MAX_DESCRIPTION_BYTES)?.unwrap_or_default();
    let Some(description) = Description::parse(&bytes, version)
        .map_err(|why| Fault::broken(format!("{path} describes no array: {why}")))?
    else {
        return Ok(());
    };
    let inside = tree.below(directory);
    let mut present = 0_u64;
    for (key, _) in inside.files().filter(|(key, _)| description.is_chunk(key)) {
        present += 1;
        let path = joined(directory, key);
        let source = files.open(&path)?;
        chunk::check(&*source, &description).map_err(|fault| in_file(&path, fault))?;
    }
    match description.chunk_count() {
        Some(expected) if presence == Presence::Required && present < expected => {
            Err(Fault::broken(format!(
                "{directory} holds {present} of the {expected} chunks of the array: part of the save is missing"
            )))
        }
        _ => Ok(()),
    }
}

fn version_of(tree: &Tree, directory: &str) -> Option<Version> {
    [Version::Two, Version::Three]
        .into_iter()
        .find(|version| tree.is_file(&joined(directory, version.file())))
}
