//! The storages that a torch pickle names: key, number of elements, element type.

use super::elements::ELEMENTS;
use super::text::shown;
use crate::pickle::{Object, Pickle, Value};
use crate::soundness::{Fault, broken};

/// The longest key of a storage, in bytes: a key is a number. Every mention of a longer one would cost its length.
const MAX_KEY_BYTES: usize = 64;

/// A storage named by a persistent id: `('storage', type, key, location, elements)`, and a view of it in legacy files
/// (`persistent_id` in torch/serialization.py).
#[derive(Debug, Clone, Copy)]
pub(super) struct StorageReference<'a> {
    /// The name of its record.
    pub(super) key: &'a str,
    /// The number of its elements.
    pub(super) elements: u64,
    /// The size of an element, or `None` for an unknown type.
    pub(super) element_bytes: Option<u64>,
}

impl StorageReference<'_> {
    /// Returns its length in bytes, if its type is known.
    pub(super) fn size_bytes(&self, pickle_name: &str) -> Result<Option<u64>, Fault> {
        let size_bytes = self.element_bytes.map(|bytes| {
            self.elements.checked_mul(bytes).ok_or_else(|| {
                broken!(
                    "{pickle_name} names storage {} of {} elements, more than any file can hold",
                    shown(self.key),
                    self.elements
                )
            })
        });
        size_bytes.transpose()
    }
}

/// Returns every storage that a pickle names, as often as it is named. Other persistent ids are left out.
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
        let is_storage = parts.first().is_some_and(|head| pickle.text(*head) == Some("storage"));
        is_storage.then(|| {
            reference(pickle, parts)
                .ok_or_else(|| broken!("{pickle_name} names a storage without its type, key or size"))
        })
    })
}

fn reference<'a>(pickle: &'a Pickle, parts: &[Value]) -> Option<StorageReference<'a>> {
    let [_, kind, key, _, elements, ..] = parts else {
        return None;
    };
    let (module, name) = pickle.global(*kind)?;
    let key = pickle.text(*key).filter(|key| key.len() <= MAX_KEY_BYTES)?;
    Some(StorageReference {
        key,
        elements: pickle.unsigned(*elements)?,
        element_bytes: element_bytes(module, name),
    })
}

/// Returns the bytes of one element of a storage class.
fn element_bytes(module: &str, name: &str) -> Option<u64> {
    if module != "torch" && !module.starts_with("torch.") {
        return None;
    }
    ELEMENTS.torch_storage_bytes.get(name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pickle::{Keep, read_whole};

    fn sizes(pickle: &[u8]) -> Vec<Result<Option<u64>, String>> {
        let pickle = read_whole(&pickle.to_vec(), 0..pickle.len() as u64, Keep::Values).unwrap();
        references(&pickle, "data.pkl")
            .map(|reference| reference.and_then(|reference| reference.size_bytes("data.pkl")))
            .map(|size| size.map_err(|fault| fault.to_string()))
            .collect()
    }

    fn of_class(module: &str, name: &str) -> Vec<Result<Option<u64>, String>> {
        let pickle = format!("(Vstorage\nc{module}\n{name}\nV0\nVcpu\nI3\ntQ.");
        sizes(pickle.as_bytes())
    }

    #[test]
    fn elements_of_every_class() {
        for (name, bytes) in [
            ("BoolStorage", 1),
            ("ByteStorage", 1),
            ("CharStorage", 1),
            ("ShortStorage", 2),
            ("HalfStorage", 2),
            ("BFloat16Storage", 2),
            ("IntStorage", 4),
            ("FloatStorage", 4),
            ("LongStorage", 8),
            ("DoubleStorage", 8),
            ("ComplexFloatStorage", 8),
            ("ComplexDoubleStorage", 16),
            ("QInt8Storage", 1),
            ("QUInt8Storage", 1),
            ("QInt32Storage", 4),
        ] {
            assert_eq!(of_class("torch", name), [Ok(Some(3 * bytes))], "{name}");
            assert_eq!(of_class("torch.cuda", name), [Ok(Some(3 * bytes))], "{name}");
        }
        assert_eq!(of_class("torch.storage", "UntypedStorage"), [Ok(Some(3))]);
        assert_eq!(of_class("torch", "QUInt4x2Storage"), [Ok(None)]);
        assert_eq!(of_class("torchaudio", "FloatStorage"), [Ok(None)]);
    }

    #[test]
    fn what_says_too_little_or_too_much() {
        // Another kind of persistent id.
        assert_eq!(sizes(b"(Vmodule\nV0\ntQ."), []);
        assert_eq!(sizes(b"V0\nQ."), []);
        let too_little = "data.pkl names a storage without its type, key or size";
        assert_eq!(sizes(b"(Vstorage\nV0\ntQ."), [Err(too_little.to_owned())]);
        assert_eq!(
            sizes(b"(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI-1\ntQ."),
            [Err(too_little.to_owned())]
        );
        let long = format!("(Vstorage\nctorch\nFloatStorage\nV{}\nVcpu\nI1\ntQ.", "0".repeat(65));
        assert_eq!(sizes(long.as_bytes()), [Err(too_little.to_owned())]);
        assert_eq!(
            sizes(b"(Vstorage\nctorch\nDoubleStorage\nV0\nVcpu\nI9223372036854775807\ntQ."),
            [Err("data.pkl names storage 0 of 9223372036854775807 elements, more than any file can hold"
                .to_owned())]
        );
    }
}
