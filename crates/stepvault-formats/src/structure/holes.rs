//! Room that was reserved for a file and never written.
//!
//! safetensors 0.8.0-rc.0 set the full length of a file under its final name and then wrote header and tensors into
//! it: killed on the way, it leaves what passes every rule of the format, with zeros for tensors.
//!
//! Fewer bytes on disk than in the file do not prove it by themselves. A filesystem that compresses (btrfs, ZFS) has
//! them in every file, and a tool that copies sparsely makes a hole of a tensor of zeros. But weights hardly
//! compress, so where a file lacks room for its last bytes, and these read as zeros, it is right to doubt: more
//! cannot be said, and never that the file is broken.

use std::io;

use crate::source::ReadAt;

/// Less than this may be missing: filesystems round, and keep the tail of a file elsewhere.
pub const SMALLEST_HOLE_BYTES: u64 = 64 * 1024;
/// In how many places the end of a file is looked at.
pub const MOST_SAMPLES: u64 = 64;
/// How much is read in each.
const SAMPLE_BYTES: usize = 4096;

/// Says why to doubt that the end of a file was ever written, where there is reason to. Reads at most
/// [`MOST_SAMPLES`] pieces of 4096 bytes, and none where the filesystem reports no holes.
///
/// # Errors
/// When the file cannot be read.
pub fn unwritten_end(source: &dyn ReadAt) -> io::Result<Option<String>> {
    let size_bytes = source.size_bytes();
    let missing_bytes = source
        .allocated_bytes()
        .map_or(0, |allocated| size_bytes.saturating_sub(allocated));
    if missing_bytes < SMALLEST_HOLE_BYTES {
        return Ok(None);
    }
    let first = size_bytes - missing_bytes;
    // The last sample first: it ends with the file, and of a file that was written it is the one to show it.
    let steps = MOST_SAMPLES - 1;
    let mut sample = [0; SAMPLE_BYTES];
    let last = size_bytes - sample.len() as u64;
    let stride = (last - first) / steps;
    for step in (0..=steps).rev() {
        let offset = if step == steps {
            last
        } else {
            first + step * stride
        };
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
        unwritten_end(&Sparse {
            bytes: bytes.to_vec(),
            allocated_bytes: allocated_bytes.into(),
        })
        .unwrap()
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
