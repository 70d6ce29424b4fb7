//! What a framework's checkpoint looks like, which step it is, and when it is complete.
//!
//! Nothing here loads a tensor, executes a pickle, or allocates by a header that has not been checked. This crate
//! reads no clock and no directory: facts come in, verdicts go out.

pub mod completeness;
pub mod step_name;
pub mod temporary;
