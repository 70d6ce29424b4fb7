//! `.npy` files as `np.save` writes them, and damaged.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{self, Sound, Unknown};
use stepvault_formats::structure::npy::check;

use crate::support::{self, assert_broken, cuts, judge, sample, unnoticed};

/// Returns an array in version 1.0 with this description, and `data_bytes` of elements.
fn array(description: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(description.len()).unwrap().to_le_bytes());
    bytes.extend(description.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 7);
    bytes
}

fn floats(shape: &str, data_bytes: usize) -> Vec<u8> {
    let description = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    array(&description, data_bytes)
}

fn why_broken(bytes: &[u8]) -> String {
    support::why_broken(judge(bytes, check))
}

fn why_unknown(bytes: &[u8]) -> String {
    match judge(bytes, check) {
        Unknown { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_numpy_writes_is_sound() {
    for name in ["v1.npy", "v2.npy", "v3-structured.npy", "fortran.npy", "two-arrays.npy"] {
        assert_eq!(judge(&sample(name), check), Sound, "{name}");
    }
    assert_eq!(
        why_unknown(&sample("object.npy")),
        "the array holds Python objects, stored as a pickle, which is not checked"
    );
}

#[test]
fn says_what_is_wrong() {
    assert_eq!(judge(&floats("(2, 3)", 24), check), Sound);
    assert_eq!(judge(&floats("()", 4), check), Sound);
    assert_eq!(judge(&floats("(0, 3)", 0), check), Sound);
    assert_eq!(
        judge(&floats("(2, 3)", 23), check),
        Soundness::Broken {
            offset: Some(10 + 60 + 23),
            why: "the array takes 24 bytes, and the file ends 1 byte too early: the save was cut off"
                .to_owned()
        }
    );
    assert_eq!(
        why_broken(&floats("(2, 3)", 25)),
        "the file continues for 1 byte after the array: the header is damaged, or data was appended"
    );
    assert_eq!(
        why_broken(&floats("(4294967296, 4294967296)", 8)),
        "the header describes an array larger than any file"
    );
    assert_eq!(why_broken(&floats("[2, 3]", 24)), "the header has a shape that is not a tuple of numbers");
    assert_eq!(
        why_broken(&floats("(-1,)", 4)),
        "the header is damaged at byte 61: this value cannot describe an array"
    );
    assert_eq!(why_broken(&array("{'descr': '<f4', 'shape': (1,)}", 4)), "the header lacks fortran_order");
    assert_eq!(
        why_broken(&array("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4)),
        "fortran_order in the header is neither True nor False"
    );
    assert_eq!(
        why_broken(&array("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), 'x': 1}", 4)),
        "the header has keys other than descr, fortran_order and shape"
    );
    assert_eq!(why_broken(&array("(1, 2)", 4)), "the header is not a dictionary");
    assert_eq!(
        why_broken(&[0; 128]),
        "the file does not begin with the magic bytes of NumPy: it has another format, or its beginning is lost"
    );
    assert_eq!(
        why_broken(b""),
        "the file ends after 0 bytes, in the beginning of a header: the save was cut off"
    );
    assert_eq!(
        why_broken(&floats("(1,)", 4)[..30]),
        "the header takes 58 bytes, and the file ends after 30: the save was cut off"
    );
    assert_eq!(
        why_unknown(b"\x93NUMPY\x04\x00\0\0\0\0"),
        "the array is of format version [4, 0]; 1.0, 2.0 and 3.0 are known"
    );
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend(1_000_000_u32.to_le_bytes());
    long.resize(2_000_000, b' ');
    assert_eq!(why_unknown(&long), "the header is 1000000 bytes long, more than the limit of 262144");
    assert_eq!(
        why_unknown(&floats("(0,)", 0).repeat(10_001)),
        "the file holds more than 10000 arrays, the limit"
    );
}

#[test]
fn every_cut_is_noticed() {
    for name in ["v1.npy", "v2.npy", "v3-structured.npy", "fortran.npy"] {
        let bytes = sample(name);
        let every: Vec<_> = (0..bytes.len()).collect();
        for cut in cuts(bytes.len(), &every) {
            assert_broken(&judge(&bytes[..cut], check), &format!("{name} cut to {cut}"));
        }
        assert_broken(&judge(&vec![0; bytes.len()], check), name);
    }
    // The first of two arrays is a valid file by itself.
    let bytes = sample("two-arrays.npy");
    for cut in 0..bytes.len() {
        let said = judge(&bytes[..cut], check);
        assert_eq!(said == Sound, cut == 136, "cut to {cut}: {said:?}");
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_noticed_or_known_not_to_be() {
    let bytes = floats("(2, 3)", 24);
    let at = |text: &str| {
        let start = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        start..start + text.len()
    };
    let fields = [
        ("magic", 0..6),
        ("version", 6..8),
        ("length", 8..10),
        ("{", at("{")),
        ("descr", at("'descr'")),
        ("dtype", at("'<f4'")),
        ("fortran_order", at("'fortran_order'")),
        ("False", at("False")),
        ("shape", at("'shape'")),
        ("(2, 3)", at("(2, 3)")),
        ("}", at("}")),
    ];
    let expected = [
        // Future versions. In 3.0 the length is longer, and includes what follows it.
        ("version", 0, 15),
        // `>f4`, `=f4` and `|f4`: other orders of the same bytes.
        ("dtype", 3, 0),
    ];
    assert_eq!(unnoticed(&bytes, &fields, check), expected);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        judge(&bytes, check);
    }

    #[test]
    fn arbitrary_descriptions_do_no_harm(
        text in r#"[{}()\[\]'",:<|a-z0-9 \\]{0,200}"#,
        dtype in r"[<>|=a-zA-Z0-9()\[\]', ]{0,20}",
        data_bytes in 0_usize..100,
    ) {
        judge(&array(&text, data_bytes), check);
        let description = format!("{{'descr': {dtype}, 'fortran_order': False, 'shape': ({data_bytes},)}}");
        judge(&array(&description, data_bytes), check);
    }

    #[test]
    fn mutated_files_do_no_harm(
        changes in prop::collection::vec((0_usize..448, any::<u8>()), 1..8),
        cut in 0_usize..=448,
    ) {
        let mut bytes = STRUCTURED.with(Clone::clone);
        for (offset, byte) in changes {
            bytes[offset] = byte;
        }
        bytes.truncate(cut);
        judge(&bytes, check);
    }
}

thread_local! {
    static STRUCTURED: Vec<u8> = sample("v3-structured.npy");
}
