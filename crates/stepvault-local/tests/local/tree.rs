//! Scanning checkpoints, and entries that cannot be sealed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode};
use stepvault_core::ErrorKind;
use stepvault_core::manifest::{MAX_ENTRIES, Shape};
use stepvault_core::path::RelativePath;
use stepvault_local::tree::{scan, scan_members};

use crate::support::{Place, error};

/// Makes something in a checkpoint.
type Make = Box<dyn Fn(&Path)>;

#[test]
fn lists_everything_sorted_with_its_facts() {
    let place = Place::new();
    let tree = scan(&place.checkpoint("step_1")).unwrap();
    let files: Vec<_> = tree.files.iter().map(|file| (file.path.as_str(), file.size_bytes)).collect();
    assert_eq!(files, [("trainer/.metadata", 18), ("trainer/__0_0.distcp", 100_000), ("zero", 0)]);
    let directories: Vec<_> =
        tree.directories.iter().map(|entry| entry.path.as_ref().map(RelativePath::as_str)).collect();
    assert_eq!(directories, [None, Some("trainer"), Some("trainer/empty")]);
    assert_eq!(tree.symlinks[0].target, "trainer/.metadata");
    assert_eq!(tree.files[2].mode, 0o640);
    assert_eq!(tree.data_bytes(), 100_018);
    assert!(tree.files[1].allocated_bytes >= 100_000);
    assert_eq!(tree.newest_mtime(), tree.files.iter().map(|file| file.mtime).max().unwrap());
}

#[test]
fn a_single_file_is_a_checkpoint() {
    let place = Place::new();
    let path = place.at("epoch=1-step=2.ckpt");
    fs::write(&path, "weights").unwrap();
    let tree = scan(&path).unwrap();
    assert_eq!((tree.shape, tree.files[0].path.as_str()), (Shape::File, "epoch=1-step=2.ckpt"));
    assert!(tree.directories.is_empty());
}

#[test]
fn nothing_there_is_not_found() {
    let place = Place::new();
    assert_eq!(error(scan(&place.at("missing"))).kind(), ErrorKind::NotFound);
}

/// However short their names are.
#[test]
fn as_many_entries_as_a_manifest_lists_are_read_and_one_more_is_refused() {
    let place = Place::within(Path::new("/dev/shm"));
    let root = place.at("run/step_1");
    fs::create_dir_all(&root).unwrap();
    let mut first = root.join("0");
    // The directory itself is an entry too.
    let most = MAX_ENTRIES - 1;
    for number in 0..most {
        let path = root.join(number.to_string());
        // A filesystem limits the names of one file.
        if number.is_multiple_of(30_000) {
            fs::write(&path, "").unwrap();
            first = path;
        } else {
            fs::hard_link(&first, path).unwrap();
        }
    }
    assert_eq!(scan(&root).unwrap().files.len(), most);
    fs::create_dir(root.join("one-more")).unwrap();
    let refused = error(scan(&root));
    assert_eq!(refused.kind(), ErrorKind::Usage);
    assert!(refused.to_string().ends_with("step_1\": it has more than 150000 entries"), "{refused}");
}

#[test]
fn holes_show_in_the_allocated_bytes() {
    let place = Place::new();
    fs::create_dir(place.at("c")).unwrap();
    fs::File::create(place.at("c/holes")).unwrap().set_len(1 << 30).unwrap();
    let tree = scan(&place.at("c")).unwrap();
    assert!(tree.files[0].allocated_bytes < tree.files[0].size_bytes);
}

#[test]
fn what_no_checkpoint_can_hold_is_named() {
    let place = Place::new();
    let mut cases: Vec<(&str, &str, Make)> = Vec::new();
    cases.push((
        "fifo",
        "it is a FIFO",
        Box::new(|root| {
            rustix::fs::mkfifoat(CWD, root.join("fifo"), Mode::from_raw_mode(0o600)).unwrap();
        }),
    ));
    cases.push((
        "socket",
        "it is a socket",
        Box::new(|root| {
            UnixListener::bind(root.join("socket")).unwrap();
        }),
    ));
    cases.push((
        "caf\\u{fffd}",
        "its name is not UTF-8",
        Box::new(|root| {
            fs::write(root.join(OsStr::from_bytes(b"caf\xe9")), "").unwrap();
        }),
    ));
    cases.push((
        "line\\nfeed",
        "it holds a control character",
        Box::new(|root| {
            fs::write(root.join("line\nfeed"), "").unwrap();
        }),
    ));
    cases.push((
        "x/x/x/",
        "it is longer than 512 bytes",
        Box::new(|root| {
            let deep = root.join("x/".repeat(260));
            fs::create_dir_all(deep).unwrap();
        }),
    ));
    cases.push((
        "out -> ../victim",
        "its target lies outside the checkpoint",
        Box::new(|root| {
            symlink("../victim", root.join("out")).unwrap();
        }),
    ));
    cases.push((
        "abs -> /etc/passwd",
        "its target is absolute",
        Box::new(|root| {
            symlink("/etc/passwd", root.join("abs")).unwrap();
        }),
    ));
    for (index, (name, why, make)) in cases.iter().enumerate() {
        let root = place.at(&format!("c{index}"));
        fs::create_dir(&root).unwrap();
        make(&root);
        let refused = error(scan(&root));
        // Quoted the way Debug writes it, so that no name can write to a terminal.
        let shown = refused.to_string().replace('\u{fffd}', "\\u{fffd}");
        assert!(shown.contains(name) && shown.contains(why), "{name}: {shown}");
        assert_eq!(refused.kind(), ErrorKind::Usage, "{name}");
        assert!(refused.hint_text().is_some(), "{name}: says what to do");
        assert!(!refused.to_string().contains('\n'));
    }
}

#[test]
fn a_checkpoint_that_is_a_link_is_refused_and_not_followed() {
    let place = Place::new();
    symlink(place.checkpoint("step_1"), place.at("latest")).unwrap();
    let refused = error(scan(&place.at("latest")));
    assert!(refused.to_string().ends_with("it is a symbolic link"), "{refused}");
}

#[test]
fn the_fingerprint_changes_with_what_is_written_and_not_with_what_is_read() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    let before = scan(&root).unwrap();
    fs::read(root.join("trainer/.metadata")).unwrap();
    // A second name changes the inode's own time, and is what sealing does.
    fs::hard_link(root.join("trainer/.metadata"), place.at("second name")).unwrap();
    let after = scan(&root).unwrap();
    assert_eq!(before.fingerprint(), after.fingerprint());
    assert_eq!(before.change_until(&after), None);

    let file = |name: &str| root.join("trainer").join(name);
    let mut changes = Vec::new();
    let mut now = before;
    let mut step = |change: &dyn Fn()| {
        // Longer than the clock that stamps files may stand still.
        std::thread::sleep(Duration::from_millis(20));
        change();
        let later = scan(&root).unwrap();
        assert_ne!(now.fingerprint(), later.fingerprint());
        changes.push(now.change_until(&later).expect("a change"));
        now = later;
    };
    step(&|| fs::write(file(".metadata"), "metadata of step_2").unwrap());
    step(&|| fs::write(file(".metadata"), "longer than it was before").unwrap());
    step(&|| fs::write(file("new"), "").unwrap());
    step(&|| fs::remove_file(file("new")).unwrap());
    step(&|| fs::create_dir(file("zz")).unwrap());
    step(&|| {
        fs::write(place.at("other"), vec![7_u8; 100_000]).unwrap();
        fs::rename(place.at("other"), file("__0_0.distcp")).unwrap();
    });
    step(&|| {
        fs::remove_file(root.join("link")).unwrap();
        symlink("zero", root.join("link")).unwrap();
    });
    assert_eq!(
        changes,
        [
            "trainer/.metadata was written again",
            "trainer/.metadata grew from 18 to 25 bytes",
            "trainer/new appeared",
            "trainer/new vanished",
            "trainer/zz appeared",
            "trainer/__0_0.distcp was replaced by another file",
            "link has a new target",
        ]
    );
}

#[test]
fn a_hundred_thousand_files_are_all_found() {
    let place = Place::new();
    let root = place.at("many");
    for directory in 0..100 {
        let directory = root.join(format!("d{directory}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("0"), "").unwrap();
        for file in 1..1000 {
            fs::hard_link(directory.join("0"), directory.join(file.to_string())).unwrap();
        }
    }
    assert_eq!(scan(&root).unwrap().files.len(), 100_000);
}

#[test]
fn a_checkpoint_of_several_paths_is_those_and_what_leads_to_them() {
    let place = Place::new();
    let root = place.at("run");
    for (path, text) in [
        ("trial/actor/recover/weights", "abc"),
        ("trial/actor/other", "not ours"),
        ("trial/info/step.json", "{}"),
        ("ep1-rank0.pt", "rank 0"),
    ] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), text).unwrap();
    }
    let members =
        ["trial/actor/recover", "trial/info", "ep1-rank0.pt"].map(|path| RelativePath::new(path).unwrap());
    let tree = scan_members(&root, &members).unwrap();
    let files: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["ep1-rank0.pt", "trial/actor/recover/weights", "trial/info/step.json"]);
    let directories = tree.directories.iter().map(|entry| entry.path.as_ref().map(RelativePath::as_str));
    let directories: Vec<_> = directories.collect();
    let wanted = ["trial", "trial/actor", "trial/actor/recover", "trial/info"].map(Some);
    assert_eq!(directories, [&[None], &wanted[..]].concat());
    assert_eq!(tree.change_until(&scan_members(&root, &members).unwrap()), None);

    // The directory that holds them may be reached by a link; a member may not be one.
    symlink(&root, place.at("by-link")).unwrap();
    let by_link = scan_members(&place.at("by-link"), &members).unwrap();
    assert_eq!(by_link.fingerprint(), tree.fingerprint());
    fs::remove_file(root.join("ep1-rank0.pt")).unwrap();
    let gone = error(scan_members(&root, &members));
    assert_eq!(gone.kind(), ErrorKind::SourceChanged);
    assert!(gone.to_string().ends_with("ep1-rank0.pt: it vanished meanwhile"), "{gone}");
    symlink("trial/info/step.json", root.join("ep1-rank0.pt")).unwrap();
    let link = error(scan_members(&root, &members));
    assert_eq!(link.kind(), ErrorKind::Usage);
    assert!(link.to_string().ends_with("it is a symbolic link"), "{link}");
}
