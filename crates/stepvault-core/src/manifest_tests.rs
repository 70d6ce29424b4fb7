//! Valid and inconsistent part manifests.

use super::*;
use crate::codec::{decode, encode};
use crate::digest::{DigestAlgorithm, PartDigest};
use crate::file_parts::FileParts;
use crate::ids::{Attempt, Step};

type Damage<T> = fn(&mut T);

fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

fn late(nanoseconds: u32) -> Timestamp {
    Timestamp { seconds: 0, nanoseconds }
}

fn file(text: &str) -> FileEntry {
    let part = PartDigest::of(b"12345");
    FileEntry::from_parts(path(text), 0o640, late(999_999_999), &[part]).unwrap()
}

fn digests_of(file: &mut FileEntry) -> &mut EntryDigests {
    match &mut file.proof {
        FileProof::Digests(digests) => digests,
        FileProof::Trusted(_) => panic!("it has no digests"),
    }
}

fn directory(text: Option<&str>) -> DirectoryEntry {
    DirectoryEntry { path: text.map(path), mode: 0o750, mtime: late(999_999_999) }
}

fn link(text: &str, target: &str) -> SymlinkEntry {
    SymlinkEntry { path: path(text), target: target.to_owned() }
}

fn manifest() -> PartManifest {
    PartManifest {
        format: FORMAT,
        digest: DigestAlgorithm::Sha256,
        run: RunName::new("run").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        node: NodeName::new("node-0").unwrap(),
        name: "step_1".to_owned(),
        shape: Shape::Directory,
        written_at: late(999_999_999),
        metrics: BTreeMap::from([("loss".to_owned(), 1.0)]),
        shared_tree_sha256: None,
        files: vec![file("a/b/x"), file("y")],
        directories: vec![
            directory(None),
            directory(Some("a")),
            directory(Some("a/b")),
            directory(Some("empty")),
        ],
        symlinks: vec![link("a/l", "../y"), link("z", "a")],
        imported: None,
        members: Vec::new(),
        origin: StepOrigin::default(),
    }
}

fn of_one_file() -> PartManifest {
    PartManifest {
        shape: Shape::File,
        files: vec![file("step_1")],
        directories: Vec::new(),
        symlinks: Vec::new(),
        ..manifest()
    }
}

fn damaged(damage: impl FnOnce(&mut PartManifest)) -> String {
    let mut damaged = manifest();
    damage(&mut damaged);
    damaged.check().unwrap_err().to_string()
}

#[test]
fn a_manifest_is_read_back_as_it_was_written() {
    for manifest in [manifest(), of_one_file()] {
        let bytes = encode(&manifest).unwrap();
        assert_eq!(decode::<PartManifest>(&bytes, "manifest").unwrap(), manifest);
    }
    assert_eq!((manifest().data_bytes(), of_one_file().data_bytes()), (10, 5));
}

#[test]
fn a_file_keeps_its_permission_bits_and_no_others() {
    let of = |mode| {
        FileEntry::from_parts(path("x"), mode, Timestamp::default(), &[PartDigest::of(b"")]).unwrap().mode
    };
    assert_eq!((of(0o100_640), of(0o4755), of(0)), (0o640, 0o755, 0));
}

#[test]
fn a_file_says_how_it_is_cut() {
    let of = |size_bytes| FileEntry { size_bytes, ..file("x") };
    assert_eq!(of(5).parts().unwrap(), FileParts::of(5).unwrap());
    assert_eq!(of(20 << 20).parts().unwrap().count(), 3);
}

#[test]
fn all_files_of_a_part_have_digests_by_its_algorithm() {
    let blake3 = || {
        let part = PartDigest::by(DigestAlgorithm::Blake3, b"12345");
        FileEntry::from_parts(path("step_1"), 0o640, late(999_999_999), &[part]).unwrap()
    };
    let of = |digest, file| PartManifest { digest, files: vec![file], ..of_one_file() };
    let right = of(DigestAlgorithm::Blake3, blake3());
    let bytes = encode(&right).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.starts_with("{\"digest\":\"blake3\",\"directories\""), "{text}");
    assert!(text.contains("\"parts_blake3\":[\"") && !text.contains("sha256"), "{text}");
    assert_eq!(decode::<PartManifest>(&bytes, "here").unwrap(), right);
    for wrong in [of(DigestAlgorithm::Sha256, blake3()), of(DigestAlgorithm::Blake3, file("step_1"))] {
        let bytes = encode(&wrong).unwrap();
        let error = decode::<PartManifest>(&bytes, "here").unwrap_err();
        assert!(error.to_string().contains("the digests of step_1 are"), "{error}");
    }
    // A file whose parts have digests by another algorithm than the file itself.
    let mixed = text.replace("parts_blake3", "parts_sha256");
    assert!(decode::<PartManifest>(mixed.as_bytes(), "here").is_err());
}

#[test]
fn entries_by_different_algorithms_are_compared_by_size_and_crc() {
    let of = |algorithm, bytes: &[u8]| {
        let part = PartDigest::by(algorithm, bytes);
        FileEntry::from_parts(path("x"), 0o640, late(7), &[part]).unwrap()
    };
    let sha256 = of(DigestAlgorithm::Sha256, b"12345");
    assert!(sha256.has_same_bytes(&of(DigestAlgorithm::Blake3, b"12345")));
    assert!(!sha256.has_same_bytes(&of(DigestAlgorithm::Blake3, b"12346")));
    assert!(!sha256.has_same_bytes(&of(DigestAlgorithm::Sha256, b"12346")));
}

#[test]
fn the_length_of_an_entry_is_known_before_its_digests() {
    for (size_bytes, hole_bytes, text) in [
        (5, 0, "x"),
        (5, 5, "with \"quotes\" and ü"),
        (8 << 20, 0, "a/b/x"),
        ((8 << 20) + 1, 4096, "a/b/x"),
        (200 << 20, 0, "y"),
    ] {
        let cut = FileParts::of(size_bytes).unwrap();
        for algorithm in DigestAlgorithm::ALL {
            let parts: Vec<PartDigest> = (0..cut.count())
                .map(|index| {
                    let range = cut.range(index);
                    PartDigest { size_bytes: range.end - range.start, ..PartDigest::by(algorithm, b"x") }
                })
                .collect();
            let of = |parts: &[PartDigest]| {
                let entry = FileEntry::from_parts(path(text), 0o640, late(7), parts).unwrap();
                entry.with_holes(hole_bytes)
            };
            assert_eq!(
                of(&[PartDigest::by(algorithm, b"")]).encoded_bytes(size_bytes).unwrap(),
                serde_json::to_vec(&of(&parts)).unwrap().len() as u64
            );
        }
    }
}

/// Sorting members while encoding takes many times a manifest's length in memory.
#[test]
fn a_manifest_is_written_as_it_is_declared() {
    let manifest = PartManifest {
        shared_tree_sha256: Some(Sha256Digest::of(b"tree")),
        members: vec![path("a")],
        files: vec![file("a/b/x").with_holes(3)],
        ..manifest()
    };
    let declared = serde_json::to_vec(&manifest).unwrap();
    let sorted = serde_json::to_vec(&serde_json::to_value(&manifest).unwrap()).unwrap();
    assert_eq!(String::from_utf8(declared), String::from_utf8(sorted));
}

#[test]
fn a_file_that_contradicts_itself_is_refused() {
    let bad: [(&str, Damage<FileEntry>); 10] = [
        ("its holes are larger than the file", |file| {
            file.hole_bytes = 6;
        }),
        ("its part size does not follow from its size", |file| {
            file.part_size_bytes += 1;
        }),
        ("it does not have one digest for each part", |file| {
            digests_of(file).parts.clear();
        }),
        ("it does not have one digest for each part", |file| {
            file.size_bytes = 20 << 20;
        }),
        ("its digest does not match the digests of its parts", |file| {
            digests_of(file).content = PartDigest::of(b"other").content;
        }),
        ("its mode has more than permission bits", |file| {
            file.mode = 0o1777;
        }),
        ("its mode has more than permission bits", |file| {
            file.mode = 0o4000;
        }),
        ("its mode has more than permission bits", |file| {
            file.mode = !MODE_MASK;
        }),
        ("the nanoseconds of its modification time are not below one second", |file| {
            file.mtime = late(1_000_000_000);
        }),
        ("one file may have at most 1342177280000 bytes", |file| {
            file.size_bytes = u64::MAX;
        }),
    ];
    for (why, damage) in bad {
        let text = damaged(|manifest| damage(&mut manifest.files[1]));
        assert!(text.ends_with(why), "{text}: {why}");
    }
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let bad: [(&str, Damage<PartManifest>); 9] = [
        ("it has format 2, and its members are those of format 1", |all| {
            all.format = 2;
        }),
        ("it must be a single path component other than '.stepvault'", |all| {
            all.name = ".stepvault".to_owned();
        }),
        ("its time is out of range, or a metric is not a finite number", |all| {
            all.written_at = late(1_000_000_000);
        }),
        ("its time is out of range, or a metric is not a finite number", |all| {
            all.metrics.insert("loss".to_owned(), f64::NAN);
        }),
        ("a directory's mode or time is out of range", |all| {
            all.directories[1].mode = 0o1755;
        }),
        ("a directory's mode or time is out of range", |all| {
            all.directories[1].mode = !MODE_MASK;
        }),
        ("a directory's mode or time is out of range", |all| {
            all.directories[0].mtime = late(1_000_000_000);
        }),
        ("its target lies outside the checkpoint", |all| {
            all.symlinks[0].target = "../../y".to_owned();
        }),
        ("y lies outside the step's paths", |all| {
            all.members = vec![path("a")];
        }),
    ];
    for (why, damage) in bad {
        let text = damaged(damage);
        assert!(text.ends_with(why), "{text}: {why}");
    }
}

#[test]
fn entries_of_every_kind_count_towards_the_most_there_may_be() {
    let of = |links: usize| {
        damaged(|all| {
            all.files.truncate(1);
            all.directories.truncate(1);
            all.symlinks = vec![link("l", "y"); links];
        })
    };
    let text = of(MAX_ENTRIES - 1);
    assert!(text.ends_with(&format!("more than {MAX_ENTRIES} entries")), "{text}");
    let text = of(MAX_ENTRIES - 2);
    assert!(text.ends_with("or one is listed twice"), "{text}");
}

#[test]
fn the_own_directory_comes_first_and_once() {
    let why = "the checkpoint's own directory must come first, once";
    let bad: [fn(&mut PartManifest); 3] = [
        |all| drop(all.directories.remove(0)),
        |all| all.directories.swap(0, 1),
        |all| all.directories.insert(1, directory(None)),
    ];
    for damage in bad {
        let text = damaged(damage);
        assert!(text.ends_with(why), "{text}");
    }
}

#[test]
fn a_single_file_is_all_there_is() {
    let bad: [fn(&mut PartManifest); 5] = [
        |all| all.files.clear(),
        |all| all.files.push(file("z")),
        |all| all.files = vec![file("other")],
        |all| all.directories.push(directory(None)),
        |all| all.symlinks.push(link("z", "step_1")),
    ];
    for damage in bad {
        let mut damaged = of_one_file();
        damage(&mut damaged);
        let text = damaged.check().unwrap_err().to_string();
        assert!(
            text.ends_with("a single-file checkpoint must contain only the file it is named after"),
            "{text}"
        );
    }
}

#[test]
fn entries_are_sorted_and_each_stands_there_once() {
    let why = "its entries are not sorted by path, or one is listed twice";
    let bad: [fn(&mut PartManifest); 6] = [
        |all| all.files.swap(0, 1),
        |all| all.files[0].path = path("y"),
        |all| all.symlinks.swap(0, 1),
        |all| all.symlinks[0] = link("z", "y"),
        |all| all.directories.swap(1, 2),
        |all| all.directories[2].path = Some(path("a")),
    ];
    for damage in bad {
        let text = damaged(damage);
        assert!(text.ends_with(why), "{text}");
    }
    let two: [fn(&mut PartManifest); 3] = [
        |all| all.symlinks[1].path = path("y"),
        |all| all.files[1].path = path("empty"),
        |all| all.symlinks[1].path = path("empty"),
    ];
    for damage in two {
        let text = damaged(damage);
        assert!(text.ends_with("two entries have this path"), "{text}");
    }
}

#[test]
fn whatever_lies_in_a_directory_lies_in_one_that_is_listed() {
    let why = "a directory above it is not listed as one";
    let bad: [fn(&mut PartManifest); 4] = [
        |all| drop(all.directories.remove(1)),
        |all| drop(all.directories.remove(2)),
        |all| all.symlinks[0].path = path("missing/l"),
        |all| all.directories[3].path = Some(path("missing/empty")),
    ];
    for damage in bad {
        let text = damaged(damage);
        assert!(text.ends_with(why), "{text}");
    }
}

#[test]
fn links_stay_inside_the_checkpoint() {
    let why = |from: &str, target: &str| {
        check_link_target(&path(from), target).err().map(|error| error.to_string())
    };
    for (from, target) in [
        ("l", "x"),
        ("l", "./x//y"),
        ("a/l", "../x"),
        ("a/b/l", "../../x"),
        ("a/b/l", "c/../../.."),
        ("l", "x/.."),
        ("l", &"x".repeat(crate::path::MAX_PATH_BYTES)),
    ] {
        assert_eq!(why(from, target), None, "{from} -> {target}");
    }
    for (from, target, fault) in [
        ("l", "", "its target is empty, too long, or holds control characters"),
        ("l", "a\nb", "its target is empty, too long, or holds control characters"),
        (
            "l",
            &"x".repeat(crate::path::MAX_PATH_BYTES + 1),
            "its target is empty, too long, or holds control characters",
        ),
        ("l", "/x", "its target is absolute"),
        ("l", "..", "its target lies outside the checkpoint"),
        ("a/l", "../../x", "its target lies outside the checkpoint"),
        ("a/l", ".././../x", "its target lies outside the checkpoint"),
        ("a/l", "b/../../..", "its target lies outside the checkpoint"),
    ] {
        let text = why(from, target).unwrap();
        assert!(text.ends_with(fault), "{text}: {fault}");
    }
}

fn imported(prefix: Option<&str>) -> PartManifest {
    let imported = Imported { prefix: prefix.map(path) };
    PartManifest { format: FORMAT_OF_IMPORTED, imported: Some(imported), symlinks: Vec::new(), ..manifest() }
}

#[test]
fn the_manifest_alone_says_where_its_files_are() {
    let keys = |manifest: &PartManifest| manifest.file_keys().key(&path("y")).unwrap();
    assert_eq!(keys(&manifest()), "run/000000000001.a1/step_1/y");
    assert_eq!(keys(&imported(Some("old/run/step_1"))), "old/run/step_1/y");
    assert_eq!(keys(&imported(None)), "y");
    assert_eq!(manifest().listed_prefix(), "run/000000000001.a1/step_1/");
    // Its files are a/b/x and y.
    assert_eq!(imported(Some("old")).listed_prefix(), "old/");
    let of_two = |one, other| PartManifest { files: vec![file(one), file(other)], ..imported(Some("old")) };
    assert_eq!(of_two("step_1.a", "step_1.b").listed_prefix(), "old/step_1.");
    assert_eq!(of_two("ä1", "ä2").listed_prefix(), "old/ä");
}

#[test]
fn an_imported_part_has_a_format_that_older_programs_refuse() {
    /// The manifest as a program knows it that cannot import.
    #[derive(Debug, Serialize, Deserialize)]
    struct Older {
        format: u32,
    }
    impl Record for Older {
        const WHAT: &'static str = "part manifest";
    }
    let bytes = encode(&imported(Some("old"))).unwrap();
    assert_eq!(decode::<PartManifest>(&bytes, "here").unwrap(), imported(Some("old")));
    let error = decode::<Older>(&bytes, "here").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat);
    for wrong in [
        PartManifest { format: FORMAT, ..imported(Some("old")) },
        PartManifest { format: FORMAT_OF_IMPORTED, ..manifest() },
    ] {
        let text = wrong.check().unwrap_err().to_string();
        assert!(text.contains("its members are those of format"), "{text}");
    }
}

#[test]
fn an_imported_part_names_no_object_of_a_run() {
    for prefix in ["other/.stepvault/commits", "other/000000000100.a2/step_100", "other/000000000100.a1r2"] {
        let text = imported(Some(prefix)).check().unwrap_err().to_string();
        assert!(text.contains("stepvault's own layout"), "{prefix}: {text}");
    }
    let mut inner = imported(None);
    inner.directories.push(directory(Some("run")));
    inner.directories.push(directory(Some("run/000000000001.a1")));
    inner.files = vec![file("run/000000000001.a1/x")];
    assert!(inner.check().unwrap_err().to_string().contains("stepvault's own layout"));
}

fn trusted(text: &str, checksum: TrustedChecksum) -> FileEntry {
    FileEntry::new(path(text), 0o640, late(7), 5, FileProof::Trusted(checksum)).unwrap()
}

#[test]
fn a_file_without_digests_has_one_checksum_of_the_whole() {
    let part = PartDigest::by(DigestAlgorithm::Blake3, b"12345");
    let crc32c = TrustedChecksum::Crc32c(part.crc32c);
    let crc64nvme = TrustedChecksum::Crc64Nvme(part.crc64nvme.unwrap());
    let of = |checksum, digest| {
        let files = vec![trusted("a/b/x", checksum)];
        PartManifest { format: FORMAT_OF_TRUSTED, files, digest, ..imported(Some("old")) }
    };
    for (checksum, member) in [(crc32c, "crc32c"), (crc64nvme, "crc64nvme")] {
        let manifest = of(checksum, DigestAlgorithm::Blake3);
        let bytes = encode(&manifest).unwrap();
        assert_eq!(decode::<PartManifest>(&bytes, "here").unwrap(), manifest);
        assert_eq!(manifest.trusted_files(), 1);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(&format!("\"files\":[{{\"{member}\":\"")), "{text}");
        assert!(!text.contains("sha256") && !text.contains("parts_"), "{text}");
        for other in
            ["\"files\":[{", "\"files\":[{\"crc32c\":\"00000000\",\"crc64nvme\":\"0000000000000000\","]
        {
            let (start, rest) = text.split_once("\"files\":[{").unwrap();
            let (_, rest) = rest.split_once(",\"mode\"").unwrap();
            let wrong = format!("{start}{other}\"mode\"{rest}");
            assert!(decode::<PartManifest>(wrong.as_bytes(), "here").is_err(), "{wrong}");
        }
        let file = &manifest.files[0];
        assert!(file.digest().is_none() && !file.has_same_bytes(file));
        assert_eq!(file.first_difference(&[part]), None);
        assert_eq!(file.first_difference(&[PartDigest::by(DigestAlgorithm::Blake3, b"12346")]), Some(0));
        assert_eq!(file.first_difference(&[]), Some(0));
    }
    of(crc32c, DigestAlgorithm::Sha256).check().unwrap();
    let own = PartManifest { imported: None, ..of(crc32c, DigestAlgorithm::Sha256) };
    let older = PartManifest { format: FORMAT_OF_IMPORTED, ..of(crc32c, DigestAlgorithm::Sha256) };
    let newer = PartManifest { format: FORMAT_OF_TRUSTED, ..imported(Some("old")) };
    for (wrong, why) in [
        (of(crc64nvme, DigestAlgorithm::Sha256), "the digests of a/b/x are blake3"),
        (own, "a file that was not imported has no digests"),
        (older, "its members are those of format 3"),
        (newer, "its members are those of format 2"),
    ] {
        let text = wrong.check().unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
}
