//! Keeps a remote's requests, bytes and silences within what is configured.

mod bytes;
mod requests;

pub use self::bytes::FlowStore;
pub use self::requests::RequestLimitStore;
