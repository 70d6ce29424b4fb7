//! Tar archives (`*.tar`).
//!
//! An archive consists of blocks of 512 bytes and ends with two that are empty (POSIX.1-2017, `pax`, "ustar Interchange
//! Format"). One that was cut off does not.
//!
//! # Blind spots
//!
//! No member is read: no change in the contents is detected. A last member that ends with 1,024 zeros looks like the end.

use crate::soundness::{Fault, broken_at};
use crate::tree::ReadAt;

const BLOCK_BYTES: u64 = 512;
const END_BYTES: usize = 1024;

/// Checks a file.
///
/// # Errors
/// [`Fault::Broken`] when it does not end as an archive does; [`Fault::Read`] when it cannot be read.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let mut end = [0; END_BYTES];
    let is_whole = match size_bytes.checked_sub(END_BYTES as u64) {
        Some(start) if size_bytes.is_multiple_of(BLOCK_BYTES) => {
            source.read_exact_at(start, &mut end).map_err(Fault::Read)?;
            end.iter().all(|byte| *byte == 0)
        }
        _ => false,
    };
    if is_whole {
        return Ok(());
    }
    Err(broken_at!(size_bytes, "the archive does not end with two empty blocks: the save was cut off"))
}
