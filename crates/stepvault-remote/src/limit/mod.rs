//! Limits a remote's concurrent requests, bytes per second and stall times, as configured.

mod bytes;
mod concurrency;
mod requests;

pub use self::bytes::FlowStore;
pub use self::requests::RequestLimitStore;
