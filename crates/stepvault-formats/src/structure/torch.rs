//! Any file of `torch.save`, recognized by its first and last bytes: a zip archive, the legacy format, or a plain
//! pickle.

use super::{pickle_file, torch_legacy, torch_zip};
use crate::pickle::Pickle;
use crate::soundness::{Fault, read_piece};
use crate::source::ReadAt;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Zip,
    Legacy,
    Tar,
    Pickle,
}

/// The offset of the magic bytes of a tar archive, and those bytes.
const TAR_MARK: (u64, &[u8; 5]) = (257, b"ustar");
/// Bytes of a zip archive's end record.
const ZIP_END_BYTES: u64 = 22;

/// Checks a file that torch wrote, in any of its formats.
///
/// # Errors
/// As the check of its format; [`Fault::Unknown`] for the tar archives of torch before 0.1.10.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    match format_of(source)? {
        Format::Zip => torch_zip::check(source),
        Format::Legacy => torch_legacy::check(source),
        Format::Tar => Err(tar()),
        Format::Pickle => pickle_file::check(source),
    }
}

/// Reads the object in a file that torch wrote, as data.
///
/// # Errors
/// As [`check`]; [`Fault::Unknown`] where the file is neither an archive nor of the legacy format.
pub fn read_object(source: &dyn ReadAt) -> Result<Pickle, Fault> {
    match format_of(source)? {
        Format::Zip => torch_zip::read_object(source),
        Format::Legacy => torch_legacy::read_object(source),
        Format::Tar => Err(tar()),
        Format::Pickle => Err(Fault::Unknown(
            "the file was not written by torch.save".to_owned(),
        )),
    }
}

fn tar() -> Fault {
    Fault::Unknown("the file is a tar archive, which torch wrote before 0.1.10".to_owned())
}

fn format_of(source: &dyn ReadAt) -> Result<Format, Fault> {
    let has = |offset: Option<u64>, mark: &[u8]| -> Result<bool, Fault> {
        let length = mark.len() as u64;
        let Some(offset) = offset.filter(|offset| {
            offset
                .checked_add(length)
                .is_some_and(|end| end <= source.size_bytes())
        }) else {
            return Ok(false);
        };
        Ok(read_piece(source, offset, length, length, "the mark of its format")? == mark)
    };
    // The end identifies it as well: an archive with a damaged start is a damaged archive.
    let last = source.size_bytes().checked_sub(ZIP_END_BYTES);
    if has(Some(0), b"PK\x03\x04")? || has(Some(0), b"PK\x05\x06")? || has(last, b"PK\x05\x06")? {
        return Ok(Format::Zip);
    }
    if torch_legacy::is_legacy(source)? {
        return Ok(Format::Legacy);
    }
    if has(Some(TAR_MARK.0), TAR_MARK.1)? {
        return Ok(Format::Tar);
    }
    Ok(Format::Pickle)
}
