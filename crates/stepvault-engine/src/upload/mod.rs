//! Uploads a sealed step to one remote until it is durable on it: plan, file parts, proof, commit.

mod ahead;
mod commit;
mod copy;
mod file;
mod read;
mod session;

pub use ahead::{CopiedStep, CopyInProgress, ShownCopy, UploadAhead};
pub use read::SharedDigests;
pub(crate) use session::{PARTS_POLL_INTERVAL, upload_everywhere};
pub use session::{RemoteOutcome, UploadSession, Uploaded, missing_bytes};
