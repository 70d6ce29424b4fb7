//! One zstd frame, walked block by block without decompressing it (RFC 8878).
//!
//! # Blind spots
//!
//! The contents of the blocks, and the checksum that a frame may end with.

use crate::soundness::{Fault, broken, broken_at, unknown};
use crate::tree::ReadAt;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The maximum size of a frame's header: magic number, descriptor, window, dictionary, size.
const MAX_HEADER_BYTES: u64 = 4 + 1 + 1 + 4 + 8;
/// The maximum decompressed size of a block.
const MAX_BLOCK_BYTES: u64 = 128 << 10;
/// The minimum mean size of a block. Writers fill blocks up to 128 KiB; frames of much smaller ones would make the
/// walk long.
const LEAST_MEAN_BLOCK_BYTES: u64 = 256;
/// The number of blocks that any frame may have.
const FREE_BLOCKS: u64 = 4096;

/// Checks that the file is one whole frame, and returns the decompressed size if the frame states it.
pub(super) fn check(source: &dyn ReadAt) -> Result<Option<u64>, Fault> {
    let size_bytes = source.size_bytes();
    let header = Header::read(source)?;
    let mut offset = header.length_bytes;
    let mut blocks_left = size_bytes / LEAST_MEAN_BLOCK_BYTES + FREE_BLOCKS;
    // The minimum and maximum decompressed size of the blocks.
    let mut content = (0_u64, 0_u64);
    loop {
        let word = piece::<3>(source, offset)?;
        let word = u32::from_le_bytes([word[0], word[1], word[2], 0]);
        let stated = u64::from(word >> 3);
        let (length_bytes, least, most) = match (word >> 1) & 3 {
            0 => (stated, stated, stated),
            // A run: one byte, repeated.
            1 => (1, stated, stated),
            2 => (stated, 0, MAX_BLOCK_BYTES),
            _ => {
                return Err(broken_at!(
                    offset,
                    "the compressed data is damaged: a block is of an unknown kind"
                ));
            }
        };
        offset += 3 + length_bytes;
        content = (content.0.saturating_add(least), content.1.saturating_add(most));
        if offset > size_bytes {
            return Err(cut(offset, size_bytes));
        }
        if word & 1 == 1 {
            break;
        }
        blocks_left = blocks_left
            .checked_sub(1)
            .ok_or_else(|| unknown!("the compressed data has too many small blocks to check"))?;
    }
    if header.has_checksum {
        offset += 4;
    }
    if offset > size_bytes {
        return Err(cut(offset, size_bytes));
    }
    if offset < size_bytes {
        let more = size_bytes - offset;
        return Err(broken_at!(offset, "{more} bytes follow the end of the compressed data"));
    }
    match header.content_bytes {
        Some(bytes) if bytes < content.0 || bytes > content.1 => Err(broken!(
            "the compressed data is damaged: it states a decompressed size of {bytes} bytes, which differs from its \
             blocks"
        )),
        stated => Ok(stated),
    }
}

struct Header {
    length_bytes: u64,
    has_checksum: bool,
    content_bytes: Option<u64>,
}

impl Header {
    fn read(source: &dyn ReadAt) -> Result<Self, Fault> {
        if piece::<4>(source, 0)? != MAGIC {
            return Err(broken_at!(0, "the data is not zstd-compressed, although its description says so"));
        }
        let [descriptor] = piece::<1>(source, 4)?;
        if descriptor & 0x08 != 0 {
            return Err(broken_at!(4, "the compressed data is damaged: its header has a reserved bit set"));
        }
        let single_segment = descriptor & 0x20 != 0;
        let window_bytes = u64::from(!single_segment);
        let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let (size_field_bytes, added) = match (descriptor >> 6, single_segment) {
            (0, false) => (0, 0),
            (0, true) => (1, 0),
            (1, _) => (2, 256),
            (2, _) => (4, 0),
            _ => (8, 0),
        };
        let start = 5 + window_bytes + dictionary_bytes;
        let mut field = [0; 8];
        let content_bytes = match field.get_mut(..size_field_bytes) {
            Some(bytes) if !bytes.is_empty() => {
                read(source, start, bytes)?;
                u64::from_le_bytes(field).checked_add(added)
            }
            _ => None,
        };
        let length_bytes = start + size_field_bytes as u64;
        debug_assert!(length_bytes <= MAX_HEADER_BYTES);
        Ok(Self { length_bytes, has_checksum: descriptor & 0x04 != 0, content_bytes })
    }
}

fn piece<const N: usize>(source: &dyn ReadAt, offset: u64) -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    read(source, offset, &mut bytes)?;
    Ok(bytes)
}

fn read(source: &dyn ReadAt, offset: u64, bytes: &mut [u8]) -> Result<(), Fault> {
    let end = offset.saturating_add(bytes.len() as u64);
    if end > source.size_bytes() {
        return Err(cut(end, source.size_bytes()));
    }
    Ok(source.read_exact_at(offset, bytes)?)
}

fn cut(needed_bytes: u64, size_bytes: u64) -> Fault {
    broken!(
        "the compressed data extends at least to byte {needed_bytes}, and the file ends at byte {size_bytes}: it \
         was cut off"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame of a raw block "abc" and a run of nine, with a checksum, that states a size of twelve bytes.
    fn frame() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0x24, 12]);
        bytes.extend([3 << 3, 0, 0]);
        bytes.extend(b"abc");
        bytes.extend([9 << 3 | 1 << 1 | 1, 0, 0, b'x']);
        bytes.extend([1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn a_whole_frame_ends_where_the_file_does() {
        assert_eq!(check(&frame()).unwrap(), Some(12));
        for length in 0..frame().len() {
            let cut = check(&frame()[..length].to_vec());
            assert!(matches!(cut, Err(Fault::Broken { .. })), "{length}: {cut:?}");
        }
        let mut longer = frame();
        longer.push(0);
        assert_eq!(check(&longer).unwrap_err().to_string(), "1 bytes follow the end of the compressed data");
        let cut = check(&frame()[..10].to_vec()).unwrap_err().to_string();
        assert_eq!(
            cut,
            "the compressed data extends at least to byte 12, and the file ends at byte 10: it was cut off"
        );
    }

    #[test]
    fn the_header_and_the_blocks_agree() {
        let why = |at: usize, byte: u8| {
            let mut bytes = frame();
            bytes[at] = byte;
            check(&bytes).unwrap_err().to_string()
        };
        for other in [11, 13] {
            assert_eq!(
                why(5, other),
                format!(
                    "the compressed data is damaged: it states a decompressed size of {other} bytes, which differs \
                     from its blocks"
                )
            );
        }
        assert_eq!(why(4, 0x2c), "the compressed data is damaged: its header has a reserved bit set");
        assert_eq!(why(6, 3 << 3 | 3 << 1), "the compressed data is damaged: a block is of an unknown kind");
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(
            check(&vec![0_u8; 64]).unwrap_err().to_string(),
            "the data is not zstd-compressed, although its description says so"
        );
    }

    #[test]
    fn a_frame_of_nothing_but_empty_blocks_is_not_followed_for_ever() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0, 0]);
        bytes.resize(1 << 20, 0);
        assert!(matches!(check(&bytes), Err(Fault::Unknown(_))));
    }
}
