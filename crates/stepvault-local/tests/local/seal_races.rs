//! Sealing while the trainer still writes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::config::LinkPolicy;
use stepvault_local::seal::seal;
use stepvault_local::seal_record::SnapshotMethod;
use stepvault_local::source::SourceFile;
use stepvault_local::tree::scan;

use crate::support::{Place, Stop, error, id, path, run};

#[test]
fn what_changed_since_it_was_judged_is_not_sealed() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    let mut request = place.request("step_1", 1);
    request.expected = Some(Arc::new(scan(&root).unwrap()));
    fs::write(root.join("late"), "").unwrap();
    let changed = error(seal(&place.vault, &request));
    assert_eq!(changed.kind(), ErrorKind::SourceChanged);
    assert_eq!(changed.to_string(), format!("cannot seal the step: {}: late appeared", root.display()));
    place.assert_no_leftovers();
}

/// While a writer is at work, a seal fails with that reason, or contains one state of the file, whole. Only a writer that stands
/// still half-way for as long as a seal takes cannot be told from one that has finished; that may happen once here,
/// however many seals see that one state.
#[test]
fn a_writer_at_work_is_caught_or_did_not_matter() {
    for links in [LinkPolicy::Auto, LinkPolicy::Copy] {
        let place = Place::new();
        place.sealed(1);
        let root = place.checkpoint("step_2");
        let weights = root.join("weights");
        fs::write(&weights, vec![0_u8; 1 << 20]).unwrap();
        let stop = AtomicBool::new(false);
        let (mut sealed, mut caught, mut torn) = (0, 0, BTreeSet::new());
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
                for round in 0_u32.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // In place, without a change of size.
                    for block in 0..16 {
                        let bytes = vec![u8::try_from(round % 251).unwrap(); 1 << 16];
                        file.write_all_at(&bytes, block << 16).unwrap();
                    }
                    if round % 3 == 0 {
                        std::thread::sleep(Duration::from_millis(u64::from(round % 40)));
                    }
                }
            });
            for step in 2..42 {
                let mut request = place.request("step_2", step);
                request.checkpoint.links = links;
                match seal(&place.vault, &request) {
                    Ok(result) => {
                        let result = result.step;
                        sealed += 1;
                        let file = result.record().file(&path("weights")).unwrap();
                        let bytes = fs::read(result.file_path(&file.path)).unwrap();
                        let whole = bytes.iter().all(|byte| *byte == bytes[0]);
                        // A hard link goes on changing, which its readers notice.
                        if file.method != SnapshotMethod::HardLink && !whole {
                            torn.insert((file.mtime.seconds, file.mtime.nanoseconds));
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::SourceChanged, "{error}");
                        assert!(error.to_string().contains("weights"), "{error}");
                        caught += 1;
                    }
                }
            }
        });
        eprintln!(
            "{links:?}: {caught} caught, {sealed} between two writes, {} states of them torn",
            torn.len()
        );
        assert!(torn.len() <= 1, "{} states are half of two: {torn:?}", torn.len());
        assert!(caught > 0);
        place.assert_no_leftovers();
        assert!(place.vault.step(&run(), id(1)).unwrap().is_some(), "the earlier step is unharmed");
    }
}

/// Files come, go, grow and turn into links: never anything but a step or `SourceChanged`.
#[test]
fn a_directory_in_motion_never_yields_half_a_step() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    fs::write(place.at("victim"), "secret").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let moving = root.join("moving");
            while !stop.load(Ordering::Relaxed) {
                let mut file = fs::File::create(&moving).unwrap();
                file.write_all(b"first").unwrap();
                file.write_all(b" second").unwrap();
                fs::remove_file(&moving).unwrap();
                symlink(place.at("victim"), &moving).unwrap();
                fs::remove_file(&moving).unwrap();
            }
        });
        for step in 1..60 {
            let mut request = place.request("step_1", step);
            request.checkpoint.links = if step % 2 == 0 { LinkPolicy::Auto } else { LinkPolicy::Copy };
            match seal(&place.vault, &request) {
                Ok(sealed) => {
                    if let Ok(bytes) = fs::read(sealed.step.file_path(&path("moving"))) {
                        assert!(b"first second".starts_with(&bytes), "{bytes:?}");
                    }
                }
                // The link leads outside, which is a fault of its own.
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::SourceChanged | ErrorKind::Usage), "{error}");
                }
            }
        }
    });
    place.assert_no_leftovers();
}

#[test]
fn rewriting_a_hard_linked_file_in_place_is_noticed() {
    let place = Place::new();
    let root = place.checkpoint("step_1");
    let sealed = seal(&place.vault, &place.request("step_1", 1)).unwrap().step;
    let file = sealed.record().file(&path("trainer/.metadata")).unwrap();
    let open = || SourceFile::open(&sealed.file_path(&file.path), file);
    let reader = open().unwrap();
    if file.method != SnapshotMethod::HardLink {
        eprintln!("skipped: this filesystem makes reflinks, which no rewriting reaches");
        return;
    }
    // Replacing the trainer's file, as a temporary and rename do, leaves the vault's alone.
    fs::write(place.at("other"), "another one's data").unwrap();
    fs::rename(place.at("other"), root.join("trainer/.metadata")).unwrap();
    reader.check_unchanged().unwrap();

    let linked = sealed.file_path(&file.path);
    std::thread::sleep(Duration::from_millis(20));
    fs::OpenOptions::new().write(true).open(&linked).unwrap().write_all(b"METADATA").unwrap();
    for fault in [error(open()), error(reader.check_unchanged())] {
        assert_eq!(fault.kind(), ErrorKind::SourceChanged);
        let expected = format!(
            "cannot read the sealed file: {}: it was written again after it was sealed",
            linked.display()
        );
        assert_eq!(fault.to_string(), expected);
        assert!(fault.hint_text().is_some_and(|hint| hint.contains("reflinks or copies")));
    }
    fs::OpenOptions::new().append(true).open(&linked).unwrap().write_all(b"more").unwrap();
    assert!(error(open()).to_string().ends_with("it has 22 bytes and had 18"));
    fs::remove_file(&linked).unwrap();
    assert!(error(open()).to_string().ends_with("it no longer exists"));
}

#[test]
fn many_threads_read_one_file() {
    let place = Place::new();
    let sealed = place.sealed(1);
    let file = sealed.record().file(&path("trainer/__0_0.distcp")).unwrap();
    let source = SourceFile::open(&sealed.file_path(&file.path), file).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let source = &source;
            scope.spawn(move || {
                let mut buffer = vec![0_u8; 25_000];
                source.read_at(part * 25_000, &mut buffer).unwrap();
                assert_eq!(buffer, vec![7_u8; 25_000]);
            });
        }
    });
    let short = error(source.read_at(99_999, &mut [0; 2]));
    assert!(short.to_string().ends_with("it is shorter than when it was sealed"), "{short}");
}
