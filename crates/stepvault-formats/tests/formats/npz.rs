//! `.npz` files as `np.savez` writes them, and damaged.

use proptest::prelude::*;
use stepvault_formats::soundness::Soundness::{Sound, Unknown};
use stepvault_formats::structure::npz::check;

use crate::support::{self, assert_broken, cuts, flipped, judge, sample, unnoticed};

/// The starts of the three members of `stored.npz`, and of its directory and its end record.
const MEMBERS: [usize; 3] = [0, 311, 505];
const DIRECTORY: usize = 702;
const END_RECORD: usize = 866;

fn why_broken(bytes: &[u8]) -> String {
    support::why_broken(judge(bytes, check))
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut replaced = bytes.to_vec();
    let mut start = 0;
    while let Some(at) = replaced[start..].windows(from.len()).position(|window| window == from) {
        replaced.splice(start + at..start + at + from.len(), to.iter().copied());
        start += at + to.len();
    }
    replaced
}

#[test]
fn what_numpy_writes_is_sound() {
    for name in ["stored.npz", "deflated.npz"] {
        assert_eq!(judge(&sample(name), check), Sound, "{name}");
    }
    // `np.savez` without arrays.
    let empty = [b"PK\x05\x06".as_slice(), &[0; 18]].concat();
    assert_eq!(judge(&empty, check), Sound);
    assert_eq!(&sample("stored.npz")[DIRECTORY..DIRECTORY + 4], b"PK\x01\x02");
    assert_eq!(&sample("stored.npz")[END_RECORD..END_RECORD + 4], b"PK\x05\x06");
}

#[test]
fn says_what_is_wrong() {
    let bytes = sample("stored.npz");
    assert_eq!(
        why_broken(&bytes[..800]),
        "the archive has no end record in its last bytes: the save was cut off"
    );
    assert_eq!(
        why_broken(&[bytes.as_slice(), b"more"].concat()),
        "4 unexpected bytes follow the end of the archive"
    );
    assert_eq!(
        why_broken(&replaced(&bytes, b"\x93NUMPY", b"\x93LUMPY")),
        "member w.npy: the file does not begin with the magic bytes of NumPy: it has another format, or its \
         beginning is lost"
    );
    let renamed = flipped(&bytes, 30, 1);
    assert_eq!(why_broken(&renamed), "the header of w.npy is damaged: it differs from the archive's list");
    let mut fewer = bytes.clone();
    for count in [8, 10] {
        fewer[END_RECORD + count] = 2;
    }
    assert_eq!(why_broken(&fewer), "the archive's list holds 3 records, but its end record states 2");
    let not_array = replaced(&bytes, b"step.npy", b"step.txt");
    assert_eq!(
        judge(&not_array, check),
        Unknown { why: "member step.txt is not an array and is not checked".to_owned() }
    );
}

#[test]
fn every_cut_is_noticed() {
    for name in ["stored.npz", "deflated.npz"] {
        let bytes = sample(name);
        let every: Vec<_> = (0..bytes.len()).collect();
        for cut in cuts(bytes.len(), &every) {
            assert_broken(&judge(&bytes[..cut], check), &format!("{name} cut to {cut}"));
        }
        assert_broken(&judge(&vec![0; bytes.len()], check), name);
    }
}

#[test]
fn every_flipped_bit_of_the_headers_is_noticed_or_known_not_to_be() {
    let bytes = sample("stored.npz");
    let local = [
        ("signature", 0..4),
        ("version needed", 4..6),
        ("flags", 6..8),
        ("method", 8..10),
        ("time", 10..14),
        ("crc", 14..18),
        ("sizes", 18..26),
        ("length of the name", 26..28),
        ("length of the extra field", 28..30),
        ("name", 30..35),
        ("extra field", 35..55),
    ]
    .map(|(field, range)| (field, MEMBERS[0] + range.start..MEMBERS[0] + range.end));
    // Fields that no reader uses.
    let free = [("version needed", 16, 0), ("time", 32, 0)];
    assert_eq!(unnoticed(&bytes, &local, check), free);
    let directory = [
        ("signature", 0..4),
        ("versions", 4..8),
        ("flags", 8..10),
        ("method", 10..12),
        ("time", 12..16),
        ("crc", 16..20),
        ("sizes", 20..28),
        ("length of the name", 28..30),
        ("length of the extra field", 30..32),
        ("length of the comment", 32..34),
        ("disk", 34..36),
        ("attributes", 36..42),
        ("place", 42..46),
        ("name", 46..51),
    ]
    .map(|(field, range)| (field, DIRECTORY + range.start..DIRECTORY + range.end));
    let free = [("versions", 32, 0), ("time", 32, 0), ("disk", 16, 0), ("attributes", 48, 0)];
    assert_eq!(unnoticed(&bytes, &directory, check), free);
    let end = [
        ("signature", 0..4),
        ("disks", 4..8),
        ("members on this disk", 8..10),
        ("members", 10..12),
        ("size of the directory", 12..16),
        ("place of the directory", 16..20),
        ("length of the comment", 20..22),
    ]
    .map(|(field, range)| (field, END_RECORD + range.start..END_RECORD + range.end));
    assert_eq!(unnoticed(&bytes, &end, check), []);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        judge(&bytes, check);
        let mut with_end = bytes.clone();
        with_end.extend(b"PK\x05\x06\0\0\0\0");
        with_end.extend(bytes.iter().take(14));
        judge(&with_end, check);
    }

    #[test]
    fn mutated_files_do_no_harm(
        changes in prop::collection::vec((0_usize..888, any::<u8>()), 1..8),
        cut in 850_usize..=888,
    ) {
        let mut bytes = STORED.with(Clone::clone);
        for (offset, byte) in changes {
            bytes[offset] = byte;
        }
        bytes.truncate(cut);
        judge(&bytes, check);
    }
}

thread_local! {
    static STORED: Vec<u8> = sample("stored.npz");
}
