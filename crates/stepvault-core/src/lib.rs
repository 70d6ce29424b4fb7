//! Names, records, plans and policies of stepvault, as pure data.
//!
//! This crate decides what the other crates do: which attempt a checkpoint belongs to, which steps retention keeps, how
//! a file is divided into parts. It also defines the records that stand on a
//! remote and their canonical JSON, the configuration, and the error type of the whole workspace.
//!
//! It must not touch a disk, a network, a clock or an async runtime: facts come in as values, and decisions go out as
//! values. A caller that needs the time passes a [`clock::Clock`].
//!
//! Main types:
//!
//! - [`ids::RunName`], [`ids::StepId`], [`ids::NodeName`], [`ids::RemoteName`]: the names of things.
//! - [`manifest::PartManifest`], [`commit::Commit`], and the small records in [`records`]: the format on a remote.
//! - [`keys::RunKeys`]: the key of every object of a run.
//! - [`retention::RetentionPlan`]: for each step keep or drop, with the reasons.
//! - [`config::Config`]: the checked configuration.
//! - [`observe::Observer`]: receives events while a library function works.
//! - [`Error`], with the [`ErrorKind`] that a caller decides on.
//!
//! # Example
//!
//! ```
//! use stepvault_core::ids::{Attempt, Step, StepId};
//!
//! let id = StepId::new(Attempt::FIRST, Step::new(100)?);
//! assert_eq!(id.label(), "000000000100.a1");
//! assert_eq!(StepId::from_label("000000000100.a1"), Some(id));
//! # Ok::<(), stepvault_core::Error>(())
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod bandwidth;
pub mod clock;
pub mod codec;
pub mod commit;
pub mod config;
pub mod digest;
pub mod disk_facts;
pub mod document;
pub mod drain;
pub mod entries;
pub mod error;
pub mod file_parts;
pub mod follow;
pub mod forecast;
pub mod given_up;
pub mod ids;
pub mod imported;
pub mod include;
pub mod keys;
pub mod launch;
pub mod launcher;
pub mod links;
pub mod manifest;
mod meant_url;
pub mod members;
pub mod nodes;
pub mod observe;
pub mod path;
pub mod placement;
pub mod records;
pub mod remote_settings;
pub mod retention;
pub mod retired;
pub mod room;
pub mod shares;
pub mod starts;
pub mod step_origin;
pub mod store_facts;
pub mod timestamp;
pub mod vault_place;
pub mod words;

pub use clock::Clock;
pub use digest::{ContentDigest, Crc32c, DigestAlgorithm, FileDigest, PartDigest, Sha256Digest};
pub use error::{Error, ErrorKind, Result};
pub use ids::{Attempt, NodeName, RemoteName, Revision, RunName, Step, StepId};
pub use nodes::{NodePlace, NodeSet, Writer};
pub use observe::{Event, Observer, Operation, OperationKind, SilentObserver, Tier};
pub use path::RelativePath;
pub use remote_settings::{RemoteSettings, RemoteUrl, Scheme};
pub use timestamp::Timestamp;
