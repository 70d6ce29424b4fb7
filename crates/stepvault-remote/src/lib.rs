//! Object stores behind one narrow trait.
//!
//! [`store::RemoteStore`] is what the engine knows. Vendor types stay inside the modules that wrap them.

mod endpoint;
pub mod examine;
pub mod file;
pub mod gcs;
pub mod generic;
mod lent;
pub mod limit;
pub mod open;
pub mod payload;
pub mod pending;
pub mod probe;
pub mod random;
pub mod retry;
pub mod s3;
pub mod store;
