//! How large a checkpoint will be: from the parameters of a model, what its optimizer keeps, how many ranks write it
//! and which framework's files they write; what the local tier holds while it is saved, and every tier over a run.
//!
//! Sizes of tensors are exact. What a framework puts around them (archives, pickles, headers, its own small files) is
//! reckoned by constants, each of which says where it was measured. For a model of more than some hundred million
//! parameters all of them together are less than a thousandth.

mod amount;
mod buffer;
mod dtype;
mod layout;
mod model;
mod number;
mod optimizer;
mod ranks;
mod run;
mod saving;

pub use buffer::{Overhead, ShuffleBuffer};
pub use dtype::Dtype;
pub use layout::{Layout, Part, Spread, Written, written};
pub use model::{Model, Payload};
pub use number::parse_count;
pub use optimizer::Optimizer;
pub use ranks::{Ranks, Sharding};
pub use run::{MOST_SAVES, Saves, TierRules, held};
pub use saving::{Saving, StepSize, VaultCopy, saving};

#[cfg(test)]
mod properties;
