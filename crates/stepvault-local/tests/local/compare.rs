//! Telling whether a step is in place already.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use stepvault_core::manifest::PartManifest;
use stepvault_local::compare::{Entries, differs};

use crate::support::{Place, entry, manifest};

fn difference(target: &Path, manifest: &PartManifest) -> Option<String> {
    let PartManifest { files, directories, symlinks, .. } = manifest;
    differs(target, Entries { files, directories, symlinks }).unwrap()
}

#[test]
fn the_first_difference_is_told() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    let manifest = manifest(&root, 1);
    assert_eq!(difference(&root, &manifest), None);
    assert_eq!(difference(&place.at("missing"), &manifest).as_deref(), Some("it does not exist"));

    let at = |name: &str| root.join(name);
    let mut told = Vec::new();
    let mut tell = |change: &dyn Fn(), undo: &dyn Fn()| {
        change();
        told.push(difference(&root, &manifest).expect("a difference"));
        undo();
        assert_eq!(difference(&root, &manifest), None);
    };
    let metadata = fs::read(at("trainer/.metadata")).unwrap();
    let restore = || fs::write(at("trainer/.metadata"), &metadata).unwrap();
    tell(&|| fs::write(at("trainer/.metadata"), "metadata of step_2").unwrap(), &restore);
    tell(&|| fs::write(at("trainer/.metadata"), "short").unwrap(), &restore);
    tell(&|| fs::remove_file(at("trainer/.metadata")).unwrap(), &restore);
    tell(&|| fs::write(at("extra"), "").unwrap(), &|| {
        fs::remove_file(at("extra")).unwrap();
    });
    tell(&|| fs::create_dir(at("extra")).unwrap(), &|| {
        fs::remove_dir(at("extra")).unwrap();
    });
    tell(&|| fs::remove_dir(at("trainer/empty")).unwrap(), &|| {
        fs::create_dir(at("trainer/empty")).unwrap();
    });
    let link = |target: &str| {
        fs::remove_file(at("link")).unwrap();
        symlink(target, at("link")).unwrap();
    };
    tell(&|| link("zero"), &|| link("trainer/.metadata"));
    assert_eq!(
        told,
        [
            "trainer/.metadata differs in part 0",
            "trainer/.metadata has 5 bytes, not 18",
            "trainer/.metadata is missing",
            "extra is not part of the step",
            "extra is not part of the step",
            "trainer/empty is missing",
            "link points to zero, not to trainer/.metadata",
        ]
    );
}

#[test]
fn the_second_part_counts_too() {
    let place = Place::new();
    let root = place.at("run/step_1");
    fs::create_dir_all(&root).unwrap();
    let mut bytes = vec![0_u8; (8 << 20) + 5];
    fs::write(root.join("weights"), &bytes).unwrap();
    let manifest = manifest(&root, 1);
    assert_eq!(difference(&root, &manifest), None);
    *bytes.last_mut().unwrap() = 1;
    fs::write(root.join("weights"), &bytes).unwrap();
    assert_eq!(difference(&root, &manifest).as_deref(), Some("weights differs in part 1"));
}

#[test]
fn a_single_file_may_have_another_name() {
    let place = Place::new();
    fs::create_dir(place.at("run")).unwrap();
    fs::write(place.at("run/step=1.ckpt"), "weights").unwrap();
    fs::write(place.at("run/last.ckpt"), "weights").unwrap();
    let file = entry(&place.at("run"), "step=1.ckpt");
    let step = Entries { files: std::slice::from_ref(&file), directories: &[], symlinks: &[] };
    assert_eq!(differs(&place.at("run/last.ckpt"), step).unwrap(), None);
    fs::write(place.at("run/last.ckpt"), "WEIGHTS").unwrap();
    let told = differs(&place.at("run/last.ckpt"), step).unwrap();
    assert_eq!(told.as_deref(), Some("step=1.ckpt differs in part 0"));
    let told = differs(&place.at("run"), step).unwrap();
    assert_eq!(told.as_deref(), Some("it is a directory, not a file"));
    let root = place.checkpoint("step_1");
    let told = difference(&place.at("run/last.ckpt"), &manifest(&root, 1));
    assert_eq!(told.as_deref(), Some("it is not a directory"));
}
