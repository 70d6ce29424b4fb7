//! Draining: what to finish in the time that a machine has left, decided as data, and the record of what was left.
//!
//! Whoever goes on after the machine is gone begins with the newest durable step of each run. So the newest step that
//! fits counts most, and older ones are sent first only where they leave it the time that it needs: closest to durable
//! first, so that a rate that was guessed too high costs the step that is the furthest away. A step that does not fit
//! is begun when nothing else is left to send; what is sent of it counts only where the vault outlives the machine.

mod plan;
mod record;

pub use plan::{Chance, PlannedStep, RemotePlan, TimeLeft, Waiting, plan};
pub use record::{DrainRecord, LeftStep, MOST_LEFT_STEPS};

#[cfg(test)]
mod properties;
