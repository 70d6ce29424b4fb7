//! Gathers what `stepvault doctor` looks at before training.

pub mod remote;
mod remote_speed;
