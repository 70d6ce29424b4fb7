//! Draining: decides what to finish in the time that a machine has left, and records what was not finished.
//!
//! Whichever machine continues a run starts from its newest durable step. The newest step that fits therefore has
//! priority, and older ones are sent first only if they leave it enough time: closest to durable first, so that an
//! overestimated rate costs the step that is furthest from durable. A step that does not fit is started when nothing
//! else is left to send; the bytes sent count only if the vault survives the machine.

mod plan;
mod record;

pub use self::record::{ObservedProgress, UnderWay, uploads_under_way};
pub use plan::{Chance, PlannedStep, RemotePlan, TimeLeft, Waiting, parts_at_once, plan};
pub use record::{DrainRecord, LeftStep, MAX_LEFT_STEPS};

#[cfg(test)]
mod tests;
