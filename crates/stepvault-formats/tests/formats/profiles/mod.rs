//! Profiles: which framework wrote a directory, which steps there are, and which are complete.

mod detection;
mod fixtures;
mod generic;
mod handoff;
mod hostile;
mod layouts;
mod parts;
mod ranks;
mod restore;
