//! The background service on one node: it finds finished steps, seals them, and keeps every remote and both retention
//! policies up to date.
//!
//! [`run`] is the whole service. It holds no policy of its own: what counts as finished is a profile or a configured rule
//! of `stepvault-formats`, what stays is decided by the plans of `stepvault-core`, and what is sent is up to the engine.
//!
//! One task seals, one task for each remote uploads, one task for each remote prunes it, and one evicts local copies.
//! [`control`] lets other processes ask and tell it something. They meet in the vault: whatever was sealed and is not durable yet is found there by looking, so that nothing is
//! lost with the process.

mod announcements;
mod assembly;
mod board;
mod clock;
pub mod control;
mod discovery;
mod drain;
mod lane;
mod metrics;
mod note;
mod notice;
mod occupied;
mod options;
mod outcome;
mod pause;
mod profiles;
mod prompt_store;
mod rates;
mod report;
mod retention;
mod sealer;
mod shared;
pub mod standing;
mod starts;
mod stop;
mod supervisor;

pub use clock::SystemClock;
pub use drain::read_drain;
pub use note::{AgentNote, FailedStep, RemoteNote, read_note};
pub use notice::NoticeOptions;
pub use options::{AgentOptions, AgentRemote, AgentRun};
pub use profiles::profiles;
pub use report::{AgentReport, NotDurable, RunStep, SkippedEntry, StepOnRemote, Tally};
pub use stop::{Stop, StopReason, StopRequest};
pub use supervisor::run;
