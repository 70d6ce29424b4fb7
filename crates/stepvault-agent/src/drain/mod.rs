//! Drains in time: what is still sent when time is short, and the record of what was left.

mod planner;
mod record;
pub(crate) mod state;

pub(crate) use planner::{DrainPlanner, Excluded, announce_plans};
pub use record::read_drain;
pub(crate) use record::{Telling, report_earlier_drains, write_drain_records};
