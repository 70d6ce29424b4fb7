//! One run: how its finished steps are known, its metrics, its remotes and its keep rules.

use super::key::KeyPath;
use super::merge::Merged;
use super::model::{Completion, Config, RunSettings};
use super::paths::normalize;
use super::schema::{KEEP, Member};
use super::suggest::nearest;
use super::validate::{check_keep, fault, warn};
use crate::ids::RemoteName;
use crate::retention::LocalLimits;

/// Checks what spans several keys of a run.
pub(super) fn check_run(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let name = run.name.as_str();
    let key = |key| ["run", name, key];
    let twin = |other: &&RunSettings| {
        other.name != run.name
            && other.watch.is_some()
            && other.watch.as_deref().map(normalize) == run.watch.as_deref().map(normalize)
            && (&other.pattern, &other.profile, &other.series) == (&run.pattern, &run.profile, &run.series)
    };
    let before = config
        .runs
        .iter()
        .take_while(|other| other.name != run.name)
        .find(twin);
    if let Some(other) = before {
        let why = format!(
            "run '{}' watches this directory for the same pattern already",
            other.name
        );
        fault(
            merged,
            &key("watch"),
            why,
            "give them patterns or series that tell their steps apart, or remove one of them",
        );
    }
    let pattern = run.pattern.as_deref().unwrap_or_default();
    if pattern.contains('/') {
        let hint = "it is compared with the names of steps, not with paths";
        fault(merged, &key("pattern"), "it holds a slash", hint);
    } else if let Err(error) = globset::Glob::new(pattern) {
        fault(
            merged,
            &key("pattern"),
            format!("it is not a pattern: {}", error.kind()),
            "write \"step_*\"",
        );
    }
    check_completion(config, run, merged);
    check_metrics(run, merged);
    check_run_remotes(config, run, merged);
    for (tier, rules) in [("local", &run.keep_local), ("remote", &run.keep_remote)] {
        let above = ["run", name, "keep", tier];
        // What a run merely inherits is a fault of the defaults.
        let own = |member: &Member| merged.is_given(&KeyPath::of(&above).join(member.name));
        if KEEP.iter().any(own) {
            check_keep(merged, &above, rules);
        }
        for rule in &rules.best {
            let unknown = !run.metrics.is_empty() && !run.metrics.contains_key(&rule.metric);
            if unknown {
                let why = format!(
                    "no metric '{}' is configured: the rule keeps a step only if push gave it one",
                    rule.metric
                );
                warn(
                    merged,
                    &key("metrics"),
                    why,
                    "add it to the run's metrics, or correct the rule's metric",
                );
            }
        }
    }
}

fn check_completion(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let name = run.name.as_str();
    let word = merged
        .get(&KeyPath::of(&["run", name, "complete"]))
        .and_then(|entry| entry.value.as_str().map(str::to_owned));
    let marker = ["run", name, "marker"];
    let has_marker = merged.is_given(&KeyPath::of(&marker));
    if word.as_deref() == Some("marker") && !has_marker {
        let why = "complete = \"marker\" needs the marker's name";
        fault(
            merged,
            &marker,
            why,
            "write marker = \".metadata\", the file that the trainer writes last",
        );
    }
    if has_marker && word.as_deref() != Some("marker") {
        warn(
            merged,
            &marker,
            "it is not used",
            "set complete = \"marker\", or remove it",
        );
    }
    let quiet_time = ["run", name, "quiet-time"];
    match &run.complete {
        Completion::Quiet(time) | Completion::Auto(time) if time.is_zero() => {
            let hint = "write how long nothing may have changed: \"60s\"";
            fault(
                merged,
                &quiet_time,
                "it is zero: a step would be taken while it is written",
                hint,
            );
        }
        Completion::Rename | Completion::Marker(_) if merged.is_given(&KeyPath::of(&quiet_time)) => {
            warn(
                merged,
                &quiet_time,
                "it is not used",
                "set complete = \"quiet\", or remove it",
            );
        }
        _ => {}
    }
    check_profile_keys(run, merged);
    check_clean_source(config, run, merged);
}

/// Nothing of the trainer's may go unless a profile says what it needs, a remote that has to hold it does, and the
/// local tier's rules say how long it stays.
fn check_clean_source(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let key = ["run", run.name.as_str(), "clean-source"];
    if !run.clean_source {
        return;
    }
    if !matches!(run.complete, Completion::Auto(_)) {
        let why = "it needs a profile, which knows what the trainer can do without";
        fault(merged, &key, why, "set complete = \"auto\", or remove it");
    }
    if run.keep_local.is_unset() && config.local.limits == LocalLimits::default() {
        let why = "the local tier keeps every step, and the trainer's own stay as long as that one's";
        let hint =
            "say what to keep, in [keep.local]: last = 2; or set local.maximum-size or local.free-space-low";
        fault(merged, &key, why, hint);
    }
    if config.required_remotes_of(run).is_empty() {
        let why = "no remote of the run is required: no step would ever be safe to remove";
        fault(
            merged,
            &key,
            why,
            "set required = true for a remote of the run, or remove it",
        );
    }
}

fn check_profile_keys(run: &RunSettings, merged: &mut Merged) {
    let key = |key| ["run", run.name.as_str(), key];
    let asks_profile = matches!(run.complete, Completion::Auto(_));
    for name in ["profile", "series"] {
        if !asks_profile && merged.is_given(&KeyPath::of(&key(name))) {
            warn(
                merged,
                &key(name),
                "it is not used",
                "set complete = \"auto\", or remove it",
            );
        }
    }
    if run.series.as_ref().is_some_and(Vec::is_empty) {
        let hint = "leave it out for all series that a trainer can go on from";
        fault(
            merged,
            &key("series"),
            "it is empty: no step would be taken",
            hint,
        );
    }
}

fn check_metrics(run: &RunSettings, merged: &mut Merged) {
    let key = ["run", run.name.as_str(), "metrics"];
    for (metric, pointer) in &run.metrics {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            let why = format!("'{pointer}' for '{metric}' is not a JSON pointer");
            fault(
                merged,
                &key,
                why,
                "a JSON pointer begins with a slash: \"/best_metric\"",
            );
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
        fault(
            merged,
            &key,
            "it is empty: no step of the run would ever be safe",
            "leave it out for all remotes",
        );
    }
    let configured: Vec<&str> = config.remotes.iter().map(|remote| remote.name.as_str()).collect();
    for (index, remote) in remotes.iter().enumerate() {
        if remotes[..index].contains(remote) {
            fault(
                merged,
                &key,
                format!("'{remote}' stands there twice"),
                "name each remote once",
            );
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
