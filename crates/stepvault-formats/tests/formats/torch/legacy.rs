//! The legacy format, cut off and damaged.

use std::collections::BTreeSet;

use stepvault_formats::pickle::{Keep, Object, read};
use stepvault_formats::soundness::Soundness;
use stepvault_formats::structure::{torch, torch_legacy};

use super::support::{Fixture, cuts, verdict, why_broken};

fn file() -> Vec<u8> {
    Fixture::unpack("torch-formats").read("legacy.pt")
}

/// Returns the ends of its five pickles.
fn pickle_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![0];
    for _ in 0..5 {
        let start = *ends.last().unwrap() as u64;
        let pickle = read(&bytes.to_vec(), start..bytes.len() as u64, Keep::Shape).unwrap();
        ends.push(usize::try_from(pickle.end).unwrap());
    }
    ends
}

/// Returns the starts of its storages, and the end of the file.
fn storage_starts(bytes: &[u8]) -> Vec<usize> {
    let ends = pickle_ends(bytes);
    let pickle_at = |index: usize| {
        let range = ends[index] as u64..ends[index + 1] as u64;
        read(&bytes.to_vec(), range, Keep::Values).unwrap()
    };
    let (object, keys) = (pickle_at(3), pickle_at(4));
    let mut starts = vec![ends[5]];
    for key in keys.elements(keys.root).unwrap() {
        let key = keys.text(*key).unwrap();
        let class = object.objects().find_map(|found| {
            let Object::Persistent(id) = found else {
                return None;
            };
            let parts = object.elements(*id)?;
            (object.text(parts[2])? == key).then(|| object.global(parts[1]).unwrap().1)
        });
        let element_bytes = match class.unwrap() {
            "FloatStorage" => 4,
            "ByteStorage" => 1,
            other => panic!("{other}"),
        };
        let at = *starts.last().unwrap();
        let count = usize::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        starts.push(at + 8 + element_bytes * count);
    }
    assert_eq!(*starts.last().unwrap(), bytes.len());
    starts
}

#[test]
fn cut_off_anywhere_it_is_broken() {
    let bytes = file();
    let starts = storage_starts(&bytes);
    let mut boundaries = pickle_ends(&bytes);
    boundaries.extend(starts.iter().flat_map(|start| [*start, start + 8]));
    for length in cuts(bytes.len(), &boundaries) {
        let why = why_broken(torch::check, &bytes[..length]);
        assert!(why.contains("cut off") || why.contains("empty"), "cut to {length}: {why}");
    }
}

#[test]
fn what_is_counted_twice_must_agree() {
    let mut bytes = file();
    let ends = pickle_ends(&bytes);
    let starts = storage_starts(&bytes);
    let mut seen: Vec<(String, usize, usize)> = vec![
        // The length and the ten bytes of the number, after their instruction.
        ("magic number".to_owned(), 2, 12),
        ("protocol version".to_owned(), ends[1] + 3, 2),
    ];
    for start in &starts[..starts.len() - 1] {
        seen.push(("count of elements".to_owned(), *start, 8));
    }
    // Keys of storages, in the list of them and in the object.
    let keys = &bytes[ends[4]..ends[5]];
    let key_start = keys.windows(1).position(|byte| byte == b"X").unwrap();
    let key_length = usize::from(keys[key_start + 1]);
    let key_start = ends[4] + key_start + 5;
    seen.push(("key in the list".to_owned(), key_start, key_length));
    let key = bytes[key_start..key_start + key_length].to_vec();
    let in_object = bytes[ends[3]..ends[4]].windows(key_length).position(|part| part == key).unwrap();
    seen.push(("key in the object".to_owned(), ends[3] + in_object, key_length));
    for (name, start, length) in seen {
        for at in start..start + length {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let said = verdict(torch::check, &bytes);
                assert!(matches!(said, Soundness::Broken { .. }), "{name} at {at}, bit {bit}: {said:?}");
                bytes[at] ^= 1 << bit;
            }
        }
    }
}

/// The format has no checksum: these are the only parts of the file in which a flipped bit can go undetected.
#[test]
fn what_is_written_once_goes_unseen() {
    let mut bytes = file();
    let ends = pickle_ends(&bytes);
    let starts = storage_starts(&bytes);
    let part = |at: usize| {
        let pickle = ends.iter().rposition(|end| *end <= at).unwrap();
        match pickle {
            0 if at < 2 => "pickle protocol of the magic number",
            0 => "magic number",
            1 if at < ends[1] + 2 => "pickle protocol of the protocol version",
            1 => "protocol version",
            2 => "facts about the system",
            3 => "the object",
            4 => "list of storages",
            _ if starts.iter().any(|start| (*start..start + 8).contains(&at)) => "count of elements",
            _ => "elements",
        }
    };
    let mut unseen = BTreeSet::new();
    let mut told = BTreeSet::new();
    let data_start = *ends.last().unwrap();
    for at in (0..data_start).chain(starts[..starts.len() - 1].iter().flat_map(|start| *start..start + 9)) {
        // One bit of each byte: together with the test above, every kind of position is covered.
        let flip = 1 << (at % 8);
        bytes[at] ^= flip;
        let places = match verdict(torch::check, &bytes) {
            Soundness::Broken { .. } => &mut told,
            // A storage class with another name is unknown.
            Soundness::Sound | Soundness::Unknown { .. } => &mut unseen,
        };
        places.insert(part(at));
        bytes[at] ^= flip;
    }
    assert_eq!(
        unseen,
        BTreeSet::from([
            "pickle protocol of the magic number",
            "pickle protocol of the protocol version",
            "facts about the system",
            "the object",
            "list of storages",
            "elements",
        ])
    );
    assert!(
        told.contains("facts about the system")
            && told.contains("the object")
            && told.contains("list of storages")
    );
}

/// Returns a legacy file of an object without tensors, in text pickles.
fn without_tensors(object: &str, keys: &str) -> Vec<u8> {
    format!("L119547037146038801333356L\n.I1001\n.(d.{object}{keys}").into_bytes()
}

#[test]
fn any_pickle_protocol_will_do() {
    assert_eq!(verdict(torch::check, &without_tensors("N.", "(l.")), Soundness::Sound);
    let framed =
        b"\x80\x04\x95\x0d\x00\x00\x00\x00\x00\x00\x00\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\
                   \x80\x04\x95\x04\x00\x00\x00\x00\x00\x00\x00M\xe9\x03.\x80\x04}.\x80\x04N.\x80\x04].";
    assert_eq!(verdict(torch::check, framed), Soundness::Sound);
    assert!(torch_legacy::is_legacy(&framed.to_vec()).unwrap());
}

#[test]
fn refusals_say_what_is_wrong() {
    let storage = |class: &str, key: &str, count: u32| {
        format!("(Vstorage\nctorch\n{class}\nV{key}\nVcpu\nI{count}\ntQ")
    };
    let with_data = |mut bytes: Vec<u8>, data: &[u8]| {
        bytes.extend(data);
        bytes
    };
    let float = storage("FloatStorage", "9", 1);
    for (bytes, why) in [
        (
            without_tensors(&format!("{float}."), "(l."),
            "the object names storage 9, which is not in the list of storages",
        ),
        (without_tensors("N.", "(lV9\na."), "the list of storages has 9, which the object does not name"),
        (without_tensors("N.", "(lI9\na."), "the list of storages is not a list of names"),
        (without_tensors("N.", "N."), "the list of storages is not a list of names"),
        (with_data(without_tensors("N.", "(l."), b"abc"), "3 unexpected bytes follow the last storage"),
        (
            with_data(
                without_tensors(&format!("{float}."), "(lV9\naV9\na."),
                &[1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
            ),
            "the list of storages has 9 twice",
        ),
        (
            with_data(
                without_tensors(&format!("{float}."), "(lV9\na."),
                &[2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
            ),
            "storage 9 states 2 elements, but the object states 1",
        ),
        (
            with_data(without_tensors(&format!("{float}."), "(lV9\na."), &[1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]),
            "storage 9 takes 12 bytes, and 11 are left in the file: the save was cut off",
        ),
        (
            without_tensors(&format!("({float}{}t.", storage("FloatStorage", "9", 2)), "(lV9\na."),
            "the object names storage 9 with two different sizes",
        ),
        (
            b"L119547037146038801333356L\n.I1002\n.".to_vec(),
            "the protocol version is not 1001, the only one that exists",
        ),
        (
            b"L119547037146038801333356L\n.I1001\n.N.".to_vec(),
            "the facts about the system are not a dictionary",
        ),
        (
            b"L119547037146038801333356L\n.I1001\n.(d.(l".to_vec(),
            "the object: the pickle is cut off: it ends before its STOP",
        ),
    ] {
        assert_eq!(why_broken(torch::check, &bytes), why);
    }
    assert_eq!(
        why_broken(torch_legacy::check, b"I1\n."),
        "the file does not begin with torch's magic number"
    );
    let odd = without_tensors(&format!("{}.", storage("SomeStorage", "9", 1)), "(lV9\na.");
    assert_eq!(
        verdict(torch::check, &odd),
        Soundness::Unknown { why: "storage 9 is of a class whose element size is unknown".to_owned() }
    );
}
