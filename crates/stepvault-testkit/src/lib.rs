//! Test servers and builders for stepvault's own tests. A development dependency only.
//!
//! No server that can be installed checks everything that stepvault relies on (one accepts wrong checksums,
//! another overwrites in spite of `If-None-Match`), so the strict servers here hold the client to what the
//! providers document, and misbehave only on request.

pub mod discard;
pub mod faults;
pub mod gcs;
pub mod metadata;
pub mod network;
pub mod objects;
pub mod peers;
pub mod relay;
pub mod s3;
pub mod serve;
