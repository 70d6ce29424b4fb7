//! A resumed upload verifies what the interrupted one has already sent.

use std::fs;

use crate::support::{Outcome, Place};

/// A place with a step whose files were all sent, and whose records could not be written.
fn cut_off_before_its_records() -> (Place, impl Fn(&Place) -> Outcome) {
    let place = Place::new();
    place.push_steps(&[1]);
    // A part manifest cannot be written below something that is no directory.
    let parts = place.path("remote/demo/a/.stepvault/parts");
    fs::rename(&parts, place.path("parts")).unwrap();
    fs::write(&parts, "in the way").unwrap();
    place.checkpoint("step_2", "step_2");
    let push = |place: &Place| place.run_here(&["push", "checkpoints/step_2"]);
    assert_ne!(push(&place).code, 0);
    assert!(place.remote_file("step_2", "model.bin").exists(), "it was sent");
    fs::remove_file(&parts).unwrap();
    fs::rename(place.path("parts"), &parts).unwrap();
    (place, push)
}

#[test]
fn a_file_that_vanished_since_it_was_sent_is_sent_again() {
    let (place, push) = cut_off_before_its_records();
    fs::remove_file(place.remote_file("step_2", "model.bin")).unwrap();
    push(&place).expect_code(0).expect_stderr(&["sending them again", "lifecycle rule"]);
    place.succeed_here(&["verify", "--deep"]);
}

#[test]
fn an_object_of_another_size_is_never_committed() {
    let (place, push) = cut_off_before_its_records();
    fs::write(place.remote_file("step_2", "model.bin"), "somebody else's").unwrap();
    // It is kept as it is, and the step gets another revision.
    push(&place).expect_code(0).expect_stderr(&["is sealed under another identity"]);
    let theirs = fs::read_to_string(place.remote_file("step_2", "model.bin")).unwrap();
    assert_eq!(theirs, "somebody else's");
    let commits = place.path("remote/demo/a/.stepvault/commits");
    assert!(!commits.join("000000000002.a1.json").exists());
    assert!(commits.join("000000000002.a1r2.json").exists());
    place.succeed_here(&["verify", "--deep"]);
}

#[test]
fn a_file_that_is_still_there_is_not_sent_again() {
    let (place, push) = cut_off_before_its_records();
    let file = place.remote_file("step_2", "model.bin");
    let sent_at = fs::metadata(&file).unwrap().modified().unwrap();
    push(&place).expect_code(0);
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), sent_at);
}
