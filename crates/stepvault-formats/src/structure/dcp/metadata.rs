//! `.metadata`: the file, offset and length of each item.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pickle::{self, Keep, Pickle, Value};
use crate::soundness::{Fault, broken, unknown};
use crate::source::ReadAt;

/// The longest `.metadata` that is read, in bytes: a few million items.
pub const MAX_METADATA_BYTES: u64 = 1 << 30;
/// The maximum number of attributes of an object of DCP's own whose attributes are read.
const MAX_ATTRIBUTES: usize = 64;

/// The longest path of a file in a step, in bytes. Items may share a path, and every mention of a longer one would
/// cost its length.
const MAX_PATH_BYTES: usize = 1024;
/// The Python module of the classes that describe items.
const METADATA_MODULE: &str = "torch.distributed.checkpoint.metadata";

/// The location of an item's bytes: a `_StorageInfo` of torch/distributed/checkpoint/filesystem.py.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageItem {
    /// The file, relative to the directory of `.metadata`. As written: it may be absolute or lead elsewhere. Shared
    /// by the items of one file.
    pub relative_path: Arc<str>,
    /// The offset of its first byte in the file.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
    /// Whether the bytes were transformed, for example compressed: `transform_descriptors` is set.
    pub transformed: bool,
}

/// Reads the items of a `.metadata`, in its order.
///
/// # Errors
/// [`Fault::Broken`] if it is not one whole pickle, if an item lacks its location, or if it holds
/// fewer locations than pieces of items; [`Fault::Unknown`] if it holds no `Metadata`, is of another kind of
/// storage, or too large.
pub fn read_metadata(source: &dyn ReadAt) -> Result<Vec<StorageItem>, Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the file is empty: it was created and never written"));
    }
    if size_bytes > MAX_METADATA_BYTES {
        return Err(unknown!("it is {size_bytes} bytes long, more than the limit of {MAX_METADATA_BYTES}"));
    }
    let pickle = pickle::read_whole(source, 0..size_bytes, Keep::Values)?;
    let attributes = attributes_of(&pickle, pickle.root(), (METADATA_MODULE, "Metadata"))
        .ok_or_else(|| unknown!("it holds no Metadata of torch.distributed.checkpoint"))?;
    let (Some(described), Some(places)) =
        (attributes.get(&pickle, "state_dict_metadata"), attributes.get(&pickle, "storage_data"))
    else {
        return Err(broken!("its Metadata lacks the list of items or their locations"));
    };
    let described = pickle
        .entries(described)
        .ok_or_else(|| broken!("its state_dict_metadata, which lists the items, is not a dictionary"))?;
    let places = match places {
        Value::None if described.is_empty() => &[],
        places => pickle
            .entries(places)
            .ok_or_else(|| broken!("its storage_data, which locates the items, is not a dictionary"))?,
    };
    let pieces: usize = described.iter().map(|(_, value)| pieces_of(&pickle, *value)).sum();
    if places.len() < pieces {
        return Err(broken!("it describes {pieces} pieces, and locates {} of them", places.len()));
    }
    let mut paths = HashMap::new();
    places.iter().map(|(_, value)| item(&pickle, *value, &mut paths)).collect()
}

/// Returns the number of pieces of an item: a tensor has a list of them, anything else is one piece.
fn pieces_of(pickle: &Pickle, value: Value) -> usize {
    attributes_of(pickle, value, (METADATA_MODULE, "TensorStorageMetadata"))
        .and_then(|attributes| pickle.elements(attributes.get(pickle, "chunks")?))
        .map_or(1, <[_]>::len)
}

fn item(pickle: &Pickle, value: Value, paths: &mut HashMap<Value, Arc<str>>) -> Result<StorageItem, Fault> {
    let class = ("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    let Some(attributes) = attributes_of(pickle, value, class) else {
        return Err(unknown!(
            "its items are stored by something other than the file storage, so their locations are \
             unknown"
        ));
    };
    let transforms = attributes.get(pickle, "transform_descriptors").unwrap_or(Value::None);
    let untransformed = transforms == Value::None || pickle.elements(transforms).is_some_and(<[_]>::is_empty);
    let mut read = || {
        let path = attributes.get(pickle, "relative_path")?;
        let text = pickle.text(path).filter(|text| text.len() <= MAX_PATH_BYTES)?;
        Some(StorageItem {
            relative_path: Arc::clone(paths.entry(path).or_insert_with(|| text.into())),
            offset_bytes: pickle.unsigned(attributes.get(pickle, "offset")?)?,
            length_bytes: pickle.unsigned(attributes.get(pickle, "length")?)?,
            transformed: !untransformed,
        })
    };
    read().ok_or_else(|| broken!("one of its items lacks its file, offset or length"))
}

/// The attributes of an object.
struct Attributes<'a>(&'a [(Value, Value)]);

impl Attributes<'_> {
    fn get(&self, pickle: &Pickle, name: &str) -> Option<Value> {
        let found = |(key, _): &&(Value, Value)| pickle.text(*key) == Some(name);
        self.0.iter().rev().find(found).map(|(_, value)| *value)
    }
}

/// Returns the attributes that a pickle sets on an object of a class. Objects may share them, so a limit on their
/// number keeps the work in proportion to the file.
fn attributes_of<'a>(pickle: &'a Pickle, value: Value, class: (&str, &str)) -> Option<Attributes<'a>> {
    let call = pickle.call(value)?;
    if pickle.global(call.callable)? != class {
        return None;
    }
    let entries = pickle.entries(call.state)?;
    (entries.len() <= MAX_ATTRIBUTES).then_some(Attributes(entries))
}
