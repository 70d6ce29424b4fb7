//! Uploads a sealed step to one remote until it is durable on it: plan, file parts, proof, commit.

mod ahead;
mod commit;
mod copy;
mod digests;
mod file;
mod session;

pub use ahead::{CopiedStep, CopyInProgress, ShownCopy, UploadAhead};
pub use digests::SharedDigests;
pub use session::{UploadSession, Uploaded, missing_bytes};
