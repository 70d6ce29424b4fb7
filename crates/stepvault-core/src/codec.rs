//! The canonical JSON encoding of all records, and its strict reader.
//!
//! Canonical means: UTF-8, no white space, object members sorted by name, integers in plain digits. Each record
//! therefore has exactly one encoding, and its SHA-256 identifies it. The reader rejects unknown and repeated members,
//! members out of order, data after the record, and anything else that does not encode back to the same bytes.

use std::{io, mem};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};

use crate::digest::{Sha256Digest, Sha256Hasher};
use crate::error::{Error, ErrorKind, Result};

/// The format version of the records that this program writes.
pub const FORMAT: u32 = 1;
/// The format version of the part manifest and the commit of a step whose objects are not where format 1 has them.
pub const FORMAT_OF_IMPORTED: u32 = 2;
/// The format version of both records of an imported step of which some files have no digests, but the store's checksum.
pub const FORMAT_OF_TRUSTED: u32 = 3;
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
    let mut bytes = Vec::with_capacity(usize::try_from(encoded_bytes(record)?).unwrap_or_default());
    if write_sorted(record, &mut bytes).is_err() {
        bytes.clear();
        write_by_value(record, &mut bytes).map_err(not_encoded::<R>)?;
    }
    Ok(bytes)
}

/// Returns the digest of the canonical bytes of a record, without holding them.
pub fn sha256_of<R: Record>(record: &R) -> Result<Sha256Digest> {
    let mut hasher = Sha256Hasher::default();
    write_to(record, &mut hasher).map_err(not_encoded::<R>)?;
    Ok(hasher.finish())
}

fn not_encoded<R: Record>(error: io::Error) -> Error {
    Error::new(ErrorKind::Failed, format!("cannot encode a {}", R::WHAT)).caused_by(error)
}

/// Writes the canonical bytes of a record in small pieces, without holding all of them.
///
/// # Errors
/// Those of the writer.
pub fn write_to<R: Record>(record: &R, writer: &mut impl io::Write) -> io::Result<()> {
    match write_sorted(record, io::sink()) {
        Ok(()) => write_sorted(record, writer),
        Err(_) => write_by_value(record, writer),
    }
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
    if write_sorted(record, &mut rest).is_ok() && rest.0.is_empty() {
        return Ok(true);
    }
    Ok(encode(record)? == bytes)
}

/// Writes a record as its members are declared.
///
/// # Errors
/// When they are not sorted by name, or a name needs an escape; otherwise those of the writer.
fn write_sorted<R: Record>(record: &R, writer: impl io::Write) -> io::Result<()> {
    record.serialize(&mut Serializer::with_formatter(writer, SortedFormatter::default()))?;
    Ok(())
}

/// Writes a record whose members are declared in another order: `Value` sorts its maps by name. It takes many times the
/// record's length in memory, so records that may be long declare their members sorted by name.
fn write_by_value<R: Record>(record: &R, writer: impl io::Write) -> io::Result<()> {
    serde_json::to_writer(writer, &serde_json::to_value(record)?)?;
    Ok(())
}

/// Refuses members that are out of order or repeated.
#[derive(Default)]
struct SortedFormatter {
    /// The last name in each object that is open.
    last_names: Vec<String>,
    name: String,
    is_in_name: bool,
    is_first: bool,
}

impl Formatter for SortedFormatter {
    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.last_names.push(String::new());
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.last_names.pop();
        CompactFormatter.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        self.name.clear();
        (self.is_in_name, self.is_first) = (true, is_first);
        CompactFormatter.begin_object_key(writer, is_first)
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_in_name = false;
        match self.last_names.last_mut() {
            Some(last) if self.is_first || *last < self.name => {
                mem::swap(last, &mut self.name);
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if self.is_in_name {
            self.name.push_str(text);
        }
        CompactFormatter.write_string_fragment(writer, text)
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        if self.is_in_name {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        CompactFormatter.write_char_escape(writer, escape)
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unsorted {
        format: u32,
        by_name: BTreeMap<String, Inner>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        z: u8,
        a: String,
    }

    impl Record for Unsorted {
        const WHAT: &'static str = "test record";
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sorted {
        by_name: BTreeMap<String, u8>,
        format: u32,
    }

    impl Record for Sorted {
        const WHAT: &'static str = "test record";
    }

    fn assert_both_ways<R: Record + PartialEq + fmt::Debug>(record: &R, canonical: &str) {
        let mut written = Vec::new();
        write_to(record, &mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), canonical);
        assert_eq!(encode(record).unwrap(), canonical.as_bytes());
        assert_eq!(sha256_of(record).unwrap(), Sha256Digest::of(canonical.as_bytes()));
        assert_eq!(decode::<R>(canonical.as_bytes(), "a test").unwrap(), *record);
    }

    #[test]
    fn members_are_written_by_name_whatever_the_order_of_their_declaration() {
        let inner = |a: &str| Inner { z: 1, a: a.to_owned() };
        let by_name = BTreeMap::from([("b".to_owned(), inner("\"z")), ("a".to_owned(), inner(""))]);
        let canonical = r#"{"by_name":{"a":{"a":"","z":1},"b":{"a":"\"z","z":1}},"format":1}"#;
        assert_both_ways(&Unsorted { format: 1, by_name }, canonical);
        let declared = canonical.replace(r#""a":"","z":1"#, r#""z":1,"a":"""#);
        let refused = decode::<Unsorted>(declared.as_bytes(), "a test").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    }

    #[test]
    fn names_are_ordered_by_their_text_not_by_their_escapes() {
        let by_name = BTreeMap::from([("B".to_owned(), 1), ("\"".to_owned(), 2), (String::new(), 3)]);
        assert_both_ways(&Sorted { by_name, format: 1 }, r#"{"by_name":{"":3,"\"":2,"B":1},"format":1}"#);
        for other in [
            r#"{"by_name":{"B":1,"\"":2},"format":1}"#,
            r#"{"by_name":{"B":1,"A":2},"format":1}"#,
            r#"{"by_name":{"A":1,"A":2},"format":1}"#,
            r#"{"format":1,"by_name":{}}"#,
        ] {
            let refused = decode::<Sorted>(other.as_bytes(), "a test").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
        }
    }
}
