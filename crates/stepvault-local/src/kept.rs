//! Records with their own checksum: a line of JSON, and a line with the digest of the first.
//!
//! On a store a commit holds the digest of every part manifest. In the vault, without a checksum, a flipped bit could
//! change the mode of a file, the target of a link or the name of a step unnoticed.

use std::path::Path;

use stepvault_core::codec::{MAX_RECORD_BYTES, Record, decode};
use stepvault_core::digest::Sha256Digest;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable;

/// Length of the second line, with the end of the first: 64 hexadecimal digits in quotes.
const DIGEST_BYTES: usize = 68;
/// Maximum length of such a file.
pub(crate) const MAX_BYTES: u64 = MAX_RECORD_BYTES + DIGEST_BYTES as u64;

/// Returns the file content for a record's canonical bytes.
pub fn with_digest(mut record: Vec<u8>) -> Vec<u8> {
    let end = digest_line(&record);
    record.extend_from_slice(end.as_bytes());
    record
}

fn digest_line(record: &[u8]) -> String {
    format!("\n\"{}\"\n", Sha256Digest::of(record))
}

/// Reads such a record. Returns `None` when it does not exist.
pub(crate) fn read<R: Record>(path: &Path) -> Result<Option<R>> {
    let Some(bytes) = durable::read_bounded(path, MAX_BYTES)? else {
        return Ok(None);
    };
    let record = bytes
        .len()
        .checked_sub(DIGEST_BYTES)
        .map(|end| bytes.split_at(end))
        .filter(|(record, end)| digest_line(record).as_bytes() == *end);
    let Some((record, _)) = record else {
        return Err(Error::at(ErrorKind::Damaged, format!("cannot read the {}", R::WHAT), path)
            .because("its digest does not match its content"));
    };
    decode(record, &path.display().to_string()).map(Some)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::fs;

    use stepvault_core::codec::{FORMAT, encode};
    use stepvault_core::records::Lease;

    use super::*;

    #[test]
    fn a_digest_takes_what_is_calculated_for_it() {
        assert_eq!(MAX_BYTES - MAX_RECORD_BYTES, with_digest(Vec::new()).len() as u64);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("record.json");
        assert!(read::<Lease>(&path).unwrap().is_none());
        let lease = Lease {
            format: FORMAT,
            holder: "me".to_owned(),
            purpose: "prune".to_owned(),
            time_to_live_seconds: 120,
        };
        let whole = with_digest(encode(&lease).unwrap());
        assert_eq!(whole.len() - DIGEST_BYTES, encode(&lease).unwrap().len());
        fs::write(&path, &whole).unwrap();
        assert_eq!(read::<Lease>(&path).unwrap().unwrap(), lease);
        let is_damaged = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read::<Lease>(&path).unwrap_err();
            error.kind() == ErrorKind::Damaged
        };
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(is_damaged(&flipped), "bit {bit} of byte {at}");
            }
            assert!(is_damaged(&whole[..at]), "cut at {at}");
        }
    }
}
