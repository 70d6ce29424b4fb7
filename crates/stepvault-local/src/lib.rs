//! The local tier: the only part of stepvault that makes raw filesystem calls.
//!
//! A [`vault::Vault`] holds sealed steps: snapshots that survive the trainer's own clean-up, a killed process and a
//! power cut. Everything that is acknowledged here has been synced, file and directory; everything half-done stands
//! under `staging/` or `trash/`, where a restart finds and removes it. Nothing here knows of remotes.

mod beneath;
mod cgroup;
pub mod compare;
mod compare_trees;
pub mod condition;
pub mod durable;
pub mod errors;
pub mod evict;
pub mod handover;
pub mod journal;
mod journal_standing;
pub mod kept;
pub mod leftovers;
pub mod lock;
pub mod log_source;
pub mod notes;
pub mod oom;
pub mod pins;
mod place_members;
pub mod probe;
pub mod process;
mod publish;
mod remove;
mod rename;
pub mod save;
mod save_abandoned;
mod save_commit;
mod save_record;
pub mod seal;
pub mod seal_record;
pub mod sealed;
mod snapshot;
pub mod socket;
pub mod source;
mod source_step;
pub mod space;
mod staged_file;
pub mod staging;
mod staging_abandoned;
mod staging_place;
mod starts;
mod stat;
pub mod survey;
mod symlink;
mod sync;
mod temporary;
pub mod tree;
pub mod vault;
mod walk;

pub use journal_standing::UnfinishedUpload;
