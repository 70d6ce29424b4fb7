//! Explains why a run failed, from evidence in disks, records and logs.
//!
//! Other crates gather the facts. The rules that decide which cause each fact points to, and which cause is the
//! likeliest, are here, so that each can be tested without a fault. The texts that frameworks, kernels and stores
//! print are in [a table](texts), each with its source.

mod cause;
mod evidence;
mod facts;
mod rank;
mod scan;
pub mod texts;

pub use self::rank::settled;
pub use cause::Cause;
pub use evidence::{Evidence, EvidenceSource, LogPosition};
pub use facts::{from_place, from_record, from_starts, from_upload};
pub use rank::{Explanation, Likelihood, explanations};
pub use scan::{LogScan, Scanner, Sighting, evidence_of};
