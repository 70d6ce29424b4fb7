//! Disks that are full, out of inodes, read-only or somebody else's.

use std::fs;
use std::process::Command;

use stepvault_core::ErrorKind;
use stepvault_core::config::LinkPolicy;
use stepvault_local::durable;
use stepvault_local::journal::{Journal, JournalRecord};
use stepvault_local::seal::seal;
use stepvault_local::space;
use stepvault_local::staging::Staging;

use crate::support::{Mount, Place, error, id, names, path, remote, run};

/// Writes into a file until nothing more fits.
fn fill_up(directory: &std::path::Path) -> std::path::PathBuf {
    let ballast = directory.join("ballast");
    let mut size = 1 << 16;
    let mut bytes = Vec::new();
    while size > 0 {
        let mut more = bytes.clone();
        more.resize(bytes.len() + size, 1);
        if fs::write(&ballast, &more).is_ok() {
            bytes = more;
        } else {
            size /= 2;
        }
    }
    ballast
}

#[test]
fn a_full_disk_is_said_so_and_harms_nothing() {
    let Some(mount) = Mount::tmpfs("size=2m") else {
        return;
    };
    let place = Place::within(mount.0.path());
    let sealed = place.sealed(1);
    let (journal, _) = Journal::open(&place.vault, &run(), id(1), &remote()).unwrap();
    place.checkpoint("step_2");
    let ballast = fill_up(mount.0.path());
    let mut request = place.request("step_2", 2);
    request.checkpoint.links = LinkPolicy::Copy;

    let full = error(seal(&place.vault, &request));
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(full.hint_text().is_some());
    place.assert_no_leftovers();
    let full = error(durable::replace(&place.at("vault/vault.json"), &vec![0; 100_000]));
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(full.to_string().ends_with("vault.json: no space is left on its filesystem"), "{full}");
    assert_eq!(names(place.vault.root()), ["place.json", "runs", "staging", "vault.json"]);
    let long = JournalRecord::UploadStarted { path: path("a"), upload: "x".repeat(100_000) };
    assert_eq!(error(journal.append(&long)).kind(), ErrorKind::NoSpace);
    let staging = Staging::open(&place.at("into/step_1"), Some(&place.vault), "one");
    if let Ok(staging) = staging {
        let file = staging.file(&path("a"), 100_000).unwrap();
        assert_eq!(error(file.write_at(0, &vec![1; 100_000])).kind(), ErrorKind::NoSpace);
        staging.discard().unwrap();
    }
    // A bad step must get out of the way even now.
    place.vault.quarantine(&run(), id(1), &"reason ".repeat(10_000)).unwrap();
    assert!(place.vault.steps(&run()).unwrap().steps.is_empty());
    assert!(!sealed.directory().exists());

    fs::remove_file(ballast).unwrap();
    seal(&place.vault, &request).unwrap();
    assert_eq!(place.vault.steps(&run()).unwrap().steps.len(), 1);
}

#[test]
fn a_copy_that_cannot_fit_is_not_begun() {
    let Some(mount) = Mount::tmpfs("size=2m") else {
        return;
    };
    let place = Place::new();
    let small = Place::within(mount.0.path());
    let mut request = small.request("step_1", 1);
    request.checkpoint.source = place.at("big");
    fs::create_dir(&request.checkpoint.source).unwrap();
    fs::write(request.checkpoint.source.join("weights"), vec![1; 4 << 20]).unwrap();
    let full = error(seal(&small.vault, &request));
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(full.to_string().contains("a copy takes 4194304 more bytes, but "), "{full}");
    small.assert_no_leftovers();
}

#[test]
fn no_inode_left_is_told_from_no_space() {
    let Some(mount) = Mount::tmpfs("size=8m,nr_inodes=80") else {
        return;
    };
    let place = Place::within(mount.0.path());
    place.sealed(1);
    place.checkpoint("step_2");
    for number in 0.. {
        if fs::write(mount.0.path().join(format!("ballast-{number}")), "").is_err() {
            break;
        }
    }
    assert_eq!(space::free(mount.0.path()).unwrap().free_inodes, Some(0));
    let full = error(seal(&place.vault, &place.request("step_2", 2)));
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(full.to_string().ends_with("its filesystem has no inode left"), "{full}");
    assert!(full.hint_text().is_some_and(|hint| hint.contains("inodes")));
    place.assert_no_leftovers();
    for name in names(mount.0.path()).iter().filter(|name| name.starts_with("ballast-")) {
        fs::remove_file(mount.0.path().join(name)).unwrap();
    }
    seal(&place.vault, &place.request("step_2", 2)).unwrap();
}

#[test]
fn a_read_only_disk_still_reads() {
    let Some(mount) = Mount::tmpfs("size=2m") else {
        return;
    };
    let place = Place::within(mount.0.path());
    place.sealed(1);
    place.checkpoint("step_2");
    mount.remount("remount,ro");
    let refused = error(seal(&place.vault, &place.request("step_2", 2)));
    assert!(refused.to_string().ends_with("its filesystem is read-only"), "{refused}");
    assert!(refused.hint_text().is_some_and(|hint| hint.starts_with("mount it writable")));
    assert!(place.vault.pin(&run(), id(1), "").is_err());
    assert!(place.vault.evict(&run(), id(1)).is_err());
    assert_eq!(place.vault.steps(&run()).unwrap().steps.len(), 1);
    mount.remount("remount,rw");
    seal(&place.vault, &place.request("step_2", 2)).unwrap();
}

#[test]
fn what_is_not_allowed_is_said_so() {
    let place = Place::new();
    let locked = place.at("locked");
    fs::create_dir(&locked).unwrap();
    // Modes do not stop root; this flag does.
    let flagged = Command::new("chattr").arg("+i").arg(&locked).output();
    if !flagged.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this process or filesystem knows no immutable flag");
        return;
    }
    let denied = error(durable::create_new(&locked.join("a"), b""));
    let made = error(stepvault_local::vault::Vault::open_or_create(&locked.join("vault")));
    Command::new("chattr").arg("-i").arg(&locked).status().unwrap();
    assert_eq!((denied.kind(), made.kind()), (ErrorKind::Denied, ErrorKind::Denied));
    assert!(denied.to_string().ends_with("locked/a: this user may not do that"), "{denied}");
}
