//! The size of a file by `torch.save`: a ZIP archive with a pickle and a record for each storage.
//!
//! According to `caffe2/serialize/inline_container.cc` of torch, every record is stored uncompressed and begins at a
//! multiple of 64 bytes, with padding in the extra field of the local header; a data descriptor follows it. The
//! archive ends with a ZIP64 record, its locator and the plain end record.

use super::super::amount::{plus, scaled, times, total};
use super::super::optimizer::Tensors;
use super::part::{line, mean};
use stepvault_core::error::Result;

/// Every record begins at a multiple of this.
const ALIGNMENT_BYTES: u64 = 64;
/// A local header without its name and padding.
const LOCAL_HEADER_BYTES: u64 = 30;
/// The header of the padding, which exists even without padding.
const PADDING_HEADER_BYTES: u64 = 4;
/// The data descriptor after a record.
const DESCRIPTOR_BYTES: u64 = 16;
/// An entry of the directory without its name.
const ENTRY_BYTES: u64 = 46;
/// The three records at the end.
const END_BYTES: u64 = 56 + 20 + 22;
/// Small records before the storages: `.format_version`, `.storage_alignment`, `byteorder`, each with its length.
const BEFORE: [(&str, u64); 3] = [("/.format_version", 1), ("/.storage_alignment", 2), ("/byteorder", 6)];
/// Small records after the storages.
const AFTER: [(&str, u64); 2] = [("/version", 2), ("/.data/serialization_id", 40)];
const PICKLE: &str = "/data.pkl";
const STORAGES: &str = "/data/";

/// The prefix of the records' names if torch writes to a file object; otherwise it is the file's name without its
/// extension. Each additional byte costs two bytes for every storage.
pub(super) const ARCHIVE: &str = "archive";

/// A pickle of a state without tensors: its dictionaries.
pub(super) const STATE_PICKLE_BYTES: u64 = 150;
/// A parameter group of an optimizer: its settings by name.
pub(super) const GROUP_PICKLE_BYTES: u64 = 350;
/// Pickle data that rebuilds a tensor of the model, with a name of 16 characters.
pub(super) const WEIGHT_PICKLE_BYTES: u64 = 80;
/// Pickle data that rebuilds a tensor of an optimizer, whose names are numbers.
pub(super) const STATE_TENSOR_PICKLE_BYTES: u64 = 66;

/// Returns the size of an archive with these storages. `archive` is the prefix of its records' names.
pub(super) fn size(archive: &str, pickle_bytes: u64, storages: &[Tensors]) -> Result<u64> {
    let count = total(storages.iter().map(|storage| storage.count))?;
    let name_of = |name: &str| (archive.len() + name.len()) as u64;
    let mut archive = Archive::default();
    archive.add(name_of(PICKLE), pickle_bytes)?;
    for (name, bytes) in BEFORE {
        archive.add(name_of(name), bytes)?;
    }
    let name_bytes = plus(name_of(STORAGES), digits(count))?;
    for storage in storages {
        archive.add_all(name_bytes, storage.count, mean(storage.bytes, storage.count))?;
    }
    for (name, bytes) in AFTER {
        archive.add(name_of(name), bytes)?;
    }
    total([archive.end_bytes, archive.directory_bytes, END_BYTES])
}

/// Returns the size of the pickle in a file by `torch.save` with the weights and an optimizer's state of a model.
pub(super) fn pickle_bytes(weights: u64, states: u64, has_optimizer: bool) -> Result<u64> {
    let fixed = if has_optimizer { STATE_PICKLE_BYTES + GROUP_PICKLE_BYTES } else { STATE_PICKLE_BYTES };
    line(line(fixed, weights, WEIGHT_PICKLE_BYTES)?, states, STATE_TENSOR_PICKLE_BYTES)
}

/// Returns the number of digits of `count - 1`, the largest index of `count` items.
fn digits(count: u64) -> u64 {
    u64::from(count.saturating_sub(1).checked_ilog10().unwrap_or_default()) + 1
}

#[derive(Default)]
struct Archive {
    /// The end of the last record, including its descriptor.
    end_bytes: u64,
    directory_bytes: u64,
}

impl Archive {
    fn add(&mut self, name_bytes: u64, bytes: u64) -> Result<()> {
        let header = LOCAL_HEADER_BYTES + PADDING_HEADER_BYTES;
        let begins = aligned(total([self.end_bytes, header, name_bytes])?)?;
        self.end_bytes = total([begins, bytes, DESCRIPTOR_BYTES])?;
        self.directory_bytes = total([self.directory_bytes, ENTRY_BYTES, name_bytes])?;
        Ok(())
    }

    /// Adds records of equal length, each aligned like the one before it.
    fn add_all(&mut self, name_bytes: u64, count: u64, bytes: u64) -> Result<()> {
        let Some(others) = count.checked_sub(1) else {
            return Ok(());
        };
        self.add(name_bytes, bytes)?;
        let around = DESCRIPTOR_BYTES + LOCAL_HEADER_BYTES + PADDING_HEADER_BYTES;
        let distance = aligned(total([bytes, around, name_bytes])?)?;
        self.end_bytes = plus(self.end_bytes, times(others, distance)?)?;
        let entries = times(others, plus(ENTRY_BYTES, name_bytes)?)?;
        self.directory_bytes = plus(self.directory_bytes, entries)?;
        Ok(())
    }
}

fn aligned(bytes: u64) -> Result<u64> {
    times(scaled(bytes, 1, ALIGNMENT_BYTES)?, ALIGNMENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storages(count: u64, bytes: u64) -> Tensors {
        Tensors { count, bytes: count * bytes }
    }

    #[test]
    fn archives_that_torch_wrote() {
        for (archive, pickle_bytes, data, expected) in [
            ("no_tensor", 57, vec![], 1337),
            ("large", 168, vec![storages(1, 2_097_152)], 2_098_651),
            ("scheduler", 204, vec![], 1465),
            ("training_args", 3983, vec![], 5265),
            ("rank_0.pt", 179, vec![storages(1, 5056)], 6647),
            ("rng_state", 7946, vec![storages(1, 5056)], 14_455),
        ] {
            assert_eq!(size(archive, pickle_bytes, &data).unwrap(), expected, "{archive}");
        }
        // Of 100 names 10 are a digit shorter than calculated: a byte less in the directory of each.
        let calculated = size("step_1", 7971, &[storages(100, 1200)]).unwrap();
        assert_eq!(calculated, 143_181 + 10);
    }

    #[test]
    fn many_at_once_are_as_many_one_by_one() {
        let (mut at_once, mut one_by_one) = (Archive::default(), Archive::default());
        at_once.add(9, 57).unwrap();
        one_by_one.add(9, 57).unwrap();
        at_once.add_all(20, 17, 100).unwrap();
        for _ in 0..17 {
            one_by_one.add(20, 100).unwrap();
        }
        assert_eq!(at_once.end_bytes, one_by_one.end_bytes);
        assert_eq!(at_once.directory_bytes, one_by_one.directory_bytes);
    }

    #[test]
    fn numbers_begin_at_zero() {
        for (count, expected) in [(0, 1), (1, 1), (10, 1), (11, 2), (100, 2), (101, 3), (u64::MAX, 20)] {
            assert_eq!(digits(count), expected, "{count}");
        }
    }
}
