//! The zip archives of `torch.save`, cut off, damaged and rewritten.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use stepvault_formats::soundness::{Soundness, judged};
use stepvault_formats::structure::torch_zip::check;
use stepvault_formats::tree::ReadAt;

use super::archive::{Builder, Layout, number, pickle_of_storage, small_archive};
use super::support::{Counting, Fixture, cuts, verdict, why_broken};

const WHOLE: [&str; 4] = ["zip_crc.pt", "zip_nocrc.pt", "no_tensor.pt", "odd.pt"];

/// Fields of headers in which a flipped bit is not detected: torch does not read them either, and other tools write
/// other values into them. The padding before the data is never checked.
const UNSEEN: [&str; 12] = [
    "header: date",
    "header: extra",
    "header: needed",
    "header: time",
    "listed: date",
    "listed: disk",
    "listed: external attributes",
    "listed: internal attributes",
    "listed: made by",
    "listed: needed",
    "listed: time",
    "long end: made by",
];
/// One more such field, of the end record.
const UNSEEN_LAST: &str = "long end: needed";

#[test]
fn cut_off_anywhere_it_is_broken() {
    let fixture = Fixture::unpack("torch-formats");
    for name in WHOLE {
        let bytes = fixture.read(name);
        assert_eq!(verdict(check, &bytes), Soundness::Sound);
        let layout = Layout::of(&bytes);
        let cuts = cuts(bytes.len(), &layout.boundaries);
        assert!(cuts.len() > 200);
        for length in cuts {
            let why = why_broken(check, &bytes[..length]);
            let begun = length >= 4;
            assert_eq!(
                why,
                if begun {
                    "the archive has no end record in its last bytes: the save was cut off"
                } else {
                    "the file does not begin with a record of a ZIP archive"
                },
                "{name} cut to {length}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_in_a_header_is_seen_unless_nobody_reads_it() {
    let fixture = Fixture::unpack("torch-formats");
    for name in WHOLE {
        let mut bytes = fixture.read(name);
        let layout = Layout::of(&bytes);
        let mut unseen = BTreeSet::new();
        // Of the fields that each record has, test those of a few records.
        let names: BTreeSet<_> = layout.fields.iter().map(|(field, _, _)| *field).collect();
        let some_of = |name| {
            let places: Vec<_> = layout.fields.iter().filter(|(field, _, _)| *field == name).collect();
            let last = places.len() - 1;
            BTreeSet::from([0, last.min(5), last]).into_iter().map(move |index| *places[index])
        };
        for (field, start, length) in names.into_iter().flat_map(some_of) {
            // Every bit of a number, and two of each byte of a name or a padding.
            for at in start..start + length {
                let bits = if length > 8 { vec![at % 8, (at + 3) % 8] } else { (0..8).collect() };
                for bit in bits {
                    bytes[at] ^= 1 << bit;
                    match verdict(check, &bytes) {
                        Soundness::Broken { .. } => {}
                        Soundness::Sound => {
                            unseen.insert(field);
                        }
                        Soundness::Unknown { why } => panic!("{name}: {field}: {why}"),
                    }
                    bytes[at] ^= 1 << bit;
                }
            }
        }
        let expected: BTreeSet<_> = UNSEEN.into_iter().chain([UNSEEN_LAST]).collect();
        assert_eq!(unseen, expected, "{name}");
    }
}

#[test]
fn a_flipped_bit_in_a_record_that_describes_the_others_is_seen_by_its_checksum() {
    let fixture = Fixture::unpack("torch-formats");
    let mut bytes = fixture.read("odd.pt");
    let layout = Layout::of(&bytes);
    for record in &layout.records {
        let is_tensor = record.name.starts_with("odd/data/");
        for at in record.data_start..record.data_start + record.data_length {
            let bit = 1 << (at % 8);
            bytes[at] ^= bit;
            if is_tensor {
                // Tensors are not read: only a digest detects the change.
                assert_eq!(verdict(check, &bytes), Soundness::Sound, "{}", record.name);
                bytes[at] ^= bit;
                break;
            }
            let name = record.name.strip_prefix("odd/").unwrap();
            assert_eq!(why_broken(check, &bytes), format!("{name} does not match its checksum"));
            bytes[at] ^= bit;
        }
    }
}

#[test]
fn without_checksums_the_pickle_must_still_make_sense() {
    let fixture = Fixture::unpack("torch-formats");
    let mut bytes = fixture.read("zip_nocrc.pt");
    let pickle = Layout::of(&bytes);
    let pickle = pickle.record("data.pkl");
    let mut said: BTreeMap<&str, u32> = BTreeMap::new();
    for at in pickle.data_start..pickle.data_start + pickle.data_length {
        bytes[at] ^= 0x10;
        *said
            .entry(match verdict(check, &bytes) {
                Soundness::Sound => "sound",
                Soundness::Broken { .. } => "broken",
                Soundness::Unknown { .. } => "unknown",
            })
            .or_default() += 1;
        bytes[at] ^= 0x10;
    }
    // In those that pass, only names, shapes and values can be wrong.
    assert!(said["broken"] > said["sound"] / 2, "{said:?}");
    assert!(!said.contains_key("unknown"), "{said:?}");
    let version = Layout::of(&bytes).record("version").data_start;
    bytes[version] = b'x';
    assert_eq!(why_broken(check, &bytes), "the archive's version record is not a number");
}

#[test]
fn tensors_are_not_read() {
    let fixture = Fixture::unpack("torch-formats");
    let bytes = fixture.read("large.pt");
    let counted = Counting::new(bytes.clone());
    check(&counted).unwrap();
    let read_bytes = counted.read_bytes();
    assert!(read_bytes < 16 * 1024, "{read_bytes} of {} bytes read", bytes.len());
}

#[test]
fn what_other_tools_write_is_sound() {
    let float = pickle_of_storage("FloatStorage", "0", 3);
    for archive in [
        small_archive(&float).add("model/data/0", &[1; 12]).finish(b""),
        small_archive(&float).add("model/data/0", &[1; 12]).finish(b"packed again"),
        // Compressed, but not the pickle: only the decompressed length counts.
        small_archive(&float)
            .add("model/byteorder", b"little")
            .add("other/readme", b"")
            .add("model/data/0", &[1; 12])
            .add("model/data/unnamed", b"x")
            .finish(b""),
        // TorchScript's mobile archives and those of torch.package keep the version elsewhere.
        Builder::default().add("model/data.pkl", b"N.").add("model/.data/version", b"6").finish(b""),
        // An unknown class: the storage exists, but its required length is unknown.
        small_archive(&pickle_of_storage("QUInt4x2Storage", "0", 3)).add("model/data/0", &[1; 2]).finish(b""),
    ] {
        assert_eq!(verdict(check, &archive), Soundness::Sound);
    }
}

#[test]
fn what_is_missing_or_does_not_fit_is_said() {
    let float = pickle_of_storage("FloatStorage", "0", 3);
    let twice = small_archive(&float);
    let twice_from = twice.list_length();
    for (archive, why) in [
        (
            small_archive(&float).finish(b""),
            "data.pkl names storage 0 of 12 bytes, and the archive has no data/0: the save was cut off",
        ),
        (
            small_archive(&float).add("model/data/0", &[1; 11]).finish(b""),
            "data.pkl names storage 0 of 12 bytes, but data/0 holds 11",
        ),
        (
            small_archive(&pickle_of_storage("SomeStorage", "7", 3)).finish(b""),
            "data.pkl names storage 7, and the archive has no data/7: the save was cut off",
        ),
        (
            small_archive(b"N.").add("model/constants.pkl", &float).finish(b""),
            "constants.pkl names storage 0 of 12 bytes, and the archive has no constants/0: the save was cut off",
        ),
        (small_archive(b"N.x").finish(b""), "data.pkl: 1 unexpected bytes follow the end of the pickle"),
        (small_archive(b"}").finish(b""), "data.pkl: the pickle is cut off: it ends before its STOP"),
        (
            Builder::default().add("model/data.pkl", b"N.").finish(b""),
            "the archive has no version record, which torch requires: the save was cut off",
        ),
        (
            small_archive(b"N.").add("model/byteorder", b"middle").finish(b""),
            "the archive's byteorder record is neither little nor big",
        ),
        (
            Builder::default().add("data.pkl", b"N.").add("version", b"3").finish(b""),
            "the archive has no data.pkl, which torch.save writes first, in the folder of its first record",
        ),
        (
            Builder::default().add("model/version", b"3").finish(b""),
            "the archive has no data.pkl, which torch.save writes first, in the folder of its first record",
        ),
        (
            twice.add("model/data/0", &[1; 12]).list_again(twice_from).finish(b""),
            "model/data/0 overlaps what follows it in the archive",
        ),
        (
            small_archive(&float).add("model/data/0", &[1; 12]).add("model/data/0", &[1; 12]).finish(b""),
            "the archive holds model/data/0 twice",
        ),
        (
            small_archive(b"N.").add_as("model/data/0", b"secret", 0, 1).finish(b""),
            "model/data/0 is encrypted",
        ),
        (
            Builder::default().finish(b""),
            "the archive has no data.pkl, which torch.save writes first, in the folder of its first record",
        ),
    ] {
        assert_eq!(why_broken(check, &archive), why);
    }
}

#[test]
fn what_cannot_be_told_is_said() {
    for (archive, why) in [
        (
            Builder::default()
                .add_as("model/data.pkl", b"\x03\x00", 8, 0)
                .add("model/version", b"3")
                .finish(b""),
            "data.pkl is compressed, which torch.save never does",
        ),
        (
            Builder::default()
                .add("model/.data/extern_modules", b"")
                .add("model/.data/version", b"6")
                .finish(b""),
            "the archive was written by torch.package, whose pickles are not checked",
        ),
    ] {
        assert_eq!(verdict(check, &archive), Soundness::Unknown { why: why.to_owned() });
    }
}

#[test]
fn what_follows_the_archive_is_said() {
    let fixture = Fixture::unpack("torch-formats");
    let mut bytes = fixture.read("no_tensor.pt");
    bytes.extend([0; 9]);
    assert_eq!(why_broken(check, &bytes), "9 unexpected bytes follow the end of the archive");
}

/// A file that is zero except for a few pieces.
struct Sparse {
    size_bytes: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl ReadAt for Sparse {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(buffer.len() < 1 << 20, "a tensor is read");
        for (at, byte) in (offset..).zip(buffer) {
            let piece =
                self.pieces.iter().find(|(start, piece)| (*start..start + piece.len() as u64).contains(&at));
            *byte = piece.map_or(0, |(start, piece)| piece[usize::try_from(at - start).unwrap()]);
        }
        Ok(())
    }
}

/// Beyond 4 GiB, lengths and offsets move to extra fields, and the descriptor after the data gets wider, depending on
/// where the record begins, not on its length. The layout is that of torch's own writer.
#[test]
fn an_archive_beyond_4_gib() {
    const TENSOR_BYTES: u64 = 5 << 30;
    let mut pieces = Vec::new();
    let mut list = Vec::new();
    let mut at = 0_u64;
    let elements = TENSOR_BYTES / 4;
    let pickle = format!("(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI{elements}\ntQ.").into_bytes();
    for (name, data, length) in [
        ("m/data.pkl", pickle.as_slice(), pickle.len() as u64),
        ("m/data/0", b"", TENSOR_BYTES),
        ("m/version", b"3\n", 2),
    ] {
        let crc = if data.is_empty() { 7 } else { rawzip::crc32(data) };
        let wide = length > 0xffff_ffff || at > 0xffff_ffff;
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let name_length = u16::try_from(name.len()).unwrap();
        let mut header = b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00".to_vec();
        header.extend([0; 12]);
        header.extend(name_length.to_le_bytes());
        header.extend([0; 2]);
        header.extend(name.as_bytes());
        header.extend(data);
        let mut descriptor = b"PK\x07\x08".to_vec();
        descriptor.extend(crc.to_le_bytes());
        for _ in 0..2 {
            if wide {
                descriptor.extend(length.to_le_bytes());
            } else {
                descriptor.extend(narrow(length).to_le_bytes());
            }
        }
        let mut extra = Vec::new();
        if length > 0xffff_ffff {
            extra.extend([length.to_le_bytes(), length.to_le_bytes()].concat());
        }
        if at > 0xffff_ffff {
            extra.extend(at.to_le_bytes());
        }
        if !extra.is_empty() {
            let extra_length = u16::try_from(extra.len()).unwrap();
            extra.splice(0..0, [1, 0].into_iter().chain(extra_length.to_le_bytes()));
        }
        list.extend(b"PK\x01\x02\x00\x00\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00");
        list.extend(crc.to_le_bytes());
        list.extend(narrow(length).to_le_bytes());
        list.extend(narrow(length).to_le_bytes());
        list.extend(name_length.to_le_bytes());
        list.extend(u16::try_from(extra.len()).unwrap().to_le_bytes());
        list.extend([0; 10]);
        list.extend(narrow(at).to_le_bytes());
        list.extend(name.as_bytes());
        list.extend(extra);
        let data_end = at + header.len() as u64 - data.len() as u64 + length;
        let next = data_end + descriptor.len() as u64;
        pieces.push((at, header));
        pieces.push((data_end, descriptor));
        at = next;
    }
    let mut tail = list.clone();
    let long_end = at + list.len() as u64;
    tail.extend(b"PK\x06\x06");
    tail.extend(44_u64.to_le_bytes());
    tail.extend([0; 12]);
    tail.extend(3_u64.to_le_bytes());
    tail.extend(3_u64.to_le_bytes());
    tail.extend((list.len() as u64).to_le_bytes());
    tail.extend(at.to_le_bytes());
    tail.extend(b"PK\x06\x07\x00\x00\x00\x00");
    tail.extend(long_end.to_le_bytes());
    tail.extend(1_u32.to_le_bytes());
    tail.extend(b"PK\x05\x06\x00\x00\x00\x00\x03\x00\x03\x00");
    tail.extend(u32::try_from(list.len()).unwrap().to_le_bytes());
    tail.extend([0xff; 4]);
    tail.extend([0; 2]);
    let mut file = Sparse { size_bytes: at + tail.len() as u64, pieces };
    file.pieces.push((at, tail));
    assert_eq!(judged(check(&file)).unwrap(), Soundness::Sound);
    // One element less in the pickle, so the record is too long for it.
    let (_, header) = &mut file.pieces[0];
    let digits = elements.to_string();
    let place = header.windows(digits.len()).position(|part| part == digits.as_bytes()).unwrap();
    assert_eq!(number(header, place, 1), usize::from(b'1'));
    header[place + digits.len() - 1] ^= 1;
    assert_eq!(
        judged(check(&file)).unwrap(),
        Soundness::Broken { offset: Some(40), why: "data.pkl does not match its checksum".to_owned() }
    );
}
