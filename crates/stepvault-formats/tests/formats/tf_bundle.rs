//! Hostile TensorFlow indexes have no effect beyond an error.

use proptest::prelude::*;
use stepvault_core::digest::Crc32c;
use stepvault_formats::structure::tf_bundle;

use super::checkpoint::Checkpoint;

/// Returns a table with these bytes as its only block and as its index, with valid checksums.
fn table(data: &[u8], index: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut handles = Vec::new();
    for block in [data, b"\0\0\0\0", index] {
        let start = bytes.len();
        handles.push((start, block.len()));
        bytes.extend(block);
        bytes.push(0);
        let masked = Crc32c::of(&bytes[start..]).0.rotate_right(15).wrapping_add(0xa282_ead8);
        bytes.extend(masked.to_le_bytes());
    }
    let mut footer = Vec::new();
    for (start, length) in &handles[1..] {
        for value in [start, length] {
            footer.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            footer.push(u8::try_from(value >> 7).unwrap());
        }
    }
    footer.resize(40, 0);
    footer.extend(0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    bytes.extend(footer);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn arbitrary_indexes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut checkpoint = Checkpoint::default();
        checkpoint.set("x.index", bytes);
        let _ = checkpoint.judge(tf_bundle::check, "x");
        prop_assert!(checkpoint.read_bytes() <= 2 * checkpoint.size_bytes());
    }

    #[test]
    fn arbitrary_blocks_do_no_harm(
        data in proptest::collection::vec(any::<u8>(), 0..100),
        index in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut checkpoint = Checkpoint::default();
        checkpoint.set("x.index", table(&data, &index));
        let _ = checkpoint.judge(tf_bundle::check, "x");
        prop_assert!(checkpoint.read_bytes() <= 2 * checkpoint.size_bytes());
    }
}
