//! Any file of `torch.save`, recognized by its first and last bytes: a zip archive, the legacy format, or a plain
//! pickle.

use super::kind::{HEAD_BYTES, is_tar};
use super::zip::FIRST_BYTES;
use super::{pickle_file, torch_legacy, torch_zip};
use crate::pickle::Pickle;
use crate::soundness::{Fault, read_head, read_tail, unknown};
use crate::tree::ReadAt;

/// The format of a file.
enum Format {
    Zip,
    Legacy,
    Tar,
    Pickle,
}

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
        Format::Pickle => Err(unknown!("the file was not written by torch.save")),
    }
}

fn tar() -> Fault {
    unknown!("the file is a tar archive, which torch wrote before 0.1.10")
}

fn format_of(source: &dyn ReadAt) -> Result<Format, Fault> {
    let head = read_head(source, HEAD_BYTES)?;
    let begins_as_zip = FIRST_BYTES.iter().any(|mark| head.starts_with(mark));
    // The end identifies it as well: an archive with a damaged start is a damaged archive.
    let ends_as_zip = || -> Result<bool, Fault> {
        let tail = read_tail(source, ZIP_END_BYTES)?;
        Ok(tail.len() as u64 == ZIP_END_BYTES && tail.starts_with(&FIRST_BYTES[1]))
    };
    Ok(if begins_as_zip || ends_as_zip()? {
        Format::Zip
    } else if torch_legacy::is_legacy(source)? {
        Format::Legacy
    } else if is_tar(&head) {
        Format::Tar
    } else {
        Format::Pickle
    })
}
