//! A record that was written and is not stored for certain yet.

use std::slice;

use bytes::Bytes;
use stepvault_core::digest::{FileDigest, PartDigest};
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_remote::store::Created;

use crate::tier::run_remote::RunRemote;

/// A record that [`RunRemote::write_record`] has written, or whose key was taken.
#[derive(Debug)]
pub(crate) struct WrittenRecord {
    /// What it is, for messages.
    pub(crate) what: &'static str,
    pub(crate) key: String,
    pub(crate) bytes: Bytes,
    pub(crate) digest: PartDigest,
    pub(crate) created: Created,
}

impl WrittenRecord {
    /// Whether this call wrote it, not an earlier one whose answer was lost or another writer.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.created, Created::Written(_))
    }

    /// Returns the bytes if this call wrote them and the checksum in the store's answer proves them: for a store that
    /// checks what it stores.
    pub(crate) fn proved(&self) -> Option<Vec<u8>> {
        let head = match &self.created {
            Created::Written(head) => head,
            Created::Exists => return None,
        };
        let digest = FileDigest::from_parts(slice::from_ref(&self.digest));
        let is_proved = head.info.size_bytes == digest.size_bytes
            && head.checksum.proves(&digest, &[self.digest.content]) == Some(true);
        is_proved.then(|| self.bytes.to_vec())
    }

    /// Reads the record back: after `Ok` exactly these bytes are stored, whether this call wrote them, an earlier one
    /// whose answer was lost, or another writer with the same record.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] when the key holds a different record; [`ErrorKind::Damaged`] when what this call wrote is
    /// missing or different.
    pub(crate) async fn confirm(self, remote: &RunRemote) -> Result<Vec<u8>> {
        let conflict = |why: &str| {
            Error::new(ErrorKind::Conflict, format!("cannot write the {}", self.what))
                .on(remote.describe(&self.key))
                .because(why)
        };
        match remote.read_small(&self.key).await? {
            Some(found) if found == self.bytes => Ok(found),
            Some(_) if !self.is_new() => Err(conflict("a different one already exists").name_taken()),
            Some(_) => {
                Err(conflict("the bytes read back differ from those written").with_kind(ErrorKind::Damaged))
            }
            None => Err(conflict("it is missing after it was written").with_kind(ErrorKind::Damaged)),
        }
    }
}
