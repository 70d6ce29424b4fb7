//! Test servers, faults and builders for stepvault's own tests.
//!
//! No server that can be installed checks everything that stepvault relies on: one accepts wrong checksums, another
//! overwrites in spite of `If-None-Match`. The strict servers here enforce what the providers document, and misbehave
//! only where a test asks them to.
//!
//! This crate must be a development dependency only. A server must share no code with the client that it checks: only
//! what the feature `stores` adds may use other crates of the workspace.
//!
//! Main types:
//!
//! - [`s3::StrictS3`] and [`gcs::StrictGcs`]: strict servers on loopback.
//! - [`faults::Faults`]: refuses, delays, cuts off or falsifies chosen requests.
//! - [`discard`]: an S3 server that throws uploaded bytes away, for benchmarks.
//! - [`peers`]: servers of other projects (moto, fake-gcs-server), as a second opinion.
//! - [`network`], [`relay`]: links between processes that can be cut or that damage bytes.
//! - [`tls`]: TLS in front of a server, with valid and invalid certificates.
//! - [`metadata`]: the metadata services of EC2, Compute Engine and Azure.
//! - [`webhook`]: a receiver of notifications.
//! - [`process`], [`users`]: the program under test, run with nothing of the machine's environment.
//! - [`tree`], [`random`]: files and bytes, made from a seed and compared.
//! - [`mutations`]: inputs of fuzz targets, changed at random.
//! - [`fixture`]: the archives of real checkpoints; [`torch`]: small files of `torch.save`.
//! - With the feature `stores`: `conformance`, the suite that every store has to pass; `stores`, the requests that tests
//!   send; `recorder`, an observer that remembers.
//!
//! # Example
//!
//! ```
//! use stepvault_testkit::s3::StrictS3;
//!
//! let server = StrictS3::start();
//! server.create_bucket("checkpoints");
//! assert!(server.endpoint().starts_with("http://"));
//! assert!(server.objects().keys().is_empty());
//! ```

#[cfg(feature = "stores")]
pub mod conformance;
pub mod discard;
pub mod faults;
pub mod fixture;
pub mod gcs;
pub mod metadata;
pub mod mutations;
pub mod network;
pub mod objects;
pub mod peers;
pub mod process;
pub mod random;
#[cfg(feature = "stores")]
pub mod recorder;
pub mod relay;
pub mod s3;
pub mod serve;
#[cfg(feature = "stores")]
pub mod stores;
pub mod tls;
pub mod torch;
pub mod tree;
pub mod users;
pub mod webhook;
