//! Valid and contradictory seals.
#![allow(clippy::unwrap_used)]

use stepvault_core::codec::{decode, encode};
use stepvault_core::ids::{Attempt, Step};

use super::*;

type Damage<T> = fn(&mut T);

fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

fn late(nanoseconds: u32) -> Timestamp {
    Timestamp { seconds: 0, nanoseconds }
}

fn node(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn file(text: &str, size_bytes: u64) -> SealedFile {
    SealedFile {
        path: path(text),
        size_bytes,
        mode: 0o640,
        mtime: late(999_999_999),
        method: SnapshotMethod::Copy,
        inode: 7,
        hole_bytes: 0,
    }
}

fn directory(text: Option<&str>) -> DirectoryEntry {
    DirectoryEntry { path: text.map(path), mode: 0o750, mtime: late(999_999_999) }
}

fn link(text: &str, target: &str) -> SymlinkEntry {
    SymlinkEntry { path: path(text), target: target.to_owned() }
}

fn record() -> SealRecord {
    SealRecord {
        digest: DigestAlgorithm::Sha256,
        format: FORMAT,
        run: RunName::new("run").unwrap(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        attempt: AttemptOrigin::default(),
        node: node("node-0"),
        nodes: None,
        launch: None,
        shared: false,
        name: "step_1".to_owned(),
        shape: Shape::Directory,
        written_at: late(999_999_999),
        metrics: BTreeMap::from([("loss".to_owned(), 1.0)]),
        files: vec![file("a/x", 20), file("y", 3)],
        directories: vec![directory(None), directory(Some("a")), directory(Some("empty"))],
        source: None,
        symlinks: vec![link("a/l", "../y"), link("z", "a")],
        members: Vec::new(),
        origin: StepOrigin::default(),
    }
}

fn of_one_file() -> SealRecord {
    SealRecord {
        shape: Shape::File,
        files: vec![file("step_1", 5)],
        directories: Vec::new(),
        symlinks: Vec::new(),
        ..record()
    }
}

/// A directory that two nodes see and divide between them.
fn shared(own: &str) -> SealRecord {
    SealRecord {
        node: node(own),
        nodes: Some(NodeSet::new([node("node-0"), node("node-1")]).unwrap()),
        shared: true,
        ..record()
    }
}

fn fault_of(mut record: SealRecord, damage: impl FnOnce(&mut SealRecord)) -> String {
    damage(&mut record);
    record.check().unwrap_err().to_string()
}

#[test]
fn a_seal_is_read_back_as_it_was_written() {
    for record in [record(), of_one_file(), shared("node-1")] {
        let bytes = encode(&record).unwrap();
        assert_eq!(decode::<SealRecord>(&bytes, "seal").unwrap(), record);
    }
}

#[test]
fn what_a_step_takes_is_counted() {
    let taken = Taken { bytes: 23, files: 3, directories: 3 };
    let mut of_one_link = record();
    of_one_link.symlinks.truncate(1);
    assert_eq!(of_one_link.taken(), taken);
    let mut large = record();
    large.files[0].size_bytes = u64::MAX;
    assert_eq!(large.data_bytes(), u64::MAX, "and stops at the largest number");
}

#[test]
fn a_file_is_found_by_its_path() {
    let record = record();
    assert_eq!(record.file(&path("y")), Some(&file("y", 3)));
    assert_eq!(record.file(&path("a/x")), Some(&file("a/x", 20)));
    assert_eq!(record.file(&path("a")), None);
}

#[test]
fn a_step_of_one_node_is_that_nodes_own() {
    let single = record();
    assert_eq!(single.nodes(), NodeSet::single_node(node("node-0")));
    assert!(!single.is_one_of_several());
    assert_eq!(single.own_files().len(), 2);
    assert_eq!(single.shared_tree_sha256(), None);
}

#[test]
fn nodes_that_share_a_directory_send_each_file_once_and_saw_the_same() {
    let (first, second) = (shared("node-0"), shared("node-1"));
    assert!(first.is_one_of_several());
    assert_eq!(first.nodes().count(), 2);
    assert_eq!(first.own_files(), [&file("a/x", 20)]);
    assert_eq!(second.own_files(), [&file("y", 3)]);
    assert!(first.shared_tree_sha256().is_some());
    assert_eq!(first.shared_tree_sha256(), second.shared_tree_sha256());
    let mut other = second.clone();
    other.files[1].size_bytes += 1;
    assert_ne!(first.shared_tree_sha256(), other.shared_tree_sha256());
    // Each with files of its own.
    let own = SealRecord { shared: false, ..first };
    assert_eq!((own.own_files().len(), own.shared_tree_sha256()), (2, None));
}

#[test]
fn the_manifest_of_a_part_says_what_the_seal_says() {
    let record = SealRecord { members: vec![path("a")], ..shared("node-1") };
    let manifest = record.part_manifest(Vec::new());
    assert_eq!(
        (manifest.format, &manifest.run, manifest.id, &manifest.node),
        (FORMAT, &record.run, record.id, &record.node)
    );
    assert_eq!(
        (&manifest.name, manifest.shape, manifest.written_at),
        (&record.name, record.shape, record.written_at)
    );
    assert_eq!((&manifest.metrics, &manifest.directories), (&record.metrics, &record.directories));
    assert_eq!((&manifest.symlinks, &manifest.members), (&record.symlinks, &record.members));
    assert_eq!(manifest.shared_tree_sha256, record.shared_tree_sha256());
}

#[test]
fn a_seal_that_contradicts_itself_is_refused() {
    let bad: [(&str, Damage<SealRecord>); 14] = [
        ("its format is not known", |all| all.format = 2),
        ("it must be a single path component other than '.stepvault'", |all| {
            all.name = ".stepvault".to_owned();
        }),
        ("its node is not one of the step's nodes", |all| {
            all.nodes = Some(NodeSet::new([node("node-1"), node("node-2")]).unwrap());
        }),
        ("its time is out of range, or a metric is not a finite number", |all| {
            all.written_at = late(1_000_000_000);
        }),
        ("its time is out of range, or a metric is not a finite number", |all| {
            all.metrics.insert("loss".to_owned(), f64::NAN);
        }),
        ("a mode or time is out of range", |all| all.files[1].mode = 0o4640),
        ("a mode or time is out of range", |all| {
            all.files[1].mode = !MODE_MASK;
        }),
        ("a mode or time is out of range", |all| {
            all.files[1].mtime = late(1_000_000_000);
        }),
        ("a mode or time is out of range", |all| {
            all.directories[1].mode = 0o1750;
        }),
        ("a mode or time is out of range", |all| {
            all.directories[1].mtime = late(1_000_000_000);
        }),
        ("its target lies outside the checkpoint", |all| {
            all.symlinks[0].target = "../../y".to_owned();
        }),
        ("the checkpoint's own directory must come first", |all| {
            all.directories.clear();
        }),
        ("the checkpoint's own directory must come first", |all| {
            drop(all.directories.remove(0));
        }),
        ("y lies outside the step's paths", |all| {
            all.members = vec![path("a")];
        }),
    ];
    for (why, damage) in bad {
        let text = fault_of(record(), damage);
        assert!(text.ends_with(why), "{text}: {why}");
    }
}

#[test]
fn a_seals_entries_are_sorted_and_each_stands_there_once() {
    let bad: [fn(&mut SealRecord); 6] = [
        |all| all.files.swap(0, 1),
        |all| all.files[0].path = path("y"),
        |all| all.directories.swap(1, 2),
        |all| all.directories[1].path = Some(path("empty")),
        |all| all.symlinks.swap(0, 1),
        |all| all.symlinks[0].path = path("z"),
    ];
    for damage in bad {
        let text = fault_of(record(), damage);
        assert!(text.ends_with("its entries are not sorted by path, or one is listed twice"), "{text}");
    }
}

/// Any other order would take many times a record's length in memory.
#[test]
fn a_seal_is_written_as_it_is_declared() {
    let mut all = SealRecord {
        shared: true,
        nodes: Some(NodeSet::counted(2).unwrap()),
        launch: Some(LaunchName::new("one").unwrap()),
        members: vec![path("a")],
        ..record()
    };
    all.files[0].hole_bytes = 1;
    let declared = serde_json::to_vec(&all).unwrap();
    let sorted = serde_json::to_vec(&serde_json::to_value(&all).unwrap()).unwrap();
    assert_eq!(String::from_utf8(declared), String::from_utf8(sorted));
}

#[test]
fn the_length_of_the_manifest_is_known_before_its_digests() {
    for all in [record(), of_one_file()] {
        let files = all
            .files
            .iter()
            .map(|file| {
                let part = PartDigest { size_bytes: file.size_bytes, ..PartDigest::of(b"x") };
                FileEntry::from_parts(file.path.clone(), file.mode, file.mtime, &[part]).unwrap()
            })
            .collect();
        let manifest = all.part_manifest(files);
        assert_eq!(all.manifest_bytes().unwrap(), encode(&manifest).unwrap().len() as u64);
    }
}

#[test]
fn more_bytes_in_holes_than_in_the_file_are_refused() {
    let text = fault_of(record(), |all| all.files[0].hole_bytes = u64::MAX);
    assert!(text.ends_with("the holes of a file exceed its size"), "{text}");
}

#[test]
fn entries_of_every_kind_count_towards_the_most_there_may_be() {
    let of = |links: usize| {
        fault_of(record(), |all| {
            all.files.truncate(1);
            all.directories.truncate(1);
            all.symlinks = vec![link("l", "y"); links];
        })
    };
    let text = of(MAX_ENTRIES - 1);
    assert!(text.ends_with("it has too many entries"), "{text}");
    let text = of(MAX_ENTRIES - 2);
    assert!(text.ends_with("or one is listed twice"), "{text}");
}

#[test]
fn whatever_a_seal_lists_lies_in_a_directory_that_it_lists() {
    let bad: [fn(&mut SealRecord); 3] = [
        |all| all.files[0].path = path("missing/x"),
        |all| all.symlinks[0].path = path("missing/l"),
        |all| all.directories[2].path = Some(path("missing/empty")),
    ];
    for damage in bad {
        let text = fault_of(record(), damage);
        assert!(text.ends_with("an entry lies below something that is not listed as a directory"), "{text}");
    }
}

#[test]
fn the_seal_of_a_single_file_holds_nothing_else() {
    let bad: [fn(&mut SealRecord); 5] = [
        |all| all.files.clear(),
        |all| all.files.push(file("z", 1)),
        |all| all.files = vec![file("other", 1)],
        |all| all.directories.push(directory(None)),
        |all| all.symlinks.push(link("z", "step_1")),
    ];
    for damage in bad {
        let text = fault_of(of_one_file(), damage);
        assert!(text.ends_with("a single-file checkpoint may have no other entry"), "{text}");
    }
}

#[test]
fn a_hard_link_takes_nothing_and_a_reflink_a_file_without_bytes() {
    let by = |method, size_bytes| SealedFile { method, ..file("x", size_bytes) };
    let of = |files: &[SealedFile]| SealRecord { files: files.to_vec(), ..record() }.copied();
    let sparse = SealedFile { hole_bytes: 7, ..by(SnapshotMethod::Copy, 10) };
    assert_eq!(of(&[sparse]).bytes, 3, "holes take nothing");
    let (linked, cloned, copied) =
        (by(SnapshotMethod::HardLink, 1_000), by(SnapshotMethod::Reflink, 100), by(SnapshotMethod::Copy, 10));
    // The record also has two links and three directories.
    for (files, bytes, count) in [
        (vec![linked.clone()], 0, 2),
        (vec![linked.clone(), cloned.clone()], 0, 3),
        (vec![linked, cloned.clone(), cloned, copied.clone(), copied.clone(), copied], 30, 7),
    ] {
        let taken = Taken { bytes, files: count, directories: 3 };
        assert_eq!(of(&files), taken);
    }
}

#[test]
fn a_step_says_how_its_files_were_taken_and_what_it_sends() {
    let methods = [SnapshotMethod::Copy, SnapshotMethod::Reflink, SnapshotMethod::HardLink];
    let taken = methods.map(|method| {
        let mut record = record();
        record.files[1].method = method;
        let step = crate::sealed::SealedStep::new(PathBuf::new(), record);
        (step.has_reflinks(), step.has_hard_links())
    });
    assert_eq!(taken, [(false, false), (true, false), (false, true)]);
    assert_eq!(record().own_bytes(), 23);
}
