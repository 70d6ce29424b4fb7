//! Every store against what it has to do, and against servers that misbehave.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod conformance_runs;
mod dead_connections;
mod examining;
mod file_store;
mod flaky;
mod gcs;
mod limits;
mod memory;
mod probes;
mod retries;
mod s3_chain;
mod s3_credentials;
mod s3_direct;
mod s3_faults;
mod s3_requests;
mod s3_silence;
mod s3_skew;
mod support;

use stepvault_testkit::conformance;
