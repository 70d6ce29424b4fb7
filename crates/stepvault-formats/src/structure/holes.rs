//! Detects space that was reserved for a file and never written.
//!
//! safetensors 0.8.0-rc.0 set the full length of a file under its final name and then wrote header and tensors into
//! it. If it is killed while writing, it leaves a file that obeys every rule of the format and has zeros for tensors.
//!
//! Fewer bytes on disk than in the file do not prove this. On a filesystem that compresses (btrfs, ZFS) every file
//! has fewer, and a tool that copies sparsely turns a tensor of zeros into a hole. But weights hardly compress. So if
//! the disk holds no space for the last bytes of a file, and these read as zeros, the file is `Unknown`, and never
//! broken.

use std::io;

use crate::source::ReadAt;

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
