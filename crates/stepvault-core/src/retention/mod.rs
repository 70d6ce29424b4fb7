//! Retention: which steps of a run stay on a tier and which go, decided as data before anything is deleted.
//!
//! [`plan`] looks at one run on one tier. What the keep rules do not name goes, unless a guard holds it; what the
//! space limits of the local tier demand goes as well, and again no guard gives way. Several runs share one local
//! disk: plan each of them without limits, then let [`evict_for_space`] choose among all of them.
//!
//! Only verified steps of the current line of training take a place in "last 3" or "daily 7". A step that is not
//! verified, damaged, or left behind on an abandoned branch takes no place, and stays as long as it would if it had
//! one; so neither bit rot nor a run that was started over by mistake can push good checkpoints out.

mod branches;
mod facts;
mod guards;
mod plan;
mod policy;
mod rules;
mod space;

pub use branches::abandoned_steps;
pub use facts::{ListingState, StepFacts, TierView, Verified};
pub use guards::{Guards, Refusal, RefusalKind};
pub use plan::{Decision, RetentionPlan, Verdict, plan};
pub use policy::{BestRule, KeepRules, LocalLimits, Prefer};
pub use space::evict_for_space;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
