//! Drains in time: what is still sent when time is short, and the record of what was left.

mod planner;
mod record;
pub(crate) mod state;
mod telling;

pub(crate) use planner::{DrainPlanner, Excluded, announce_plans};
pub use record::read_drain;
pub(crate) use record::{report_earlier_drains, write_drain_records};
pub(crate) use telling::Telling;
