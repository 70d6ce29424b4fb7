//! Uploads a sealed step to one remote until it is durable on it: plan, file parts, proof, commit.

mod commit;
mod copy;
mod digests;
mod file;
mod session;

pub use digests::SharedDigests;
pub use session::{UploadSession, Uploaded, missing_bytes};
