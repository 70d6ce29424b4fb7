//! safetensors: a length, a JSON header that gives the offsets of each tensor, and the tensors end to end.
//!
//! The rules are those of safetensors/src/tensor.rs (0.8.0), and one more: no name may occur twice in the header,
//! where the library would silently use the last.
//!
//! # Blind spots
//!
//! - The bytes of tensors carry no checksum, so no change in them is detected.
//! - Nor is a change in a name or in `__metadata__` that leaves valid JSON, in the white space of the header, or in a
//!   dtype or a shape that becomes another of the same size (`F32` to `I32`, `[2,3]` to `[3,2]`).
//! - A dtype that safetensors 0.8 does not know is `Unknown`, not broken, because a later release may have added it.
//! - 0.8.0-rc.0 wrote the header first, into a file of full length under its final name. The structure does not show
//!   whether the tensors followed. If the filesystem reports holes in the file and its end reads as zeros, the file
//!   is `Unknown`.

mod header;

use std::io;

use self::header::{Claim, Dtype};
pub use self::header::{LONGEST_HEADER_BYTES, MAX_NAME_BYTES, MAX_TENSORS};
use super::text::{bytes, shown};
use crate::soundness::{Fault, broken, broken_at, unknown};
use crate::tree::ReadAt;

/// A tensor that a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unique within the file.
    pub name: String,
    /// The number of its elements.
    pub elements: u64,
}

/// Checks a safetensors file. Reads its header and, if the file has holes, samples of its end.
///
/// # Errors
/// [`Fault::Broken`] if a rule is violated, [`Fault::Unknown`] if a limit or a blind spot of the module prevents the
/// check.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    tensors(source)?;
    unwritten_end(source)?.map_or(Ok(()), |why| Err(Fault::Unknown(why)))
}

/// Returns the tensors of a sound file, in the byte order of their names.
///
/// # Errors
/// As [`check`], but holes are not checked.
pub fn tensors(source: &dyn ReadAt) -> Result<Vec<Tensor>, Fault> {
    let mut header = header::read(source)?;
    let mut reached = 0;
    for tensor in &header.tensors {
        end_to_end(tensor, reached)?;
        reached = tensor.end;
    }
    whole(source.size_bytes(), header.data_start, reached)?;
    // Check dtypes before sizes: a damaged dtype is reported best while everything else holds.
    for tensor in &header.tensors {
        sized(tensor)?;
    }
    header.tensors.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let twice = header.tensors.array_windows().find(|[one, other]| one.name == other.name);
    if let Some([tensor, _]) = twice {
        let name = shown(&tensor.name);
        return Err(broken!("the header names tensor {name} twice"));
    }
    let unknown = header.tensors.iter().find_map(|tensor| match &tensor.dtype {
        Dtype::Other(dtype) => Some((&tensor.name, dtype)),
        Dtype::Known { .. } => None,
    });
    if let Some((name, dtype)) = unknown {
        return Err(unknown!(
            "tensor {} is of dtype {dtype}, which safetensors 0.8 does not know",
            shown(name)
        ));
    }
    let tensor = |claim: Claim| Tensor { name: claim.name, elements: claim.elements.unwrap_or_default() };
    Ok(header.tensors.into_iter().map(tensor).collect())
}

/// What a header states about its file's length, whether or not the tensors exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedSize {
    /// The number of tensors that it names.
    pub tensors: u64,
    /// Bytes before the first tensor.
    pub header_bytes: u64,
    /// Bytes of the tensors.
    pub data_bytes: u64,
}

impl ClaimedSize {
    /// Returns the length of the whole file; `None` when it exceeds 64 bits.
    pub fn file_bytes(&self) -> Option<u64> {
        self.header_bytes.checked_add(self.data_bytes)
    }
}

/// Reads the length that the whole file should have, from its header alone. Also works for a file that is cut off, or
/// of which only the beginning was fetched.
///
/// # Errors
/// [`Fault::Broken`] if the header is not whole or contradicts itself, [`Fault::Unknown`] if a limit prevents the
/// check.
pub fn claimed_size(source: &dyn ReadAt) -> Result<ClaimedSize, Fault> {
    let header = header::read(source)?;
    let mut reached = 0;
    for tensor in &header.tensors {
        end_to_end(tensor, reached)?;
        sized(tensor)?;
        reached = tensor.end;
    }
    Ok(ClaimedSize {
        tensors: header.tensors.len() as u64,
        header_bytes: header.data_start,
        data_bytes: reached,
    })
}

/// Checks that each tensor begins where the previous one ends.
fn end_to_end(tensor: &Claim, reached: u64) -> Result<(), Fault> {
    let Claim { start, end, .. } = *tensor;
    let name = shown(&tensor.name);
    if end < start {
        return Err(broken!(
            "tensor {name} ends at byte {end} of the data, before it begins at {start}: the header is damaged"
        ));
    }
    if start != reached {
        let how = if start > reached { "the bytes between belong to no tensor" } else { "they overlap" };
        return Err(broken!(
            "tensor {name} begins at byte {start} of the data, but the previous one ends at {reached}: {how}"
        ));
    }
    Ok(())
}

/// Checks that the file ends with the last tensor.
fn whole(size_bytes: u64, data_start: u64, reached: u64) -> Result<(), Fault> {
    let there = size_bytes.saturating_sub(data_start);
    if reached > there {
        let missing = bytes(reached - there);
        return Err(broken_at!(
            size_bytes,
            "the tensors take {}, and the file ends {missing} too early: the save was cut off",
            bytes(reached)
        ));
    }
    if reached < there {
        let more = bytes(there - reached);
        return Err(broken_at!(
            data_start.saturating_add(reached),
            "the file continues for {more} after the last tensor: the header is damaged, or data was appended"
        ));
    }
    Ok(())
}

/// Checks that a tensor is as long as its shape and dtype require.
fn sized(tensor: &Claim) -> Result<(), Fault> {
    let Dtype::Known { name: dtype, bits } = tensor.dtype else {
        return Ok(());
    };
    let name = shown(&tensor.name);
    let total_bits = tensor.elements.and_then(|elements| elements.checked_mul(bits));
    let Some(total_bits) = total_bits else {
        return Err(broken!(
            "tensor {name} has a shape with more elements than any file can hold: the header is damaged"
        ));
    };
    if total_bits % 8 != 0 {
        return Err(broken!(
            "tensor {name} of dtype {dtype} ends in the middle of a byte: the header is damaged"
        ));
    }
    let (has, needs) = (tensor.end.saturating_sub(tensor.start), total_bits / 8);
    if has != needs {
        return Err(broken!(
            "tensor {name} needs {} for its shape and dtype {dtype}, but has {has}: the header is damaged",
            bytes(needs)
        ));
    }
    Ok(())
}

/// A smaller hole is ignored: filesystems round sizes, and keep the tail of a file elsewhere.
pub const SMALLEST_HOLE_BYTES: u64 = 64 * 1024;
/// The maximum number of positions at which the end of a file is sampled.
pub const MAX_SAMPLES: u64 = 64;
/// The number of bytes of each sample.
const SAMPLE_BYTES: usize = 4096;

/// Returns why the end of a file may never have been written, if there is reason to doubt it. Reads at most
/// [`MAX_SAMPLES`] pieces of 4096 bytes, and none if the filesystem reports no holes.
///
/// # Errors
/// When the file cannot be read.
///
/// safetensors 0.8.0-rc.0 set the full length of a file under its final name and then wrote header and tensors into
/// it. If it is killed while writing, it leaves a file that obeys every rule of the format and has zeros for tensors.
///
/// Fewer bytes on disk than in the file do not prove this. On a filesystem that compresses (btrfs, ZFS) every file
/// has fewer, and a tool that copies sparsely turns a tensor of zeros into a hole. But weights hardly compress. So if
/// the disk holds no space for the last bytes of a file, and these read as zeros, the file is `Unknown`, and never
/// broken.
pub fn unwritten_end(source: &dyn ReadAt) -> io::Result<Option<String>> {
    let size_bytes = source.size_bytes();
    let missing_bytes = source.allocated_bytes().map_or(0, |allocated| size_bytes.saturating_sub(allocated));
    if missing_bytes < SMALLEST_HOLE_BYTES {
        return Ok(None);
    }
    let first = size_bytes - missing_bytes;
    // Take the last sample first: it ends with the file, and it is the most likely to show that the file was written.
    let steps = MAX_SAMPLES - 1;
    let mut sample = [0; SAMPLE_BYTES];
    let last = size_bytes - sample.len() as u64;
    let stride = (last - first) / steps;
    for step in (0..=steps).rev() {
        let offset = if step == steps { last } else { first + step * stride };
        source.read_exact_at(offset, &mut sample)?;
        if sample.iter().any(|byte| *byte != 0) {
            return Ok(None);
        }
    }
    Ok(Some(format!(
        "the filesystem holds only {} of the file's {size_bytes} bytes, and its last {missing_bytes} read as zeros: \
         it was reserved and not written to its end, unless these tensors are zero",
        size_bytes - missing_bytes
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sparse {
        bytes: Vec<u8>,
        allocated_bytes: Option<u64>,
    }

    impl ReadAt for Sparse {
        fn size_bytes(&self) -> u64 {
            self.bytes.size_bytes()
        }

        fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.bytes.read_exact_at(offset, buffer)
        }

        fn allocated_bytes(&self) -> Option<u64> {
            self.allocated_bytes
        }
    }

    fn doubt(bytes: &[u8], allocated_bytes: impl Into<Option<u64>>) -> Option<String> {
        unwritten_end(&Sparse { bytes: bytes.to_vec(), allocated_bytes: allocated_bytes.into() }).unwrap()
    }

    #[test]
    fn only_holes_that_read_as_zeros_are_doubted() {
        let mut bytes = vec![1_u8; 300_000];
        bytes[100_000..].fill(0);
        assert_eq!(
            doubt(&bytes, 100_000).as_deref(),
            Some(
                "the filesystem holds only 100000 of the file's 300000 bytes, and its last 200000 read as zeros: it \
                 was reserved and not written to its end, unless these tensors are zero"
            )
        );
        assert_eq!(doubt(&bytes, None), None);
        assert_eq!(doubt(&bytes, 300_000), None, "all there: the zeros were written");
        assert_eq!(doubt(&bytes, 400_000), None);
        assert_eq!(doubt(&bytes, 300_000 - SMALLEST_HOLE_BYTES + 1), None);
        assert_eq!(doubt(&bytes, 90_000), None, "the missing room is not the end's");
        bytes[299_999] = 1;
        assert_eq!(doubt(&bytes, 100_000), None, "the end was written");
        assert!(doubt(&vec![0; 70_000], 0).is_some());
    }
}
