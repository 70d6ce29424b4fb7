//! What single values cannot show: settings that contradict each other.

use super::finding::Finding;
use super::key::KeyPath;
use super::merge::Merged;
use super::model::{Completion, Config, RunSettings};
use super::paths::places;
use super::suggest::nearest;
use crate::error::{Error, ErrorKind};
use crate::ids::RemoteName;
use crate::retention::KeepRules;

pub(super) use super::validate_remote::check_remote;

/// Two buffers of the smallest part: with less nothing moves while something is read.
const MINIMUM_MEMORY_BUDGET_BYTES: u64 = 2 * crate::file_parts::MINIMUM_PART_SIZE_BYTES;

pub(super) fn fault(merged: &mut Merged, key: &[&str], why: impl Into<String>, hint: &str) {
    let path = KeyPath::of(key);
    let source = merged.source(&path);
    merged.faults.push(Finding::new(path, source, why).hint(hint));
}

fn warn(merged: &mut Merged, key: &[&str], why: impl Into<String>, hint: &str) {
    let path = KeyPath::of(key);
    let source = merged.source(&path);
    merged.warnings.push(Finding::new(path, source, why).hint(hint));
}

/// Checks everything that spans several keys.
pub(super) fn check_all(config: &Config, merged: &mut Merged) {
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
    }
}

fn check_local(config: &Config, merged: &mut Merged) {
    let limits = config.local.limits;
    match (limits.free_space_low_bytes, limits.free_space_high_bytes) {
        (None, Some(_)) => {
            let hint = "set local.free-space-low too: below it eviction begins, at the high mark it ends";
            fault(merged, &["local", "free-space-high"], "there is no low mark to go with it", hint);
        }
        (Some(low), Some(high)) if high < low => {
            let why = "it is lower than local.free-space-low";
            fault(merged, &["local", "free-space-high"], why, "give it at least the value of the low mark");
        }
        _ => {}
    }
    if config.upload.memory_budget_bytes < MINIMUM_MEMORY_BUDGET_BYTES {
        let why = "it does not hold two parts of the smallest size";
        fault(merged, &["upload", "memory-budget"], why, "give it at least \"16 MiB\"");
    }
    let agent = [("poll-interval", config.agent.poll_interval), ("retention-interval", config.agent.retention_interval)];
    for (key, interval) in agent {
        if interval.is_zero() {
            fault(merged, &["agent", key], "it is zero", "write how long to wait between two rounds: \"5s\"");
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
            let hint = "two names for one place would count one copy twice: remove one of them";
            fault(merged, &["remote", remote.name.as_str(), "url"], why, hint);
        }
    }
}

/// Nothing that stepvault writes may lie where trainers write and scan, nor the other way round.
fn check_places(config: &Config, merged: &mut Merged) {
    let places = places(config);
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place.watched && other.watched {
                continue;
            }
            let why = if place.path == other.path {
                format!("it is {} as well", other.what)
            } else if place.path.starts_with(&other.path) {
                format!("it lies inside {} ({})", other.what, other.path.display())
            } else if other.path.starts_with(&place.path) {
                format!("{} lies inside it ({})", other.what, other.path.display())
            } else {
                continue;
            };
            let key: Vec<&str> = place.key.iter().map(String::as_str).collect();
            let hint = "give each a directory of its own, beside the others; the vault on the trainer's file system";
            fault(merged, &key, why, hint);
        }
    }
}

fn check_run(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let name = run.name.as_str();
    let key = |key| ["run", name, key];
    let twin = |other: &&RunSettings| {
        other.name != run.name && other.watch.is_some() && other.watch == run.watch && other.pattern == run.pattern
    };
    let before = config.runs.iter().take_while(|other| other.name != run.name).find(twin);
    if let Some(other) = before {
        let why = format!("run '{}' watches this directory for the same pattern already", other.name);
        fault(merged, &key("watch"), why, "give them patterns that tell their steps apart, or remove one of them");
    }
    if run.pattern.contains('/') {
        let hint = "it is compared with the names in the watched directory, not with paths";
        fault(merged, &key("pattern"), "it holds a slash", hint);
    } else if let Err(error) = globset::Glob::new(&run.pattern) {
        fault(merged, &key("pattern"), format!("it is not a pattern: {}", error.kind()), "write \"step_*\"");
    }
    check_completion(run, merged);
    check_metrics(run, merged);
    check_run_remotes(config, run, merged);
    for (tier, rules) in [("local", &run.keep_local), ("remote", &run.keep_remote)] {
        let above = ["run", name, "keep", tier];
        // What a run merely inherits is a fault of the defaults.
        let own = |member: &super::schema::Member| {
            merged.is_given(&KeyPath::of(&above).join(member.name))
        };
        if super::schema::KEEP.iter().any(own) {
            check_keep(merged, &above, rules);
        }
        for rule in &rules.best {
            let unknown = !run.metrics.is_empty() && !run.metrics.contains_key(&rule.metric);
            if unknown {
                let why = format!("no metric '{}' is configured: the rule keeps a step only if push gave it one", rule.metric);
                warn(merged, &key("metrics"), why, "add it to the run's metrics, or correct the rule's metric");
            }
        }
    }
}

fn check_completion(run: &RunSettings, merged: &mut Merged) {
    let name = run.name.as_str();
    let word = merged.get(&KeyPath::of(&["run", name, "complete"])).and_then(|entry| entry.value.as_str().map(str::to_owned));
    let marker = ["run", name, "marker"];
    let has_marker = merged.is_given(&KeyPath::of(&marker));
    if word.as_deref() == Some("marker") && !has_marker {
        let why = "complete = \"marker\" needs the marker's name";
        fault(merged, &marker, why, "write marker = \".metadata\", the file that the trainer writes last");
    }
    if has_marker && word.as_deref() != Some("marker") {
        warn(merged, &marker, "it is not used", "set complete = \"marker\", or remove it");
    }
    let quiet_time = ["run", name, "quiet-time"];
    match &run.complete {
        Completion::Quiet(time) if time.is_zero() => {
            let hint = "write how long nothing may have changed: \"60s\"";
            fault(merged, &quiet_time, "it is zero: a step would be taken while it is written", hint);
        }
        Completion::Rename | Completion::Marker(_) if merged.is_given(&KeyPath::of(&quiet_time)) => {
            warn(merged, &quiet_time, "it is not used", "set complete = \"quiet\", or remove it");
        }
        _ => {}
    }
}

fn check_metrics(run: &RunSettings, merged: &mut Merged) {
    let key = ["run", run.name.as_str(), "metrics"];
    for (metric, pointer) in &run.metrics {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            let why = format!("'{pointer}' for '{metric}' is not a JSON pointer");
            fault(merged, &key, why, "a JSON pointer begins with a slash: \"/best_metric\"");
        }
    }
    let hint = "give both, or neither";
    match (&run.metrics_file, run.metrics.is_empty()) {
        (None, false) => fault(merged, &key, "there is no metrics-file to read them from", hint),
        (Some(_), true) => {
            let key = ["run", run.name.as_str(), "metrics-file"];
            warn(merged, &key, "no metrics are read from it", hint);
        }
        _ => {}
    }
}

fn check_run_remotes(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let Some(remotes) = &run.remotes else { return };
    let key = ["run", run.name.as_str(), "remotes"];
    if remotes.is_empty() {
        fault(merged, &key, "it is empty: no step of the run would ever be safe", "leave it out for all remotes");
    }
    let configured: Vec<&str> = config.remotes.iter().map(|remote| remote.name.as_str()).collect();
    for (index, remote) in remotes.iter().enumerate() {
        if remotes[..index].contains(remote) {
            fault(merged, &key, format!("'{remote}' stands there twice"), "name each remote once");
        }
        // A remote that is there and faulty has its own fault.
        if !merged.names("remote").iter().any(|name| name == remote.as_str()) {
            let hint = unknown_remote_hint(remote, &configured);
            fault(merged, &key, format!("there is no remote '{remote}'"), &hint);
        }
    }
}

fn unknown_remote_hint(remote: &RemoteName, configured: &[&str]) -> String {
    match nearest(remote.as_str(), configured.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None if configured.is_empty() => format!("add a table [remote.{remote}]"),
        None => format!("the remotes are {}", configured.join(", ")),
    }
}

fn check_keep(merged: &mut Merged, above: &[&str], rules: &KeepRules) {
    let Err(error) = rules.check() else { return };
    let path = KeyPath::of(above);
    let given = super::schema::KEEP.iter().map(|member| merged.source(&path.join(member.name)));
    let source = given.max_by_key(super::finding::Source::rank).unwrap_or(super::finding::Source::Default);
    merged.faults.push(refused(path, source, &error));
}

fn refused(path: KeyPath, source: super::finding::Source, error: &Error) -> Finding {
    let finding = Finding::new(path, source, error.to_string()).hint(error.hint_text().unwrap_or_default());
    Finding { kind: ErrorKind::Refused, ..finding }
}
