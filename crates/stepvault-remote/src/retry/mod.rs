//! Tries again what may pass, without making an outage worse.
//!
//! Requests back off by themselves; the gate slows all requests of a failing remote down together and bounds how many
//! tries there are in all. After the deadline the remote counts as unreachable and the caller goes on with other work.

mod gate;
mod listing;
mod store;

pub use self::store::{RetryPolicy, RetryStore};
