//! Knows what each framework's checkpoints look like, which step a directory holds, whether it is complete, and whether
//! its files are sound.
//!
//! A framework is described by a *profile*, a TOML file in `profiles/`; the source of each of its rules stands in its
//! comments. A *structural check* reads the headers of a file and decides whether the file is whole.
//!
//! This crate must not load a tensor, execute a pickle, or allocate memory by a number in a file that it has not
//! checked. It reads no clock and opens no directory: a caller passes a [`tree::Tree`] and a [`tree::OpenFile`].
//!
//! Main types:
//!
//! - [`profile::Profile`] and [`profile::ProfileSet`]: the built-in profiles and those of the user.
//! - [`detect::Detection`]: which profile fits a directory, and why.
//! - [`find::Found`]: the steps of a directory, complete or not, with the proof.
//! - [`check::StepCheck`] and [`soundness::Soundness`]: what the structural checks found.
//! - [`resume::Resumed`]: the step that the framework itself would resume from.
//!
//! # Example
//!
//! ```
//! use stepvault_formats::profile::ProfileSet;
//! use stepvault_formats::step_name;
//!
//! assert_eq!(step_name::parse("global_step100"), Some(100));
//! assert_eq!(step_name::parse("epoch=1-step=500.ckpt"), Some(500));
//!
//! let profiles = ProfileSet::default();
//! assert!(profiles.get("deepspeed").is_some());
//! ```
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod check;
pub mod deep;
pub mod detect;
pub mod find;
pub mod handoff;
mod names;
pub mod not_checkpoint;
pub mod pickle;
pub mod pointer;
pub mod profile;
pub mod prunable;
pub mod resume;
pub mod sizes;
pub mod soundness;
pub mod step_name;
pub mod structure;
pub mod temporary;
mod text_file;
pub mod tree;
pub mod warnings;
