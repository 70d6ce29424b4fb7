//! The canonical JSON in which every record is written, and its strict reader.
//!
//! Canonical: UTF-8, no white space, object members sorted by name, integers in plain digits. A record therefore
//! has one spelling, and its SHA-256 identifies it. The reader refuses unknown and repeated members, members out of
//! order, and anything after the record: whatever does not encode back to the same bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};

/// The format version that this program writes and reads.
pub const FORMAT: u32 = 1;
/// Largest record that is read: a part manifest of some 200,000 files or 1 TiB of parts stays well under it.
pub const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A record with a format version in its member `format`.
pub trait Record: Serialize + DeserializeOwned {
    /// What it is called in messages: "commit", "part manifest".
    const WHAT: &'static str;

    /// Checks what the types alone do not: totals, order, relations between members.
    fn check(&self) -> Result<()>;
}

/// What every record has, whatever its format.
#[derive(serde::Deserialize)]
struct Version {
    format: u32,
}

/// The canonical bytes of a record.
pub fn encode<R: Record>(record: &R) -> Result<Vec<u8>> {
    // Through `Value`, whose maps are sorted by name.
    serde_json::to_value(record)
        .and_then(|value| serde_json::to_vec(&value))
        .map_err(|error| {
            Error::new(ErrorKind::Failed, format!("cannot encode a {}", R::WHAT)).caused_by(error)
        })
}

/// Reads a record; `subject` (a path or key) is named in errors.
///
/// # Errors
/// [`ErrorKind::NewerFormat`] for a format above [`FORMAT`]; [`ErrorKind::Damaged`] for anything else that is not
/// exactly what [`encode`] writes.
pub fn decode<R: Record>(bytes: &[u8], subject: &str) -> Result<R> {
    let damaged = |why: String| {
        Error::new(ErrorKind::Damaged, format!("cannot read the {}", R::WHAT))
            .on(subject)
            .because(why)
    };
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        return Err(damaged(format!(
            "it has {} bytes, more than {MAX_RECORD_BYTES}",
            bytes.len()
        )));
    }
    if bytes.is_empty() {
        return Err(damaged("it is empty".to_owned()));
    }
    // The version first, so that a newer record is named as such and not as a broken one.
    let version: Version = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version.format > FORMAT {
        return Err(
            Error::new(ErrorKind::NewerFormat, format!("cannot read the {}", R::WHAT))
                .on(subject)
                .because(format!(
                    "it has format {} and this stepvault reads up to {FORMAT}",
                    version.format
                ))
                .hint("use a newer stepvault"),
        );
    }
    if version.format == 0 {
        return Err(damaged("there is no format 0".to_owned()));
    }
    let record: R = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    record.check().map_err(|error| damaged(error.to_string()))?;
    if encode(&record)? != bytes {
        return Err(damaged("it is not in canonical form".to_owned()));
    }
    Ok(record)
}
