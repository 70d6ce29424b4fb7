//! HDF5, in which Keras keeps weights (`*.h5`, `*.hdf5`).
//!
//! The superblock records where the file ends (HDF5 File Format Specification 3.0, "Disk Format: Level 0A"). A file that
//! is shorter was cut off, and libhdf5 refuses to open it.
//!
//! # Blind spots
//!
//! Nothing behind the superblock is read: no change in the contents is detected.

use super::cursor::Cursor;
use crate::soundness::{Fault, broken_at, read_bytes, unknown};
use crate::tree::ReadAt;

/// The first bytes of a file without a user block.
pub const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// The length of the longest superblock that is read, with addresses of 8 bytes.
const SUPERBLOCK_BYTES: u64 = 64;
/// A user block takes 512 bytes, or twice, four times, ... as many; longer ones are not looked for.
const LAST_START: u64 = 1 << 20;
/// Flag of versions 2 and 3: a writer has the file open, or died.
const OPEN_FOR_WRITING: u8 = 1;

/// Checks a file.
///
/// # Errors
/// [`Fault::Broken`] when it has no superblock, ends before the recorded end, or was not closed; [`Fault::Unknown`] for
/// a version or addresses of a later release; [`Fault::Read`] when it cannot be read.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    let size_bytes = source.size_bytes();
    let (start, head) = superblock(source)?;
    let mut fields = Cursor::new(&head, "the superblock");
    fields.take(SIGNATURE.len() as u64, "signature")?;
    let version = fields.byte("version")?;
    let address_bytes;
    match version {
        0 | 1 => {
            fields.take(4, "versions")?;
            address_bytes = fields.byte("size of addresses")?;
            fields.take(10, "sizes and flags")?;
            if version == 1 {
                fields.take(4, "indexed storage")?;
            }
        }
        2 | 3 => {
            address_bytes = fields.byte("size of addresses")?;
            fields.byte("size of lengths")?;
            if fields.byte("flags")? & OPEN_FOR_WRITING != 0 {
                return Err(broken_at!(start, "the file was not closed: its writer has it open, or died"));
            }
        }
        other => {
            return Err(unknown!("superblocks of version {other} are not known"));
        }
    }
    if address_bytes != 8 {
        return Err(unknown!("addresses of {address_bytes} bytes are not known"));
    }
    let base = u64::from_le_bytes(fields.array("base address")?);
    fields.take(8, "address of free space or of the extension")?;
    let end = u64::from_le_bytes(fields.array("end of the file")?);
    match base.checked_add(end) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(broken_at!(
            size_bytes,
            "the file has {size_bytes} bytes, and its superblock records {end}: the save was cut off"
        )),
    }
}

/// Finds the superblock, which follows a user block, if any.
fn superblock(source: &dyn ReadAt) -> Result<(u64, Vec<u8>), Fault> {
    let size_bytes = source.size_bytes();
    let mut start = 0;
    while start <= LAST_START && start < size_bytes {
        let head = read_bytes(source, start, (size_bytes - start).min(SUPERBLOCK_BYTES))?;
        if head.starts_with(SIGNATURE) {
            return Ok((start, head));
        }
        start = if start == 0 { 512 } else { start * 2 };
    }
    Err(broken_at!(0, "the file has no superblock: this is not HDF5, or it is damaged"))
}
