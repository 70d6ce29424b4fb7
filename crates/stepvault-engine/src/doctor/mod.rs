//! Looking, before training, at all that the service is going to need.
//!
//! Facts are gathered here, each within a time limit, so that a dead mount is a finding and no standstill; what they
//! mean is decided in [`stepvault_core::doctor`].

mod bounded;
pub mod firmware;
mod history;
pub mod left_uploads;
pub mod local;
mod model;
mod places;
pub mod remote;
mod remote_speed;
mod rooms;
