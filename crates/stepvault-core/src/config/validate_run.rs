//! Checks one run: how its finished steps are detected, its metrics, its remotes and its keep rules.

use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::{Merged, fault, warn};
use super::model::{Completion, Config, RunSettings};
use super::paths::normalize;
use super::schema::{KEEP, Member};
use super::suggest::nearest;
use crate::error::ErrorKind;
use crate::ids::RemoteName;
use crate::retention::KeepRules;

/// Checks that no other run of the configuration takes the same steps.
pub(super) fn check_twins(config: &Config, run: &RunSettings, merged: &mut Merged) {
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
            "run '{}' already watches this directory with the same pattern",
            other.name
        );
        fault(
            merged,
            &["run", run.name.as_str(), "watch"],
            why,
            "give the runs patterns or series that do not overlap, or remove one of them",
        );
    }
}

/// Checks what involves several keys of a run.
pub(super) fn check_run(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let name = run.name.as_str();
    let key = |key| ["run", name, key];
    for glob in &run.ignore {
        if let Err(error) = globset::Glob::new(glob) {
            let why = format!("'{glob}' is not a glob: {}", error.kind());
            fault(
                merged,
                &key("ignore"),
                why,
                "write globs such as \"*.onnx\" or \"eval/**\"",
            );
        }
    }
    let pattern = run.pattern.as_deref().unwrap_or_default();
    if pattern.contains('/') {
        let hint = "it is compared with the names of steps, not with paths";
        fault(merged, &key("pattern"), "it contains a slash", hint);
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
        // A fault in inherited rules is reported for the defaults.
        let own = |member: &Member| merged.is_given(&KeyPath::of(&above).join(member.name));
        if KEEP.iter().any(own) {
            check_keep(merged, &above, rules);
        }
        for rule in &rules.best {
            let unknown = !run.metrics.is_empty() && !run.metrics.contains_key(&rule.metric);
            if unknown {
                let why = format!(
                    "the metric '{}' is not configured: the rule then keeps only steps whose push gave this metric",
                    rule.metric
                );
                warn(
                    merged,
                    &key("metrics"),
                    why,
                    "add the metric to the run's metrics, or correct the rule's metric",
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
        let why = "complete = \"marker\" requires the marker's name";
        fault(
            merged,
            &marker,
            why,
            "write marker = \".metadata\", the file that the trainer writes last",
        );
    }
    let is_automatic = matches!(run.complete, Completion::Auto(_));
    let auto = "set complete = \"auto\", or remove it";
    let is_timed = matches!(run.complete, Completion::Quiet(_) | Completion::Auto(_));
    if let Completion::Quiet(time) | Completion::Auto(time) = run.complete
        && time.is_zero()
    {
        let why = "it is zero: a step would be sealed while it is still being written";
        let hint = "write how long a step must stay unchanged: \"60s\"";
        fault(merged, &["run", name, "quiet-time"], why, hint);
    }
    for (key, is_used, hint) in [
        (
            "marker",
            word.as_deref() == Some("marker"),
            "set complete = \"marker\", or remove it",
        ),
        ("quiet-time", is_timed, "set complete = \"quiet\", or remove it"),
        ("profile", is_automatic, auto),
        ("series", is_automatic, auto),
    ] {
        let key = ["run", name, key];
        if !is_used && merged.is_given(&KeyPath::of(&key)) {
            warn(merged, &key, "it is not used", hint);
        }
    }
    if run.series.as_ref().is_some_and(Vec::is_empty) {
        let hint = "remove it to include all series that a trainer can resume from";
        let why = "it is empty: no step would be sealed";
        fault(merged, &["run", name, "series"], why, hint);
    }
    check_clean_source(config, run, merged);
}

/// Checks that the trainer's steps are removed only if a profile defines what the trainer needs, a required remote has
/// them, and the local tier's rules limit how long they stay.
fn check_clean_source(config: &Config, run: &RunSettings, merged: &mut Merged) {
    let key = ["run", run.name.as_str(), "clean-source"];
    if !run.clean_source {
        return;
    }
    if !matches!(run.complete, Completion::Auto(_)) {
        let why = "it requires a profile, which defines what the trainer can do without";
        fault(merged, &key, why, "set complete = \"auto\", or remove it");
    }
    if run.keep_local.is_unset() && config.local.limits.is_unset() {
        let why = "the local tier keeps every step, so none of the trainer's own steps would ever be removed";
        let hint =
            "set a rule in [keep.local], such as last = 2, or set local.maximum-size or local.free-space-low";
        fault(merged, &key, why, hint);
    }
    if config.required_remotes_of(run).is_empty() {
        let why = "no remote of the run is required: no step would ever be removed";
        fault(
            merged,
            &key,
            why,
            "set required = true for a remote of the run, or remove it",
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
    let hint = "set both or neither";
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
            "it is empty: no step of the run would ever become durable",
            "remove it to use all remotes",
        );
    }
    let configured: Vec<&str> = config.remotes.iter().map(|remote| remote.name.as_str()).collect();
    for (index, remote) in remotes.iter().enumerate() {
        if remotes[..index].contains(remote) {
            fault(
                merged,
                &key,
                format!("'{remote}' is listed twice"),
                "list each remote once",
            );
        }
        // An existing but faulty remote has its own fault.
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

/// Checks the keep rules under a key. A fault is reported where the strongest of the rules was given.
pub(super) fn check_keep(merged: &mut Merged, above: &[&str], rules: &KeepRules) {
    let Err(error) = rules.check() else { return };
    let path = KeyPath::of(above);
    let given = KEEP.iter().map(|member| merged.source(&path.join(member.name)));
    let source = given.max_by_key(Source::rank).unwrap_or(Source::Default);
    let finding = Finding::new(path, source, error.to_string()).hint(error.hint_text().unwrap_or_default());
    merged.faults.push(Finding {
        kind: ErrorKind::Refused,
        ..finding
    });
}
