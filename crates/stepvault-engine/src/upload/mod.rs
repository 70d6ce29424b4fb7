//! Uploads a step to one remote until it is durable on it: plan, file parts, proof, commit. The step is sealed in the vault,
//! or another remote has it.

mod ahead;
mod claim;
mod commit;
mod copy;
mod file;
mod origin;
mod pass;
mod read;
mod session;

pub use ahead::{CopiedStep, CopyInProgress, ShownCopy, UploadAhead};
pub use copy::CommonStore;
pub use origin::SourceStep;
pub(crate) use origin::{of_side, of_source};
pub use read::SharedDigests;
pub(crate) use session::{PARTS_POLL_INTERVAL, upload_everywhere};
pub use session::{RemoteOutcome, UploadSession, Uploaded, missing_bytes};
