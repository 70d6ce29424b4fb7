//! The background service on one node: it finds finished steps, seals them, uploads them to every remote, and applies
//! retention on every tier.
//!
//! [`run`] is the whole service. One task seals; one task for each remote uploads and one prunes; one task evicts local
//! copies. The tasks share no queue: what is sealed and not yet durable is read from the vault, so that nothing is lost
//! with the process. [`control`] serves other processes over a Unix socket.
//!
//! It must not hold policy: the profiles of `stepvault-formats` decide what is finished, the plans of `stepvault-core`
//! decide what stays, and `stepvault-engine` decides how it is uploaded.
//!
//! Main types:
//!
//! - [`AgentOptions`], with the settings of each run and an [`AgentRemote`] for each remote.
//! - [`Stop`]: asks the service to drain, by a deadline.
//! - [`AgentReport`]: what the service did, and what is not durable.
//! - [`control`]: requests and responses of the control socket, and its client.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use stepvault_agent::{AgentOptions, AgentReport, Stop};
//! use stepvault_core::observe::SilentObserver;
//!
//! /// Serves until `stop` is requested, then drains.
//! async fn serve(options: AgentOptions, stop: Stop) -> stepvault_core::Result<AgentReport> {
//!     stepvault_agent::run(options, Arc::new(SilentObserver), stop).await
//! }
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod agent_status;
mod announcements;
mod assembly;
mod attempts;
mod backlog;
pub mod control;
mod discovery;
mod drain;
mod final_report;
mod followed;
pub mod http;
mod messages;
mod metrics;
mod notice;
pub mod notifications;
mod options;
mod other_writers;
pub mod pause;
mod priority;
mod remotes;
mod report;
mod retention;
mod retries;
mod sealer;
mod shared;
mod starts;
mod status_file;
pub mod step_progress;
mod stop;
mod supervisor;
mod throughput;
mod tier;
mod traces;
mod upload_worker;
mod vault_watch;

pub use self::drain::read_drain;
pub use self::messages::{FailedStep, RemoteUploads};
pub use self::metrics::CommandMetrics;
pub use self::options::{AgentOptions, AgentRemote, Lifecycle, NoticeOptions, profiles};
pub use self::report::{
    AgentReport, LeftUndone, NotDurable, OtherWriter, RunStep, SkippedEntry, StepOnRemote, Tally, UnservedRun,
};
pub use self::starts::new_start;
pub use self::status_file::{StatusFile, read_status_file};
pub use self::stop::{Stop, StopReason, StopRequest};
pub use self::supervisor::run;
pub use self::traces::{TraceTarget, Traces};
