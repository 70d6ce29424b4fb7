//! A file that is one Python pickle: random states, a data loader's place, a scheduler.
//!
//! # Blind spots
//! Those of every pickle: see [`crate::pickle`].

use crate::pickle::{self, Keep};
use crate::soundness::{Fault, read_piece};
use crate::source::ReadAt;

/// How many zeros at the start of a file show that it was never written.
const ZEROS_BYTES: u64 = 16;

/// Checks that a file is one pickle whose instructions fit together, from its first byte to its last.
///
/// # Errors
/// [`Fault::Broken`] where it is not; [`Fault::Unknown`] where it shares or nests more values than are followed.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(Fault::broken(
            "the file is empty: it was created and never written",
        ));
    }
    let head = read_piece(source, 0, size_bytes.min(ZEROS_BYTES), ZEROS_BYTES, "the file")?;
    if head.iter().all(|byte| *byte == 0) {
        return Err(Fault::at(
            0,
            "the file begins with zeros: its room was reserved and never written",
        ));
    }
    pickle::read_whole(source, 0..size_bytes, Keep::Shape).map(drop)
}
