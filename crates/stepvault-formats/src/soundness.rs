//! Whether a file is structurally sound, and how a check reports its result.

use std::io;

use crate::tree::ReadAt;

/// Formats the reason of a [`Fault::Broken`] of the file as a whole.
macro_rules! broken {
    ($($why:tt)+) => { $crate::soundness::Fault::Broken { offset: None, why: format!($($why)+) } };
}

/// Formats the reason of a [`Fault::Broken`] at an offset of the file, which comes first.
macro_rules! broken_at {
    ($offset:expr, $($why:tt)+) => {
        $crate::soundness::Fault::Broken { offset: Some($offset), why: format!($($why)+) }
    };
}

/// Formats the reason of a [`Fault::Unknown`].
macro_rules! unknown {
    ($($why:tt)+) => { $crate::soundness::Fault::Unknown(format!($($why)+)) };
}

pub(crate) use {broken, broken_at, unknown};

/// The result of a structural check of a file. Sound does not mean intact: only a digest can tell that the bytes are
/// those that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Soundness {
    /// Every rule of its format holds.
    Sound,
    /// A rule of its format is broken.
    Broken {
        /// The byte offset in the file, if there is one.
        offset: Option<u64>,
        /// The reason, understandable without knowledge of the format.
        why: String,
    },
    /// The structure is unknown without loading the file: only a digest can verify it.
    Unknown {
        /// The reason.
        why: String,
    },
}

/// Why a check stopped.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A rule of the format is broken.
    #[error("{why}")]
    Broken {
        /// The byte offset in the file, if there is one.
        offset: Option<u64>,
        /// The reason.
        why: String,
    },
    /// The check cannot decide.
    #[error("{0}")]
    Unknown(String),
    /// The file could not be read; its structure is unknown.
    #[error(transparent)]
    Read(#[from] io::Error),
}

impl Fault {
    /// Returns a broken rule at an offset of the file.
    pub fn at(offset: u64, why: impl Into<String>) -> Self {
        Self::Broken { offset: Some(offset), why: why.into() }
    }

    /// Returns a broken rule of the file as a whole.
    pub fn broken(why: impl Into<String>) -> Self {
        Self::Broken { offset: None, why: why.into() }
    }

    /// Puts a name in front of the reason.
    #[must_use]
    pub(crate) fn prefixed(self, name: &str) -> Self {
        match self {
            Self::Broken { offset, why } => Self::Broken { offset, why: format!("{name}: {why}") },
            Self::Unknown(why) => unknown!("{name}: {why}"),
            Self::Read(error) => Self::Read(error),
        }
    }

    /// Returns the fault of a piece of a file that was checked as a file of its own, and that begins at `start`.
    #[must_use]
    pub(crate) fn in_piece(self, name: &str, start: u64) -> Self {
        match self.prefixed(name) {
            Self::Broken { offset: Some(offset), why } => Self::at(offset.saturating_add(start), why),
            other => other,
        }
    }

    /// Adds the path of its file to a fault, and the offset to the reason.
    #[must_use]
    pub(crate) fn in_file(self, path: &str) -> Self {
        match self {
            Self::Broken { offset: Some(offset), why } => broken!("{path}, at byte {offset}: {why}"),
            other => other.prefixed(path),
        }
    }
}

/// Returns the first broken rule of several checks; if there is none, the first that could not decide. Runs no check
/// behind a broken rule.
pub(crate) fn worst_of(outcomes: impl IntoIterator<Item = Result<(), Fault>>) -> Result<(), Fault> {
    let mut undecided = Ok(());
    for outcome in outcomes {
        match outcome {
            Err(fault @ Fault::Unknown(_)) => undecided = undecided.and(Err(fault)),
            decided => decided?,
        }
    }
    undecided
}

/// Turns the outcome of a check into the soundness of the file.
///
/// # Errors
/// When the file could not be read.
pub fn judged(outcome: Result<(), Fault>) -> io::Result<Soundness> {
    match outcome {
        Ok(()) => Ok(Soundness::Sound),
        Err(Fault::Broken { offset, why }) => Ok(Soundness::Broken { offset, why }),
        Err(Fault::Unknown(why)) => Ok(Soundness::Unknown { why }),
        Err(Fault::Read(error)) => Err(error),
    }
}

/// Reads `length_bytes` at `offset`. Refuses pieces that lie outside the file or are longer than `limit_bytes` before
/// anything is allocated. `what` names the piece in the message.
///
/// # Errors
/// [`Fault::Broken`] when the piece is outside the file, [`Fault::Unknown`] when it is larger than the limit.
pub fn read_piece(
    source: &dyn ReadAt,
    offset: u64,
    length_bytes: u64,
    limit_bytes: u64,
    what: &str,
) -> Result<Vec<u8>, Fault> {
    let size_bytes = source.size_bytes();
    if offset.checked_add(length_bytes).is_none_or(|end| end > size_bytes) {
        return Err(broken_at!(
            offset,
            "{what} of {length_bytes} bytes does not fit in a file of {size_bytes} bytes"
        ));
    }
    if length_bytes > limit_bytes {
        return Err(unknown!("{what} is {length_bytes} bytes long, more than the limit of {limit_bytes}"));
    }
    let length = usize::try_from(length_bytes)
        .map_err(|_| unknown!("{what} is larger than this machine can address"))?;
    let mut buffer = vec![0; length];
    source.read_exact_at(offset, &mut buffer)?;
    Ok(buffer)
}

/// Reads `N` bytes at `offset`. `what` names them in the message.
///
/// # Errors
/// [`Fault::Broken`] when they are not all inside the file.
pub(crate) fn read_array<const N: usize>(
    source: &dyn ReadAt,
    offset: u64,
    what: &str,
) -> Result<[u8; N], Fault> {
    let mut array = [0; N];
    array.copy_from_slice(&read_piece(source, offset, N as u64, N as u64, what)?);
    Ok(array)
}

/// Reads bytes that are in the file.
///
/// # Errors
/// When they cannot be read, or are not all there.
pub(crate) fn read_bytes(source: &dyn ReadAt, offset: u64, length_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length_bytes).unwrap_or_default()];
    source.read_exact_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Reads the first bytes of a file, at most `length_bytes`.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn read_head(source: &dyn ReadAt, length_bytes: u64) -> io::Result<Vec<u8>> {
    read_bytes(source, 0, source.size_bytes().min(length_bytes))
}

/// Reads the last bytes of a file, at most `length_bytes`.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn read_tail(source: &dyn ReadAt, length_bytes: u64) -> io::Result<Vec<u8>> {
    let length_bytes = source.size_bytes().min(length_bytes);
    read_bytes(source, source.size_bytes() - length_bytes, length_bytes)
}

/// The result of a check for one file of a directory, or for one that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The path in the tree that was checked.
    pub path: String,
    /// The result.
    pub soundness: Soundness,
}

impl Finding {
    /// Turns the outcome of a check into a finding.
    ///
    /// # Errors
    /// When the file could not be read.
    pub fn of(path: impl Into<String>, outcome: Result<(), Fault>) -> io::Result<Self> {
        Ok(Self { path: path.into(), soundness: judged(outcome)? })
    }

    /// Returns a finding of a broken rule.
    pub fn broken(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), soundness: Soundness::Broken { offset: None, why: why.into() } }
    }

    /// Returns a finding of unknown soundness.
    pub fn unknown(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self { path: path.into(), soundness: Soundness::Unknown { why: why.into() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_measured_before_it_is_read() {
        let bytes = vec![7_u8; 10];
        assert_eq!(read_piece(&bytes, 2, 3, 100, "the header").unwrap(), [7; 3]);
        let outside = read_piece(&bytes, 2, u64::MAX, u64::MAX, "the header");
        assert_eq!(
            judged(outside.map(drop)).unwrap(),
            Soundness::Broken {
                offset: Some(2),
                why: "the header of 18446744073709551615 bytes does not fit in a file of 10 bytes".to_owned()
            }
        );
        let large = read_piece(&bytes, 0, 9, 8, "the header");
        assert!(matches!(large, Err(Fault::Unknown(_))));
    }

    #[test]
    fn a_fault_inside_a_piece_is_told_from_the_file() {
        let fault = Fault::at(3, "it is cut off").in_piece("the item at byte 100", 100);
        assert!(
            matches!(&fault, Fault::Broken { offset: Some(103), why } if why == "the item at byte 100: it is cut off")
        );
    }
}
