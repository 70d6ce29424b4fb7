//! Object stores behind one narrow trait.
//!
//! The engine knows [`store::RemoteStore`] and nothing of what is behind it: S3 and stores that speak its protocol,
//! Google Cloud Storage, a directory, and what `object_store` supports (Azure and memory). Decorators add retries, a
//! limit on requests, a limit on bandwidth and a stall timeout. A probe finds out which integrity checks a store
//! enforces.
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
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod arrival_rate;
mod authorities;
mod connection_obstacle;
pub mod decorator;
mod endpoint;
pub mod examine;
mod examiner;
pub mod file;
pub mod gcs;
pub mod generic;
mod identity;
mod lent;
pub mod limit;
mod listed;
pub mod open;
pub mod payload;
pub mod pending;
pub mod probe;
pub mod random;
pub mod retry;
pub mod s3;
pub mod store;
