//! Files of a vault, changed at random: the checks of the fuzz targets, on every compiler and at every change.
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

#[path = "../../fuzz/src/files.rs"]
mod files;
#[path = "../../fuzz/src/seals.rs"]
mod seals;

use stepvault_testkit::mutations::{assert_holds, assert_seeds_change};

#[test]
fn seals() {
    assert_holds(&seals::seeds(), seals::check);
}

#[test]
fn files() {
    assert_holds(&files::seeds(), files::check);
}

#[test]
fn seeds_are_read_and_some_changes_of_them_are_not() {
    use stepvault_core::codec::decode;
    use stepvault_local::seal_record::SealRecord;
    let seeds = &seals::seeds()[..3];
    assert_seeds_change(seeds, |bytes| decode::<SealRecord>(bytes, "seal").is_ok());
}
