use std::collections::BTreeMap;

use stepvault_core::digest::Crc32c;

use super::check;
use crate::deep::{Checksum, Span};
use crate::structure::tests::Files;

/// Returns the result of the check of a checkpoint.
fn why(files: &Files) -> String {
    check(&files.tree(), "ckpt-7", files).map_or_else(|fault| fault.to_string(), |()| "sound".to_owned())
}

/// Returns a checkpoint with this index.
fn with(index: Vec<u8>) -> Files {
    Files(BTreeMap::from([
        ("ckpt-7.index".to_owned(), index),
        ("ckpt-7.data-00000-of-00002".to_owned(), vec![1; 24]),
        ("ckpt-7.data-00001-of-00002".to_owned(), vec![1; 8]),
    ]))
}

/// Returns a block of these entries, whose keys share nothing, with its trailer.
fn block(entries: &[(&[u8], Vec<u8>)], compression: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in entries {
        bytes.extend([0, u8::try_from(key.len()).unwrap(), u8::try_from(value.len()).unwrap()]);
        bytes.extend(*key);
        bytes.extend(value);
    }
    bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, compression]);
    let masked = Crc32c::of(&bytes).0.rotate_right(15).wrapping_add(0xa282_ead8);
    bytes.extend(masked.to_le_bytes());
    bytes
}

/// Returns the handle of a block of `whole_bytes` with its trailer.
fn handle(offset: usize, whole_bytes: usize) -> Vec<u8> {
    let varint = |value: usize| match u8::try_from(value) {
        Ok(byte @ 0..0x80) => vec![byte],
        _ => vec![u8::try_from(value & 0x7f).unwrap() | 0x80, u8::try_from(value >> 7).unwrap()],
    };
    [varint(offset), varint(whole_bytes - 5)].concat()
}

/// Returns a table of these blocks, each with its last key.
fn table(blocks: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut index = Vec::new();
    for (key, block) in blocks {
        index.push((*key, handle(bytes.len(), block.len())));
        bytes.extend(block);
    }
    let meta = block(&[], 0);
    let index = block(&index, 0);
    let mut footer = handle(bytes.len(), meta.len());
    footer.extend(handle(bytes.len() + meta.len(), index.len()));
    footer.resize(40, 0);
    footer.extend(0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    [bytes, meta, index, footer].concat()
}

/// Returns a tensor of floats with one dimension.
fn tensor(length: u8, shard: u8, offset: u8, bytes: u8) -> Vec<u8> {
    let mut entry = vec![8, 1, 18, 4, 18, 2, 8, length];
    entry.extend([24, shard, 32, offset, 40, bytes, 53, 1, 2, 3, 4]);
    entry
}

fn header(shards: u8) -> Vec<u8> {
    vec![8, shards, 26, 2, 8, 1]
}

fn index() -> Vec<u8> {
    table(&[
        (b"a", block(&[(b"", header(2)), (b"a", tensor(2, 0, 0, 8))], 0)),
        (b"c", block(&[(b"b", tensor(4, 0, 8, 16)), (b"c", tensor(2, 1, 0, 8))], 0)),
    ])
}

#[test]
fn a_whole_checkpoint_is_sound() {
    assert_eq!(why(&with(index())), "sound");
}

#[test]
fn the_checksum_of_each_tensor_is_that_of_its_bytes() {
    let mut entry = tensor(2, 0, 0, 8);
    let masked = Crc32c::of(&[1; 8]).0.rotate_right(15).wrapping_add(0xa282_ead8);
    let length = entry.len();
    entry.splice(length - 4.., masked.to_le_bytes());
    let index = table(&[(b"a", block(&[(b"", header(2)), (b"a", entry)], 0))]);
    let files = with(index);
    let spans = super::checksums(&files.tree(), "ckpt-7", &files).unwrap();
    let expected = Span {
        start: 0,
        end: 8,
        checksum: Checksum::Crc32c(Crc32c::of(&[1; 8]).0),
        what: "tensor a".to_owned(),
    };
    assert_eq!(spans, [("ckpt-7.data-00000-of-00002".to_owned(), expected)]);
}

#[test]
fn no_cut_and_no_flipped_bit_of_the_index_passes() {
    let whole = index();
    for length in 0..whole.len() {
        assert_ne!(why(&with(whole[..length].to_vec())), "sound", "cut to {length}");
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(why(&with(bytes)), "sound", "bit {bit}");
    }
}

#[test]
fn data_files_hold_every_tensor() {
    let cut = |path: &str, length: usize| {
        let mut files = with(index());
        files.0.get_mut(path).unwrap().truncate(length);
        why(&files)
    };
    for length in 0..24 {
        assert_ne!(cut("ckpt-7.data-00000-of-00002", length), "sound");
    }
    assert_eq!(
        cut("ckpt-7.data-00000-of-00002", 23),
        "ckpt-7.index: tensor b extends to byte 24 of ckpt-7.data-00000-of-00002, which ends at byte 23: the file \
         was cut off"
    );
    let mut files = with(index());
    files.0.remove("ckpt-7.data-00001-of-00002");
    assert_eq!(why(&files), "ckpt-7.index: tensor c is in ckpt-7.data-00001-of-00002, which is missing");
    files.0.remove("ckpt-7.index");
    assert_eq!(why(&files), "ckpt-7.index is missing, and tensors cannot be found without it");
}

#[test]
fn broken_rules_are_named() {
    let one = |entries: &[(&[u8], Vec<u8>)]| why(&with(table(&[(b"z", block(entries, 0))])));
    for (found, why) in [
        (
            why(&with(vec![0; 20])),
            "ckpt-7.index: it is 20 bytes long, less than the minimum of an index: it was cut off",
        ),
        (
            why(&with(vec![0; 60])),
            "ckpt-7.index, at byte 12: it does not end with the magic number of an index: it was cut off or \
             overwritten",
        ),
        (why(&with(table(&[]))), "ckpt-7.index has no entries"),
        (
            one(&[(b"a", tensor(2, 0, 0, 8))]),
            "ckpt-7.index: the index does not begin with the number of data files",
        ),
        (
            one(&[(b"", header(2)), (b"b", tensor(2, 0, 0, 8)), (b"a", tensor(2, 0, 0, 8))]),
            "ckpt-7.index, at byte 0: a block is damaged: its names are out of order",
        ),
        (
            one(&[(b"", header(2)), (b"a", tensor(2, 0, 0, 9))]),
            "ckpt-7.index: tensor a is 9 bytes long, but should have 2 elements of 4 bytes",
        ),
        (
            one(&[(b"", header(2)), (b"a", tensor(2, 2, 0, 8))]),
            "ckpt-7.index: the entry of tensor a is damaged: it names data file 2 of 2",
        ),
        (
            one(&[(b"", header(0))]),
            "ckpt-7.index: the header of the index is damaged: it states 0 data files",
        ),
        (
            one(&[(b"", vec![7])]),
            "ckpt-7.index: the header of the index is damaged: a field is of an unknown kind",
        ),
    ] {
        assert_eq!(found, why);
    }
}

#[test]
fn a_partitioned_tensor_is_in_pieces_elsewhere() {
    let mut sliced = tensor(100, 9, 100, 1);
    sliced.extend([58, 0]);
    let blocks = block(&[(b"", header(2)), (b"a", sliced)], 0);
    assert_eq!(why(&with(table(&[(b"a", blocks)]))), "sound");
}

#[test]
fn compressed_blocks_are_not_looked_into() {
    let bytes = table(&[(b"a", block(&[(b"", header(2))], 1))]);
    assert_eq!(why(&with(bytes)), "ckpt-7.index: its blocks are compressed, which TensorFlow does not do");
}
