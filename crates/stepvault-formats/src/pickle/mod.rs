//! Reads Python pickles as data (protocols 0 to 5) without executing anything.
//!
//! A pickle is a small program for a stack machine. Python executes it by importing the names in it and calling what
//! they refer to. This reader keeps a name as a name, records a call as a requested call, and keeps a persistent id
//! as a value. The instructions and their meaning are those of Python's own `Lib/pickle.py` and `Lib/pickletools.py`.
//!
//! Values are stored in one flat store and refer to each other by index. So sharing is free, cycles are harmless, and
//! neither reading, cloning nor dropping recurses. Every instruction takes at least one byte of input and creates at
//! most one value; kept values count against [`MAX_KEPT_BYTES`].
//!
//! # Blind spots
//! A pickle carries no checksum. A flipped bit inside a number, a text, bytes or a name leaves a valid pickle. So
//! does one that turns an instruction into another with the same operands (`NEWTRUE` into `NEWFALSE`, `BINPUT` of one
//! slot into that of another), or the protocol number into another known one.

mod machine;
mod opcode;
mod operands;
mod store;

use std::ops::Range;

pub use store::{Call, Object, Pickle, Value};

use crate::soundness::{Fault, broken_at};
use crate::tree::ReadAt;

/// The approximate limit on the bytes that the values of one pickle may take; the contents of a larger pickle are
/// unknown. One byte of input creates at most [`KEPT_BYTES_PER_INPUT_BYTE`].
pub const MAX_KEPT_BYTES: u64 = 1 << 30;

/// The maximum number of bytes that one byte of a pickle can make its reader keep.
pub const KEPT_BYTES_PER_INPUT_BYTE: u64 = 112;

/// The longest text that is kept, in bytes. A longer one is skipped and never read, because it is not a name or a
/// key.
pub const MAX_TEXT_BYTES: u64 = 64 * 1024;

/// What is kept of a pickle while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Every value, for inspection.
    Values,
    /// Only the data needed to check that the instructions fit together. The memory depends on the depth of the
    /// pickle and the number of values that it shares, not on its length.
    Shape,
}

/// Reads the pickle at the start of a range of a file. The pickle may end before the range does: see [`Pickle::end`].
///
/// # Errors
/// [`Fault::Broken`], with an offset in the file, if the instructions do not fit together or the range ends too soon;
/// [`Fault::Unknown`] if the values would take more than [`MAX_KEPT_BYTES`].
pub fn read(source: &dyn ReadAt, range: Range<u64>, keep: Keep) -> Result<Pickle, Fault> {
    machine::Machine::new(source, range, keep)?.run()
}

/// Reads a pickle that must fill its range.
///
/// # Errors
/// As [`read`]; [`Fault::Broken`] if bytes follow the pickle's end.
pub fn read_whole(source: &dyn ReadAt, range: Range<u64>, keep: Keep) -> Result<Pickle, Fault> {
    let range_end = range.end;
    let pickle = read(source, range, keep)?;
    let left_bytes = range_end.saturating_sub(pickle.end);
    if left_bytes > 0 {
        return Err(broken_at!(pickle.end, "{left_bytes} unexpected bytes follow the end of the pickle"));
    }
    Ok(pickle)
}

#[cfg(test)]
mod tests;
