//! safetensors files, intact and damaged.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound, Unknown};
use stepvault_formats::soundness::judged;
use stepvault_formats::structure::safetensors::{check, tensors};
use stepvault_formats::tree::ReadAt;

use crate::support::{Fixture, assert_broken, cuts, flipped, judge};

const FIXTURES: [&str; 8] = [
    "safetensors-llama",
    "hf-trainer-1rank",
    "hf-trainer-2rank",
    "hf-trainer-killed",
    "accelerate-1rank",
    "accelerate-2rank",
    "dcp-hf-storage",
    "prime-rl-weights-old",
];

fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 7);
    bytes
}

fn broken(bytes: &[u8]) -> (Option<u64>, String) {
    match judge(bytes, check) {
        Soundness::Broken { offset, why } => (offset, why),
        other => panic!("{other:?}"),
    }
}

fn why_broken(bytes: &[u8]) -> String {
    broken(bytes).1
}

fn header_end(bytes: &[u8]) -> usize {
    8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap()
}

#[test]
fn every_real_file_is_sound() {
    let mut seen = 0;
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        for path in fixture.files() {
            if path.ends_with(".safetensors") {
                assert_eq!(judge(&fixture.read(&path), check), Sound, "{name}/{path}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 35);
}

#[test]
fn names_tensors_with_their_elements() {
    let bytes = Fixture::unpack("safetensors-llama").read("plain.safetensors");
    let found: Vec<_> =
        tensors(&bytes).unwrap().into_iter().map(|tensor| (tensor.name, tensor.elements)).collect();
    let expected = [("a", 15), ("b", 7), ("bf", 4), ("empty", 0)];
    assert_eq!(found, expected.map(|(name, elements)| (name.to_owned(), elements)));
}

#[test]
fn every_dtype_has_its_size() {
    for (dtype, elements, size) in [
        ("BOOL", 3, 3),
        ("F4", 6, 3),
        ("F6_E2M3", 4, 3),
        ("F6_E3M2", 8, 6),
        ("U8", 3, 3),
        ("I8", 3, 3),
        ("F8_E5M2", 3, 3),
        ("F8_E4M3", 3, 3),
        ("F8_E8M0", 3, 3),
        ("F8_E4M3FNUZ", 3, 3),
        ("F8_E5M2FNUZ", 3, 3),
        ("I16", 3, 6),
        ("U16", 3, 6),
        ("F16", 3, 6),
        ("BF16", 3, 6),
        ("I32", 3, 12),
        ("U32", 3, 12),
        ("F32", 3, 12),
        ("C64", 3, 24),
        ("F64", 3, 24),
        ("I64", 3, 24),
        ("U64", 3, 24),
    ] {
        let header =
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{elements}],"data_offsets":[0,{size}]}}}}"#);
        assert_eq!(judge(&file(&header, size), check), Sound, "{dtype}");
        let larger = header.replace(&format!("[{elements}]"), &format!("[{}]", 2 * elements));
        assert_broken(&judge(&file(&larger, size), check), dtype);
    }
    let half = r#"{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    assert_eq!(
        why_broken(&file(half, 1)),
        "tensor w of dtype F4 ends in the middle of a byte: the header is damaged"
    );
}

#[test]
fn says_what_is_wrong() {
    let one = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert_eq!(judge(&file(one, 8), check), Sound);
    assert_eq!(judge(&file("{}", 0), check), Sound);
    assert_eq!(judge(&file("{}   \n ", 0), check), Sound);
    let end = one.len() as u64 + 8;
    assert_eq!(
        broken(&file(one, 5)),
        (
            Some(end + 5),
            "the tensors take 8 bytes, and the file ends 3 bytes too early: the save was cut off".to_owned()
        )
    );
    assert_eq!(
        broken(&file(one, 9)),
        (
            Some(end + 8),
            "the file continues for 1 byte after the last tensor: the header is damaged, or data was \
             appended"
                .to_owned()
        )
    );
    assert_eq!(
        broken(&file(one, 8)[..40]),
        (Some(0), "the header takes 54 bytes, and the file ends after 40: the save was cut off".to_owned())
    );
    assert_eq!(
        why_broken(b"1234567"),
        "a safetensors file begins with the length of its header, but this file has only 7 bytes"
    );
    assert_eq!(
        broken(&[0; 4096]),
        (Some(0), "the header has a length of 0 bytes: the file was reserved and never written".to_owned())
    );
    assert_eq!(
        why_broken(b"PK\x03\x04........"),
        "the header would be 3327647949844073296 bytes long, but safetensors reads at most 100000000: this is not a \
         safetensors file, or its first bytes are damaged"
    );
    let two = |first: &str, second: &str| {
        let tensor = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
        file(&format!(r#"{{"a":{},"b":{}}}"#, tensor(first), tensor(second)), 8)
    };
    assert_eq!(judge(&two("[4,8]", "[0,4]"), check), Sound);
    assert_eq!(
        why_broken(&two("[0,4]", "[5,8]")),
        "tensor b begins at byte 5 of the data, but the previous one ends at 4: the bytes between belong to no tensor"
    );
    assert_eq!(
        why_broken(&two("[0,4]", "[3,8]")),
        "tensor b begins at byte 3 of the data, but the previous one ends at 4: they overlap"
    );
    assert_eq!(
        why_broken(&two("[0,4]", "[4,3]")),
        "tensor b ends at byte 3 of the data, before it begins at 4: the header is damaged"
    );
    let twice = r#"{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    assert_eq!(why_broken(&file(twice, 0)), "the header names tensor w twice");
    assert_eq!(
        why_broken(&file(&one.replace("[2]", "[3]"), 8)),
        "tensor w needs 12 bytes for its shape and dtype F32, but has 8: the header is damaged"
    );
    let huge = one.replace("[2]", "[4294967296,4294967296]");
    assert_eq!(
        why_broken(&file(&huge, 8)),
        "tensor w has a shape with more elements than any file can hold: the header is damaged"
    );
    assert_eq!(
        broken(&file(&one.replace("[2]", "[-2]"), 8)),
        (Some(40), "the header is damaged at byte 40: invalid value: integer `-2`, expected u64".to_owned())
    );
    assert_eq!(
        judge(&file(&one.replace("F32", "F9_X"), 8), check),
        Unknown { why: "tensor w is of dtype F9_X, which safetensors 0.8 does not know".to_owned() }
    );
    let metadata = one.replace("{\"w\"", r#"{"__metadata__":{"format":"pt"},"w""#);
    assert_eq!(judge(&file(&metadata, 8), check), Sound);
    assert_broken(&judge(&file(&metadata.replace("\"pt\"", "1"), 8), check), "metadata is text");
}

#[test]
fn too_many_tensors_are_not_kept() {
    let mut header = "{".to_owned();
    for index in 0..=500_000 {
        let entry = format!(r#""{index}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},"#);
        header.push_str(&entry);
    }
    header.truncate(header.len() - 1);
    header.push('}');
    assert_eq!(
        judge(&file(&header, 0), check),
        Unknown {
            why: "the header names more than 500000 tensors or 33554432 bytes of names, the limits"
                .to_owned()
        }
    );
}

#[test]
fn every_cut_is_noticed() {
    let fixture = Fixture::unpack("safetensors-llama");
    for path in ["plain.safetensors", "with_metadata.safetensors", "step_10/model.safetensors"] {
        let bytes = fixture.read(path);
        let data_start = header_end(&bytes);
        // The end of each tensor is a boundary too, and every length of the small files is tried.
        let mut boundaries = vec![8, data_start];
        boundaries.extend((data_start..bytes.len()).step_by(64));
        if bytes.len() < 1000 {
            boundaries = (0..bytes.len()).collect();
        }
        for cut in cuts(bytes.len(), &boundaries) {
            assert_broken(&judge(&bytes[..cut], check), &format!("{path} cut to {cut}"));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_broken(&judge(&longer, check), "one byte more");
        let zeros = vec![0; bytes.len()];
        assert_broken(&judge(&zeros, check), "zeros");
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_noticed_or_known_not_to_be() {
    let bytes = Fixture::unpack("safetensors-llama").read("with_metadata.safetensors");
    let header = r#"{"__metadata__":{"step":"20","format":"pt"},"w":{"dtype":"F32","shape":[33],"data_offsets":[0,132]}}    "#;
    assert_eq!(&bytes[8..header_end(&bytes)], header.as_bytes());
    let at = |text: &str| 8 + header.find(text).unwrap();
    // Free text: the contents of the metadata, and the names of tensors.
    let mut free: Vec<usize> = ["step", "20", "format", "pt"]
        .iter()
        .flat_map(|text| at(&format!("\"{text}\"")) + 1..at(&format!("\"{text}\"")) + 1 + text.len())
        .collect();
    free.push(at("\"w\"") + 1);
    let dtype = at("F32")..at("F32") + 3;
    for offset in 0..header_end(&bytes) {
        for bit in 0..8 {
            let damaged = flipped(&bytes, offset, bit);
            let said = judge(&damaged, check);
            let what = format!("byte {offset} bit {bit}: {:?}", char::from(damaged[offset]));
            let byte = damaged[offset];
            let noticed = matches!(said, Soundness::Broken { .. });
            if free.contains(&offset) {
                // Only a byte that ends a string, or is not text, is detected.
                let shows = !(0x20..0x80).contains(&byte) || byte == b'"' || byte == b'\\';
                assert_eq!(noticed, shows, "{what}: {said:?}");
            } else if dtype.contains(&offset) && byte.is_ascii_graphic() && byte != b'"' && byte != b'\\' {
                // A dtype of no release up to 0.8 may belong to a later release.
                assert!(noticed || matches!(said, Unknown { .. }), "{what}: {said:?}");
            } else if byte == b'\t' || byte == b'\n' || byte == b'\r' {
                assert_eq!(bytes[offset], b' ', "{what}: {said:?}");
            } else {
                assert!(noticed, "{what}: {said:?}");
            }
        }
    }
}

#[test]
fn a_file_that_was_only_reserved_is_doubted() {
    struct OnDisk(std::fs::File);
    impl ReadAt for OnDisk {
        fn size_bytes(&self) -> u64 {
            self.0.metadata().unwrap().len()
        }

        fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            std::os::unix::fs::FileExt::read_exact_at(&self.0, buffer, offset)
        }

        fn allocated_bytes(&self) -> Option<u64> {
            Some(self.0.metadata().unwrap().blocks() * 512)
        }
    }
    // As safetensors 0.8.0-rc.0 left it when it was killed: full length, the header, some of the tensors.
    let header = r#"{"w":{"dtype":"U8","shape":[4000000],"data_offsets":[0,4000000]}}"#;
    let mut reserved = tempfile::tempfile().unwrap();
    reserved.set_len(8 + header.len() as u64 + 4_000_000).unwrap();
    reserved.write_all(&file(header, 1_000_000)).unwrap();
    let reserved = OnDisk(reserved);
    let said = judged(check(&reserved)).unwrap();
    assert!(
        matches!(&said, Unknown { why } if why.contains("reserved and not written to its end")),
        "{said:?}"
    );
    assert_eq!(tensors(&reserved).unwrap()[0].elements, 4_000_000);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        judge(&bytes, check);
    }

    #[test]
    fn arbitrary_headers_do_no_harm(header in r#"[{}\[\]",:0-9a-w_ \\]{0,300}"#, data_bytes in 0_usize..100) {
        judge(&file(&header, data_bytes), check);
    }

    #[test]
    fn mutated_files_do_no_harm(
        changes in prop::collection::vec((0_usize..372, any::<u8>()), 1..8),
        cut in 0_usize..=372,
    ) {
        let mut bytes = PLAIN.with(Clone::clone);
        for (offset, byte) in changes {
            bytes[offset] = byte;
        }
        bytes.truncate(cut);
        judge(&bytes, check);
    }
}

thread_local! {
    static PLAIN: Vec<u8> = Fixture::unpack("safetensors-llama").read("plain.safetensors");
}
