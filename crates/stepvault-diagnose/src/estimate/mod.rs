//! Estimates the size of a checkpoint from the parameters of a model, the state of its optimizer, the number of ranks
//! that write it and the file format of the framework; also the size of the local tier while it is saved, and of every
//! tier over a run.
//!
//! Sizes of tensors are exact. The overhead of a framework (archives, pickles, headers, small files) is estimated by
//! constants, each of which names its measurement. For a model of more than a few hundred million parameters the total
//! overhead is less than a thousandth.

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

pub use self::amount::Named;
pub use buffer::{Overhead, ShuffleBuffer};
pub use dtype::Dtype;
pub use layout::{Layout, Part, Written, written};
pub use model::{Model, Payload};
pub use number::parse_count;
pub use optimizer::Optimizer;
pub use ranks::{Ranks, Sharding};
pub use run::{MAX_SAVES, Saves, TierRules, held, selected};
pub use saving::{Saving, VaultCopy, of_steps, saving};

#[cfg(test)]
mod properties;
