//! Messages of the control socket, changed at random: the checks of the fuzz targets, on every compiler and at every
//! change.
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

#[path = "../../fuzz/src/answers.rs"]
mod answers;
#[path = "../../fuzz/src/messages.rs"]
mod messages;

use stepvault_testkit::mutations::{assert_holds, assert_seeds_change};

#[test]
fn messages() {
    assert_holds(&messages::seeds(), messages::check);
}

#[test]
fn answers() {
    assert_holds(&answers::seeds(), answers::check);
}

#[test]
fn seeds_are_read_and_some_changes_of_them_are_not() {
    use stepvault_agent::AgentNote;
    use stepvault_agent::control::{
        AnnounceAnswer, AnnounceRequest, DrainAnswer, DrainRequest, StatusAnswer, WaitAnswer, WaitRequest,
    };
    use stepvault_core::document::ErrorAnswer;
    fn is<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> bool {
        serde_json::from_slice::<T>(bytes).is_ok()
    }
    let kinds: [fn(&[u8]) -> bool; 9] = [
        is::<AnnounceRequest>,
        is::<WaitRequest>,
        is::<DrainRequest>,
        is::<AnnounceAnswer>,
        is::<WaitAnswer>,
        is::<DrainAnswer>,
        is::<StatusAnswer>,
        is::<ErrorAnswer>,
        is::<AgentNote>,
    ];
    for (seed, kind) in messages::seeds().into_iter().zip(kinds) {
        assert_seeds_change(&[seed], kind);
    }
}
