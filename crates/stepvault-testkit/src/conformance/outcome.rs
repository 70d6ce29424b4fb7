//! What a check gets and gives.

use std::sync::Arc;

use stepvault_core::Error;
use stepvault_remote::store::RemoteStore;

/// Why a check failed.
pub(super) type Outcome = Result<(), String>;

pub(super) type Store = Arc<dyn RemoteStore>;

// Taken by value, as `map_err` gives it.
#[allow(clippy::needless_pass_by_value)]
pub(super) fn text(error: Error) -> String {
    format!("{:?}: {error}", error.kind())
}
