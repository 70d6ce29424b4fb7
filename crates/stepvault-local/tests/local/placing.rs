//! The attempt of a sealed step, determined later than it was sealed.

use std::fs;

use stepvault_core::ErrorKind;
use stepvault_core::digest::Sha256Digest;
use stepvault_core::ids::{Attempt, StepId};
use stepvault_local::seal::seal;
use stepvault_local::seal_record::{AttemptOrigin, AttemptState};
use stepvault_local::sealed::{RemoteState, SealedStep, UploadState};

use crate::support::{Place, error, id, manifest, names, remote, run};

fn attempt(number: u32) -> Attempt {
    Attempt::new(number).unwrap()
}

fn called(attempt_number: u32, step: u64) -> StepId {
    StepId::new(attempt(attempt_number), id(step).step)
}

/// Gives a provisional step its identity.
fn place_as(place: &Place, step: &SealedStep, id: StepId) -> stepvault_core::Result<SealedStep> {
    place.vault.place(step, id, step.record().origin.clone())
}

fn provisional(place: &Place, step: u64) -> SealedStep {
    let name = format!("step_{step}");
    place.checkpoint(&name);
    let mut request = place.request(&name, step);
    request.attempt = AttemptOrigin { state: AttemptState::Provisional, ..AttemptOrigin::default() };
    seal(&place.vault, &request).unwrap().step
}

fn labels(place: &Place) -> Vec<String> {
    let scan = place.vault.steps(&run()).unwrap();
    assert!(scan.faults.is_empty(), "{:?}", scan.faults);
    scan.steps.iter().map(|step| step.id().label()).collect()
}

#[test]
fn a_provisional_step_gets_its_attempt_and_keeps_its_files() {
    let place = Place::new();
    let step = provisional(&place, 1);
    assert!(step.record().is_provisional());
    let before = names(&step.data_root());
    place.vault.pin(&run(), step.id(), "best").unwrap();
    let placed = place_as(&place, &step, called(3, 1)).unwrap();
    assert_eq!(placed.id(), called(3, 1));
    assert_eq!(labels(&place), ["000000000001.a3"]);
    let read = place.vault.step(&run(), called(3, 1)).unwrap().unwrap();
    assert_eq!(read.record(), placed.record());
    assert!(!read.record().is_provisional());
    assert_eq!(read.record().attempt.former, [attempt(1)]);
    assert_eq!(names(&read.data_root()), before);
    let pinned = place.vault.pins(&run()).unwrap();
    assert!(pinned.iter().any(|pin| pin.id == called(3, 1)), "{pinned:?}");
    // As it was called already.
    let same = place_as(&place, &provisional(&place, 2), called(1, 2)).unwrap();
    assert_eq!((same.id(), same.record().attempt.former.len()), (called(1, 2), 0));
}

#[test]
fn a_place_that_is_taken_is_not_taken_over() {
    let place = Place::new();
    place.sealed(1);
    let mut second = place.request("step_1", 1);
    second.id = called(2, 1);
    second.attempt.state = AttemptState::Provisional;
    let second = seal(&place.vault, &second).unwrap().step;
    let refused = error(place_as(&place, &second, called(1, 1)));
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(labels(&place), ["000000000001.a1", "000000000001.a2"]);
}

/// A process may end between the rename and the record, or before the rename.
#[test]
fn a_step_that_was_renamed_and_not_recorded_is_provisional_under_its_new_name() {
    let place = Place::new();
    let step = provisional(&place, 1);
    let renamed = step.directory().with_file_name(called(4, 1).label());
    fs::rename(step.directory(), &renamed).unwrap();
    let found = place.vault.step(&run(), called(4, 1)).unwrap().unwrap();
    assert!(found.record().is_provisional());
    assert_eq!(found.id(), called(4, 1));
    assert_eq!(place_as(&place, &found, called(5, 1)).unwrap().id(), called(5, 1));
    // A name of another step is damage, and so is another attempt of a step that has its own.
    let other = provisional(&place, 2);
    fs::rename(other.directory(), other.directory().with_file_name(id(7).label())).unwrap();
    let firm = place.sealed(3);
    fs::rename(firm.directory(), firm.directory().with_file_name(called(2, 3).label())).unwrap();
    let faults = place.vault.steps(&run()).unwrap().faults;
    assert_eq!(faults.len(), 2, "{faults:?}");
}

#[test]
fn under_another_attempt_nothing_was_sent_and_the_digests_hold() {
    let place = Place::new();
    let step = place.sealed(1);
    step.save_manifest(&manifest(&step.data_root(), 1)).unwrap();
    let state = RemoteState {
        format: 1,
        id: step.id(),
        remote: remote(),
        url: "s3://bucket/prefix".to_owned(),
        vault: "0".repeat(32),
        state: UploadState::Durable,
        commit_sha256: Some(Sha256Digest::of(b"commit")),
    };
    step.save_remote_state(&state).unwrap();
    let provisional = place.vault.make_provisional_again(&step).unwrap();
    assert!(provisional.record().is_provisional());
    assert_eq!(provisional.remote_state(&remote()).unwrap(), Some(state));
    let placed = place_as(&place, &provisional, called(2, 1)).unwrap();
    assert_eq!(placed.remote_state(&remote()).unwrap(), None);
    let digests = placed.manifest().unwrap().unwrap();
    assert_eq!(digests.id, called(2, 1));
    placed.save_manifest(&digests).unwrap();
    assert_eq!(placed.record().attempt.former, [attempt(1)]);
}
