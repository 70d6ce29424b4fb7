//! Moving a sealed step to one remote until it is durable there.

mod commit;
mod file;
mod lane;
mod step;

pub use lane::Lane;
pub use step::Uploaded;
