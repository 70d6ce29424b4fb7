//! Times that documents promise, against the ones that the program keeps.

use crate::place::read;

#[test]
fn doctor_takes_no_longer_than_it_is_said_to() {
    let seconds = stepvault_engine::doctor::remote::LONGEST.as_secs();
    let promise = format!("It takes {seconds} s at most, whatever a store does.");
    assert!(read("docs/operations.md").contains(&promise), "{promise}");
}
