//! `.npz`: a ZIP archive with an `.npy` file for every array.
//!
//! The archive is checked as those of torch are: its list of members agrees with the end records and with each
//! member's own header, and no member overlaps another. Members that are stored without compression must be sound
//! `.npy` files.
//!
//! # Blind spots
//!
//! - The CRC-32 of a member is compared between its two headers but not with its bytes, because that would mean
//!   reading every tensor. No change in the elements is detected.
//! - Compressed members (`np.savez_compressed`) are not checked inside.
//! - Fields that readers do not use are not checked either: times, attributes, comments, versions.

use super::npy;
use super::text::shown;
use super::zip::{self, Record};
use crate::soundness::{Fault, broken_at, unknown, worst_of};
use crate::tree::{ReadAt, Window};

/// Checks an `.npz` file, reading the archive's directory and the headers of its members.
///
/// # Errors
/// [`Fault::Broken`] if a rule is violated, [`Fault::Unknown`] if a limit, a pickle or an uncommon member prevents
/// the check.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    worst_of(zip::read(source)?.iter().map(|record| member(source, record)))
}

fn member(source: &dyn ReadAt, record: &Record) -> Result<(), Fault> {
    let name = format!("member {}", shown(&record.name));
    if record.name.strip_suffix(".npy").is_none() {
        return Err(unknown!("{name} is not an array and is not checked"));
    }
    if record.is_deflated() {
        return Ok(());
    }
    if !record.is_stored() {
        return Err(unknown!("{name} is compressed by an unknown method"));
    }
    let start = record.data_offset;
    let window = Window::new(source, start, record.size_bytes)
        .ok_or_else(|| broken_at!(start, "{name} does not lie inside the file"))?;
    npy::check(&window).map_err(|fault| fault.in_piece(&name, start))
}
