//! The conformance suite: the contract of [`RemoteStore`] as named checks, which every store has to pass.
#![allow(clippy::wildcard_imports, reason = "the list below names each check")]

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_remote::store::RemoteStore;

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

mod keys;
mod objects;
mod outcome;
mod uploads;

use self::keys::*;
use self::objects::*;
use self::outcome::{Outcome, Store};
use self::uploads::*;

type Check = (&'static str, fn(Store) -> BoxFuture<'static, Outcome>);

macro_rules! checks {
    ($($name:ident),+ $(,)?) => { &[$((stringify!($name), |store| $name(store).boxed())),+] };
}

const CHECKS: &[Check] = checks![
    what_was_created_is_read_back,
    create_never_replaces,
    of_racing_creates_one_wins,
    replace_replaces,
    empty_objects_are_objects,
    ranges_are_exact,
    ranges_past_the_end_are_errors,
    odd_keys_mean_themselves,
    listings_keep_to_their_prefix,
    listings_are_complete,
    missing_objects_are_told_from_errors,
    deletes_take_missing_keys,
    an_empty_upload_becomes_an_empty_object,
    an_upload_never_replaces,
    an_aborted_upload_leaves_nothing,
];

type DigestCheck = (&'static str, fn(Store, DigestAlgorithm) -> BoxFuture<'static, Outcome>);

macro_rules! digest_checks {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), |store, algorithm| $name(store, algorithm).boxed())),+]
    };
}

/// Checks that are run with digests by each algorithm.
const DIGEST_CHECKS: &[DigestCheck] = digest_checks![
    an_upload_in_parts_becomes_one_object,
    wrong_digests_are_refused,
    a_wrong_digest_of_the_whole_is_noticed,
    copies_keep_bytes_and_proof,
    copied_parts_are_what_was_asked_for,
];

/// Runs all checks but those in `skipped` and panics with what failed.
pub async fn run(store: Arc<dyn RemoteStore>, skipped: &[&str]) {
    for name in skipped {
        assert!(
            CHECKS.iter().any(|(known, _)| known == name)
                || DIGEST_CHECKS.iter().any(|(known, _)| known == name),
            "no check is called {name}"
        );
    }
    let mut failures = Vec::new();
    for (name, check) in CHECKS.iter().filter(|(name, _)| !skipped.contains(name)) {
        if let Err(why) = check(Arc::clone(&store)).await {
            failures.push(format!("{name}: {why}"));
        }
    }
    for (name, check) in DIGEST_CHECKS.iter().filter(|(name, _)| !skipped.contains(name)) {
        for algorithm in DigestAlgorithm::ALL {
            if let Err(why) = check(Arc::clone(&store), algorithm).await {
                failures.push(format!("{name}, {algorithm}: {why}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", store.url(), failures.join("\n"));
}
