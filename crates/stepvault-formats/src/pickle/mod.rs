//! Reading Python pickles as data: protocols 0 to 5, and nothing is ever executed.
//!
//! A pickle is a little program for a stack machine. Run by Python, it imports what it names and calls what it
//! likes. Read here, a name stays a name, a call stays a note that a call was asked for, and a persistent id stays
//! the value that it is. Instructions and their meaning are those of Python's own `Lib/pickle.py` and
//! `Lib/pickletools.py`.
//!
//! Values live in one flat store and refer to each other by index, so that sharing costs nothing, cycles do no harm,
//! and neither reading, cloning nor dropping recurses. Every instruction takes at least one byte of input and makes
//! at most one value; what is kept counts against [`MAX_KEPT_BYTES`].
//!
//! # Blind spots
//! A pickle carries no checksum. A flipped bit inside a number, a text, bytes or a name, or one that turns an
//! instruction into another that takes the same operands (`NEWTRUE` into `NEWFALSE`, `BINPUT` of one slot into that
//! of another), makes another valid pickle. So does one in the protocol number, as long as it stays a known one.

mod calls;
mod containers;
mod cursor;
mod machine;
mod numbers;
mod opcode;
mod store;
mod texts;

use std::ops::Range;

use crate::soundness::Fault;
use crate::source::ReadAt;

pub use store::{Call, Object, Pickle, Value};

/// Bytes that the values of one pickle may take, about: more than that, and what it holds is unknown. One byte of
/// input makes at most [`KEPT_BYTES_PER_INPUT_BYTE`].
pub const MAX_KEPT_BYTES: u64 = 1 << 30;

/// The most that one byte of a pickle can make its reader keep, in bytes.
pub const KEPT_BYTES_PER_INPUT_BYTE: u64 = 112;

/// The longest text that is kept, in bytes. A longer one is skipped, never read: it is not a name or a key.
pub const MAX_TEXT_BYTES: u64 = 64 * 1024;

/// How much of a pickle is kept while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Every value, for looking into.
    Values,
    /// Only what it takes to tell that the instructions fit together: the memory follows the depth of the pickle
    /// and the number of values that it shares, not its length.
    Shape,
}

/// Reads the pickle that starts a range of a file. It may end before the range does: see [`Pickle::end`].
///
/// # Errors
/// [`Fault::Broken`], with an offset in the file, where the instructions do not fit together or the range ends too
/// soon; [`Fault::Unknown`] where it would take more than [`MAX_KEPT_BYTES`].
pub fn read(source: &dyn ReadAt, range: Range<u64>, keep: Keep) -> Result<Pickle, Fault> {
    machine::Machine::new(source, range, keep)?.run()
}

/// The same, of a pickle that must fill its range.
///
/// # Errors
/// As [`read`]; [`Fault::Broken`] where bytes follow the pickle's end.
pub fn read_whole(source: &dyn ReadAt, range: Range<u64>, keep: Keep) -> Result<Pickle, Fault> {
    let range_end = range.end;
    let pickle = read(source, range, keep)?;
    let left_bytes = range_end.saturating_sub(pickle.end());
    if left_bytes > 0 {
        return Err(Fault::at(
            pickle.end(),
            format!("{left_bytes} bytes follow the end of the pickle, where nothing should"),
        ));
    }
    Ok(pickle)
}

#[cfg(test)]
mod tests;
