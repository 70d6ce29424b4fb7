//! What users say of a model that is to be trained: its size, layout, optimizer and sharding.

use stepvault_diagnose::estimate::{self, Named as _};

/// The text as each of them.
pub fn check(text: &str) {
    let _ = estimate::parse_count(text);
    let _ = estimate::Layout::from_name(text);
    let _ = estimate::Dtype::from_name(text);
    let _ = text.parse::<estimate::Optimizer>();
    let _ = estimate::Sharding::from_name(text);
    let _ = text.parse::<estimate::Overhead>();
}

/// Some of each.
pub fn seeds() -> Vec<Vec<u8>> {
    ["65536", "7.6B", "dp=8,tp=2", "adamw", "bf16", "1.5 GiB"].map(|text| text.as_bytes().to_vec()).to_vec()
}
