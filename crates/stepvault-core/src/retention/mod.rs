//! Retention: decides which steps of a run stay on a tier and which are deleted. The decision is data; nothing is
//! deleted here.
//!
//! [`plan`] decides for one run on one tier. Steps that no keep rule names are deleted, unless a guard holds them; the
//! space limits of the local tier delete further steps, but never guarded ones. Several runs share one local disk:
//! plan each of them without limits, then let [`evict_for_space`] choose among all of them. [`make_room`] goes one
//! step further, for callers that serve a trainer: if evicting is not enough, it gives up the oldest steps that are
//! not durable, so that an outage of storage does not make a save fail.
//!
//! Only verified steps of the current line of training count in "last 3" or "daily 7". A step that is not verified,
//! damaged, or on an abandoned branch does not count, and stays as long as it would if it counted; so neither bit rot
//! nor a run that was started over by mistake can displace good checkpoints.

mod decision;
mod facts;
mod guards;
mod plan;
mod rules;
mod selection;
mod space;

pub use decision::{Decision, RetentionPlan, Verdict};
pub use facts::{Elsewhere, Needed, StepFacts, TierView, Unproven, Verified, abandoned_steps, best_step};
pub use guards::{Guards, Refusal, RefusalKind};
pub use plan::plan;
pub use rules::{BestRule, KeepRules, LocalLimits, Prefer};
pub use selection::{Selection, SelectionState, TargetSteps};
pub use space::{evict_for_space, make_room};

#[cfg(test)]
mod tests;
