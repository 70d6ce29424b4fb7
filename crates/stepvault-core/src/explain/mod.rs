//! Why a run failed: evidence from disks, records and logs, and what it adds up to.
//!
//! Facts are gathered where disks are; what each of them speaks for, and which cause is the likeliest, is decided here,
//! so that every rule can be tested without a fault. Texts that frameworks, kernels and stores print are [a
//! table](texts), each with where it comes from.

mod cause;
mod evidence;
mod facts;
mod rank;
mod scan;
mod settle;
pub mod texts;

pub use cause::Cause;
pub use evidence::{Evidence, Kind, Place};
pub use facts::{PlaceFacts, Role, Standing, UploadFacts, from_place, from_record, from_starts, from_upload};
pub use rank::{Explanation, Likelihood, explanations};
pub use scan::{LogScan, Scanner, Sighting, evidence_of};
pub use settle::{Known, settled};
