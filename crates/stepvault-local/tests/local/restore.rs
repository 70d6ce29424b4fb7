//! Restores that nobody disturbs.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use stepvault_core::ErrorKind;
use stepvault_core::manifest::{DirectoryEntry, Shape};
use stepvault_core::timestamp::Timestamp;
use stepvault_local::staging::{Existing, Staging};
use stepvault_local::tree::{Tree, scan};
use stepvault_local::vault::Vault;

use crate::support::{Mount, Place, error, names, path};

/// Restores the checkpoint at `from` as it was scanned.
pub(crate) fn restore(
    from: &Path,
    tree: &Tree,
    target: &Path,
    vault: Option<&Vault>,
    existing: Existing,
) -> stepvault_core::Result<()> {
    let staging = Staging::open(target, vault, &tree.fingerprint().to_string())?;
    fill(&staging, from, tree)?;
    staging.finish(tree.shape, &tree.directories, existing)
}

pub(crate) fn fill(staging: &Staging, from: &Path, tree: &Tree) -> stepvault_core::Result<()> {
    for file in &tree.files {
        let source = if tree.shape == Shape::File { from.to_path_buf() } else { from.join(&file.path) };
        let bytes = fs::read(source).unwrap();
        let staged = staging.file(&file.path, file.size_bytes)?;
        staged.write_at(0, &bytes)?;
        staged.finish(file.mode, file.mtime)?;
    }
    for link in &tree.symlinks {
        staging.symlink(&link.path, &link.target)?;
    }
    Ok(())
}

fn directories_of(tree: &Tree) -> Vec<DirectoryEntry> {
    tree.directories.clone()
}

#[test]
fn brings_bytes_modes_and_times_back() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    fs::set_permissions(source.join("trainer/empty"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o555)).unwrap();
    let tree = scan(&source).unwrap();
    for (index, vault) in [Some(&place.vault), None].into_iter().enumerate() {
        let target = place.at(&format!("into/new{index}/step_1"));
        restore(&source, &tree, &target, vault, Existing::Refuse).unwrap();
        let restored = scan(&target).unwrap();
        assert_eq!(restored.directories, tree.directories);
        assert_eq!(restored.symlinks, tree.symlinks);
        for (file, was) in restored.files.iter().zip(&tree.files) {
            assert_eq!(
                (&file.path, file.size_bytes, file.mode, file.mtime),
                (&was.path, was.size_bytes, was.mode, was.mtime)
            );
            assert_eq!(
                fs::read(target.join(&file.path)).unwrap(),
                fs::read(source.join(&file.path)).unwrap()
            );
        }
        assert_eq!(names(target.parent().unwrap()), ["step_1"], "nothing stays beside it");
        assert_eq!(names(&place.at("into")).len(), index + 1, "nothing stays above it");
    }
    assert!(names(&place.vault.root().join("restore")).is_empty());
}

/// As another user than root meets them: a directory without the right to write to it cannot be moved either.
#[test]
fn a_checkpoint_that_its_owner_may_not_write_is_placed_all_the_same() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    for mode in [0o555, 0o755] {
        fs::set_permissions(&source, fs::Permissions::from_mode(mode)).unwrap();
        let tree = scan(&source).unwrap();
        let target = place.at(&format!("into/step_{mode}"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective -= CapabilitySet::DAC_OVERRIDE;
                set_capabilities(None, sets).unwrap();
                restore(&source, &tree, &target, None, Existing::Refuse).unwrap();
            });
        });
        assert_eq!(scan(&target).unwrap().directories, tree.directories);
    }
}

#[test]
fn a_single_file_comes_back_under_any_name() {
    let place = Place::new();
    fs::create_dir(place.at("run")).unwrap();
    fs::write(place.at("run/step=1.ckpt"), "weights").unwrap();
    let tree = scan(&place.at("run/step=1.ckpt")).unwrap();
    let target = place.at("run/last.ckpt");
    fs::write(&target, "old").unwrap();
    let conflict = error(restore(&place.at("run/step=1.ckpt"), &tree, &target, None, Existing::Refuse));
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    restore(&place.at("run/step=1.ckpt"), &tree, &target, None, Existing::Replace).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"weights");
    assert_eq!(names(&place.at("run")), ["last.ckpt", "step=1.ckpt"]);
    assert!(!place.at(".stepvault").exists());
}

#[test]
fn what_is_there_is_replaced_only_when_allowed() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let target = place.at("run/step_2");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("old"), "old").unwrap();
    let conflict = error(restore(&source, &tree, &target, None, Existing::Refuse));
    let expected = format!("cannot restore: {}: something with that name already exists", target.display());
    assert_eq!(conflict.to_string(), expected);
    assert_eq!(names(&target), ["old"]);
    restore(&source, &tree, &target, None, Existing::Replace).unwrap();
    assert_eq!(names(&target), ["link", "trainer", "zero"]);
    // A link at the target is replaced itself; what it points to stays.
    let pointer = place.at("run/step_3");
    symlink(&source, &pointer).unwrap();
    restore(&source, &tree, &pointer, None, Existing::Replace).unwrap();
    assert!(!pointer.symlink_metadata().unwrap().is_symlink());
    assert!(source.join("trainer/.metadata").exists());
    assert_eq!(names(&place.at("run")), ["step_1", "step_2", "step_3"]);
}

#[test]
fn what_nobody_came_back_for_goes_after_a_day_and_what_was_moved_aside_stays() {
    let place = Place::new();
    let interrupted = |target: &str, identity: &str| {
        let staging = Staging::open(&place.at(target), None, identity).unwrap();
        let file = staging.file(&path("big"), 10).unwrap();
        file.write_at(0, b"0123456789").unwrap();
        staging.directory().to_path_buf()
    };
    let age = |directory: &Path, hours: u64| {
        let stamped = SystemTime::now() - Duration::from_secs(hours * 3600);
        fs::File::open(directory).unwrap().set_modified(stamped).unwrap();
    };
    let old = interrupted("into/step_1", "one");
    let same_target = interrupted("into/step_4", "first");
    let recent = interrupted("into/step_2", "one");
    let swapped = interrupted("into/step_3", "one");
    fs::create_dir(swapped.join("replaced")).unwrap();
    let at_work = Staging::open(&place.at("into/step_5"), None, "one").unwrap();
    for (directory, hours) in [(&old, 25), (&same_target, 25), (&recent, 23), (&swapped, 99)] {
        age(directory, hours);
    }
    age(at_work.directory(), 99);
    let at_work_file = at_work.file(&path("big"), 10).unwrap();

    let staging = Staging::open(&place.at("into/step_4"), None, "second").unwrap();
    assert!(!old.exists());
    assert!(!same_target.exists());
    assert!(recent.join("data/big").exists());
    assert!(!swapped.join("data").exists() && swapped.join("replaced").exists());
    assert!(at_work.directory().join("data/big").exists());
    drop((staging, at_work_file));
}

#[test]
fn an_interrupted_restore_finds_its_own_again() {
    let place = Place::new();
    let source = place.checkpoint("step_1");
    let tree = scan(&source).unwrap();
    let target = place.at("into/step_1");
    let staging = Staging::open(&target, None, "one").unwrap();
    let directory = staging.directory().to_path_buf();
    staging.file(&path("a/b"), 10).unwrap().write_at(0, b"01234").unwrap();
    // From a plan that had a longer file, and one that the next plan does not have at all.
    staging.file(&path("zero"), 10).unwrap().write_at(0, b"0123456789").unwrap();
    staging.file(&path("trainer"), 1).unwrap().write_at(0, b"x").unwrap();
    drop(staging);

    let other = Staging::open(&target, None, "another").unwrap();
    assert_ne!(other.directory(), directory);
    assert!(!other.file(&path("a/b"), 10).unwrap().read_at(0, &mut [0]).unwrap());
    other.discard().unwrap();

    let staging = Staging::open(&target, None, "one").unwrap();
    assert_eq!(staging.directory(), directory);
    let file = staging.file(&path("a/b"), 10).unwrap();
    let mut buffer = [0; 5];
    assert!(file.read_at(0, &mut buffer).unwrap() && &buffer == b"01234");
    assert!(!file.read_at(1, &mut buffer).unwrap());
    drop(file);
    // The next plan does not have it.
    staging.discard().unwrap();
    assert_eq!(names(&place.at("into")), Vec::<String>::new());

    let staging = Staging::open(&target, None, "one").unwrap();
    staging.file(&path("left/over"), 1).unwrap().write_at(0, b"x").unwrap();
    staging.file(&path("trainer"), 1).unwrap().write_at(0, b"x").unwrap();
    drop(staging);
    let staging = Staging::open(&target, None, "one").unwrap();
    fill(&staging, &source, &tree).unwrap();
    staging.finish(tree.shape, &directories_of(&tree), Existing::Refuse).unwrap();
    assert_eq!(names(&target), ["link", "trainer", "zero"], "nothing of the earlier try comes along");
}

#[test]
fn only_one_restore_of_a_target_at_a_time() {
    let place = Place::new();
    let target = place.at("into/step_1");
    let first = Staging::open(&target, None, "one").unwrap();
    let held = error(Staging::open(&target, None, "two"));
    assert_eq!(held.kind(), ErrorKind::Held);
    assert!(held.to_string().ends_with(&format!("process {} holds it", std::process::id())), "{held}");
    let beside = Staging::open(&place.at("into/step_2"), None, "one").unwrap();
    beside.discard().unwrap();
    first.discard().unwrap();
    Staging::open(&target, None, "two").unwrap().discard().unwrap();
    assert!(!place.at(".stepvault").exists() && names(&place.at("into")).is_empty());
}

#[test]
fn an_unfinished_file_never_gets_to_the_target() {
    let place = Place::new();
    let target = place.at("into/step_1");
    let root = [DirectoryEntry { path: None, mode: 0o755, mtime: Timestamp::from_seconds(1) }];
    let staging = Staging::open(&target, None, "one").unwrap();
    let file = staging.file(&path("weights"), 10).unwrap();
    file.write_at(0, b"01234").unwrap();
    assert!(error(file.write_at(8, b"890")).to_string().ends_with("3 bytes at 8 reach past its 10 bytes"));
    assert!(
        error(file.finish(0o644, Timestamp::from_seconds(1))).to_string().ends_with("it has 5 of 10 bytes")
    );
    let unfinished = error(staging.finish(Shape::Directory, &root, Existing::Refuse));
    assert!(unfinished.to_string().ends_with("weights is not finished"), "{unfinished}");
    assert!(!target.exists());
    let staging = Staging::open(&target, None, "one").unwrap();
    let file = staging.file(&path("weights"), 10).unwrap();
    // What was staged stays for another try.
    let mut staged = [0; 5];
    assert!(file.read_at(0, &mut staged).unwrap() && &staged == b"01234");
    file.write_at(5, b"56789").unwrap();
    file.finish(0o644, Timestamp::from_seconds(1)).unwrap();
    staging.finish(Shape::Directory, &root, Existing::Refuse).unwrap();
    assert_eq!(fs::read(target.join("weights")).unwrap(), b"0123456789");
}

#[test]
fn set_uid_is_never_restored_and_nothing_is_open_meanwhile() {
    rustix::process::umask(rustix::fs::Mode::empty());
    let place = Place::new();
    let target = place.at("into/step_1");
    let root = [DirectoryEntry { path: None, mode: 0o7755, mtime: Timestamp::from_seconds(1) }];
    let staging = Staging::open(&target, Some(&place.vault), "one").unwrap();
    let file = staging.file(&path("a/b"), 1).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let own = staging.directory().to_path_buf();
    assert_eq!(mode(&own.join("data/a/b")), 0o600);
    for directory in [own.as_path(), own.parent().unwrap(), &own.join("data"), &own.join("data/a")] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    file.write_at(0, b"x").unwrap();
    file.finish(0o6755, Timestamp::from_seconds(1)).unwrap();
    staging.finish(Shape::Directory, &root, Existing::Refuse).unwrap();
    assert_eq!((mode(&target), mode(&target.join("a")), mode(&target.join("a/b"))), (0o755, 0o700, 0o755));
}

#[test]
fn the_place_is_on_the_targets_filesystem_and_out_of_sight() {
    let place = Place::new();
    let open = |target: &Path, vault| {
        let staging = Staging::open(target, vault, "one").unwrap();
        let directory = staging.directory().to_path_buf();
        staging.discard().unwrap();
        directory
    };
    let target = place.at("run/into/step_1");
    assert!(open(&target, Some(&place.vault)).starts_with(place.vault.root().join("restore")));
    let canonical = place.directory.path().canonicalize().unwrap();
    assert!(open(&target, None).starts_with(canonical.join("run/.stepvault/restore")));
    let Some(mount) = Mount::tmpfs("size=1m") else {
        return;
    };
    let inside = open(&mount.0.path().join("step_1"), Some(&place.vault));
    assert!(
        inside.starts_with(mount.0.path().canonicalize().unwrap().join(".stepvault-restore")),
        "{inside:?}"
    );
    assert!(names(mount.0.path()).is_empty());
}

#[test]
fn a_target_without_a_name_is_refused() {
    for bad in ["/", "..", "a/.."] {
        let refused = error(Staging::open(Path::new(bad), None, "one"));
        assert_eq!(refused.kind(), ErrorKind::Usage, "{bad}");
    }
}

#[test]
fn a_single_file_has_nothing_beside_it() {
    let place = Place::new();
    for (files, links) in [(0, 0), (2, 0), (1, 1)] {
        let target = place.at(&format!("into/{files}-{links}.pt"));
        let staging = Staging::open(&target, None, "one").unwrap();
        for file in 0..files {
            let staged = staging.file(&path(&format!("file_{file}")), 1).unwrap();
            staged.write_at(0, b"x").unwrap();
            staged.finish(0o644, Timestamp::from_seconds(1)).unwrap();
        }
        for link in 0..links {
            staging.symlink(&path(&format!("link_{link}")), "file_0").unwrap();
        }
        let refused = error(staging.finish(Shape::File, &[], Existing::Refuse));
        let said =
            format!("a single-file checkpoint must have one file, not {files} files and {links} links");
        assert!(refused.to_string().contains(&said), "{refused}");
        assert!(target.symlink_metadata().is_err());
    }
}
