//! Uploads a sealed step to one remote until it is durable on it: plan, file parts, proof, commit.

mod commit;
mod copy;
mod digests;
mod parts;
mod plan;
mod read;
mod session;

pub use digests::SharedDigests;
pub use plan::missing_bytes;
pub use session::{UploadSession, Uploaded};
