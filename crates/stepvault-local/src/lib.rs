//! The local tier: the only crate that makes raw filesystem calls.
//!
//! It holds the vault and everything that happens on a disk: durable writes, sealing, the journal of uploads, locks,
//! the staging of restores and of saves, and the probes of `stepvault doctor`. A write that this crate reports as done
//! has been synced, the file and its directory. What is unfinished stands under `staging/` or `trash/`, where the next
//! start finds and removes it.
//!
//! It must not know remotes.
//!
//! Main types:
//!
//! - [`vault::Vault`]: the directory that holds sealed steps.
//! - [`seal::SealRequest`] and [`sealed::SealedStep`]: the snapshot of a finished step, which survives the trainer's
//!   own clean-up, a killed process and a power cut.
//! - [`lock::VaultLock`]: one writer at a time; the kernel releases it when the process ends.
//! - [`journal::Journal`]: the parts that a remote has acknowledged.
//! - [`staging`]: where a restore puts files until all of them are verified.
//!
//! # Example
//!
//! ```
//! use stepvault_local::vault::Vault;
//!
//! let directory = tempfile::tempdir()?;
//! let vault = Vault::open_or_create(&directory.path().join("vault"))?;
//! let _lock = vault.lock()?;
//! assert!(vault.runs()?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod beneath;
pub mod cgroup;
pub mod clock;
pub mod compare;
pub mod condition;
pub mod durable;
pub mod early_links;
pub mod errors;
pub mod evict;
pub mod follow_directory;
pub mod handoff;
mod holes;
pub mod journal;
pub mod leftovers;
pub mod lock;
pub mod log_source;
pub mod notes;
pub mod ownership;
pub mod probe;
pub mod process;
mod publish;
pub mod rank_turn;
mod remove;
mod rename;
pub mod save;
pub mod seal;
pub mod seal_record;
pub mod sealed;
pub mod socket;
pub mod source;
pub mod space;
pub mod staging;
mod staging_place;
pub mod starts;
pub mod survey;
mod temporary;
pub mod tree;
pub mod vault;

pub use self::clock::SystemClock;
pub use self::journal::UnfinishedUpload;
pub use self::sealed::SealedStep;
pub use self::tree::{Checkpoint, Tree};
pub use self::vault::Vault;
