//! Objects as the JSON API describes them, and the comparison of an answer with what was sent.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;
use stepvault_core::{Crc32c, ErrorKind, Result};

use super::api::{Answer, Api};
use crate::store::{ObjectHead, ObjectInfo, StoredChecksum};

/// The requested fields of one object.
pub(super) const FIELDS: &str = "name,size,generation,updated,crc32c";

/// The fields of an object that are used here. 64-bit numbers are text in this API, and numbers in some compatible
/// servers.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Resource {
    name: String,
    size: Value,
    generation: Value,
    updated: Option<String>,
    crc32c: Option<String>,
}

/// An object by the store's own account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// Its name in the bucket.
    pub(super) name: String,
    pub(super) generation: i64,
    pub(super) size_bytes: u64,
    pub(super) modified: SystemTime,
    pub(super) crc32c: Option<Crc32c>,
}

impl Resource {
    /// Returns the object, or why the description is unusable. Some servers leave out a size of 0.
    pub(super) fn described(self) -> std::result::Result<Described, &'static str> {
        let size_bytes = match &self.size {
            Value::Null => 0,
            size => number(size).ok_or("a size is not a number")?,
        };
        let generation = number(&self.generation).and_then(|number| i64::try_from(number).ok());
        let modified: Option<jiff::Timestamp> = self.updated.and_then(|text| text.parse().ok());
        Ok(Described {
            name: self.name,
            generation: generation.filter(|number| *number > 0).ok_or("it has no generation")?,
            size_bytes,
            modified: modified.ok_or("it has no modification time")?.into(),
            crc32c: self.crc32c.as_deref().and_then(Crc32c::from_base64),
        })
    }
}

impl Described {
    /// Returns the head of the object under `key`. Without a checksum it proves nothing: the engine reads the object
    /// back.
    pub(super) fn into_head(self, key: &str) -> ObjectHead {
        ObjectHead {
            info: ObjectInfo {
                key: key.to_owned(),
                size_bytes: self.size_bytes,
                modified: self.modified,
                version: Some(self.generation.to_string()),
            },
            checksum: self.crc32c.map_or(StoredChecksum::None, StoredChecksum::Crc32c),
        }
    }
}

impl Api {
    /// Reads the description of the object at `key` from a successful answer.
    ///
    /// # Errors
    /// `Unreachable` for any other document: the next attempt finds out whether the request was carried out.
    pub(super) fn described(&self, key: &str, answer: &Answer) -> Result<Described> {
        let fault = |why: &str| answer.unusable(format!("the answer does not describe the object: {why}"));
        let resource: Resource =
            serde_json::from_str(&answer.document).map_err(|error| fault(&error.to_string()))?;
        let described = resource.described().map_err(fault)?;
        if described.name == self.keys.full(key)? {
            return Ok(described);
        }
        Err(fault("it names another object"))
    }

    /// Compares an acknowledged object with what was sent. `is_ours` says whether the generation proves that this request
    /// wrote it.
    ///
    /// # Errors
    /// `Damaged` when the store holds other bytes: our own object is removed first, since left there it would block the
    /// key for the next attempt.
    pub(super) async fn compare(
        &self,
        what: &str,
        key: &str,
        object: Described,
        sent: (u64, Crc32c),
        is_ours: bool,
    ) -> Result<ObjectHead> {
        let (size_bytes, crc32c) = sent;
        if object.size_bytes == size_bytes && object.crc32c.is_none_or(|stored| stored == crc32c) {
            return Ok(object.into_head(key));
        }
        if is_ours {
            self.discard(key, object.generation).await;
        }
        let stored = object.crc32c;
        let stored = stored.map_or_else(|| "unknown".to_owned(), |stored| stored.to_string());
        Err(self.error(
            ErrorKind::Damaged,
            what,
            key,
            format!(
                "the store holds {} bytes with CRC-32C {stored}; {size_bytes} bytes with {crc32c} were sent",
                object.size_bytes,
            ),
        ))
    }
}

/// Returns a number that is written as one, or as text.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(document: &str) -> std::result::Result<Described, &'static str> {
        serde_json::from_str::<Resource>(document).unwrap().described()
    }

    #[test]
    fn numbers_may_be_text_and_a_missing_size_is_none() {
        let text = r#"{"name":"a","size":"4","generation":"17","updated":"2026-11-21T10:16:00.123Z",
            "crc32c":"4waSgw==","md5Hash":null}"#;
        let object = described(text).unwrap();
        assert_eq!((object.size_bytes, object.generation), (4, 17));
        assert_eq!(object.crc32c, Some(Crc32c::of(b"123456789")));
        let plain = r#"{"name":"a","generation":17,"updated":"2026-11-21T10:16:00Z"}"#;
        let object = described(plain).unwrap();
        assert_eq!((object.size_bytes, object.crc32c), (0, None));
    }

    #[test]
    fn a_description_without_identity_is_unusable() {
        for (document, why) in [
            (r#"{"name":"a","updated":"2026-11-21T10:16:00Z"}"#, "it has no generation"),
            (r#"{"name":"a","generation":"-1","updated":"2026-11-21T10:16:00Z"}"#, "it has no generation"),
            (r#"{"name":"a","generation":"1"}"#, "it has no modification time"),
            (r#"{"name":"a","generation":"1","size":"x"}"#, "a size is not a number"),
        ] {
            assert_eq!(described(document), Err(why), "{document}");
        }
    }
}
