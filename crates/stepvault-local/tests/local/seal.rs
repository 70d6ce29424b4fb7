//! Sealing a step that stands still.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_core::config::LinkPolicy;
use stepvault_core::manifest::Shape;
use stepvault_local::seal::{seal, seal_reporting};
use stepvault_local::seal_record::SnapshotMethod;
use stepvault_local::source::SourceFile;
use stepvault_local::tree::{scan, scan_members};

use crate::support::{Mount, Place, error, id, names, path, run};

#[test]
fn a_sealed_step_outlives_the_trainers_own() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    fs::set_permissions(source.join("trainer"), fs::Permissions::from_mode(0o755)).unwrap();
    let before = scan(&source).unwrap();
    let mut request = place.request("step_1", 1);
    request.checkpoint.metrics.insert("loss".to_owned(), 0.25);
    request.expected = Some(Arc::new(before.clone()));
    let sealed = seal(&place.vault, &request).unwrap().step;
    fs::remove_dir_all(&source).unwrap();

    let found = place.vault.step(&run(), id(1)).unwrap().unwrap();
    assert_eq!(found.record(), sealed.record());
    assert_eq!((found.name(), found.record().shape, found.id()), ("step_1", Shape::Directory, id(1)));
    assert_eq!(found.record().written_at, before.newest_mtime());
    assert_eq!(found.record().metrics, request.checkpoint.metrics);
    assert_eq!(found.record().directories, before.directories);
    assert_eq!(found.record().symlinks, before.symlinks);
    for (file, was) in found.record().files.iter().zip(&before.files) {
        assert_eq!(
            (&file.path, file.size_bytes, file.mode, file.mtime),
            (&was.path, was.size_bytes, was.mode, was.mtime)
        );
        SourceFile::open(&found.file_path(&file.path), file).unwrap().check_unchanged().unwrap();
    }
    assert_eq!(fs::read(found.file_path(&path("trainer/.metadata"))).unwrap(), b"metadata of step_1");
    assert_eq!(fs::read_link(found.data_root().join("link")).unwrap().to_str(), Some("trainer/.metadata"));
    assert!(found.data_root().join("trainer/empty").is_dir());
    place.assert_no_leftovers();
}

/// A step may have very many files, and is listed several times while it is sealed.
#[test]
fn all_lists_of_a_checkpoint_share_its_paths() {
    let place = Place::new();
    let judged = Arc::new(scan(&place.checkpoint("step_1")).unwrap());
    let mut request = place.request("step_1", 1);
    request.expected = Some(Arc::clone(&judged));
    let sealed = seal(&place.vault, &request).unwrap();
    let record = sealed.step.record();
    assert_eq!((record.files.len(), sealed.source.files.len()), (judged.files.len(), judged.files.len()));
    let lists = judged.files.iter().zip(&sealed.source.files).zip(&record.files);
    for ((judged, after), file) in lists {
        let text = judged.path.as_str().as_ptr();
        assert_eq!(
            (after.path.as_str().as_ptr(), file.path.as_str().as_ptr()),
            (text, text),
            "{}",
            file.path
        );
    }
}

#[test]
fn a_large_copy_is_reported_as_far_as_it_can_be_read_and_its_end_when_it_is_whole() {
    const PART_BYTES: usize = 8 << 20;
    const PART: u64 = PART_BYTES as u64;
    let place = Place::new();
    let source = place.checkpoint("step_1");
    fs::write(source.join("full"), vec![3; PART_BYTES * 2 + 5]).unwrap();
    // A hole in the middle, and one at the end.
    let mut sparse = fs::File::create(source.join("sparse")).unwrap();
    sparse.write_all(&[4; 100]).unwrap();
    sparse.seek(SeekFrom::Start(2 * PART + 7)).unwrap();
    sparse.write_all(&[5; 100]).unwrap();
    sparse.set_len(4 * PART).unwrap();
    drop(sparse);
    let mut request = place.request("step_1", 1);
    request.checkpoint.links = LinkPolicy::Copy;
    let mut reports = Vec::new();
    let sealed = seal_reporting(&place.vault, &request, &mut |copy| {
        let bytes = fs::read(source.join(&copy.file.path)).unwrap();
        let end = usize::try_from(copy.copied_bytes).unwrap();
        let file = fs::File::open(&copy.place).unwrap();
        let mut there = vec![0; end];
        file.read_exact_at(&mut there, 0).unwrap();
        assert!(there == bytes[..end], "{copy:?}");
        if end == bytes.len() {
            SourceFile::open(&copy.place, &copy.file).unwrap();
        }
        reports.push(copy.clone());
    });
    let sealed = sealed.unwrap().step;
    let of = |name: &str| {
        let reports = reports.iter().filter(|copy| copy.file.path.as_str() == name);
        reports.map(|copy| copy.copied_bytes).collect::<Vec<_>>()
    };
    assert_eq!(of("full"), [PART, 2 * PART, 2 * PART + 5]);
    assert_eq!(of("sparse").last(), Some(&(4 * PART)));
    assert!(of("sparse").is_sorted());
    assert_eq!(reports.len(), of("full").len() + of("sparse").len(), "small files are not reported");
    for copy in &reports {
        assert!(copy.is_sealed_as(sealed.record().file(&copy.file.path).unwrap()));
    }

    // What is linked is not copied.
    let mut request = place.request("step_1", 2);
    request.checkpoint.links = LinkPolicy::Auto;
    seal_reporting(&place.vault, &request, &mut |copy| panic!("{copy:?}")).unwrap();
}

#[test]
fn every_way_of_taking_over_gives_the_same_record() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    let policies = [LinkPolicy::Auto, LinkPolicy::ReflinkOrCopy, LinkPolicy::Copy];
    for (step, links) in (1..).zip(policies) {
        let mut request = place.request("step_1", step);
        request.checkpoint.links = links;
        let sealed = seal(&place.vault, &request).unwrap().step;
        let file = sealed.record().file(&path("zero")).unwrap();
        match links {
            LinkPolicy::Copy => assert_eq!(file.method, SnapshotMethod::Copy),
            LinkPolicy::ReflinkOrCopy => assert_ne!(file.method, SnapshotMethod::HardLink),
            LinkPolicy::Auto => {
                assert_ne!(file.method, SnapshotMethod::Copy, "nothing is copied on one filesystem");
            }
        }
        let facts = fs::metadata(sealed.file_path(&path("zero"))).unwrap();
        assert_eq!(facts.permissions().mode() & 0o777, 0o640);
        assert_eq!((facts.mtime(), facts.ino()), (file.mtime.seconds, file.inode));
        assert_eq!(sealed.record().data_bytes(), 100_018);
        assert_eq!(fs::read(sealed.file_path(&path("trainer/__0_0.distcp"))).unwrap(), vec![7_u8; 100_000]);
    }
    assert!(source.join("zero").exists());
}

#[test]
fn a_single_file_is_kept_under_the_steps_name() {
    let place = Place::new();
    fs::create_dir(place.at("real")).unwrap();
    std::os::unix::fs::symlink(place.at("real"), place.at("run")).unwrap();
    fs::write(place.at("run/last.ckpt"), "weights").unwrap();
    let mut request = place.request("last.ckpt", 7);
    request.checkpoint.name = "step=7.ckpt".to_owned();
    let sealed = seal(&place.vault, &request).unwrap().step;
    assert_eq!(sealed.record().shape, Shape::File);
    assert_eq!(fs::read(sealed.file_path(&path("step=7.ckpt"))).unwrap(), b"weights");
    assert_eq!(place.vault.step(&run(), id(7)).unwrap().unwrap().record(), sealed.record());
}

#[test]
fn another_filesystem_means_a_copy() {
    let Some(mount) = Mount::tmpfs("size=8m") else {
        return;
    };
    let place = Place::new();
    let mut request = place.request("x", 1);
    request.checkpoint.source = mount.0.path().join("step_1");
    fs::create_dir(&request.checkpoint.source).unwrap();
    fs::write(request.checkpoint.source.join("weights"), "weights").unwrap();
    let sealed = seal(&place.vault, &request).unwrap().step;
    assert_eq!(sealed.record().files[0].method, SnapshotMethod::Copy);
    assert_eq!(fs::read(sealed.file_path(&path("weights"))).unwrap(), b"weights");
}

#[test]
fn the_same_step_is_sealed_once() {
    let place = Place::new();
    let sealed = place.sealed(1);
    let conflict = error(seal(&place.vault, &place.request("step_1", 1)));
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    let expected = format!(
        "cannot seal the step: {}: this step of this attempt is already sealed",
        sealed.directory().display()
    );
    assert_eq!(conflict.to_string(), expected);
    assert_eq!(place.vault.step(&run(), id(1)).unwrap().unwrap().record(), sealed.record());
    place.assert_no_leftovers();
}

#[test]
fn a_request_that_makes_no_sense_leaves_nothing() {
    let place = Place::new();
    place.checkpoint("step_1");
    let mut bad_name = place.request("step_1", 1);
    bad_name.checkpoint.name = "../step_1".to_owned();
    assert!(seal(&place.vault, &bad_name).is_err());
    let mut not_a_number = place.request("step_1", 1);
    not_a_number.checkpoint.metrics.insert("loss".to_owned(), f64::NAN);
    assert!(seal(&place.vault, &not_a_number).is_err());
    assert_eq!(error(seal(&place.vault, &place.request("missing", 1))).kind(), ErrorKind::NotFound);
    place.assert_no_leftovers();
    assert!(place.vault.steps(&run()).unwrap().steps.is_empty());
}

#[test]
fn everything_in_the_vault_is_private_whatever_the_umask() {
    rustix::process::umask(rustix::fs::Mode::empty());
    let place = Place::new();
    let mut request = place.request("step_1", 1);
    request.checkpoint.links = LinkPolicy::Copy;
    place.checkpoint("step_1");
    seal(&place.vault, &request).unwrap();
    let mut pending = vec![place.vault.root().to_path_buf()];
    while let Some(directory) = pending.pop() {
        let mode = fs::metadata(&directory).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", directory.display());
        for name in names(&directory) {
            let path = directory.join(name);
            if path.symlink_metadata().unwrap().is_dir() {
                pending.push(path);
            }
        }
    }
    let record = place.vault.step(&run(), id(1)).unwrap().unwrap().directory().join("seal.json");
    assert_eq!(fs::metadata(record).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_thousand_small_files_are_linked_not_copied() {
    let place = Place::new();
    let source = place.at("run/step_1");
    fs::create_dir_all(&source).unwrap();
    for file in 0..1000 {
        fs::write(source.join(format!("shard-{file:04}")), vec![1_u8; 4096]).unwrap();
    }
    let sealed = seal(&place.vault, &place.request("step_1", 1)).unwrap().step;
    assert_eq!(sealed.record().files.len(), 1000);
    assert!(sealed.record().files.iter().all(|file| file.method != SnapshotMethod::Copy));
}

#[test]
fn a_step_of_several_paths_is_sealed_as_one() {
    let place = Place::new();
    place.checkpoint("actor");
    fs::create_dir_all(place.at("run/info")).unwrap();
    fs::write(place.at("run/info/step.json"), "{}").unwrap();
    fs::write(place.at("run/info.txt"), "not of the step").unwrap();
    let mut request = place.request("pair-7", 7);
    request.checkpoint.source = place.at("run");
    request.checkpoint.members = vec![path("actor"), path("info/step.json")];
    let sealed = seal(&place.vault, &request).unwrap().step;
    let record = sealed.record();
    assert_eq!((record.name.as_str(), record.shape), ("pair-7", Shape::Directory));
    assert_eq!(record.members, request.checkpoint.members, "in their order");
    let files: Vec<_> = record.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        files,
        ["actor/trainer/.metadata", "actor/trainer/__0_0.distcp", "actor/zero", "info/step.json"]
    );
    assert_eq!(fs::read(sealed.file_path(&path("info/step.json"))).unwrap(), b"{}");

    // One of them is gone: what was taken over would be half a step.
    request.id = id(8);
    fs::remove_file(place.at("run/info/step.json")).unwrap();
    let gone = error(seal(&place.vault, &request));
    assert_eq!(gone.kind(), ErrorKind::SourceChanged, "{gone}");
    place.assert_no_leftovers();
}

#[test]
fn a_trainers_step_is_removed_whole_or_not_at_all() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    let other = place.checkpoint("step_2");
    let tree = scan(&root).unwrap();
    fs::write(root.join("late"), "").unwrap();
    let changed = error(place.vault.remove_source(&root, &[], &tree));
    assert_eq!(changed.kind(), ErrorKind::SourceChanged);
    assert_eq!(
        changed.to_string(),
        format!("cannot remove the trainer's step: {}: late appeared", root.display())
    );
    assert!(root.join("trainer/.metadata").exists());

    let tree = scan(&root).unwrap();
    place.vault.remove_source(&root, &[], &tree).unwrap();
    assert!(!root.exists() && other.join("trainer/.metadata").exists());

    // Of several paths those go, and what is beside them stays.
    let members = [path("step_2/trainer"), path("step_2/zero")];
    let runs = place.at("run");
    let tree = scan_members(&runs, &members).unwrap();
    place.vault.remove_source(&runs, &members, &tree).unwrap();
    assert!(!other.join("trainer").exists() && other.join("link").symlink_metadata().is_ok());
    place.assert_no_leftovers();
}

#[test]
fn what_may_stay_stays_where_it_would_have_to_be_copied() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    fs::write(place.at("run/step_2.ckpt"), "weights").unwrap();
    for (name, step, in_place) in [("step_1", 1, true), ("step_2.ckpt", 2, true), ("step_1", 3, false)] {
        let mut request = place.request(name, step);
        (request.checkpoint.links, request.checkpoint.in_place) = (LinkPolicy::Copy, in_place);
        let sealed = seal(&place.vault, &request).unwrap().step;
        let found = place.vault.step(&run(), id(step)).unwrap().unwrap();
        assert_eq!(found.record(), sealed.record());
        assert_eq!(found.checkpoint_path() == place.at("run").join(name), in_place);
        assert_eq!(found.directory().join("data").exists(), !in_place);
        for file in &found.record().files {
            assert_eq!(file.method == SnapshotMethod::InPlace, in_place);
            SourceFile::open(&found.file_path(&file.path), file).unwrap();
        }
        assert_eq!(found.record().source.is_some(), in_place);
        assert_eq!(found.reclaimable_bytes() == 0, in_place);
        place.assert_no_leftovers();
    }
    // Another file of that size and time is not the one that was sealed.
    let step = place.vault.step(&run(), id(1)).unwrap().unwrap();
    let file = step.record().file(&path("trainer/.metadata")).unwrap();
    let times = fs::FileTimes::new()
        .set_modified(source.join("trainer/.metadata").metadata().unwrap().modified().unwrap());
    fs::write(source.join("other"), "metadata of step_1").unwrap();
    fs::File::options().write(true).open(source.join("other")).unwrap().set_times(times).unwrap();
    fs::rename(source.join("other"), source.join("trainer/.metadata")).unwrap();
    let error = error(SourceFile::open(&step.file_path(&file.path), file));
    assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
    // Removing the step leaves the trainer's files alone.
    assert!(place.vault.evict(&run(), id(1)).unwrap());
    assert!(source.join("zero").exists());
}

/// Links come first where they are possible: they survive a trainer that deletes the step meanwhile.
#[test]
fn what_may_stay_is_linked_where_that_is_possible() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    let mut request = place.request("step_1", 1);
    request.checkpoint.in_place = true;
    let sealed = seal(&place.vault, &request).unwrap().step;
    assert!(sealed.record().source.is_none());
    fs::remove_dir_all(source).unwrap();
    for file in &sealed.record().files {
        SourceFile::open(&sealed.file_path(&file.path), file).unwrap();
    }
}
