//! Uploads a sealed step to one remote until it is durable on it.

mod commit;
mod copying;
mod earlier;
mod file;
mod file_copy;
mod lane;
mod progress;
mod step;

pub use lane::Lane;
pub use progress::missing_bytes;
pub use step::Uploaded;
