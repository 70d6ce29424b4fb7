//! How a file is divided into parts. The layout depends on the file's size alone and is fixed by the format.

use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::words;

/// The smallest part, and the only part size of files up to 78 GiB.
pub const MINIMUM_PART_SIZE_BYTES: u64 = 8 << 20;
/// The largest part; it bounds the memory of one transfer.
pub const MAXIMUM_PART_SIZE_BYTES: u64 = 128 << 20;
/// Maximum number of parts in a file: the limit of S3 and of GCS's XML multipart uploads.
pub const MAXIMUM_PARTS: u64 = 10_000;
/// The largest file that format 1 supports: 10,000 parts of 128 MiB, about 1.22 TiB.
pub const MAXIMUM_FILE_SIZE_BYTES: u64 = MAXIMUM_PART_SIZE_BYTES * MAXIMUM_PARTS;

const SHARD: &str = "let the trainer shard its checkpoint into more files";

/// Returns what to say of files that are expected to be as large as `size_bytes`, if a push will refuse them.
pub fn refusal_ahead(size_bytes: u64) -> Option<(String, &'static str)> {
    let (size, limit) = (words::bytes(size_bytes), words::bytes(MAXIMUM_FILE_SIZE_BYTES));
    (size_bytes > MAXIMUM_FILE_SIZE_BYTES)
        .then(|| (format!("a file of {size} cannot be stored: one file may have at most {limit}"), SHARD))
}

/// The parts of a file of a known size. All have the same size except the last; an empty file has one empty part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileParts {
    size_bytes: u64,
    part_size_bytes: u64,
}

impl FileParts {
    /// Returns the parts of a file of `size_bytes`: the part size is the smallest power-of-two multiple of 8 MiB with
    /// which 10,000 parts suffice.
    pub fn of(size_bytes: u64) -> Result<Self> {
        let mut part_size_bytes = MINIMUM_PART_SIZE_BYTES;
        while size_bytes > part_size_bytes * MAXIMUM_PARTS {
            part_size_bytes *= 2;
            if part_size_bytes > MAXIMUM_PART_SIZE_BYTES {
                return Err(Error::new(ErrorKind::Usage, "a file is too large for the store format")
                    .on(format!("{size_bytes} bytes"))
                    .because(format!("one file may have at most {MAXIMUM_FILE_SIZE_BYTES} bytes"))
                    .hint(SHARD));
            }
        }
        Ok(Self { size_bytes, part_size_bytes })
    }

    /// Returns the file's size in bytes.
    pub const fn size_bytes(self) -> u64 {
        self.size_bytes
    }

    /// Returns the size of every part but the last, in bytes.
    pub const fn part_size_bytes(self) -> u64 {
        self.part_size_bytes
    }

    /// Returns the number of parts: 1 to 10,000.
    pub fn count(self) -> u32 {
        // The number is at most MAXIMUM_PARTS by construction.
        u32::try_from(self.size_bytes.div_ceil(self.part_size_bytes)).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the byte range of part `index`, counted from 0; empty past the end.
    pub fn range(self, index: u32) -> Range<u64> {
        let start = (u64::from(index) * self.part_size_bytes).min(self.size_bytes);
        start..(start + self.part_size_bytes).min(self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_has_one_empty_part() {
        let parts = FileParts::of(0).unwrap();
        assert_eq!((parts.count(), parts.range(0)), (1, 0..0));
    }

    #[test]
    fn part_size_doubles_only_when_ten_thousand_do_not_suffice() {
        let eight = FileParts::of(MINIMUM_PART_SIZE_BYTES * MAXIMUM_PARTS).unwrap();
        assert_eq!((eight.part_size_bytes(), eight.count()), (8 << 20, 10_000));
        let sixteen = FileParts::of(MINIMUM_PART_SIZE_BYTES * MAXIMUM_PARTS + 1).unwrap();
        assert_eq!((sixteen.part_size_bytes(), sixteen.count()), (16 << 20, 5_001));
        assert_eq!(FileParts::of(MAXIMUM_FILE_SIZE_BYTES).unwrap().count(), 10_000);
        assert!(FileParts::of(MAXIMUM_FILE_SIZE_BYTES + 1).is_err());
        assert!(FileParts::of(u64::MAX).is_err());
        assert_eq!(refusal_ahead(MAXIMUM_FILE_SIZE_BYTES), None);
        let (why, _) = refusal_ahead(5_000_000_000_000).unwrap();
        assert_eq!(why, "a file of 4.5 TiB cannot be stored: one file may have at most 1.2 TiB");
    }

    #[test]
    fn ranges_cover_the_file_without_gap_or_overlap() {
        let parts = FileParts::of((20 << 20) + 5).unwrap();
        let ranges: Vec<_> = (0..parts.count()).map(|index| parts.range(index)).collect();
        assert_eq!(ranges.first().unwrap().start, 0);
        assert_eq!(ranges.last().unwrap().end, parts.size_bytes());
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(parts.range(99), parts.size_bytes()..parts.size_bytes());
    }
}
