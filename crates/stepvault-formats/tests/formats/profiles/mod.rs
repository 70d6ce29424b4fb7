//! Profiles: which framework wrote a directory, which steps there are, and which are complete.

mod configured;
mod detection;
mod fixtures;
mod handoff;
mod hostile;
mod layouts;
mod parts;
mod ranks;
mod restore;
