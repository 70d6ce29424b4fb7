//! Directories of DCP: cut off, mixed up, and with misleading paths.

use stepvault_formats::soundness::{Soundness, judged};
use stepvault_formats::structure::dcp::{StorageItem, check, check_part, read_metadata};

use super::support::{Fixture, InMemory, Numbers, cuts};

/// The beginning of a `.metadata` that describes no items, up to their locations.
const METADATA: &str =
    "ctorch.distributed.checkpoint.metadata\nMetadata\n)R(dVstate_dict_metadata\n(dsVstorage_data\n";

/// Returns a `.metadata` of items: file, offset, length and further attributes, as pickle instructions.
pub(super) fn metadata_of(items: &[(&str, u64, u64)], more: &str) -> Vec<u8> {
    let mut pickle = METADATA.to_owned() + "(d";
    for (index, (path, offset, length)) in items.iter().enumerate() {
        let item = format!(
            "I{index}\nctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)R(dVrelative_path\nV{path}\nsVoffset\n\
             I{offset}\nsVlength\nI{length}\ns{more}bs"
        );
        pickle.push_str(&item);
    }
    pickle += "sb.";
    pickle.into_bytes()
}

/// Returns the result for each file that is not sound.
fn problems(files: &InMemory) -> Vec<(String, Soundness)> {
    check(&files.tree(), "", files)
        .unwrap()
        .into_iter()
        .filter(|finding| finding.soundness != Soundness::Sound)
        .map(|finding| (finding.path, finding.soundness))
        .collect()
}

#[track_caller]
fn assert_broken(files: &InMemory, path: &str, why: &str) {
    let problems = problems(files);
    let [(said_path, Soundness::Broken { why: said, .. })] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    assert_eq!((said_path.as_str(), said.as_str()), (path, why));
}

fn step() -> InMemory {
    InMemory::of(&Fixture::unpack("dcp-2rank"), "step-100")
}

fn small_step() -> InMemory {
    InMemory::of(&Fixture::unpack("dcp-2rank-zero-byte-shard"), "step_1")
}

/// Returns a directory with one file that contains one torch archive twice.
fn two_items() -> (InMemory, usize) {
    let archive = small_step().0["__0_0.distcp"].0.clone();
    let length = archive.len();
    let mut files = InMemory::default();
    files.0.insert("__0_0.distcp".to_owned(), ([archive.clone(), archive].concat(), 1));
    (files, length)
}

fn with_items(files: &InMemory, items: &[(&str, u64, u64)], more: &str) -> InMemory {
    let mut files = files.clone();
    files.0.insert(".metadata".to_owned(), (metadata_of(items, more), 2));
    files
}

#[test]
fn the_table_of_a_real_step() {
    let items = read_metadata(&small_step().0[".metadata"].0).unwrap();
    assert_eq!(
        items,
        [StorageItem {
            relative_path: "__0_0.distcp".into(),
            offset_bytes: 0,
            length_bytes: 1641,
            transformed: false,
        }]
    );
    // The empty file of the rank that had nothing to save is not named, which is not a fault.
    let files = small_step();
    assert_eq!(files.0["__1_0.distcp"].0.len(), 0);
    assert_eq!(problems(&files), []);
}

#[test]
fn a_table_cut_off_anywhere_is_broken() {
    let mut files = small_step();
    let whole = files.0[".metadata"].0.clone();
    for length in 0..whole.len() {
        whole[..length].clone_into(files.bytes(".metadata"));
        let problems = problems(&files);
        let [(path, Soundness::Broken { why, .. })] = problems.as_slice() else {
            panic!("{length}: {problems:?}")
        };
        assert_eq!(path, ".metadata");
        assert!(why.contains("cut off") || why.contains("empty"), "{length}: {why}");
    }
}

#[test]
fn a_file_cut_off_anywhere_is_broken() {
    let mut files = step();
    let items = read_metadata(&files.0[".metadata"].0).unwrap();
    let whole = files.0["__1_0.distcp"].0.clone();
    let boundaries: Vec<_> = items
        .iter()
        .filter(|item| &*item.relative_path == "__1_0.distcp")
        .map(|item| usize::try_from(item.offset_bytes).unwrap())
        .collect();
    for length in cuts(whole.len(), &boundaries) {
        whole[..length].clone_into(files.bytes("__1_0.distcp"));
        let problems = problems(&files);
        let [(path, Soundness::Broken { why, .. })] = problems.as_slice() else {
            panic!("{length}: {problems:?}")
        };
        assert_eq!(path, "__1_0.distcp");
        assert!(why.starts_with(".metadata names an item of "), "{why}");
        assert!(
            why.ends_with(&format!("and the file has {length}: it is cut off or from another save")),
            "{why}"
        );
    }
}

#[test]
fn a_file_of_the_right_length_with_other_bytes_is_broken() {
    let mut files = step();
    let whole = files.0["__1_0.distcp"].0.clone();
    // Written from the start and cut off, in a file whose full length was set before.
    let half = whole.len() / 2;
    files.bytes("__1_0.distcp")[half..].fill(0);
    let said = problems(&files);
    let [(path, Soundness::Broken { offset, why })] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(path, "__1_0.distcp");
    assert!(offset.is_none_or(|offset| offset <= whole.len() as u64));
    assert!(why.starts_with("the item of ") && why.contains(" at byte "), "{why}");
}

#[test]
fn the_places_of_items_go_unseen_nowhere() {
    let mut files = small_step();
    let whole = files.0[".metadata"].0.clone();
    let find = |text: &[u8]| whole.windows(text.len()).position(|part| part == text).unwrap();
    let path = find(b"__0_0.distcp");
    // The offset is BININT1 0, after the memo slot of its attribute name; the length is BININT2 1641.
    let offset = path + b"__0_0.distcp".len() + 4;
    let length = find(b"M\x69\x06") + 1;
    assert_eq!(whole[offset - 1..=offset], *b"K\x00");
    for at in (path..path + 12).chain([offset, length, length + 1]) {
        for bit in 0..8 {
            files.bytes(".metadata")[at] ^= 1 << bit;
            let said = problems(&files);
            // Its own shard is no longer at the stated location, or is no longer named at all.
            assert!(!said.is_empty(), "byte {at}, bit {bit}");
            files.bytes(".metadata")[at] ^= 1 << bit;
        }
    }
    assert_eq!(problems(&files), []);
}

/// `.metadata` has no checksum: a flipped bit is detected only if it breaks the pickle or a location.
#[test]
fn names_and_shapes_of_items_are_a_blind_spot() {
    let mut files = small_step();
    let whole = files.0[".metadata"].0.clone();
    let find = |text: &[u8]| whole.windows(text.len()).position(|part| part == text).unwrap();
    for at in [find(b"only"), find(b"1.0.0"), find(b"ckpt"), find(b"cb0db6a2")] {
        files.bytes(".metadata")[at] ^= 1;
        assert_eq!(problems(&files), [], "byte {at}");
        files.bytes(".metadata")[at] ^= 1;
    }
}

#[test]
fn a_file_that_is_missing_or_no_file_is_broken() {
    let mut files = step();
    files.0.remove("__1_0.distcp");
    assert_broken(&files, "__1_0.distcp", ".metadata names this file, and it is missing");
    let mut files = step();
    let shard = files.0.remove("__1_0.distcp").unwrap();
    files.0.insert("__1_0.distcp/inner".to_owned(), shard);
    let problems = problems(&files);
    assert!(matches!(problems.as_slice(), [(path, Soundness::Broken { .. })] if path == "__1_0.distcp"));
}

#[test]
fn a_file_written_after_the_table_is_of_a_save_that_was_cut_off() {
    let mut files = step();
    let table_time = files.0[".metadata"].1;
    files.0.get_mut("__1_0.distcp").unwrap().1 = table_time;
    assert_eq!(problems(&files), []);
    files.0.get_mut("__1_0.distcp").unwrap().1 = table_time + 1;
    assert_broken(
        &files,
        "__1_0.distcp",
        "it was written after .metadata, which is written last: a save over an older one was cut off",
    );
    // A file that the table does not name may have any time.
    let mut files = small_step();
    files.0.get_mut("__1_0.distcp").unwrap().1 = 1_000;
    assert_eq!(problems(&files), []);
}

#[test]
fn files_outside_the_directory_are_refused() {
    for (path, why) in [
        ("/etc/passwd", "which is not in its directory"),
        ("../step-200/__0_0.distcp", "which leads outside its directory or is not a path"),
        ("a/../../b", "which leads outside its directory or is not a path"),
        ("a//b", "which leads outside its directory or is not a path"),
        ("./a", "which leads outside its directory or is not a path"),
        ("", "which leads outside its directory or is not a path"),
    ] {
        let files = with_items(&InMemory::default(), &[(path, 0, 10)], "");
        assert_broken(&files, ".metadata", &format!("it names the file {path}, {why}"));
    }
}

#[test]
fn items_may_neither_overlap_nor_leave_the_file() {
    let (files, length) = two_items();
    let length = length as u64;
    let name = "__0_0.distcp";
    assert_eq!(problems(&with_items(&files, &[(name, length, length), (name, 0, length)], "")), []);
    assert_broken(
        &with_items(&files, &[(name, 0, length), (name, length - 1, length)], ""),
        name,
        &format!(
            ".metadata names an item at byte {}, inside the one before it, which ends at {length}",
            length - 1
        ),
    );
    assert_broken(
        &with_items(&files, &[(name, u64::from(u32::MAX) << 31, length)], ""),
        name,
        &format!(
            ".metadata names an item of {length} bytes at byte {}, and the file has {}: it is cut off or from \
             another save",
            u64::from(u32::MAX) << 31,
            2 * length
        ),
    );
    assert_broken(
        &with_items(&files, &[(name, 0, length), (name, length, length - 1)], ""),
        name,
        &format!(
            "the item of {} bytes at byte {length}: the archive has no end record in its last bytes: the save was cut \
             off",
            length - 1
        ),
    );
}

#[test]
fn a_gap_says_only_that_nothing_is_known_of_it() {
    let (files, length) = two_items();
    let said = problems(&with_items(&files, &[("__0_0.distcp", length as u64, length as u64)], ""));
    assert_eq!(
        said,
        [(
            "__0_0.distcp".to_owned(),
            Soundness::Unknown {
                why: format!("its bytes 0 to {length} belong to no item that .metadata names")
            }
        )]
    );
}

#[test]
fn transformed_items_cannot_be_told() {
    let (files, length) = two_items();
    let length = length as u64;
    let name = "__0_0.distcp";
    let items = [(name, 0, length), (name, length, length)];
    for none in ["Vtransform_descriptors\nNs", "Vtransform_descriptors\n(ls"] {
        assert_eq!(problems(&with_items(&files, &items, none)), []);
    }
    let zstd = "Vtransform_descriptors\n(lVzstd\nas";
    let mut files = with_items(&files, &items, zstd);
    files.bytes(name).fill(7);
    assert_eq!(
        problems(&files),
        [(
            name.to_owned(),
            Soundness::Unknown {
                why: format!("the item of {length} bytes at byte {length} was transformed when it was saved")
            }
        )]
    );
}

#[test]
fn ranks_that_save_without_talking_write_a_table_each() {
    let (files, length) = two_items();
    let length = length as u64;
    let table = |name: &str| metadata_of(&[(name, 0, length), (name, length, length)], "");
    let mut tables = InMemory::default();
    for rank in 0..11 {
        let shard = format!("__{rank}_0.distcp");
        tables.0.insert(format!("__{rank}.metadata"), (table(&shard), 2));
        tables.0.insert(shard, files.0["__0_0.distcp"].clone());
    }
    assert_eq!(problems(&tables), []);
    tables.0.remove("__3.metadata");
    assert_broken(
        &tables,
        "__3.metadata",
        "the rank that writes this table of contents is missing, and higher ranks are present",
    );
    tables.0.insert(".metadata".to_owned(), (table("__0_0.distcp"), 3));
    assert_eq!(problems(&tables), [], "one for all counts before those of each");
}

#[test]
fn tables_that_say_too_little() {
    let said = |bytes: &[u8]| judged(read_metadata(&bytes.to_vec()).map(drop)).unwrap();
    let broken = |offset, why: &str| Soundness::Broken { offset, why: why.to_owned() };
    assert_eq!(said(b""), broken(None, "the file is empty: it was created and never written"));
    assert_eq!(
        said(b"(d."),
        Soundness::Unknown { why: "it holds no Metadata of torch.distributed.checkpoint".to_owned() }
    );
    let class = METADATA;
    assert_eq!(said(format!("{class}Nsb.").as_bytes()), Soundness::Sound);
    assert_eq!(
        said(format!("{class}I1\nsb.").as_bytes()),
        broken(None, "its storage_data, which locates the items, is not a dictionary")
    );
    assert_eq!(
        said(format!("{class}(dI0\nNssb.").as_bytes()),
        Soundness::Unknown {
            why: "its items are stored by something other than the file storage, so their locations are \
                unknown"
                .to_owned()
        }
    );
    let item = "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)R(dVrelative_path\nVa\nsb";
    assert_eq!(
        said(format!("{class}(dI0\n{item}ssb.").as_bytes()),
        broken(None, "one of its items lacks its file, offset or length")
    );
    let tensor = "ctorch.distributed.checkpoint.metadata\nTensorStorageMetadata\n)R(dVchunks\n(lNaNasb";
    let described = format!("(dVweight\n{tensor}sVstep\nNs");
    let described =
        METADATA.replace("Vstate_dict_metadata\n(d", &format!("Vstate_dict_metadata\n{described}"));
    assert_eq!(
        said(format!("{described}(dsb.").as_bytes()),
        broken(None, "it describes 3 pieces, and locates 0 of them")
    );
    assert_eq!(
        said(METADATA.replace("Vstorage_data", "Vstorage_dat_").as_bytes()),
        broken(Some(METADATA.len() as u64), "the pickle is cut off: it ends before its STOP")
    );
    assert_eq!(
        said(format!("{}(dsb.", METADATA.replace("Vstorage_data", "Vstorage_dat_")).as_bytes()),
        broken(None, "its Metadata lacks the list of items or their locations")
    );
    let mut trailing = metadata_of(&[], "");
    let end = trailing.len() as u64;
    trailing.push(0);
    assert_eq!(said(&trailing), broken(Some(end), "1 unexpected bytes follow the end of the pickle"));
}

/// The attributes are long and shared by all items: reading them for each item would take forever.
#[test]
fn shared_attributes_do_not_multiply_the_work() {
    let mut pickle = b"(dp0\n".to_vec();
    for index in 0..100_000 {
        pickle.extend(format!("I{index}\nNs").bytes());
    }
    pickle.extend(b"0ctorch.distributed.checkpoint.filesystem\n_StorageInfo\np1\n0");
    pickle.extend(METADATA.bytes().chain(*b"(d"));
    for index in 0..100_000 {
        pickle.extend(format!("I{index}\ng1\n)Rg0\nbs").bytes());
    }
    pickle.extend(b"sb.");
    assert!(matches!(judged(read_metadata(&pickle).map(drop)).unwrap(), Soundness::Unknown { .. }));
}

#[test]
fn damage_at_random_never_passes_for_another_layout() {
    let mut files = step();
    let items = read_metadata(&files.0[".metadata"].0).unwrap();
    let mut numbers = Numbers::new(23);
    let length = files.0[".metadata"].0.len();
    for _ in 0..500 {
        let (at, bit) = (numbers.below(length), numbers.below(8));
        files.bytes(".metadata")[at] ^= 1 << bit;
        if problems(&files).is_empty() {
            assert_eq!(read_metadata(&files.0[".metadata"].0).unwrap(), items, "byte {at}, bit {bit}");
        }
        files.bytes(".metadata")[at] ^= 1 << bit;
    }
}

#[test]
fn of_a_part_only_what_is_there_is_checked() {
    let part = |files: &InMemory| {
        let findings = check_part(&files.tree(), "", files).unwrap();
        let broken = findings.into_iter().filter_map(|finding| match finding.soundness {
            Soundness::Broken { why, .. } => Some(format!("{}: {why}", finding.path)),
            _ => None,
        });
        broken.collect::<Vec<_>>()
    };
    // Rank 0's node has the table, which also names the file of the other node.
    let mut first = step();
    first.0.remove("__1_0.distcp");
    assert_eq!(part(&first), Vec::<String>::new());
    let length = first.0["__0_0.distcp"].0.len();
    first.bytes("__0_0.distcp").truncate(length - 1);
    assert_eq!(part(&first).len(), 1, "its own file is cut off");
    // The other node has only its own file.
    let mut other = step();
    other.0.remove(".metadata");
    other.0.remove("__0_0.distcp");
    assert_eq!(part(&other), Vec::<String>::new());
    let length = other.0["__1_0.distcp"].0.len();
    for cut in [1, 21, 22, 5000, length - 5, length - 2] {
        let mut cut_off = other.clone();
        cut_off.bytes("__1_0.distcp").truncate(length - cut);
        let said = part(&cut_off);
        // Two bytes are not enough to identify a format.
        assert_eq!(said.len(), usize::from(length - cut > 2), "{cut}: {said:?}");
    }
    other.bytes("__1_0.distcp").clear();
    assert_eq!(part(&other), Vec::<String>::new(), "a rank may have no items");
}
