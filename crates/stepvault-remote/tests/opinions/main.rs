//! stepvault against servers of other projects: what each does right, and each lie, which must not be believed.
//!
//! Every lie is first shown to be told: a server that has mended its ways makes its test fail, and not pass idly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod azurite;
mod fake_gcs;
mod moto;
mod opened;
mod s3s_fs;
mod wrong;

use stepvault_testkit::{conformance, stores as support};
