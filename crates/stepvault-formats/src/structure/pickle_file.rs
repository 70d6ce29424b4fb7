//! A file that is one Python pickle: random states, a data loader's position, a scheduler.
//!
//! # Blind spots
//! Those of every pickle: see [`crate::pickle`].

use crate::pickle::{self, Keep};
use crate::soundness::{Fault, broken, broken_at, read_head};
use crate::tree::ReadAt;

/// The number of zeros at the start of a file that show that it was never written.
const ZEROS_BYTES: u64 = 16;

/// Checks that a file is one pickle, from its first byte to its last, whose instructions fit together.
///
/// # Errors
/// [`Fault::Broken`] if it is not; [`Fault::Unknown`] if it shares or nests more values than the limit.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    if size_bytes == 0 {
        return Err(broken!("the file is empty: it was created and never written"));
    }
    let head = read_head(source, ZEROS_BYTES)?;
    if head.iter().all(|byte| *byte == 0) {
        return Err(broken_at!(0, "the file begins with zeros: its space was reserved and never written"));
    }
    pickle::read_whole(source, 0..size_bytes, Keep::Shape).map(drop)
}
