//! safetensors: a length, a JSON header that says where each tensor lies, and the tensors end to end.
//!
//! The rules are those of safetensors/src/tensor.rs (0.8.0), and one more: no name may stand twice in the header,
//! where the library would silently take the last.
//!
//! # Blind spots
//!
//! - The bytes of tensors carry no checksum: any change in them goes unnoticed.
//! - So does a change in a name or in `__metadata__` that leaves valid JSON, in the white space of the header, and
//!   in a dtype or a shape that becomes another of the same size (`F32` to `I32`, `[2,3]` to `[3,2]`).
//! - A dtype that safetensors 0.8 does not know is `Unknown`, not broken: a later release may have brought it.
//! - 0.8.0-rc.0 wrote the header first, into a file of full length under its final name: whether the tensors have
//!   followed, the structure cannot tell. Where the filesystem says that the file has holes and its end reads as
//!   zeros, the file is `Unknown`; see [`holes`].

mod dtype;
mod header;

use self::dtype::Dtype;
use self::header::{Claim, Header};
pub use self::header::{LONGEST_HEADER_BYTES, MOST_NAME_BYTES, MOST_TENSORS};
use super::holes;
use super::text::{bytes, shown};
use crate::soundness::Fault;
use crate::source::ReadAt;

/// A tensor that a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, of which no other tensor of the file has the same.
    pub name: String,
    /// How many elements it has.
    pub elements: u64,
}

/// Checks a safetensors file, reading its header and, where it has holes, samples of its end.
///
/// # Errors
/// [`Fault::Broken`] where a rule does not hold, [`Fault::Unknown`] where a limit or the module's blind spots stand
/// in the way.
pub fn check(source: &dyn ReadAt) -> Result<(), Fault> {
    tensors(source)?;
    match holes::unwritten_end(source)? {
        Some(why) => Err(Fault::Unknown(why)),
        None => Ok(()),
    }
}

/// The header, its tensors in the order in which their bytes lie in the file.
fn in_file_order(source: &dyn ReadAt) -> Result<Header, Fault> {
    let mut header = header::read(source)?;
    header
        .tensors
        .sort_unstable_by_key(|tensor| (tensor.start, tensor.end));
    Ok(header)
}

/// The tensors of a sound file, in the order of their names' bytes.
///
/// # Errors
/// As [`check`], without a look at holes.
pub fn tensors(source: &dyn ReadAt) -> Result<Vec<Tensor>, Fault> {
    let mut header = in_file_order(source)?;
    let mut reached = 0;
    for tensor in &header.tensors {
        end_to_end(tensor, reached)?;
        reached = tensor.end;
    }
    whole(source.size_bytes(), header.data_start, reached)?;
    // Before the sizes: a damaged dtype is seen best where everything else holds.
    for tensor in &header.tensors {
        sized(tensor)?;
    }
    header
        .tensors
        .sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let twice = header
        .tensors
        .array_windows()
        .find(|[one, other]| one.name == other.name);
    if let Some([tensor, _]) = twice {
        let name = shown(&tensor.name);
        return Err(Fault::broken(format!("the header names tensor {name} twice")));
    }
    let unknown = header.tensors.iter().find_map(|tensor| match &tensor.dtype {
        Dtype::Other(dtype) => Some((&tensor.name, dtype)),
        Dtype::Known { .. } => None,
    });
    if let Some((name, dtype)) = unknown {
        return Err(Fault::Unknown(format!(
            "tensor {} is of dtype {dtype}, which safetensors 0.8 does not know",
            shown(name)
        )));
    }
    let tensor = |claim: Claim| Tensor {
        name: claim.name,
        elements: claim.elements.unwrap_or_default(),
    };
    Ok(header.tensors.into_iter().map(tensor).collect())
}

/// What a header says of its file's length, whether or not the tensors are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimedSize {
    /// How many tensors it names.
    pub tensors: u64,
    /// Bytes before the first tensor.
    pub header_bytes: u64,
    /// Bytes of the tensors.
    pub data_bytes: u64,
}

impl ClaimedSize {
    /// The length of the whole file; none where that is no 64-bit number.
    pub fn file_bytes(&self) -> Option<u64> {
        self.header_bytes.checked_add(self.data_bytes)
    }
}

/// Reads how long a file is when it is whole, by its header alone: of one that is cut off, or of which only the
/// beginning was fetched.
///
/// # Errors
/// [`Fault::Broken`] where the header is not whole or contradicts itself, [`Fault::Unknown`] where a limit stands in the
/// way.
pub fn claimed_size(source: &dyn ReadAt) -> Result<ClaimedSize, Fault> {
    let header = in_file_order(source)?;
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

/// Each tensor begins where the one before it ends.
fn end_to_end(tensor: &Claim, reached: u64) -> Result<(), Fault> {
    let Claim { start, end, .. } = *tensor;
    let name = shown(&tensor.name);
    if end < start {
        return Err(Fault::broken(format!(
            "tensor {name} ends at byte {end} of the data, before it begins at {start}: the header is damaged"
        )));
    }
    if start != reached {
        let how = if start > reached {
            "nothing is said of the bytes between"
        } else {
            "they overlap"
        };
        return Err(Fault::broken(format!(
            "tensor {name} begins at byte {start} of the data, and the one before it ends at {reached}: {how}"
        )));
    }
    Ok(())
}

/// Nothing is missing after the last tensor, and nothing follows it.
fn whole(size_bytes: u64, data_start: u64, reached: u64) -> Result<(), Fault> {
    let there = size_bytes.saturating_sub(data_start);
    if reached > there {
        let missing = bytes(reached - there);
        return Err(Fault::at(
            size_bytes,
            format!(
                "the tensors take {}, and the file ends {missing} too early: the save was cut off",
                bytes(reached)
            ),
        ));
    }
    if reached < there {
        let more = bytes(there - reached);
        return Err(Fault::at(
            data_start.saturating_add(reached),
            format!(
                "the file goes on for {more} after the last tensor: the header is damaged, or something was appended"
            ),
        ));
    }
    Ok(())
}

/// A tensor takes as many bytes as its shape and dtype say.
fn sized(tensor: &Claim) -> Result<(), Fault> {
    let Dtype::Known { name: dtype, bits } = tensor.dtype else {
        return Ok(());
    };
    let name = shown(&tensor.name);
    let total_bits = tensor.elements.and_then(|elements| elements.checked_mul(bits));
    let Some(total_bits) = total_bits else {
        return Err(Fault::broken(format!(
            "tensor {name} has a shape of more elements than any file holds: the header is damaged"
        )));
    };
    if total_bits % 8 != 0 {
        return Err(Fault::broken(format!(
            "tensor {name} of dtype {dtype} ends in the middle of a byte: the header is damaged"
        )));
    }
    let (has, needs) = (tensor.end.saturating_sub(tensor.start), total_bits / 8);
    if has != needs {
        return Err(Fault::broken(format!(
            "tensor {name} needs {} for its shape and dtype {dtype}, and has {has}: the header is damaged",
            bytes(needs)
        )));
    }
    Ok(())
}
