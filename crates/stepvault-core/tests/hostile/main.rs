//! What others wrote, changed at random: the checks of the fuzz targets, on every compiler and at every change.
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::format_collect,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "tests say what they expect by unwrapping it"
)]

#[path = "../../fuzz/src/configuration.rs"]
mod configuration;
#[path = "../../fuzz/src/keys.rs"]
mod keys;
#[path = "../../fuzz/src/manifest.rs"]
mod manifest;
#[path = "../../fuzz/src/records.rs"]
mod records;
#[path = "../../fuzz/src/urls.rs"]
mod urls;
#[path = "../../fuzz/src/words.rs"]
mod words;

/// Memory is counted by the fuzz targets alone: it takes an allocator of one's own.
mod memory {
    pub fn bounded<T>(_input_bytes: usize, run: impl FnOnce() -> T) -> T {
        run()
    }
}

use stepvault_testkit::mutations::{assert_holds, assert_seeds_change, text};

#[test]
fn records() {
    assert_holds(&records::seeds(), records::check);
}

#[test]
fn manifests() {
    assert_holds(&manifest::seeds(), manifest::check);
}

#[test]
fn configurations() {
    assert_holds(&configuration::seeds(), text(configuration::check));
}

#[test]
fn urls() {
    assert_holds(&urls::seeds(), text(urls::check));
}

#[test]
fn keys() {
    assert_holds(&keys::seeds(), text(keys::check));
}

#[test]
fn words() {
    assert_holds(&words::seeds(), text(words::check));
}

#[test]
fn seeds_are_read_and_some_changes_of_them_are_not() {
    use stepvault_core::manifest::PartManifest;
    let is_manifest = |bytes: &[u8]| records::read::<PartManifest>(bytes).is_some();
    assert_seeds_change(&manifest::seeds(), is_manifest);
    let is_url = |bytes: &[u8]| {
        std::str::from_utf8(bytes)
            .is_ok_and(|text| text.parse::<stepvault_core::remote_settings::RemoteUrl>().is_ok())
    };
    assert_seeds_change(&urls::seeds()[..6], is_url);
    let is_ours = |bytes: &[u8]| {
        let keys = stepvault_core::keys::RunKeys::new("a/b".parse().unwrap());
        let key = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_prefix("a/b\n"));
        key.is_some_and(|key| keys.classify(key).is_some())
    };
    assert_seeds_change(&keys::seeds(), is_ours);
}
