//! What is kept of sealed steps: records, pins, notes, quarantine, eviction, cleaning.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use stepvault_core::ErrorKind;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, StepId};
use stepvault_core::manifest::PartManifest;
use stepvault_local::notes::with_digest;
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};
use stepvault_local::vault::Vault;

use crate::support::{Place, error, id, manifest, names, remote, run};

fn state(state: UploadState) -> RemoteState {
    RemoteState {
        format: 1,
        id: id(1),
        remote: remote(),
        url: "s3://bucket/prefix".to_owned(),
        vault: "0".repeat(32),
        state,
        commit_sha256: (state == UploadState::Durable).then(|| Sha256Digest::of(b"commit")),
    }
}

#[test]
fn steps_come_sorted_by_attempt_then_step() {
    let place = Place::new();
    place.sealed(10);
    place.sealed(9);
    let mut second = place.request("step_9", 1);
    second.id = StepId::new(Attempt::new(2).unwrap(), id(1).step);
    stepvault_local::seal::seal(&place.vault, &second).unwrap();
    let scan = place.vault.steps(&run()).unwrap();
    let labels: Vec<_> = scan.steps.iter().map(|step| step.id().label()).collect();
    assert_eq!(labels, ["000000000009.a1", "000000000010.a1", "000000000001.a2"]);
    assert!(scan.faults.is_empty());
    assert_eq!(place.vault.runs().unwrap(), [run()]);
    assert!(place.vault.step(&run(), id(99)).unwrap().is_none());
}

#[test]
fn notes_have_plain_names_and_are_listed_and_removed() {
    let place = Place::new();
    let keys = || place.vault.note_keys(&run()).unwrap();
    assert_eq!(keys(), Vec::<String>::new());
    for key in ["second", "first"] {
        place.vault.write_note(&run(), key, b"note").unwrap();
        place.vault.sync_note(&run(), key).unwrap();
    }
    assert_eq!(keys(), ["first", "second"]);
    assert!(place.vault.remove_note(&run(), "first").unwrap());
    assert!(!place.vault.remove_note(&run(), "first").unwrap());
    assert_eq!(keys(), ["second"]);
    for key in ["", ".hidden", "..", "a/b"] {
        assert_eq!(error(place.vault.sync_note(&run(), key)).kind(), ErrorKind::Usage, "{key:?}");
    }
}

#[test]
fn the_state_on_a_remote_goes_with_the_step_into_quarantine_and_can_be_forgotten() {
    let place = Place::new();
    let uploaded = state(UploadState::Uploaded);
    let step = place.sealed(1);
    step.save_remote_state(&uploaded).unwrap();
    assert!(step.forget_remote(&remote()).unwrap());
    assert!(!step.forget_remote(&remote()).unwrap());
    assert_eq!(step.remote_state(&remote()).unwrap(), None);
    step.save_remote_state(&uploaded).unwrap();
    let quarantined = place.vault.quarantine(&run(), id(1), "damaged").unwrap();
    assert_eq!(quarantined.remote_state(&remote()).unwrap(), Some(uploaded));
}

/// A seal that says something else, with the right digest.
fn anew(seal: &str, from: &str, to: &str) -> Vec<u8> {
    let (record, _) = seal.split_once('\n').unwrap();
    assert!(record.contains(from));
    with_digest(record.replace(from, to).into_bytes())
}

#[test]
fn a_damaged_step_is_a_fault_and_hides_no_other() {
    let place = Place::new();
    let damage: [&dyn Fn(&SealedStep); 5] = [
        &|step| fs::write(step.directory().join("seal.json"), "").unwrap(),
        &|step| fs::remove_file(step.directory().join("seal.json")).unwrap(),
        &|step| {
            let path = step.directory().join("seal.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, &text[..text.len() / 2]).unwrap();
        },
        &|step| {
            let path = step.directory().join("seal.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, anew(&text, "\"step\":4", "\"step\":5")).unwrap();
        },
        &|step| {
            let path = step.directory().join("seal.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, anew(&text, "trainer/.metadata", "../../../../.metadata")).unwrap();
        },
    ];
    place.sealed(100);
    for (step, damage) in (1..).zip(damage) {
        damage(&place.sealed(step));
        assert_eq!(error(place.vault.step(&run(), id(step))).kind(), ErrorKind::Damaged);
    }
    fs::create_dir(place.vault.root().join("runs/grpo%2Fcheckpoints/steps/not a step")).unwrap();
    let scan = place.vault.steps(&run()).unwrap();
    assert_eq!(scan.steps.len(), 1);
    assert_eq!(scan.faults.len(), 6);
    for (path, fault) in &scan.faults {
        assert!(fault.to_string().contains(path.to_str().unwrap()), "{fault}");
    }
}

#[test]
fn a_vault_that_cannot_be_looked_into_is_not_an_empty_one() {
    let place = Place::new();
    place.sealed(1);
    let steps = place.vault.root().join("runs/grpo%2Fcheckpoints/steps");
    fs::remove_dir_all(&steps).unwrap();
    fs::write(&steps, "").unwrap();
    assert!(place.vault.step(&run(), id(1)).is_err());
    assert!(place.vault.steps(&run()).is_err());
}

#[test]
fn a_manifest_is_kept_once_and_never_changes() {
    let place = Place::new();
    let sealed = place.sealed(1);
    assert!(sealed.manifest().unwrap().is_none());
    let first = manifest(&place.at("run/step_1"), 1);
    sealed.save_manifest(&first).unwrap();
    sealed.save_manifest(&first).unwrap();
    assert_eq!(sealed.manifest().unwrap().unwrap(), first);
    fs::write(place.at("run/step_1/more"), "more").unwrap();
    assert_eq!(
        error(sealed.save_manifest(&manifest(&place.at("run/step_1"), 1))).kind(),
        ErrorKind::Conflict
    );
    assert_eq!(error(sealed.save_manifest(&manifest(&place.at("run/step_1"), 2))).kind(), ErrorKind::Damaged);
    let other_run = PartManifest { run: RunName::new("other").unwrap(), ..first.clone() };
    let other_node = PartManifest { node: NodeName::new("node-9").unwrap(), ..first.clone() };
    for other in [other_run, other_node] {
        assert_eq!(error(sealed.save_manifest(&other)).kind(), ErrorKind::Damaged);
    }
    assert_eq!(sealed.manifest().unwrap().unwrap(), first);
}

#[test]
fn remote_states_are_kept_by_remote() {
    let place = Place::new();
    let sealed = place.sealed(1);
    assert_eq!(sealed.remote_state(&remote()).unwrap(), None);
    sealed.save_remote_state(&state(UploadState::Uploaded)).unwrap();
    sealed.save_remote_state(&state(UploadState::Durable)).unwrap();
    assert_eq!(sealed.remote_state(&remote()).unwrap(), Some(state(UploadState::Durable)));
    let mut unproven = state(UploadState::Durable);
    unproven.commit_sha256 = None;
    assert!(
        error(sealed.save_remote_state(&unproven))
            .to_string()
            .ends_with("it is marked durable but names no commit")
    );
    let newer = RemoteState { format: 2, ..state(UploadState::Uploaded) };
    assert!(error(sealed.save_remote_state(&newer)).to_string().ends_with("its format is not known"));
    fs::copy(sealed.directory().join("remotes/bucket.json"), sealed.directory().join("remotes/other.json"))
        .unwrap();
    let other = error(sealed.remote_state(&RemoteName::new("other").unwrap()));
    assert!(other.to_string().ends_with("it is of the remote bucket"), "{other}");
    fs::write(sealed.directory().join("remotes/bucket.json"), "{}").unwrap();
    assert_eq!(error(sealed.remote_state(&remote())).kind(), ErrorKind::Damaged);
}

#[test]
fn eviction_takes_one_step_and_no_other() {
    let place = Place::new();
    let (first, second) = (place.sealed(1), place.sealed(2));
    // As trainers leave them: a directory that even its owner may not write.
    fs::set_permissions(first.data_root().join("trainer"), fs::Permissions::from_mode(0o500)).unwrap();
    assert!(place.vault.evict(&run(), id(1)).unwrap());
    assert!(!place.vault.evict(&run(), id(1)).unwrap());
    assert!(!first.directory().exists() && second.directory().exists());
    assert!(place.at("run/step_1/trainer/.metadata").exists(), "the trainer's own files stay");
    place.assert_no_leftovers();
}

#[test]
fn quarantine_keeps_steps_and_says_why() {
    let place = Place::new();
    for reason in ["a digest differs", "again"] {
        fs::write(place.sealed(1).directory().join("seal.json"), "rot").unwrap();
        place.vault.quarantine(&run(), id(1), reason).unwrap();
        assert!(place.vault.steps(&run()).unwrap().faults.is_empty());
        fs::remove_dir_all(place.at("run/step_1")).unwrap();
    }
    let kept = place.vault.quarantined(&run()).unwrap();
    let facts: Vec<_> = kept.iter().map(|step| (step.id, step.reason.as_str())).collect();
    assert_eq!(facts, [(id(1), "a digest differs"), (id(1), "again")]);
    assert!(kept[0].directory.ends_with("quarantine/000000000001.a1-1"));
    assert!(kept[0].directory.join("data/trainer/.metadata").exists());
    assert_eq!(error(place.vault.quarantine(&run(), id(1), "x")).kind(), ErrorKind::NotFound);
}

#[test]
fn pins_are_kept_and_an_unreadable_one_stops_every_reader() {
    let place = Place::new();
    assert!(place.vault.pins(&run()).unwrap().is_empty());
    place.vault.pin(&run(), id(5), "paper").unwrap();
    place.vault.pin(&run(), id(3), "").unwrap();
    let pins = place.vault.pins(&run()).unwrap();
    assert_eq!(
        pins.iter().map(|pin| (pin.id, pin.note.as_str())).collect::<Vec<_>>(),
        [(id(3), ""), (id(5), "paper")]
    );
    assert!(place.vault.unpin(&run(), id(3)).unwrap());
    assert!(!place.vault.unpin(&run(), id(3)).unwrap());
    let pins = place.vault.root().join("runs/grpo%2Fcheckpoints/pins");
    fs::copy(pins.join("000000000005.a1.json"), pins.join("000000000006.a1.json")).unwrap();
    assert_eq!(error(place.vault.pins(&run())).kind(), ErrorKind::Damaged);
    fs::write(pins.join("000000000006.a1.json"), "").unwrap();
    assert_eq!(error(place.vault.pins(&run())).kind(), ErrorKind::Damaged);
}

#[test]
fn notes_are_replaced_and_their_keys_cannot_leave() {
    let place = Place::new();
    assert_eq!(place.vault.read_note(&run(), "attempt").unwrap(), None);
    place.vault.write_note(&run(), "attempt", b"1").unwrap();
    place.vault.write_note(&run(), "attempt", b"2").unwrap();
    assert_eq!(place.vault.read_note(&run(), "attempt").unwrap().unwrap(), b"2");
    for bad in ["", ".", "..", "a/b", "/etc/passwd", ".hidden", "a\0"] {
        assert_eq!(error(place.vault.write_note(&run(), bad, b"")).kind(), ErrorKind::Usage, "{bad:?}");
        assert!(place.vault.read_note(&run(), bad).is_err());
    }
    assert!(place.vault.write_note(&run(), "big", &vec![0; (1 << 20) + 1]).is_err());
}

#[test]
fn cleaning_empties_what_is_half_done_and_nothing_else() {
    let place = Place::new();
    let sealed = place.sealed(1);
    sealed.save_remote_state(&state(UploadState::Uploaded)).unwrap();
    place.vault.pin(&run(), id(1), "").unwrap();
    let root = place.vault.root().to_path_buf();
    fs::create_dir_all(root.join("staging/half/data")).unwrap();
    fs::write(root.join("staging/half/data/x"), "x").unwrap();
    fs::create_dir_all(root.join("trash/half")).unwrap();
    fs::create_dir_all(root.join("restore/under way")).unwrap();
    let temporaries = [
        root.clone(),
        sealed.directory().to_path_buf(),
        sealed.directory().join("remotes"),
        root.join("runs/grpo%2Fcheckpoints/pins"),
    ];
    for directory in &temporaries {
        fs::write(directory.join(".stepvault-tmp-0"), "half").unwrap();
    }
    assert_eq!(place.vault.pins(&run()).unwrap().len(), 1, "a temporary is no pin");
    let lock = place.vault.lock().unwrap();
    let mut removed = place.vault.clean_leftovers(&lock).unwrap().removed;
    removed.sort();
    assert_eq!(removed.len(), 6, "{removed:?}");
    assert!(place.vault.clean_leftovers(&lock).unwrap().removed.is_empty());
    assert_eq!(place.vault.step(&run(), id(1)).unwrap().unwrap().record(), sealed.record());
    assert_eq!(names(&root.join("restore")), ["under way"]);
    place.assert_no_leftovers();
    let other = Vault::open_or_create(&place.at("other")).unwrap();
    assert_eq!(error(other.clean_leftovers(&lock)).kind(), ErrorKind::Refused);
}
