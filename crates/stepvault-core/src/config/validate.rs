//! Checks that span several settings, which may contradict each other.

use super::merge::{Merged, fault};
use super::model::Config;
use super::paths::places;
use super::validate_remote::check_remote;
use super::validate_run::{check_keep, check_run, check_twins};
use crate::ids::RunName;

/// Two buffers of the smallest part: with less, no part can be sent while the next is read.
const MINIMUM_MEMORY_BUDGET_BYTES: u64 = 2 * crate::file_parts::MINIMUM_PART_SIZE_BYTES;

/// Checks everything that involves several keys.
pub(super) fn check_all(config: &Config, selected: Option<&RunName>, merged: &mut Merged) {
    check_local(config, merged);
    for remote in &config.remotes {
        check_remote(remote, merged);
    }
    check_distinct_remotes(config, merged);
    check_places(config, merged);
    for (tier, rules) in [("local", &config.keep_local), ("remote", &config.keep_remote)] {
        check_keep(merged, &["keep", tier], rules);
    }
    for run in &config.runs {
        check_run(config, run, merged);
        // A selected run is served alone.
        if selected.is_none() {
            check_twins(config, run, merged);
        }
    }
}

fn check_local(config: &Config, merged: &mut Merged) {
    let limits = config.local.limits;
    match (limits.free_space_low_bytes, limits.free_space_high_bytes) {
        (None, Some(_)) => {
            let hint = "set local.free-space-low too: eviction begins below it and ends at the high mark";
            fault(
                merged,
                &["local", "free-space-high"],
                "the low mark is not set",
                hint,
            );
        }
        (Some(low), Some(high)) if high < low => {
            let why = "it is lower than local.free-space-low";
            fault(
                merged,
                &["local", "free-space-high"],
                why,
                "set it to at least the low mark",
            );
        }
        _ => {}
    }
    if config.upload.memory_budget_bytes < MINIMUM_MEMORY_BUDGET_BYTES {
        let why = "it is smaller than two parts of the smallest size";
        fault(
            merged,
            &["upload", "memory-budget"],
            why,
            "set it to at least \"16 MiB\"",
        );
    }
    let agent = [
        ("poll-interval", config.agent.poll_interval),
        ("retention-interval", config.agent.retention_interval),
    ];
    for (key, interval) in agent {
        if interval.is_zero() {
            fault(
                merged,
                &["agent", key],
                "it is zero",
                "write how long to wait between two rounds: \"5s\"",
            );
        }
    }
}

fn check_distinct_remotes(config: &Config, merged: &mut Merged) {
    for (index, remote) in config.remotes.iter().enumerate() {
        let same = |other: &&crate::remote_settings::RemoteSettings| {
            other.url == remote.url && other.endpoint == remote.endpoint
        };
        if let Some(other) = config.remotes[..index].iter().find(same) {
            let why = format!("the remote '{}' has this URL already", other.name);
            let hint = "remove one of them: two names for one location would count one copy twice";
            fault(merged, &["remote", remote.name.as_str(), "url"], why, hint);
        }
    }
}

/// Checks that stepvault writes nothing into directories that trainers write and scan, and vice versa.
fn check_places(config: &Config, merged: &mut Merged) {
    let places = places(config);
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place.watched && other.watched {
                continue;
            }
            let why = if place.path == other.path {
                format!("it is also {}", other.what)
            } else if place.path.starts_with(&other.path) {
                format!("it lies inside {} ({})", other.what, other.path.display())
            } else if other.path.starts_with(&place.path) {
                format!("{} lies inside it ({})", other.what, other.path.display())
            } else {
                continue;
            };
            let key: Vec<&str> = place.key.iter().map(String::as_str).collect();
            let hint = "use separate directories, none inside another, and keep the vault on the trainer's filesystem";
            fault(merged, &key, why, hint);
        }
    }
}
