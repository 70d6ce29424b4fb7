//! Restores while somebody swaps links about.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode};
use stepvault_core::ErrorKind;
use stepvault_core::manifest::Shape;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::staging::{Existing, Staging};
use stepvault_local::tree::{Tree, scan};

use crate::restore::fill;
use crate::support::{Place, Stop, error, names, path};

/// The victim of each attack, which must stay as it is.
fn victim(place: &Place) -> PathBuf {
    let victim = place.at("victim");
    fs::create_dir_all(&victim).unwrap();
    fs::write(victim.join("file"), "precious").unwrap();
    victim
}

fn assert_unharmed(victim: &Path) {
    assert_eq!(names(victim), ["file"]);
    assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
}

/// A checkpoint as it was scanned, and all of it staged, to be put in place at the path.
fn staged(place: &Place) -> (Tree, PathBuf, Staging) {
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let target = place.at("into/step_1");
    let staging = Staging::open(&target, None, "one").unwrap();
    fill(&staging, &source, &tree).unwrap();
    (tree, target, staging)
}

#[test]
fn links_fifos_and_second_names_in_staging_are_not_written_through() {
    let place = Place::new();
    let victim = victim(&place);
    let target = place.at("into/step_1");
    let staging = Staging::open(&target, None, "one").unwrap();
    let data = staging.directory().join("data");
    symlink(victim.join("file"), data.join("link")).unwrap();
    symlink(&victim, data.join("directory")).unwrap();
    fs::hard_link(victim.join("file"), data.join("second")).unwrap();
    rustix::fs::mkfifoat(CWD, data.join("fifo"), Mode::from_raw_mode(0o600)).unwrap();
    fs::create_dir(data.join("plain")).unwrap();
    for name in ["link", "directory/file", "second", "fifo", "plain"] {
        let file = staging.file(&path(name), 4).unwrap();
        file.write_at(0, b"mine").unwrap();
        file.finish(0o644, Timestamp::from_seconds(1)).unwrap();
        assert_unharmed(&victim);
    }
    assert!(staging.symlink(&path("out"), "../../victim").is_err());
    assert!(staging.symlink(&path("out"), "/etc/passwd").is_err());
    staging.finish(Shape::Directory, &[], Existing::Refuse).unwrap();
    for name in ["link", "directory/file", "second", "fifo", "plain"] {
        assert_eq!(fs::read(target.join(name)).unwrap(), b"mine");
        assert!(fs::symlink_metadata(target.join(name)).unwrap().is_file());
    }
    assert_unharmed(&victim);
}

/// A thousand restores while a directory is swapped for a link to the victim. A process that may write to the staging
/// directory can damage what is restored, up to the very end; nothing may be written or deleted elsewhere for it.
#[test]
fn swapping_links_meanwhile_reaches_nothing() {
    let place = Place::new();
    let victim = victim(&place);
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let stop = AtomicBool::new(false);
    let (mut finished, mut failed) = (0, 0);
    std::thread::scope(|scope| {
        let staged = Staging::open(&place.at("into/step_1"), Some(&place.vault), "one").unwrap();
        let data = staged.directory().join("data");
        drop(staged);
        let (victim, stop) = (&victim, &stop);
        let _stop = Stop(stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(data.join("trainer"), data.join("aside"));
                let _ = symlink(victim, data.join("trainer"));
                std::thread::yield_now();
                let _ = fs::remove_file(data.join("trainer"));
                let _ = fs::rename(data.join("aside"), data.join("trainer"));
            }
        });
        let target = place.at("into/step_1");
        for _ in 0..1000 {
            let staging = Staging::open(&target, Some(&place.vault), "one").unwrap();
            let done = fill(&staging, &source, &tree)
                .and_then(|()| staging.finish(Shape::Directory, &tree.directories, Existing::Replace));
            if done.is_ok() {
                finished += 1;
            } else {
                failed += 1;
            }
            assert_unharmed(victim);
        }
    });
    eprintln!("{finished} finished, {failed} refused");
    assert_unharmed(&victim);
}

#[test]
fn a_link_in_the_place_of_the_staged_directory_is_not_published() {
    let place = Place::new();
    let victim = victim(&place);
    let (tree, target, staging) = staged(&place);
    let own = staging.directory().to_path_buf();
    fs::rename(own.join("data"), own.join("aside")).unwrap();
    symlink(&victim, own.join("data")).unwrap();
    assert!(staging.finish(Shape::Directory, &tree.directories, Existing::Refuse).is_err());
    assert!(target.symlink_metadata().is_err());
    assert_unharmed(&victim);
}

/// Its files are the very ones that were finished, so that they say nothing.
#[test]
fn another_directory_with_the_same_files_is_not_published() {
    let place = Place::new();
    let (tree, target, staging) = staged(&place);
    let own = staging.directory().to_path_buf();
    let (data, aside) = (own.join("data"), own.join("aside"));
    fs::rename(&data, &aside).unwrap();
    fs::create_dir(&data).unwrap();
    for path in tree.directories.iter().filter_map(|entry| entry.path.as_ref()) {
        fs::create_dir_all(data.join(path)).unwrap();
    }
    for file in &tree.files {
        fs::hard_link(aside.join(&file.path), data.join(&file.path)).unwrap();
    }
    for link in &tree.symlinks {
        symlink(&link.target, data.join(&link.path)).unwrap();
    }
    let refused = error(staging.finish(Shape::Directory, &tree.directories, Existing::Refuse));
    assert!(refused.to_string().contains("another process replaced the restored directory"), "{refused}");
    assert!(target.symlink_metadata().is_err());
}

#[test]
fn a_file_swapped_after_it_was_finished_is_not_published() {
    let place = Place::new();
    let (tree, target, staging) = staged(&place);
    let data = staging.directory().join("data");
    fs::write(data.join("other"), "metadata of step_X").unwrap();
    fs::rename(data.join("other"), data.join("trainer/.metadata")).unwrap();
    let refused = error(staging.finish(Shape::Directory, &tree.directories, Existing::Refuse));
    assert!(refused.to_string().contains("trainer/.metadata was replaced"), "{refused}");
    assert!(!target.exists());
}

#[test]
fn a_place_that_is_a_link_is_not_used() {
    let place = Place::new();
    let victim = victim(&place);
    fs::create_dir(place.at("into")).unwrap();
    // Both places that would do are traps.
    symlink(&victim, place.at(".stepvault")).unwrap();
    symlink(&victim, place.at("into/.stepvault-restore")).unwrap();
    let refused = error(Staging::open(&place.at("into/step_1"), None, "one"));
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
}

#[test]
fn what_an_interrupted_swap_left_is_cleared_away() {
    let place = Place::new();
    let victim = victim(&place);
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let target = place.at("into/step_1");
    let leavings: [&dyn Fn(&Path); 3] =
        [&|data| symlink(&victim, data).unwrap(), &|data| fs::write(data, "a file").unwrap(), &|data| {
            fs::create_dir_all(data.join("old/deep")).unwrap();
            fs::hard_link(victim.join("file"), data.join("zero")).unwrap();
        }];
    for leave in leavings {
        let staging = Staging::open(&target, None, "one").unwrap();
        let data = staging.directory().join("data");
        drop(staging);
        fs::remove_dir(&data).unwrap();
        leave(&data);
        let staging = Staging::open(&target, None, "one").unwrap();
        fill(&staging, &source, &tree).unwrap();
        staging.finish(Shape::Directory, &tree.directories, Existing::Replace).unwrap();
        assert_eq!(names(&target), ["link", "trainer", "zero"]);
        assert_unharmed(&victim);
    }
}

/// Between the two renames of a filesystem that cannot swap names, the old step stands aside; nothing may lose it.
#[test]
fn a_step_that_was_moved_aside_comes_back() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let target = place.at("into/step_1");
    let staging = Staging::open(&target, None, "one").unwrap();
    fs::create_dir(staging.directory().join("replaced")).unwrap();
    fs::write(staging.directory().join("replaced/old"), "old").unwrap();
    drop(staging);
    let staging = Staging::open(&target, None, "one").unwrap();
    assert_eq!(names(&target), ["old"]);
    // Once the new one is in place, the old one is only in the way.
    fs::create_dir(staging.directory().join("replaced")).unwrap();
    drop(staging);
    let staging = Staging::open(&target, None, "one").unwrap();
    assert!(!staging.directory().join("replaced").exists());
    fill(&staging, &source, &tree).unwrap();
    staging.finish(Shape::Directory, &tree.directories, Existing::Replace).unwrap();
    assert_eq!(names(&target), ["link", "trainer", "zero"]);
}
