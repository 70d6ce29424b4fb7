//! What a framework's checkpoint looks like, which step it is, when it is complete, and whether it is sound.
//!
//! Nothing here loads a tensor, executes a pickle, or allocates by a header that has not been checked. This crate
//! reads no clock and no directory: facts come in, verdicts go out.

pub mod check;
pub mod completeness;
pub mod detect;
pub mod expendable;
pub mod find;
pub mod handover;
pub mod pickle;
pub mod pointer;
pub mod profile;
pub mod resume;
pub mod sizes;
pub mod soundness;
pub mod source;
pub mod step_name;
pub mod structure;
pub mod temporary;
mod text_file;
pub mod tree;
