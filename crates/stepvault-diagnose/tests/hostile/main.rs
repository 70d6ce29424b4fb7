//! Logs and descriptions of models, changed at random: the checks of the fuzz targets, on every compiler and at every
//! change.
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

#[path = "../../../stepvault-core/fuzz/src/logs.rs"]
mod logs;
#[path = "../../../stepvault-core/fuzz/src/models.rs"]
mod models;

use stepvault_testkit::mutations::{assert_holds, text};

#[test]
fn logs() {
    assert_holds(&logs::seeds(), logs::check);
}

#[test]
fn models() {
    assert_holds(&models::seeds(), text(models::check));
}
