//! Object stores behind one narrow trait.
//!
//! The engine knows [`store::RemoteStore`] and nothing of what is behind it: S3 and stores that speak its protocol,
//! Google Cloud Storage, a directory, and what `object_store` supports (Azure and memory). Decorators add retries, a
//! limit on requests, a limit on bandwidth and a stall timeout. A probe finds out which integrity checks a store
//! enforces.
//!
//! The features `s3`, `gcs` and `azure` each build one store in, with its SDK; all are on by default.
//!
//! This crate must not leak a vendor's types, and must not hold policy: what to upload, keep or delete is decided
//! elsewhere.
//!
//! Main types:
//!
//! - [`store::RemoteStore`]: the contract that every store keeps.
//! - [`open::open`]: opens the store of a remote's settings, with all decorators.
//! - [`payload::Payload`]: the bytes of one part.
//! - [`probe`]: which integrity checks the store enforces.
//! - [`examine`]: what `stepvault doctor` finds out about a remote.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use stepvault_core::ids::RemoteName;
//! use stepvault_core::observe::SilentObserver;
//! use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl};
//! use stepvault_remote::open::open;
//! use stepvault_remote::store::RemoteStore;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url: RemoteUrl = "memory://example/checkpoints".parse()?;
//! let settings = RemoteSettings::new(RemoteName::new("archive")?, url);
//! let found = tokio::runtime::Runtime::new()?.block_on(async {
//!     let store: Arc<dyn RemoteStore> = open(&settings, Arc::new(SilentObserver)).await?;
//!     store.head("no/such/object").await
//! })?;
//! assert!(found.is_none());
//! # Ok(())
//! # }
//! # example().unwrap();
//! ```
#![cfg_attr(
    all(not(test), feature = "s3", feature = "gcs", feature = "azure"),
    warn(unused_crate_dependencies)
)]
// One store needs only a part of what they share.
#![cfg_attr(
    not(all(feature = "s3", feature = "gcs", feature = "azure")),
    allow(dead_code, unused_crate_dependencies)
)]

mod causes;
pub mod decorator;
pub mod examine;
pub mod file;
#[cfg(feature = "gcs")]
pub mod gcs;
pub mod generic;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod http;
mod keys;
pub mod limit;
mod listed;
pub mod open;
mod options;
pub mod outbound;
pub mod payload;
mod pieces;
pub mod probe;
pub mod random;
pub mod retry;
#[cfg(feature = "s3")]
pub mod s3;
pub mod store;
