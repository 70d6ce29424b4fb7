//! Holes of sparse files: finds them, copies around them, and creates them where a file is all zeros.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use stepvault_core::file_parts::MINIMUM_PART_SIZE_BYTES;

/// Smaller differences between size and allocation are ignored: file systems round, and store the end of a small file
/// elsewhere.
const MIN_MISSING_BYTES: u64 = 64 << 10;
/// Unit that is written or left out: the block size of most file systems.
const BLOCK_BYTES: u64 = 4 << 10;

/// Returns whether a file may have holes worth keeping, by its size and its allocated bytes. Compressed files look the
/// same.
pub(crate) const fn may_have_holes(size_bytes: u64, allocated_bytes: u64) -> bool {
    size_bytes.saturating_sub(allocated_bytes) >= MIN_MISSING_BYTES
}

/// Returns the next data range of a file at or after `from`, as reported by the file system. A file system without
/// holes reports the whole file. Moves the file's position.
fn next_data(file: &File, from: u64, size_bytes: u64) -> rustix::io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        // Only a hole remains up to the end.
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => from,
        Err(error) => return Err(error),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => size_bytes,
        Err(error) => return Err(error),
    };
    Ok(Some(start..end.min(size_bytes)).filter(|piece| !piece.is_empty()))
}

/// Returns how many of the file's bytes lie in holes.
pub(crate) fn hole_bytes(file: &File, size_bytes: u64) -> rustix::io::Result<u64> {
    let mut written_bytes = 0;
    let mut position = 0;
    while position < size_bytes {
        let Some(piece) = next_data(file, position, size_bytes)? else {
            break;
        };
        written_bytes += piece.end - piece.start;
        position = piece.end;
    }
    Ok(size_bytes.saturating_sub(written_bytes))
}

/// Copies a range of `source` to `target`, and reports the bytes that `target` has so far. Both files must be positioned at
/// its start. Returns the position that it reached: the end of the range, or of the file.
pub(crate) fn copy_piece(
    source: &File,
    target: &File,
    range: Range<u64>,
    copied: &mut dyn FnMut(u64),
) -> io::Result<u64> {
    let (reader, mut writer) = (source, target);
    let mut position = range.start;
    while position < range.end {
        // Up to the next border of a file part of the smallest size; larger parts end at such borders too.
        let border = (position / MINIMUM_PART_SIZE_BYTES + 1) * MINIMUM_PART_SIZE_BYTES;
        let wanted = border.min(range.end) - position;
        let moved = io::copy(&mut reader.take(wanted), &mut writer)?;
        position += moved;
        copied(position);
        if moved < wanted {
            break;
        }
    }
    Ok(position)
}

/// Copies the data ranges of `source` into the empty file `target`, which gets the same holes and length, and reports the
/// bytes that `target` has so far. Returns the number of bytes that the source had; it differs from `size_bytes` when the
/// source was truncated meanwhile.
pub(crate) fn copy_around_holes(
    source: &File,
    target: &File,
    size_bytes: u64,
    copied: &mut dyn FnMut(u64),
) -> io::Result<u64> {
    let mut position = 0;
    while position < size_bytes {
        let Some(piece) = next_data(source, position, size_bytes)? else {
            break;
        };
        rustix::fs::seek(source, SeekFrom::Start(piece.start))?;
        rustix::fs::seek(target, SeekFrom::Start(piece.start))?;
        position = copy_piece(source, target, piece.clone(), copied)?;
        if position != piece.end {
            return Ok(position);
        }
    }
    target.set_len(size_bytes)?;
    Ok(source.metadata()?.len())
}

/// Splits `bytes`, which belong at `offset` of a file, at block boundaries. Returns each piece and whether it can
/// become a hole because it is all zeros. The end of the file, at `size_bytes`, is always written: it gives the file
/// its length.
pub(crate) fn pieces(
    offset: u64,
    bytes: &[u8],
    size_bytes: u64,
) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let begin = start;
        let is_left_out = |range: &Range<usize>| {
            offset + (range.end as u64) < size_bytes && bytes[range.clone()].iter().all(|byte| *byte == 0)
        };
        let next_block = |start: usize| {
            let to_border = BLOCK_BYTES - (offset + start as u64) % BLOCK_BYTES;
            let length = usize::try_from(to_border).unwrap_or(usize::MAX);
            start..start.saturating_add(length).min(bytes.len())
        };
        let first = next_block(start);
        if first.is_empty() {
            return None;
        }
        let verdict = is_left_out(&first);
        start = first.end;
        while start < bytes.len() {
            let next = next_block(start);
            if is_left_out(&next) != verdict {
                break;
            }
            start = next.end;
        }
        Some((begin..start, verdict))
    })
}

/// Turns a range into a hole, whatever was written there before. Returns whether the file system supports this.
pub(crate) fn punch(file: &File, offset: u64, length_bytes: u64) -> rustix::io::Result<bool> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, length_bytes) {
        Ok(()) => Ok(true),
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    /// Returns a file of 1 MiB in which only the second and the last but one block are written.
    fn sparse() -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 4096], 4096).unwrap();
        file.write_all_at(&[8; 100], (1 << 20) - 8192).unwrap();
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        (file, bytes)
    }

    #[test]
    fn holes_are_measured_and_copied() {
        let (source, bytes) = sparse();
        let facts = source.metadata().unwrap();
        assert!(may_have_holes(facts.len(), facts.blocks() * 512));
        let holes = hole_bytes(&source, 1 << 20).unwrap();
        // As exact as the file system's own blocks.
        assert!(((900 << 10)..(1 << 20)).contains(&holes), "{holes}");
        let target = tempfile::tempfile().unwrap();
        assert_eq!(copy_around_holes(&source, &target, 1 << 20, &mut |_| ()).unwrap(), 1 << 20);
        let mut copied = vec![1; 1 << 20];
        target.read_exact_at(&mut copied, 0).unwrap();
        assert!(copied == bytes);
        assert!(target.metadata().unwrap().blocks() * 512 <= 256 << 10);
        assert_eq!(hole_bytes(&target, 1 << 20).unwrap(), holes);
    }

    #[test]
    fn a_file_that_is_one_hole_or_none_is_copied_whole() {
        for (length, content) in [(1 << 20, None), (70_000, Some(vec![3_u8; 70_000])), (0, None)] {
            let source = tempfile::tempfile().unwrap();
            source.set_len(length).unwrap();
            if let Some(content) = &content {
                source.write_all_at(content, 0).unwrap();
            }
            let target = tempfile::tempfile().unwrap();
            assert_eq!(copy_around_holes(&source, &target, length, &mut |_| ()).unwrap(), length);
            assert_eq!(target.metadata().unwrap().len(), length);
            let holes = hole_bytes(&source, length).unwrap();
            assert_eq!(holes, if content.is_none() { length } else { 0 });
        }
    }

    #[test]
    fn a_source_that_was_cut_is_noticed() {
        let (source, _) = sparse();
        source.set_len(1 << 19).unwrap();
        let target = tempfile::tempfile().unwrap();
        assert_eq!(copy_around_holes(&source, &target, 1 << 20, &mut |_| ()).unwrap(), 1 << 19);
    }

    #[test]
    fn zeros_are_left_out_by_blocks_and_the_end_is_written() {
        let of = |offset, bytes: &[u8], size| pieces(offset, bytes, size).collect::<Vec<_>>();
        let zeros = vec![0; 16_384];
        assert_eq!(of(0, &zeros, 1 << 20), [(0..16_384, true)]);
        assert_eq!(of(0, &zeros, 16_384), [(0..12_288, true), (12_288..16_384, false)]);
        // Bytes that begin in the middle of a block.
        assert_eq!(of(100, &zeros, 1 << 20), [(0..16_384, true)]);
        let mut mixed = zeros.clone();
        mixed[5_000] = 1;
        assert_eq!(of(0, &mixed, 1 << 20), [(0..4_096, true), (4_096..8_192, false), (8_192..16_384, true)]);
        assert_eq!(of(0, &[], 1 << 20), []);
        assert_eq!(of(0, &[0], 1), [(0..1, false)]);
    }

    #[test]
    fn what_is_left_out_reads_as_zeros_whatever_was_there() {
        let (file, _) = sparse();
        assert!(punch(&file, 4_000, 5_000).unwrap());
        let mut bytes = [1; 8192];
        file.read_exact_at(&mut bytes, 4_000).unwrap();
        assert!(bytes[..5_000].iter().all(|byte| *byte == 0));
        // Beyond the end this has no effect.
        assert!(punch(&file, 2 << 20, 4096).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }
}
