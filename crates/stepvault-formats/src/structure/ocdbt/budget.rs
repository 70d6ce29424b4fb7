//! The limit on what the check of one database may decompress and keep.

use crate::soundness::Fault;

/// The maximum size of a manifest or node, compressed or not. Orbax lets nodes grow to 100 MB.
pub(super) const MAX_PIECE_BYTES: u64 = 128 << 20;

/// The limit on the decompressed keys, paths and nodes of one database: some millions of chunks.
const MAX_TOTAL_BYTES: u64 = 512 << 20;
/// The limit on how much larger than the files their metadata may be. Names and array descriptions compress well, but
/// not this well.
const MAX_RATIO: u64 = 256;
/// The minimum budget, for the smallest databases.
const LEAST_TOTAL_BYTES: u64 = 1 << 20;

/// The number of bytes that may still be decompressed. It bounds memory and time at once: everything that is built is
/// charged to it.
pub(super) struct Budget {
    left_bytes: u64,
}

impl Budget {
    /// Returns the budget of a database whose files are `files_bytes` long together.
    pub(super) fn new(files_bytes: u64) -> Self {
        let by_size = files_bytes
            .saturating_mul(MAX_RATIO)
            .saturating_add(LEAST_TOTAL_BYTES);
        Self {
            left_bytes: by_size.min(MAX_TOTAL_BYTES),
        }
    }

    /// Returns the maximum size of the next piece.
    pub(super) fn piece_limit_bytes(&self) -> u64 {
        self.left_bytes.min(MAX_PIECE_BYTES)
    }

    pub(super) fn spend(&mut self, bytes: u64, what: &str) -> Result<(), Fault> {
        let left = self.left_bytes.checked_sub(bytes);
        self.left_bytes = left.ok_or_else(|| {
            Fault::Unknown(format!(
                "{what} and the data read before it decompress to more than the limit"
            ))
        })?;
        Ok(())
    }
}
