//! How a seal evaluates two scans of a trainer's files and the snapshot taken between them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use stepvault_core::ids::{Attempt, NodeName, Step};
use stepvault_core::manifest::{DirectoryEntry, SymlinkEntry};
use stepvault_core::nodes::NodePlace;

use super::*;
use crate::tree::TreeFile;

type Damage<T> = fn(&mut T);

fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

fn file(path: &str) -> TreeFile {
    TreeFile {
        path: RelativePath::new(path).unwrap(),
        size_bytes: 5,
        mode: 0o640,
        mtime: time(100, 7),
        ctime: time(101, 0),
        device: 1,
        inode: 11,
        allocated_bytes: 8192,
    }
}

fn tree() -> Tree {
    Tree {
        shape: Shape::Directory,
        files: vec![file("x"), file("y")],
        directories: vec![DirectoryEntry { path: None, mode: 0o750, mtime: time(100, 0) }],
        symlinks: vec![SymlinkEntry { path: RelativePath::new("z").unwrap(), target: "x".to_owned() }],
    }
}

fn request() -> SealRequest {
    SealRequest {
        run: RunName::new("run").unwrap(),
        attempt: AttemptOrigin::default(),
        id: StepId::new(Attempt::FIRST, Step::new(1).unwrap()),
        writer: Writer::single_node(NodeName::new("node-0").unwrap()),
        checkpoint: Checkpoint::of_path(Path::new("/run/step_1"), "step_1"),
        digest: DigestAlgorithm::Sha256,
        expected: None,
        completes: None,
    }
}

fn linked(paths: &[&str]) -> SnapshottedFiles {
    snapshotted(paths.iter().map(|path| (*path, SnapshotMethod::HardLink)))
}

fn snapshotted<'a>(files: impl IntoIterator<Item = (&'a str, SnapshotMethod)>) -> SnapshottedFiles {
    let of = |(path, method)| {
        let how = Snapshotted { method, hole_bytes: 0 };
        (RelativePath::new(path).unwrap(), how)
    };
    files.into_iter().map(of).collect()
}

#[test]
fn what_was_taken_over_as_it_was_is_recorded() {
    let record = record_of(&request(), &tree(), &linked(&["x", "y"]), &tree()).unwrap();
    record.check().unwrap();
    assert_eq!(record.files.len(), 2);
    // A copy has an inode of its own.
    let mut taken = tree();
    taken.files[1].inode = 12;
    let copied = snapshotted([("x", SnapshotMethod::HardLink), ("y", SnapshotMethod::Copy)]);
    let record = record_of(&request(), &tree(), &copied, &taken).unwrap();
    assert_eq!((record.files[0].inode, record.files[1].inode), (11, 12));
}

#[test]
fn what_is_not_what_was_to_be_taken_over_is_not_recorded() {
    let damaged: [(&str, Damage<Tree>); 7] = [
        ("the list of files", |taken| drop(taken.files.pop())),
        ("the list of files", |taken| taken.files.push(file("z"))),
        ("the list of files", |taken| taken.symlinks.clear()),
        ("x", |taken| taken.files[0].inode = 12),
        ("x", |taken| taken.files[0].size_bytes = 6),
        ("y", |taken| taken.files[1].mtime = time(100, 8)),
        ("y", |taken| {
            taken.files[1].path = RelativePath::new("yy").unwrap();
        }),
    ];
    for (what, damage) in damaged {
        let mut taken = tree();
        damage(&mut taken);
        let error = record_of(&request(), &tree(), &linked(&["x", "y"]), &taken).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SourceChanged);
        assert_eq!(
            error.to_string(),
            format!("cannot seal the step: /run/step_1: {what} changed while it was sealed")
        );
    }
    let error = record_of(&request(), &tree(), &linked(&["x"]), &tree()).unwrap_err();
    assert!(error.to_string().contains("the list of files"), "{error}");
    let error = record_of(&request(), &tree(), &linked(&["x", "z"]), &tree()).unwrap_err();
    assert!(error.to_string().contains("y changed while it was sealed"), "{error}");
}

#[test]
fn a_single_file_has_the_steps_name_in_the_vault() {
    let single = |path: &str| Tree {
        shape: Shape::File,
        files: vec![file(path)],
        directories: Vec::new(),
        symlinks: Vec::new(),
    };
    let record =
        record_of(&request(), &single("last.ckpt"), &linked(&["last.ckpt"]), &single("step_1")).unwrap();
    record.check().unwrap();
    assert_eq!(record.files[0].path.as_str(), "step_1");
}

#[test]
fn a_directory_is_shared_by_several_nodes_alone() {
    let place = |nodes| NodePlace::new(NodeName::new("node-0").unwrap(), nodes).unwrap();
    let record = |count: usize, shared| {
        let writer = Writer { place: place(NodeSet::counted(count).unwrap()), launch: None, shared };
        let request = SealRequest { writer, ..request() };
        let record = record_of(&request, &tree(), &linked(&["x", "y"]), &tree()).unwrap();
        (record.shared, record.nodes.map(|nodes| nodes.count()))
    };
    assert_eq!(record(2, true), (true, Some(2)));
    assert_eq!(record(2, false), (false, Some(2)));
    assert_eq!(record(1, true), (false, None));
}

#[test]
fn a_tick_is_over_after_20_milliseconds() {
    for (first, second, within) in [
        (time(5, 0), time(5, 0), true),
        (time(5, 0), time(5, 19_999_999), true),
        (time(5, 0), time(5, 20_000_000), false),
        (time(5, 990_000_000), time(6, 9_999_999), true),
        (time(5, 990_000_000), time(6, 10_000_000), false),
        (time(5, 0), time(6, 0), false),
        (time(-6, 0), time(-5, 0), false),
        // From another clock, which is ahead.
        (time(9, 0), time(5, 0), true),
    ] {
        assert_eq!(is_within_a_tick(first, second), within, "{first:?} {second:?}");
    }
}

#[test]
fn a_record_is_no_longer_than_what_is_read_back() {
    let check = |bytes| check_readable(Path::new("/run/step_1"), bytes, 9);
    check(MAX_RECORD_BYTES).unwrap();
    let error = check(MAX_RECORD_BYTES + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot seal the step: /run/step_1: the list of its 9 files takes 67108865 bytes; the limit is 67108864"
    );
}

#[test]
fn a_source_that_is_gone_has_changed_and_one_that_cannot_be_sealed_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (checkpoint, before) = (
        Checkpoint::of_path(&place.path().join("step_1"), "step_1"),
        Checkpoint::of_path(place.path(), "").scan().unwrap(),
    );
    let error = look_again(&checkpoint, &before).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SourceChanged);
    assert!(error.to_string().ends_with("step_1: it vanished while the step was sealed"), "{error}");
    std::os::unix::fs::symlink("elsewhere", place.path().join("step_1")).unwrap();
    let error = look_again(&checkpoint, &before).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
}

/// Otherwise a file that is rewritten right after sealing could appear unchanged.
#[test]
fn whatever_is_written_after_the_wait_has_another_time() {
    let place = tempfile::tempdir().unwrap();
    let (root, staging) = (place.path().join("step_1"), place.path().join("staging"));
    std::fs::create_dir(&root).unwrap();
    for round in 0..20_u8 {
        let staging = staging.with_extension(round.to_string());
        std::fs::write(root.join("x"), [round]).unwrap();
        let before = tree::scan(&root).unwrap();
        std::fs::create_dir(&staging).unwrap();
        let_the_clock_tick(&staging, &before).unwrap();
        std::fs::write(root.join("x"), [round + 1]).unwrap();
        let after = tree::scan(&root).unwrap();
        assert_ne!(before.files[0].mtime, after.files[0].mtime, "round {round}");
    }
}

/// The race that this avoids is rare where files are slow to write.
#[test]
fn the_wait_takes_a_tick_where_there_is_need() {
    let place = tempfile::tempdir().unwrap();
    let (root, staging) = (place.path().join("step_1"), place.path().join("staging"));
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(&staging).unwrap();
    let file = File::create(root.join("x")).unwrap();
    let now = std::time::SystemTime::now();
    file.set_modified(now + Duration::from_hours(1)).unwrap();
    let begun = std::time::Instant::now();
    let_the_clock_tick(&staging, &tree::scan(&root).unwrap()).unwrap();
    assert!(begun.elapsed() >= TICK);
}

#[test]
fn what_cannot_be_made_is_named_in_full() {
    let place = tempfile::tempdir().unwrap();
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    for directory in [&source, &target] {
        std::fs::create_dir(directory).unwrap();
    }
    std::fs::write(target.join("taken"), "").unwrap();
    let snapshot = Snapshot::new(&source, &target, LinkPolicy::Auto, &tree::scan(&source).unwrap()).unwrap();
    let path = RelativePath::new("taken").unwrap();
    for outcome in [snapshot.create_directory(&path), snapshot.link(&path, "a")] {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(&target.join("taken").display().to_string()), "{text}");
    }
}
