//! Files of a vault, read by what the program reads them with.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use stepvault_core::digest::PartDigest;
use stepvault_core::ids::{Attempt, RemoteName, RunName, Step, StepId};
use stepvault_core::path::RelativePath;
use stepvault_local::journal::{Journal, JournalRecord, JournalState, read_state};
use stepvault_local::notes::with_digest;
use stepvault_local::vault::Vault;

use super::seals;

/// A vault with one sealed step, for as long as the thread lives.
struct Place {
    vault: Vault,
    /// Removed with it.
    _directory: tempfile::TempDir,
}

thread_local! {
    static PLACE: OnceCell<Place> = const { OnceCell::new() };
}

fn run() -> RunName {
    RunName::new("grpo/checkpoints").unwrap()
}

fn id() -> StepId {
    StepId::new(Attempt::FIRST, Step::new(1).unwrap())
}

fn remote() -> RemoteName {
    RemoteName::new("bucket").unwrap()
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let vault = Vault::open_or_create(&directory.path().join("vault")).unwrap();
        let place = Self { vault, _directory: directory };
        write(&place.step().join("seal.json"), &with_digest(seals::seeds()[0].clone()));
        assert_eq!(place.vault.steps(&run()).unwrap().steps.len(), 1);
        place
    }

    fn of_run(&self, below: &str) -> PathBuf {
        self.vault.root().join("runs/grpo%2Fcheckpoints").join(below)
    }

    fn step(&self) -> PathBuf {
        self.of_run("steps/000000000001.a1")
    }

    fn journal(&self) -> PathBuf {
        self.of_run("journal/000000000001.a1/bucket.jsonl")
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// The first byte says which file the rest is.
pub fn check(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    PLACE.with(|place| {
        let place = place.get_or_init(Place::new);
        match which % 6 {
            0 => check_journal(place, bytes),
            1 => check_records_of_journal(place, bytes),
            2 => check_seal(place, bytes),
            3 => check_state(place, bytes),
            4 => check_pins(place, bytes),
            _ => check_starts(place, bytes),
        }
    });
}

/// A journal of any bytes: what is read of it is what is gone on from.
fn check_journal(place: &Place, bytes: &[u8]) {
    let path = place.journal();
    write(&path, bytes);
    assert_goes_on(place);
    fs::remove_file(path).unwrap();
}

/// A journal of records with right checksums, whatever they say, and bytes behind them.
fn check_records_of_journal(place: &Place, bytes: &[u8]) {
    let _ = fs::remove_file(place.journal());
    let (journal, state) = Journal::open(&place.vault, &run(), id(), &remote()).unwrap();
    assert_eq!(state, JournalState::default());
    let mut torn: &[u8] = b"";
    for line in bytes.split(|byte| *byte == b'\n') {
        match serde_json::from_slice::<JournalRecord>(line) {
            Ok(record) => journal.append(&record).unwrap(),
            Err(_) => torn = line,
        }
    }
    drop(journal);
    let whole = read_state(&place.vault, &run(), id(), &remote()).unwrap();
    let path = place.journal();
    let mut text = fs::read(&path).unwrap();
    text.extend_from_slice(torn);
    fs::write(&path, text).unwrap();
    assert_eq!(read_state(&place.vault, &run(), id(), &remote()).unwrap(), whole, "a torn line says nothing");
    assert_goes_on(place);
    fs::remove_file(path).unwrap();
}

fn assert_goes_on(place: &Place) {
    let read = read_state(&place.vault, &run(), id(), &remote()).unwrap();
    let before = fs::metadata(place.journal()).unwrap().len();
    let (journal, opened) = Journal::open(&place.vault, &run(), id(), &remote()).unwrap();
    assert_eq!(read, opened);
    let after = fs::metadata(place.journal()).unwrap().len();
    assert!(after <= before || opened == JournalState::default(), "a tail is cut off");
    let record = JournalRecord::PartDone {
        path: RelativePath::new("x").unwrap(),
        index: 3,
        tag: "tag".to_owned(),
        digest: PartDigest::of(b"x"),
    };
    journal.append(&record).unwrap();
    drop(journal);
    let again = read_state(&place.vault, &run(), id(), &remote()).unwrap();
    let files = again.files.get(&RelativePath::new("x").unwrap()).unwrap();
    assert_eq!(files.parts[&3].tag, "tag");
}

/// A seal that is damaged is one fault, and the step is not there.
fn check_seal(place: &Place, bytes: &[u8]) {
    let seal = place.step().join("seal.json");
    let right = fs::read(&seal).unwrap();
    // Its digest alone would refuse every change.
    fs::write(&seal, with_digest(bytes.to_vec())).unwrap();
    let scan = place.vault.steps(&run()).unwrap();
    assert_eq!(scan.steps.len() + scan.faults.len(), 1);
    for step in &scan.steps {
        assert_eq!((step.run(), step.id()), (&run(), id()));
        for file in &step.record().files {
            assert!(step.file_path(&file.path).starts_with(step.data_root()));
        }
    }
    assert_eq!(place.vault.step(&run(), id()).is_ok(), scan.faults.is_empty());
    fs::write(&seal, right).unwrap();
}

fn check_state(place: &Place, bytes: &[u8]) {
    let path = place.step().join("remotes/bucket.json");
    write(&path, bytes);
    write(&place.step().join("manifest.json"), &with_digest(bytes.to_vec()));
    let step = place.vault.step(&run(), id()).unwrap().unwrap();
    // That of another step is none.
    if let Ok(Some(state)) = step.remote_state(&remote()) {
        assert_eq!(state.remote, remote());
    }
    let _ = step.manifest();
    fs::remove_file(path).unwrap();
    fs::remove_file(place.step().join("manifest.json")).unwrap();
}

fn check_pins(place: &Place, bytes: &[u8]) {
    let path = place.of_run("pins/000000000001.a1.json");
    write(&path, bytes);
    if let Ok(pins) = place.vault.pins(&run()) {
        assert!(pins.iter().all(|pin| pin.run == run()), "{pins:?}");
    }
    fs::remove_file(path).unwrap();
}

/// Starts that cannot be read do not count, and keep no new one from being noted.
fn check_starts(place: &Place, bytes: &[u8]) {
    let path = place.of_run("notes/starts.json");
    write(&path, bytes);
    let _ = place.vault.starts(&run());
    fs::remove_file(path).unwrap();
}

/// One of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let record = |record: &JournalRecord| serde_json::to_string(record).unwrap();
    let path = RelativePath::new("a/model.pt").unwrap();
    let records = [
        record(&JournalRecord::UploadStarted { path: path.clone(), upload: "1".to_owned() }),
        record(&JournalRecord::PartDone {
            path: path.clone(),
            index: 0,
            tag: "etag".to_owned(),
            digest: PartDigest::of(b"part"),
        }),
        record(&JournalRecord::FileDone { path, parts: vec![PartDigest::of(b"part")] }),
    ];
    let journal = PLACE.with(|place| {
        let place = place.get_or_init(Place::new);
        let (journal, _) = Journal::open(&place.vault, &run(), id(), &remote()).unwrap();
        for line in &records {
            journal.append(&serde_json::from_str(line).unwrap()).unwrap();
        }
        drop(journal);
        let bytes = fs::read(place.journal()).unwrap();
        fs::remove_file(place.journal()).unwrap();
        bytes
    });
    let with = |which: u8, bytes: &[u8]| [&[which], bytes].concat();
    let mut seeds = vec![with(0, &journal), with(1, records.join("\n").as_bytes())];
    seeds.extend(seals::seeds().iter().map(|seal| with(2, seal)));
    seeds.extend(seals::seeds().iter().map(|state| with(3, state)));
    let pin = br#"{"format":1,"id":{"attempt":1,"step":1},"note":"","run":"grpo/checkpoints"}"#;
    let starts = br#"{"format":1,"starts":[]}"#;
    seeds.extend([with(4, pin), with(5, starts)]);
    seeds
}
