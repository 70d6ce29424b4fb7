//! What one database may make a check unpack and keep.

use crate::soundness::Fault;

/// The most that keys, paths and nodes of one database may come to, unpacked: some millions of chunks.
const MAX_TOTAL_BYTES: u64 = 512 << 20;
/// How much larger than the files the metadata in them may be. Names and array descriptions compress well, but not
/// like this.
const MAX_RATIO: u64 = 256;
/// What even the smallest database may take.
const LEAST_TOTAL_BYTES: u64 = 1 << 20;

/// Bytes that may still be unpacked. Spending it bounds memory and time at once: whatever is built is paid for here.
pub(super) struct Budget {
    left_bytes: u64,
}

impl Budget {
    /// For a database whose files are `files_bytes` long together.
    pub(super) fn new(files_bytes: u64) -> Self {
        let by_size = files_bytes
            .saturating_mul(MAX_RATIO)
            .saturating_add(LEAST_TOTAL_BYTES);
        Self {
            left_bytes: by_size.min(MAX_TOTAL_BYTES),
        }
    }

    /// The most that one piece may still be.
    pub(super) fn piece_limit_bytes(&self) -> u64 {
        self.left_bytes.min(super::MAX_PIECE_BYTES)
    }

    pub(super) fn spend(&mut self, bytes: u64, what: &str) -> Result<(), Fault> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or_else(|| {
            Fault::Unknown(format!(
                "{what} and what was read before it unpack to more than is looked at"
            ))
        })?;
        Ok(())
    }
}
