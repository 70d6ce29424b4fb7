//! Links to the files of a step that is not sealed yet.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use stepvault_core::ErrorKind;
use stepvault_core::config::LinkPolicy;
use stepvault_core::path::RelativePath;
use stepvault_local::early_links::EarlyLinks;

use crate::support::{Place, error};

fn members(path: &str) -> Vec<RelativePath> {
    vec![RelativePath::new(path).unwrap()]
}

/// A step in a subdirectory of a trainer's directory.
fn step() -> (Place, tempfile::TempDir) {
    let place = Place::new();
    let trainer = tempfile::tempdir_in(place.vault.root().parent().unwrap()).unwrap();
    let step = trainer.path().join("checkpoints/step_10");
    fs::create_dir_all(step.join("inner")).unwrap();
    fs::write(step.join("model"), "weights").unwrap();
    fs::write(step.join("inner/state"), "state").unwrap();
    (place, trainer)
}

#[test]
fn links_outlive_the_trainers_files_and_are_removed_with_the_value() {
    let (place, trainer) = step();
    let members = members("checkpoints/step_10");
    let links = EarlyLinks::create(&place.vault, trainer.path(), &members, LinkPolicy::Auto).unwrap();
    let data = links.data();
    assert!(data.starts_with(place.vault.root().join("staging")));
    let inode = |path: &std::path::Path| path.metadata().unwrap().ino();
    let linked = data.join("checkpoints/step_10/model");
    let own = trainer.path().join("checkpoints/step_10/model");
    // Filesystems with reflinks have another inode.
    assert!(inode(&linked) == inode(&own) || fs::read(&linked).unwrap() == fs::read(&own).unwrap());
    fs::remove_dir_all(trainer.path().join("checkpoints")).unwrap();
    assert!(links.is_unchanged(&members).unwrap());
    assert_eq!(fs::read_to_string(&linked).unwrap(), "weights");
    assert_eq!(fs::read_to_string(data.join("checkpoints/step_10/inner/state")).unwrap(), "state");
    assert!(place.vault.steps(&crate::support::run()).unwrap().steps.is_empty());
    drop(links);
    assert_eq!(fs::read_dir(place.vault.root().join("staging")).unwrap().count(), 0);
}

#[test]
fn what_is_written_through_a_hard_link_shows() {
    let (place, trainer) = step();
    let members = members("checkpoints/step_10");
    let links = EarlyLinks::create(&place.vault, trainer.path(), &members, LinkPolicy::Auto).unwrap();
    let own = trainer.path().join("checkpoints/step_10/model");
    let linked = links.data().join("checkpoints/step_10/model");
    let is_hard_link = linked.metadata().unwrap().ino() == own.metadata().unwrap().ino();
    fs::write(&own, "others!").unwrap();
    assert_eq!(links.is_unchanged(&members).unwrap(), !is_hard_link);
}

#[test]
fn nothing_is_copied_and_nothing_is_left_where_links_are_impossible() {
    let (place, _trainer) = step();
    // Another filesystem.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(elsewhere.path().join("step_10"), "weights").unwrap();
    let failed = EarlyLinks::create(&place.vault, elsewhere.path(), &members("step_10"), LinkPolicy::Auto);
    assert_eq!(error(failed).kind(), ErrorKind::Usage);
    assert_eq!(fs::read_dir(place.vault.root().join("staging")).unwrap().count(), 0);
}
