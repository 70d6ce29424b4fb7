//! Profiles: which framework wrote a directory, which steps there are, and which are complete.

mod fixtures;
mod layouts;
