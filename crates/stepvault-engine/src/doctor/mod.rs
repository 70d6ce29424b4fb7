//! Checks, before training, everything that the service will need.
//!
//! Facts are gathered here, each within a time limit, so that a dead mount is a finding rather than a hang; their
//! meaning is decided in [`stepvault_diagnose::doctor`].

mod history;
pub mod left_uploads;
pub mod local;
mod places;
pub mod remote;
mod remote_speed;
