//! Confirms by the listing that a store has lost or damaged an object.
//!
//! A single answer proves nothing: a proxy, a gateway or a login page may have given it, or a replica that lags behind.

use futures::TryStreamExt as _;
use stepvault_core::{Error, ErrorKind, Result};

use crate::tier::run_remote::RunRemote;

/// Returns what is known of an object that should exist, after a read of it failed with `error`: the error itself if the
/// listing confirms it, otherwise an outage. `read_bytes` is the length of a record that cannot be used.
///
/// # Invariants
/// L4, and S1 of a restore: a step is skipped as damaged only if that is proven.
pub(crate) async fn confirmed(
    remote: &RunRemote,
    key: &str,
    read_bytes: Option<usize>,
    error: Error,
) -> Error {
    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Damaged) {
        return error;
    }
    let unproven = |why: String| {
        Error::new(ErrorKind::Unreachable, "the remote's answer is not the object")
            .on(remote.describe(key))
            .because(why)
            .hint("check that the endpoint leads to the store, and nothing between answers in its place")
    };
    match (listed_bytes(remote, key).await, read_bytes) {
        // A listing that finds nothing is empty.
        (Err(error), _) if error.kind() == ErrorKind::NotFound => error.with_kind(ErrorKind::Unreachable),
        (Err(error), _) => error,
        (Ok(None), _) => error.with_kind(ErrorKind::NotFound),
        (Ok(Some(listed)), None) if error.kind() == ErrorKind::NotFound => unproven(format!(
            "the remote lists it with {listed} bytes, and answers that it does not exist"
        )),
        (Ok(Some(listed)), Some(read)) if listed != read as u64 => unproven(format!(
            "the answer has {read} bytes, and the remote lists {listed}"
        )),
        (Ok(Some(_)), _) => error,
    }
}

/// Returns the length of an object as it is listed; `None` if it is not.
async fn listed_bytes(remote: &RunRemote, key: &str) -> Result<Option<u64>> {
    let mut objects = remote.store.list(key);
    while let Some(object) = objects.try_next().await? {
        if object.key == key {
            return Ok(Some(object.size_bytes));
        }
    }
    Ok(None)
}
