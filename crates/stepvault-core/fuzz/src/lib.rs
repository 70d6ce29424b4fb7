//! What has to hold of everything that others wrote, and inputs to begin with.
//!
//! The same checks run on the stable compiler, on these inputs changed at random: `cargo test --test hostile`, those of
//! logs and models in `stepvault-diagnose`.

pub mod configuration;
pub mod keys;
pub mod logs;
pub mod manifest;
pub mod memory;
pub mod models;
pub mod records;
pub mod urls;
pub mod words;

/// Inputs to begin with, by target.
pub fn seeds() -> [(&'static str, Vec<Vec<u8>>); 8] {
    [
        ("configuration", configuration::seeds()),
        ("keys", keys::seeds()),
        ("logs", logs::seeds()),
        ("manifest", manifest::seeds()),
        ("models", models::seeds()),
        ("records", records::seeds()),
        ("urls", urls::seeds()),
        ("words", words::seeds()),
    ]
}
