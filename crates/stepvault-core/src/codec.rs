//! The canonical JSON encoding of all records, and its strict reader.
//!
//! Canonical means: UTF-8, no white space, object members sorted by name, integers in plain digits. Each record
//! therefore has exactly one encoding, and its SHA-256 identifies it. The reader rejects unknown and repeated members,
//! members out of order, data after the record, and anything else that does not encode back to the same bytes.

use std::fmt;
use std::io;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The format version of the records that this program writes.
pub const FORMAT: u32 = 1;
/// The format version of the part manifest and the commit of a step whose objects are not where format 1 has them.
pub const FORMAT_OF_IMPORTED: u32 = 2;
/// The largest record that is written or read. Only part manifests and seals come near this size;
/// [`MAX_ENTRIES`](crate::manifest::MAX_ENTRIES) describes what it means for the number of files in a step.
pub const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A record with a format version in its member `format`.
pub trait Record: Serialize + DeserializeOwned {
    /// The name of the record in messages: "commit", "part manifest".
    const WHAT: &'static str;
    /// The newest format in which this program reads the record.
    const NEWEST_FORMAT: u32 = FORMAT;

    /// Checks what the types cannot express: totals, order and relations between members. [`decode`] has checked the
    /// format.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The member that every record has, whatever its format.
#[derive(serde::Deserialize)]
struct Version {
    format: u32,
}

/// Returns the canonical bytes of a record.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>> {
    let fault =
        |error| Error::new(ErrorKind::Failed, format!("cannot encode a {}", R::WHAT)).caused_by(error);
    let declared = serde_json::to_vec(record).map_err(fault)?;
    if is_sorted(&declared) {
        return Ok(declared);
    }
    // `Value` sorts its maps by name, which covers records whose members are declared in another order. It takes many
    // times the record's length in memory, so records that may be long declare their members sorted by name.
    serde_json::to_value(record).and_then(|value| serde_json::to_vec(&value)).map_err(fault)
}

/// Returns the number of bytes that a value has in a record, without holding them.
pub fn encoded_bytes<T: Serialize>(value: &T) -> Result<u64> {
    struct Counter(u64);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value)
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot encode a record").caused_by(error))?;
    Ok(counter.0)
}

/// Returns whether `bytes` are the canonical encoding of `record`, which was read from them.
fn is_canonical<R: Record>(record: &R, bytes: &[u8]) -> Result<bool> {
    struct Rest<'a>(&'a [u8]);
    impl io::Write for Rest<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let rest = self.0.strip_prefix(bytes);
            self.0 = rest.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut rest = Rest(bytes);
    if serde_json::to_writer(&mut rest, record).is_ok() && rest.0.is_empty() && is_sorted(bytes) {
        return Ok(true);
    }
    Ok(encode(record)? == bytes)
}

/// Returns whether the members of every object are sorted by name, without duplicates.
fn is_sorted(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Sorted>(bytes).is_ok()
}

/// Deserializes any JSON whose objects are sorted; keeps none of it.
struct Sorted;

impl<'de> Deserialize<'de> for Sorted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(SortedVisitor)
    }
}

struct SortedVisitor;

impl<'de> Visitor<'de> for SortedVisitor {
    type Value = Sorted;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON with sorted members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<Sorted, A::Error> {
        let mut last: Option<String> = None;
        while let Some(name) = members.next_key::<String>()? {
            if last.is_some_and(|last| last >= name) {
                return Err(serde::de::Error::custom("members out of order"));
            }
            members.next_value::<Sorted>()?;
            last = Some(name);
        }
        Ok(Sorted)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> std::result::Result<Sorted, A::Error> {
        while elements.next_element::<Sorted>()?.is_some() {}
        Ok(Sorted)
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }

    fn visit_unit<E>(self) -> std::result::Result<Sorted, E> {
        Ok(Sorted)
    }
}

/// Reads a record; `subject` (a path or key) is named in errors.
///
/// # Errors
/// [`ErrorKind::NewerFormat`] for a format above [`Record::NEWEST_FORMAT`]; [`ErrorKind::Damaged`] for anything else that is not
/// exactly what [`encode`] writes.
pub fn decode<R: Record>(bytes: &[u8], subject: &str) -> Result<R> {
    let damaged = |why: String| {
        Error::new(ErrorKind::Damaged, format!("cannot read the {}", R::WHAT)).on(subject).because(why)
    };
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        return Err(damaged(format!("it has {} bytes, more than {MAX_RECORD_BYTES}", bytes.len())));
    }
    if bytes.is_empty() {
        return Err(damaged("it is empty".to_owned()));
    }
    // The version is read first, so that a newer record is reported as newer and not as damaged.
    let version: Version = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version.format > R::NEWEST_FORMAT {
        return Err(Error::new(ErrorKind::NewerFormat, format!("cannot read the {}", R::WHAT))
            .on(subject)
            .because(format!(
                "it has format {}, but this stepvault reads formats up to {}",
                version.format,
                R::NEWEST_FORMAT
            ))
            .hint("use a newer stepvault"));
    }
    if version.format == 0 {
        return Err(damaged("there is no format 0".to_owned()));
    }
    let record: R = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    record.check().map_err(|error| damaged(error.to_string()))?;
    if !is_canonical(&record, bytes)? {
        return Err(damaged("it is not in canonical form".to_owned()));
    }
    Ok(record)
}
