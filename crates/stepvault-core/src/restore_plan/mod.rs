//! Restoring: which steps to try, in which order, and from which tier each file is read first.
//!
//! The plan is made before any byte is fetched. Whether a step is valid is known only after its bytes arrive, so a
//! plan is a list of steps to try, newest first; [`none_valid`] is the error when the last of them has failed.

mod candidate;
mod include;
mod plan;

pub use candidate::{Candidate, CandidateState, CandidateTier, order};
pub use include::IncludeFilter;
pub use plan::{PlannedStep, RestorePlan, RestoreRequest, none_valid, plan};

#[cfg(test)]
mod tests;
