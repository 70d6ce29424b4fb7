//! The words, formats, plans and policies of stepvault.
//!
//! This crate is pure: it touches no disk, network, clock or async runtime. What the others do to the world is
//! decided here as data (a manifest, a retention plan, a restore plan) and checked here when read back.

pub mod attempts;
pub mod clock;
pub mod codec;
pub mod commit;
pub mod config;
pub mod copies;
pub mod digest;
pub mod doctor;
pub mod drain;
pub mod error;
pub mod estimate;
pub mod explain;
pub mod file_parts;
pub mod forecast;
pub mod ids;
pub mod keys;
pub mod launch;
pub mod launcher;
pub mod links;
pub mod manifest;
pub mod members;
pub mod nodes;
pub mod observe;
pub mod path;
pub mod records;
pub mod remote_settings;
pub mod restore_plan;
pub mod retention;
pub mod room;
pub mod shares;
pub mod starts;
pub mod timestamp;
pub mod words;

pub use error::{Error, ErrorKind, Result};
