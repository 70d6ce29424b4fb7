//! Restores of steps of several paths.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use stepvault_core::ErrorKind;
use stepvault_core::path::RelativePath;
use stepvault_local::staging::{Existing, Staging};
use stepvault_local::tree::{Tree, scan_members};

use crate::restore::fill;
use crate::support::{Place, error, names, path};

const MEMBERS: [&str; 2] = ["actor/step", "info.json"];

fn members() -> Vec<RelativePath> {
    MEMBERS.map(path).to_vec()
}

/// A trainer's step of a directory and a file, and what the directory above it holds besides.
fn written(place: &Place) -> Tree {
    fs::create_dir_all(place.at("source/actor/step/empty")).unwrap();
    fs::write(place.at("source/actor/step/weights"), "weights").unwrap();
    fs::write(place.at("source/info.json"), "{}").unwrap();
    for (name, mode) in [("actor/step", 0o555), ("actor", 0o750)] {
        let path = place.at("source").join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    scan_members(&place.at("source"), &members()).unwrap()
}

fn begin(place: &Place, tree: &Tree) -> stepvault_core::Result<Staging> {
    let staging = Staging::open_members(&place.at("into"), &members(), Some(&place.vault), "step")?;
    fill(&staging, &place.at("source"), tree)?;
    Ok(staging)
}

fn finish(place: &Place, tree: &Tree, existing: Existing) -> stepvault_core::Result<()> {
    begin(place, tree)?.finish(tree.shape, &tree.directories, existing)
}

#[test]
fn each_path_appears_with_what_leads_to_it_and_nothing_else_is_touched() {
    let place = Place::new();
    let tree = written(&place);
    fs::create_dir_all(place.at("into")).unwrap();
    fs::write(place.at("into/other"), "other").unwrap();
    finish(&place, &tree, Existing::Refuse).unwrap();
    let restored = scan_members(&place.at("into"), &members()).unwrap();
    // Without the directory that holds the steps, which is the trainer's own.
    assert_eq!(restored.directories[1..], tree.directories[1..], "modes and times");
    let facts = |tree: &Tree| {
        let files = tree.files.iter();
        files.map(|file| (file.path.clone(), file.size_bytes, file.mode, file.mtime)).collect::<Vec<_>>()
    };
    assert_eq!(facts(&restored), facts(&tree));
    assert_eq!(names(&place.at("into")), ["actor", "info.json", "other"]);
    place.assert_no_leftovers();

    // What is there is not replaced by itself, and a link leads nowhere.
    let taken = error(finish(&place, &tree, Existing::Refuse));
    assert_eq!(taken.kind(), ErrorKind::Conflict, "{taken}");
    assert!(taken.to_string().contains("into/actor/step: something with that name already exists"));
    fs::rename(place.at("into/actor"), place.at("elsewhere")).unwrap();
    symlink("../elsewhere", place.at("into/actor")).unwrap();
    for existing in [Existing::Refuse, Existing::Replace] {
        let refused = error(finish(&place, &tree, existing));
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(
            refused
                .to_string()
                .ends_with("into/actor: a file or link is in place of a parent directory of the step"),
            "{refused}"
        );
    }
    assert!(place.at("elsewhere/step/weights").exists() && place.at("into/info.json").exists());
}

#[test]
fn steps_with_the_same_paths_are_restored_one_at_a_time() {
    let place = Place::new();
    let tree = written(&place);
    let first = begin(&place, &tree).unwrap();
    let second = Staging::open_members(&place.at("into"), &members(), Some(&place.vault), "another step");
    let held = error(second);
    assert_eq!(held.kind(), ErrorKind::Held, "{held}");
    first.discard().unwrap();
    place.assert_no_leftovers();
}

#[test]
fn what_was_taken_down_outlives_a_restore_that_came_to_nothing() {
    let place = Place::new();
    let tree = written(&place);
    // As after a kill between the last path that went and the first one that came.
    let killed = begin(&place, &tree).unwrap();
    let kept = killed.directory().join("taken-down");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("0"), "old info").unwrap();
    fs::create_dir_all(place.at("into/actor/step")).unwrap();
    drop(killed);

    begin(&place, &tree).unwrap().discard().unwrap();
    assert_eq!(fs::read(kept.join("0")).unwrap(), b"old info");
    finish(&place, &tree, Existing::Replace).unwrap();
    assert_eq!(fs::read(place.at("into/actor/step/weights")).unwrap(), b"weights");
    assert!(!kept.exists(), "the step is in place");
    place.assert_no_leftovers();

    // Killed after the last rename, there is nothing left to restore.
    let killed = begin(&place, &tree).unwrap();
    fs::create_dir(killed.directory().join("taken-down")).unwrap();
    drop(killed);
    let again = Staging::open_members(&place.at("into"), &members(), Some(&place.vault), "step").unwrap();
    again.end_replacement().unwrap();
    place.assert_no_leftovers();
}
