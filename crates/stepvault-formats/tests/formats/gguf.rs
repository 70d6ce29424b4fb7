//! GGUF files as gguf-py writes them, and damaged.

use std::ops::Range;

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound, Unknown};
use stepvault_formats::structure::gguf::check;

use crate::support::{assert_broken, cuts, judge, sample, unnoticed};

const UINT32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Writes a GGUF file and records where its fields are.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    fields: Vec<(&'static str, Range<usize>)>,
}

impl Writer {
    fn new(version: u32, tensors: u64, pairs: u64) -> Self {
        Self::default()
            .put("magic", b"GGUF")
            .put("version", &version.to_le_bytes())
            .put("number of tensors", &tensors.to_le_bytes())
            .put("number of pairs", &pairs.to_le_bytes())
    }

    fn put(mut self, field: &'static str, bytes: &[u8]) -> Self {
        let start = self.bytes.len();
        self.bytes.extend(bytes);
        self.fields.push((field, start..self.bytes.len()));
        self
    }

    fn key(self, key: &str, kind: u32) -> Self {
        self.put("length of a key", &(key.len() as u64).to_le_bytes())
            .put("key", key.as_bytes())
            .put("kind of a value", &kind.to_le_bytes())
    }

    fn alignment(self, alignment: u32) -> Self {
        self.key("general.alignment", UINT32).put("alignment", &alignment.to_le_bytes())
    }

    fn tensor(self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let count = u32::try_from(dimensions.len()).unwrap();
        let mut writer = self
            .put("length of a tensor's name", &(name.len() as u64).to_le_bytes())
            .put("tensor's name", name.as_bytes())
            .put("number of dimensions", &count.to_le_bytes());
        for dimension in dimensions {
            writer = writer.put("dimension", &dimension.to_le_bytes());
        }
        writer.put("kind of a tensor", &kind.to_le_bytes()).put("offset of a tensor", &offset.to_le_bytes())
    }

    fn data(mut self, alignment: usize, data_bytes: usize) -> Self {
        let start = self.bytes.len().next_multiple_of(alignment);
        self.bytes.resize(start, 0);
        self.bytes.resize(start + data_bytes, 7);
        self
    }

    fn judge(&self) -> Soundness {
        judge(&self.bytes, check)
    }

    fn why_broken(&self) -> String {
        match self.judge() {
            Soundness::Broken { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    fn why_unknown(&self) -> String {
        match self.judge() {
            Unknown { why } => why,
            other => panic!("{other:?}"),
        }
    }
}

fn typical() -> Writer {
    Writer::new(3, 2, 3)
        .key("general.architecture", STRING)
        .put("length of a string", &5_u64.to_le_bytes())
        .put("string", b"llama")
        .alignment(32)
        .key("tokens", ARRAY)
        .put("kind of a list", &STRING.to_le_bytes())
        .put("length of a list", &2_u64.to_le_bytes())
        .put("length of a string", &3_u64.to_le_bytes())
        .put("string", b"abc")
        .put("length of a string", &1_u64.to_le_bytes())
        .put("string", b"x")
        .tensor("a", &[32, 3], 8, 0)
        .tensor("b", &[5, 2], 0, 128)
        .data(32, 128 + 40)
}

#[test]
fn what_gguf_writes_is_sound() {
    for name in ["little-endian.gguf", "big-endian.gguf"] {
        assert_eq!(judge(&sample(name), check), Sound, "{name}");
    }
    assert_eq!(typical().judge(), Sound);
    assert_eq!(Writer::new(2, 0, 0).judge(), Sound, "a vocabulary alone has no tensors");
    assert_eq!(Writer::new(3, 1, 0).tensor("a", &[], 0, 0).data(32, 4).judge(), Sound);
    assert_eq!(Writer::new(3, 1, 0).tensor("a", &[0, 7], 0, 0).data(32, 0).judge(), Sound);
}

#[test]
fn says_what_is_wrong() {
    assert_eq!(
        typical().data(1, 0).why_broken_without(41),
        "the tensors take 168 bytes, and the file ends 41 bytes too early: the save was cut off"
    );
    let one = |kind, dimensions: &[u64], offset| {
        Writer::new(3, 1, 0).tensor("w", dimensions, kind, offset).data(32, 64)
    };
    assert_eq!(
        one(8, &[33], 0).why_broken(),
        "tensor w has rows of 33, but Q8_0 is stored in blocks of 32: the header is damaged"
    );
    assert_eq!(
        one(0, &[1 << 40, 1 << 40], 0).why_broken(),
        "tensor w has a shape with more elements than any file can hold: the header is damaged"
    );
    assert_eq!(
        one(0, &[16], 32).why_broken(),
        "tensor w begins at byte 32 of the data instead of 0, which follows the previous one aligned to 32: the \
         header is damaged"
    );
    assert_eq!(one(99, &[16], 0).why_unknown(), "tensor w is of kind 99, which gguf 0.19.0 does not know");
    assert_eq!(
        one(0, &[4], 0).why_unknown(),
        "the file continues for 32 bytes after the last tensor, which readers accept"
    );
    assert_eq!(
        Writer::new(3, u64::MAX, 0).data(1, 100).why_broken(),
        "the number of tensors is 18446744073709551615, more than the 108 bytes that follow can hold: the header is \
         damaged, or the file was cut off"
    );
    assert_eq!(
        Writer::new(3, 0, 2).alignment(32).alignment(32).why_broken(),
        "the header has key general.alignment twice"
    );
    assert_eq!(
        Writer::new(3, 0, 1).alignment(33).why_broken(),
        "general.alignment is 33, which is not a power of two: the header is damaged"
    );
    assert_eq!(
        Writer::new(3, 0, 1).key("general.alignment", 10).data(1, 8).why_broken(),
        "general.alignment is not a 32-bit number: the header is damaged"
    );
    assert_eq!(
        Writer::new(3, 0, 1).key("k", 13).data(1, 8).why_broken(),
        "key k has a value of the unknown kind 13: the header is damaged"
    );
    assert_eq!(
        Writer::new(3, 0, 1).key("k", 7).data(1, 1).why_broken(),
        "key k is 7, neither true nor false"
    );
    assert_eq!(
        Writer::new(3, 2, 0).tensor("w", &[8], 0, 0).tensor("w", &[8], 0, 32).data(32, 64).why_broken(),
        "the header names tensor w twice"
    );
    assert_eq!(Writer::new(1, 0, 0).why_unknown(), "the GGUF version is 1; only 2 and 3 are known");
    assert_eq!(
        Writer::new(0, 0, 0).why_broken(),
        "the GGUF version is 0, which does not exist: the file was reserved and never written"
    );
    assert_eq!(
        judge(&[0; 64], check),
        Soundness::Broken {
            offset: Some(0),
            why: "the file does not begin with GGUF: it is another format, or its beginning is lost"
                .to_owned()
        }
    );
    let mut nested = Writer::new(3, 0, 1).key("k", ARRAY);
    for _ in 0..1000 {
        nested = nested.put("", &ARRAY.to_le_bytes()).put("", &1_u64.to_le_bytes());
    }
    assert_eq!(nested.data(1, 64).why_unknown(), "key k has lists that are nested too deep");
}

impl Writer {
    fn why_broken_without(mut self, cut_bytes: usize) -> String {
        self.bytes.truncate(self.bytes.len() - cut_bytes);
        self.why_broken()
    }
}

#[test]
fn every_cut_is_noticed() {
    let typical = typical();
    let boundaries: Vec<_> = typical.fields.iter().map(|(_, range)| range.end).collect();
    for cut in cuts(typical.bytes.len(), &boundaries) {
        assert_broken(&judge(&typical.bytes[..cut], check), &format!("cut to {cut}"));
    }
    // gguf-py pads after the last tensor, of 12 bytes here: the padding may be missing, but nothing before it.
    for (name, alignment) in [("little-endian.gguf", 64), ("big-endian.gguf", 32)] {
        let bytes = sample(name);
        let end = bytes.len() - alignment + 12;
        for cut in 0..end {
            assert_broken(&judge(&bytes[..cut], check), &format!("{name} cut to {cut}"));
        }
        assert_eq!(judge(&bytes[..end], check), Sound);
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_noticed_or_known_not_to_be() {
    let typical = typical();
    let list = unnoticed(&typical.bytes, &typical.fields, check);
    let expected = [
        // 3 to 2; the others are future versions.
        ("version", 1, 31),
        // One tensor less: its entry becomes data, of which there is more than enough then.
        ("number of tensors", 0, 1),
        // Text is free. A key that is no longer general.alignment leaves the default, which is the same here.
        ("key", 140, 0),
        ("string", 40, 0),
        ("key", 119, 0),
        ("key", 42, 0),
        ("string", 24, 0),
        ("string", 8, 0),
        ("tensor's name", 7, 0),
        // Q8_0 to Q8_1: the padding absorbs the difference. The others are future kinds.
        ("kind of a tensor", 1, 26),
        // The bytes that are then read as the kind are an unknown kind.
        ("length of a tensor's name", 0, 1),
        ("tensor's name", 7, 0),
        // The last tensor gets smaller, and the file continues after it.
        ("dimension", 0, 2),
        ("dimension", 0, 1),
        ("kind of a tensor", 0, 29),
    ];
    assert_eq!(list, expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        judge(&bytes, check);
        let mut with_magic = b"GGUF\x03\0\0\0".to_vec();
        with_magic.extend(bytes);
        judge(&with_magic, check);
    }

    #[test]
    fn mutated_files_do_no_harm(
        changes in prop::collection::vec((0_usize..736, any::<u8>()), 1..8),
        cut in 0_usize..=736,
    ) {
        let mut bytes = BIG_ENDIAN.with(Clone::clone);
        for (offset, byte) in changes {
            bytes[offset] = byte;
        }
        bytes.truncate(cut);
        judge(&bytes, check);
    }
}

thread_local! {
    static BIG_ENDIAN: Vec<u8> = sample("big-endian.gguf");
}
