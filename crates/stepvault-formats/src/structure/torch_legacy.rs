//! The format that `torch.save` wrote before version 1.6, and still writes on request: five pickles, then the
//! storages.
//!
//! The pickles are a magic number, a protocol version, facts about the system, the object, and the keys of its
//! storages. They are followed, for each key in that order, by the number of elements in eight bytes and the elements
//! (`_legacy_save` and `_legacy_load` in torch/serialization.py). The file ends with the last storage.
//!
//! # Blind spots
//! The format has no checksum, so changes in the bytes of tensors and in most bytes of the pickles (see
//! [`crate::pickle`]) are not detected. The magic number, the protocol version, and the keys, sizes and classes of
//! storages are compared with each other and with the file's length.

use std::collections::{HashMap, HashSet};

use super::text::shown;
use super::torch_storage::{StorageReference, references};
use crate::pickle::{self, Keep, Pickle, Value};
use crate::soundness::{Fault, broken, broken_at, read_array, read_head, unknown};
use crate::tree::ReadAt;

/// `MAGIC_NUMBER` of torch/serialization.py.
const MAGIC_NUMBER: i128 = 0x1950_a86a_20f9_469c_fc6c;
/// The length of the magic number, little-endian.
const MAGIC_BYTES: usize = 10;
/// `PROTOCOL_VERSION` of torch/serialization.py.
const PROTOCOL_VERSION: i128 = 1001;
/// The maximum offset of the magic number, in bytes: it follows a protocol, a frame and a length.
const MAGIC_WINDOW_BYTES: u64 = 48;
/// The size of a storage's element count.
const COUNT_BYTES: u64 = 8;

/// Reads what stands before the storages: the object and the list of the storages' keys.
fn read_preamble(source: &dyn ReadAt) -> Result<(Pickle, Pickle), Fault> {
    let size_bytes = source.size_bytes();
    let read = |start: u64, what: &str| {
        pickle::read(source, start..size_bytes, Keep::Values).map_err(|fault| fault.prefixed(what))
    };
    let magic = read(0, "the magic number")?;
    if magic.integer(magic.root) != Some(MAGIC_NUMBER) {
        return Err(broken_at!(0, "the file does not begin with torch's magic number"));
    }
    let version = read(magic.end, "the protocol version")?;
    if version.integer(version.root) != Some(PROTOCOL_VERSION) {
        return Err(broken_at!(
            magic.end,
            "the protocol version is not {PROTOCOL_VERSION}, the only one that exists"
        ));
    }
    let system = read(version.end, "the facts about the system")?;
    if system.entries(system.root).is_none() {
        return Err(broken_at!(version.end, "the facts about the system are not a dictionary"));
    }
    let object = read(system.end, "the object")?;
    let keys = read(object.end, "the list of storages")?;
    Ok((object, keys))
}

/// Returns whether a file begins with the magic number of the format, whatever pickle protocol it was written with.
///
/// # Errors
/// When the file could not be read.
pub fn is_legacy(source: &dyn ReadAt) -> Result<bool, Fault> {
    let head = read_head(source, MAGIC_WINDOW_BYTES)?;
    let little_endian = MAGIC_NUMBER.to_le_bytes();
    let binary = little_endian.get(..MAGIC_BYTES).unwrap_or_default();
    let decimal = MAGIC_NUMBER.to_string();
    Ok(head.windows(binary.len()).any(|part| part == binary)
        || head.windows(decimal.len()).any(|part| part == decimal.as_bytes()))
}

/// Checks a file of the legacy format.
///
/// # Errors
/// [`Fault::Broken`] if one of its pickles is damaged or cut off, or if its storages are not those that the object
/// names; [`Fault::Unknown`] if the element size of a storage's class is unknown.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let (object, keys) = read_preamble(source)?;
    let named = named_storages(&object)?;
    let mut offset = keys.end;
    let mut seen = HashSet::new();
    for key in storage_keys(&keys)? {
        let Some(reference) = named.get(key) else {
            return Err(broken!("the list of storages has {}, which the object does not name", shown(key)));
        };
        if !seen.insert(key) {
            return Err(broken!("the list of storages has {} twice", shown(key)));
        }
        offset = check_storage(source, offset, reference)?;
    }
    if let Some(key) = named.keys().find(|key| !seen.contains(*key)) {
        return Err(broken!("the object names storage {}, which is not in the list of storages", shown(key)));
    }
    let left_bytes = source.size_bytes().saturating_sub(offset);
    if left_bytes > 0 {
        return Err(broken_at!(offset, "{left_bytes} unexpected bytes follow the last storage"));
    }
    Ok(())
}

/// Reads the object in a file of the legacy format, as data.
///
/// # Errors
/// As [`check`], of the pickles.
pub fn read_object(source: &dyn ReadAt) -> Result<Pickle, Fault> {
    read_preamble(source).map(|(object, _)| object)
}

/// Returns the storages that the object names, by key. Views of one storage share its key.
fn named_storages(object: &Pickle) -> Result<HashMap<&str, StorageReference<'_>>, Fault> {
    let mut named: HashMap<&str, StorageReference<'_>> = HashMap::new();
    for reference in references(object, "the object") {
        let reference = reference?;
        let first = *named.entry(reference.key).or_insert(reference);
        if (first.elements, first.element_bytes) != (reference.elements, reference.element_bytes) {
            return Err(broken!(
                "the object names storage {} with two different sizes",
                shown(reference.key)
            ));
        }
    }
    Ok(named)
}

fn storage_keys(keys: &Pickle) -> Result<Vec<&str>, Fault> {
    let no_list = || broken!("the list of storages is not a list of names");
    let elements = keys.elements(keys.root).ok_or_else(no_list)?;
    let text = |element: &Value| keys.text(*element).ok_or_else(no_list);
    elements.iter().map(text).collect()
}

/// Compares one storage with what the object states about it, and returns its end.
fn check_storage(source: &dyn ReadAt, offset: u64, reference: &StorageReference<'_>) -> Result<u64, Fault> {
    let key = shown(reference.key);
    let Some(size_bytes) = reference.size_bytes("the object")? else {
        return Err(unknown!("storage {key} is of a class whose element size is unknown"));
    };
    let left_bytes = source.size_bytes().saturating_sub(offset);
    let needed_bytes = size_bytes.saturating_add(COUNT_BYTES);
    if needed_bytes > left_bytes {
        return Err(broken_at!(
            offset,
            "storage {key} takes {needed_bytes} bytes, and {left_bytes} are left in the file: the save was cut \
             off"
        ));
    }
    let count = u64::from_le_bytes(read_array(source, offset, "the size of a storage")?);
    if count != reference.elements {
        return Err(broken_at!(
            offset,
            "storage {key} states {count} elements, but the object states {}",
            reference.elements
        ));
    }
    Ok(offset.saturating_add(needed_bytes))
}
