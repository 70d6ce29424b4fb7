//! Upload journals, whole and torn.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use stepvault_core::ErrorKind;
use stepvault_core::digest::PartDigest;
use stepvault_core::ids::RemoteName;
use stepvault_local::journal::{FileProgress, Journal, JournalRecord, JournalState, read_state};

use crate::support::{Place, error, id, path, remote, run};

fn open(place: &Place) -> (Journal, JournalState) {
    Journal::open(&place.vault, &run(), id(1), &remote()).unwrap()
}

fn open_on(place: &Place, remote: &str) -> (Journal, JournalState) {
    Journal::open(&place.vault, &run(), id(1), &RemoteName::new(remote).unwrap()).unwrap()
}

fn journal_path(place: &Place) -> PathBuf {
    place.vault.root().join("runs/grpo%2Fcheckpoints/journal/000000000001.a1/bucket.jsonl")
}

fn started(file: &str, upload: &str) -> JournalRecord {
    JournalRecord::UploadStarted { path: path(file), upload: upload.to_owned() }
}

fn part(file: &str, index: u32, bytes: &[u8]) -> JournalRecord {
    JournalRecord::PartDone {
        path: path(file),
        index,
        tag: format!("tag-{index}"),
        digest: PartDigest::of(bytes),
    }
}

fn done(file: &str, parts: &[&[u8]]) -> JournalRecord {
    JournalRecord::FileDone {
        path: path(file),
        parts: parts.iter().map(|part| PartDigest::of(part)).collect(),
    }
}

#[test]
fn goes_on_where_it_was() {
    let place = Place::new();
    place.sealed(1);
    let (journal, state) = open(&place);
    assert_eq!(state, JournalState::default());
    for record in [
        started("a", "first"),
        part("a", 0, b"a0"),
        started("b", "only"),
        part("b", 0, b"b0"),
        done("b", &[b"b0"]),
        // A new upload makes the parts of the one before worthless.
        started("a", "second"),
        part("a", 1, b"a1"),
    ] {
        journal.append(&record).unwrap();
    }
    drop(journal);
    let (_, state) = open(&place);
    let a = &state.files[&path("a")];
    assert_eq!((a.upload.as_deref(), a.parts.len()), (Some("second"), 1));
    assert_eq!(a.parts[&1].tag, "tag-1");
    assert_eq!(a.parts[&1].digest, PartDigest::of(b"a1"));
    let finished = FileProgress { done: Some(vec![PartDigest::of(b"b0")]), ..FileProgress::default() };
    assert_eq!(state.files[&path("b")], finished);
    Journal::remove(&place.vault, &run(), id(1), &remote()).unwrap();
    assert!(!journal_path(&place).parent().unwrap().exists());
    Journal::remove(&place.vault, &run(), id(1), &remote()).unwrap();
    assert_eq!(open(&place).1, JournalState::default());
}

#[test]
fn is_read_beside_its_writer() {
    let place = Place::new();
    let look = || read_state(&place.vault, &run(), id(1), &remote());
    assert_eq!(error(look()).kind(), ErrorKind::NotFound);
    place.sealed(1);
    assert_eq!(look().unwrap(), JournalState::default());
    assert!(!journal_path(&place).exists(), "a look leaves nothing behind");
    let (journal, _) = open(&place);
    journal.append(&started("a", "first")).unwrap();
    journal.append(&part("a", 3, b"a3")).unwrap();
    let mut bytes = fs::read(journal_path(&place)).unwrap();
    // Half a line, as somebody sees it who looks while it is written.
    bytes.extend_from_slice(b"{\"crc32c\"");
    fs::write(journal_path(&place), &bytes).unwrap();
    assert_eq!(look().unwrap().files[&path("a")].parts.len(), 1);
    assert_eq!(fs::read(journal_path(&place)).unwrap(), bytes);
}

#[test]
fn belongs_to_one_seal() {
    let place = Place::new();
    place.sealed(1);
    let (journal, _) = open(&place);
    journal.append(&started("a", "first")).unwrap();
    let kept = fs::read(journal_path(&place)).unwrap();
    place.vault.quarantine(&run(), id(1), "bad").unwrap();
    assert_eq!(error(Journal::open(&place.vault, &run(), id(1), &remote())).kind(), ErrorKind::NotFound);
    fs::remove_dir_all(place.at("run/step_1")).unwrap();
    place.sealed(1);
    // As if its removal had been lost in a power cut.
    fs::create_dir_all(journal_path(&place).parent().unwrap()).unwrap();
    fs::write(journal_path(&place), kept).unwrap();
    assert_eq!(open(&place).1, JournalState::default());
}

#[test]
fn threads_write_whole_lines() {
    let place = Place::new();
    place.sealed(1);
    let (journal, _) = open(&place);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let journal = &journal;
            scope.spawn(move || {
                for index in 0..100 {
                    journal.append(&part(&format!("file-{thread}"), index, b"x")).unwrap();
                }
            });
        }
    });
    let state = open(&place).1;
    assert_eq!(state.files.values().map(|file| file.parts.len()).sum::<usize>(), 800);
}

/// The last journal to end takes the step's directory with it, while others begin.
#[test]
fn remotes_begin_and_end_independently() {
    let place = Place::new();
    place.sealed(1);
    std::thread::scope(|scope| {
        for remote in ["aws", "gcs", "disk", "other"] {
            let place = &place;
            scope.spawn(move || {
                for _ in 0..500 {
                    let (journal, state) = open_on(place, remote);
                    assert!(state.files.is_empty());
                    journal.append(&part("file", 0, b"x")).unwrap();
                    let remote = RemoteName::new(remote).unwrap();
                    Journal::remove(&place.vault, &run(), id(1), &remote).unwrap();
                }
            });
        }
    });
}

/// Cut anywhere, the journal says what its whole lines say, and takes new records after that.
#[test]
fn every_cut_leaves_a_prefix() {
    let place = Place::new();
    place.sealed(1);
    let (journal, _) = open(&place);
    let records = [started("a", "u"), part("a", 0, b"0"), part("a", 1, b"1"), done("a", &[b"0", b"1"])];
    for record in &records {
        journal.append(record).unwrap();
    }
    drop(journal);
    let whole = fs::read(journal_path(&place)).unwrap();
    for cut in 0..=whole.len() {
        fs::write(journal_path(&place), &whole[..cut]).unwrap();
        let (journal, state) = open(&place);
        let lines =
            whole[..cut].split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")).count();
        let progress = state.files.get(&path("a"));
        match lines {
            0 | 1 => assert_eq!(progress, None, "cut at {cut}"),
            5 => assert!(progress.unwrap().done.is_some(), "cut at {cut}"),
            _ => assert_eq!(progress.unwrap().parts.len(), lines - 2, "cut at {cut}"),
        }
        journal.append(&started("b", "later")).unwrap();
        drop(journal);
        let after = open(&place).1;
        assert_eq!(after.files[&path("b")].upload.as_deref(), Some("later"), "cut at {cut}");
        assert_eq!(after.files.get(&path("a")), progress, "cut at {cut}");
    }
}

#[test]
fn what_was_begun_and_not_finished_is_told_without_touching_it() {
    let place = Place::new();
    place.sealed(1);
    let unfinished = || place.vault.unfinished_uploads(&run()).unwrap();
    assert_eq!(unfinished(), []);
    let (journal, _) = open(&place);
    journal.append(&started("a", "upload")).unwrap();
    journal.append(&part("a", 0, b"x")).unwrap();
    let before = fs::read(journal_path(&place)).unwrap();
    let found = unfinished();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].files_done, found[0].parts_done), (0, 1));
    assert!(found[0].files > 0 && found[0].written_at.seconds > 0);
    assert_eq!(fs::read(journal_path(&place)).unwrap(), before);
    Journal::remove(&place.vault, &run(), id(1), &remote()).unwrap();
    assert_eq!(unfinished(), []);
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// Rot or zeroes anywhere never make the journal say what was not written.
    #[test]
    fn damage_never_invents_progress(at in 0_usize..2000, garbage in proptest::collection::vec(any::<u8>(), 1..40)) {
        let place = Place::new();
        place.sealed(1);
        let (journal, _) = open(&place);
        for index in 0..8 {
            journal.append(&part("a", index, &[u8::try_from(index).unwrap()])).unwrap();
        }
        drop(journal);
        let mut bytes = fs::read(journal_path(&place)).unwrap();
        let at = at % bytes.len();
        let end = (at + garbage.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&garbage[..end - at]);
        fs::write(journal_path(&place), &bytes).unwrap();
        let state = open(&place).1;
        if let Some(file) = state.files.get(&path("a")) {
            for (index, part) in &file.parts {
                prop_assert_eq!(part.digest, PartDigest::of(&[u8::try_from(*index).unwrap()]));
                prop_assert_eq!(&part.tag, &format!("tag-{index}"));
            }
        }
        prop_assert!(state.files.len() <= 1);
    }
}
