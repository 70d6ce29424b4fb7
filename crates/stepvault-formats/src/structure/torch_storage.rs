//! The storages that a torch pickle names: which key, how many elements, of what.

use super::finding::shown;
use crate::pickle::{Object, Pickle, Value};
use crate::soundness::Fault;

/// A storage by a persistent id: `('storage', type, key, location, elements)`, and a view of it in legacy files
/// (`persistent_id` in torch/serialization.py).
#[derive(Debug, Clone, Copy)]
pub(super) struct StorageReference<'a> {
    /// The name of its record.
    pub(super) key: &'a str,
    /// How many elements it holds.
    pub(super) elements: u64,
    /// Bytes of one of them, or `None` of a type that is not known here.
    pub(super) element_bytes: Option<u64>,
}

impl StorageReference<'_> {
    /// Its length in bytes, where its type is known.
    pub(super) fn size_bytes(&self, pickle_name: &str) -> Result<Option<u64>, Fault> {
        let Some(element_bytes) = self.element_bytes else {
            return Ok(None);
        };
        match self.elements.checked_mul(element_bytes) {
            Some(size_bytes) => Ok(Some(size_bytes)),
            None => Err(Fault::broken(format!(
                "{pickle_name} names storage {} of {} elements, more than there can be",
                shown(self.key),
                self.elements
            ))),
        }
    }
}

/// Every storage that a pickle names, as often as it does. Other persistent ids are left out.
///
/// # Errors
/// [`Fault::Broken`] for a storage without a type, a key or a size.
pub(super) fn references<'a>(
    pickle: &'a Pickle,
    pickle_name: &str,
) -> impl Iterator<Item = Result<StorageReference<'a>, Fault>> {
    pickle.objects().filter_map(move |object| {
        let Object::Persistent(id) = object else {
            return None;
        };
        let parts = pickle.elements(*id)?;
        let is_storage = parts
            .first()
            .is_some_and(|head| pickle.text(*head) == Some("storage"));
        is_storage.then(|| {
            reference(pickle, parts).ok_or_else(|| {
                Fault::broken(format!(
                    "{pickle_name} names a storage without saying its type, its key and its size"
                ))
            })
        })
    })
}

fn reference<'a>(pickle: &'a Pickle, parts: &[Value]) -> Option<StorageReference<'a>> {
    let [_, kind, key, _, elements, ..] = parts else {
        return None;
    };
    let (module, name) = pickle.global(*kind)?;
    Some(StorageReference {
        key: pickle.text(*key)?,
        elements: pickle.unsigned(*elements)?,
        element_bytes: element_bytes(module, name),
    })
}

/// Bytes of one element of a storage class. An untyped storage counts bytes.
///
/// The 4-bit and 2-bit quantized classes are left out: torch itself has no agreed length for them.
fn element_bytes(module: &str, name: &str) -> Option<u64> {
    if module != "torch" && !module.starts_with("torch.") {
        return None;
    }
    match name {
        "UntypedStorage" | "BoolStorage" | "ByteStorage" | "CharStorage" | "QInt8Storage"
        | "QUInt8Storage" => Some(1),
        "ShortStorage" | "HalfStorage" | "BFloat16Storage" => Some(2),
        "IntStorage" | "FloatStorage" | "QInt32Storage" => Some(4),
        "LongStorage" | "DoubleStorage" | "ComplexFloatStorage" => Some(8),
        "ComplexDoubleStorage" => Some(16),
        _ => None,
    }
}
