//! Whether a file is structurally sound, and how a check reports its result.

use std::io;

use crate::source::ReadAt;

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
        Self::Broken {
            offset: Some(offset),
            why: why.into(),
        }
    }

    /// Returns a broken rule of the file as a whole.
    pub fn broken(why: impl Into<String>) -> Self {
        Self::Broken {
            offset: None,
            why: why.into(),
        }
    }
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
    if offset
        .checked_add(length_bytes)
        .is_none_or(|end| end > size_bytes)
    {
        return Err(Fault::at(
            offset,
            format!("{what} of {length_bytes} bytes does not fit in a file of {size_bytes} bytes"),
        ));
    }
    if length_bytes > limit_bytes {
        return Err(Fault::Unknown(format!(
            "{what} is {length_bytes} bytes long, more than the limit of {limit_bytes}"
        )));
    }
    let length = usize::try_from(length_bytes)
        .map_err(|_| Fault::Unknown(format!("{what} is larger than this machine can address")))?;
    let mut buffer = vec![0; length];
    source.read_exact_at(offset, &mut buffer)?;
    Ok(buffer)
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
}
