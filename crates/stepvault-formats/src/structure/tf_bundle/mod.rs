//! A TensorFlow checkpoint: `PREFIX.index` and `PREFIX.data-00000-of-00002`, … beside it.
//!
//! The index is a table as `LevelDB` writes it. It maps each tensor name to a data file and a range in it. The check
//! verifies every block's checksum and the order of names, and that each tensor's range is inside its file and as
//! long as its type and shape require. The rules are those of `tensorflow/core/protobuf/tensor_bundle.proto`,
//! `tensorflow/core/util/tensor_bundle/tensor_bundle.cc` and `table/format.cc` of `LevelDB`. The tests write their
//! own tables; of files that TensorFlow wrote, the variables of one saved model (basic-pitch 0.4.0) were tried.
//!
//! TensorFlow does not compress indexes; a compressed index is not checked.
//!
//! # Blind spots
//!
//! Tensors are not read, so changed bytes in them are not detected: [`crate::deep`] compares the CRC-32C of each. A
//! missing data file that holds no tensor is not detected.

mod table;

use table::Entry;

use crate::deep::{Checksum, Span};
use crate::soundness::{Fault, broken};
use crate::tree::{OpenFile, Tree};

/// The ending of an index's name.
pub const INDEX_ENDING: &str = ".index";

/// A tensor that has its own place in a data file.
struct Placed<'a> {
    name: &'a str,
    entry: &'a Entry,
    path: String,
    end: u64,
}

/// Checks the checkpoint with this prefix: a path in the tree without the ending of the index.
///
/// # Errors
/// [`Fault::Broken`] with the file in the text; [`Fault::Unknown`] when the index is compressed or too large;
/// [`Fault::Read`] when a file cannot be read.
pub fn check(tree: &Tree, prefix: &str, files: &dyn OpenFile) -> Result<(), Fault> {
    each_tensor(tree, prefix, files, &mut |tensor| hold(tree, &tensor.path, tensor.end, tensor.name))
}

/// Returns the checksum of each tensor, with the path of its file.
///
/// # Errors
/// Those of [`check`].
pub(crate) fn checksums(
    tree: &Tree,
    prefix: &str,
    files: &dyn OpenFile,
) -> Result<Vec<(String, Span)>, Fault> {
    let mut spans = Vec::new();
    each_tensor(tree, prefix, files, &mut |tensor| {
        if let Some((length_bytes, checksum)) = tensor.entry.checksum() {
            let bytes = tensor.end.saturating_sub(length_bytes)..tensor.end;
            let what = format!("tensor {}", tensor.name);
            spans.push((tensor.path, Span::new(bytes, Checksum::Crc32c(checksum), what)));
        }
        Ok(())
    })?;
    Ok(spans)
}

fn each_tensor(
    tree: &Tree,
    prefix: &str,
    files: &dyn OpenFile,
    visit: &mut dyn FnMut(Placed<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let index_path = format!("{prefix}{INDEX_ENDING}");
    if !tree.is_file(&index_path) {
        return Err(broken!("{index_path} is missing, and tensors cannot be found without it"));
    }
    let source = files.open(&index_path)?;
    let mut shards = None;
    table::read(&*source, &mut |key, value| {
        let Some(shards) = shards else {
            if !key.is_empty() {
                return Err(broken!("the index does not begin with the number of data files"));
            }
            shards = Some(table::shards(value)?);
            return Ok(());
        };
        let name = String::from_utf8_lossy(key);
        let entry = Entry::parse(value, &name)?;
        entry.check_length(&name)?;
        match entry.place(shards, &name)? {
            None => Ok(()),
            Some((shard, end)) => {
                let path = format!("{prefix}.data-{shard:05}-of-{shards:05}");
                visit(Placed { name: &name, entry: &entry, path, end })
            }
        }
    })
    .map_err(|fault| fault.in_file(&index_path))?;
    shards.map(drop).ok_or_else(|| broken!("{index_path} has no entries"))
}

fn hold(tree: &Tree, path: &str, end: u64, name: &str) -> Result<(), Fault> {
    match tree.file_size_bytes(path) {
        None => Err(broken!("tensor {name} is in {path}, which is missing")),
        Some(size_bytes) if end > size_bytes => Err(broken!(
            "tensor {name} extends to byte {end} of {path}, which ends at byte {size_bytes}: the file was cut off"
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
