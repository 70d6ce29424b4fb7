//! Retries transient failures without making an outage worse.
//!
//! Each request backs off by itself. The gate slows down all requests of a failing remote together and limits the total
//! number of attempts. After the deadline the remote counts as unreachable, and the caller continues with other work.

mod gate;
mod store;

pub use self::store::{RetryPolicy, RetryStore};
