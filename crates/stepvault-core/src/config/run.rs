//! The keys of a run, and what they must not be together.

use super::merge::Merged;
use super::model::{Completion, RunSettings};
use super::section::{Section, defaults};
use crate::retention::KeepRules;
use crate::{DigestAlgorithm, RemoteName, RunName};

impl RunSettings {
    /// Returns a run with the default of every key and no keep rules.
    pub fn new(name: RunName) -> Self {
        let none = KeepRules::default();
        defaults(|table| settings(table, name, &none, &none))
    }
}

/// Reads the run called `name`; returns `None` if its name is invalid.
pub(super) fn named_run(
    merged: &mut Merged,
    name: &str,
    keep_local: &KeepRules,
    keep_remote: &KeepRules,
) -> Option<RunSettings> {
    let mut table = Section::new(merged, &["run", name]);
    let run_name = table.take("", RunName::new(name))?;
    let settings = settings(&mut table, run_name, keep_local, keep_remote);
    check_patterns(&mut table, &settings);
    check_completion(&mut table, &settings);
    check_metrics(&mut table, &settings);
    Some(settings)
}

fn settings(
    table: &mut Section<'_>,
    name: RunName,
    keep_local: &KeepRules,
    keep_remote: &KeepRules,
) -> RunSettings {
    // It has given the run its name already.
    table.text("run-name", None);
    let watch = table.path("watch");
    // A pattern without other rules means `quiet`, as before profiles existed.
    let pattern_alone =
        table.is_given("pattern") && !["complete", "profile", "series"].iter().any(|key| table.is_given(key));
    let rules = ["auto", "rename", "marker", "quiet"].map(|word| (word, word));
    let rule = table.choice("complete", Some(if pattern_alone { "quiet" } else { "auto" }), &rules);
    let [sha256, blake3] = [DigestAlgorithm::Sha256, DigestAlgorithm::Blake3].map(Some);
    let digests = [("auto", None), ("sha256", sha256), ("blake3", blake3)];
    let quiet_time = table.duration("quiet-time", "60s");
    let profile = table.text("profile", None);
    let series = table.texts("series", None);
    // Without a profile there must be a pattern.
    let default_pattern = (rule != Some("auto")).then_some(RunSettings::DEFAULT_PATTERN);
    RunSettings {
        name,
        watch,
        profile,
        series,
        pattern: table.text("pattern", default_pattern),
        ignore: table.texts("ignore", None).unwrap_or_default(),
        complete: match (rule, table.inner_path("marker")) {
            (Some("rename"), _) => Completion::Rename,
            (Some("marker"), Some(marker)) => Completion::Marker(marker),
            (Some("quiet"), _) => Completion::Quiet(quiet_time),
            _ => Completion::Auto(quiet_time),
        },
        clean_source: table.boolean("clean-source", false),
        shared: table.boolean("shared", false),
        exclusive: table.boolean("exclusive", false),
        announced: table.boolean("announced", false),
        manage_imported: table.boolean("manage-imported", false),
        digest: table.choice("digest", Some("auto"), &digests).unwrap_or_default(),
        metrics_file: table.inner_path("metrics-file"),
        metrics: table.text_map("metrics"),
        remotes: remotes(table),
        keep_local: keep(&mut table.table("keep").table("local"), keep_local),
        keep_remote: keep(&mut table.table("keep").table("remote"), keep_remote),
    }
}

fn remotes(table: &mut Section<'_>) -> Option<Vec<RemoteName>> {
    let names = table.texts("remotes", None)?.into_iter().map(RemoteName::new);
    Some(names.filter_map(|name| table.take("remotes", name)).collect())
}

/// Reads the rules of one tier, as [`rules`], and refuses those that would delete everything. A fault in inherited rules
/// is reported for the defaults.
pub(super) fn keep(table: &mut Section<'_>, defaults: &KeepRules) -> KeepRules {
    let rules = rules(table, defaults);
    if let Some(source) = table.strongest_source()
        && let Err(error) = rules.check()
    {
        table.refuse(source, error);
    }
    rules
}

/// Reads rules, each from its own table or else from the table of defaults.
pub(super) fn rules(table: &mut Section<'_>, defaults: &KeepRules) -> KeepRules {
    KeepRules {
        last: table.number_or("last", 0, None).or(defaults.last),
        every_steps: table.number_or("every-steps", 0, None).or(defaults.every_steps),
        within_seconds: table.whole_seconds("within", None).or(defaults.within_seconds),
        hourly: table.number_or("hourly", 0, None).or(defaults.hourly),
        daily: table.number_or("daily", 0, None).or(defaults.daily),
        weekly: table.number_or("weekly", 0, None).or(defaults.weekly),
        best: table.best("best").unwrap_or_else(|| defaults.best.clone()),
    }
}

fn check_patterns(table: &mut Section<'_>, run: &RunSettings) {
    for glob in &run.ignore {
        if let Err(error) = globset::Glob::new(glob) {
            let why = format!("'{glob}' is not a glob: {}", error.kind());
            table.fault("ignore", why, "write globs such as \"*.onnx\" or \"eval/**\"");
        }
    }
    let pattern = run.pattern.as_deref().unwrap_or_default();
    if pattern.contains('/') {
        let hint = "it is compared with the names of steps, not with paths";
        table.fault("pattern", "it contains a slash", hint);
    } else if let Err(error) = globset::Glob::new(pattern) {
        let why = format!("it is not a pattern: {}", error.kind());
        table.fault("pattern", why, "write \"step_*\"");
    }
}

fn check_completion(table: &mut Section<'_>, run: &RunSettings) {
    let by_marker = table.is("complete", "marker");
    if by_marker && !table.is_given("marker") {
        let hint = "write marker = \".metadata\", the file that the trainer writes last";
        table.fault("marker", "complete = \"marker\" requires the marker's name", hint);
    }
    let is_automatic = matches!(run.complete, Completion::Auto(_));
    let quiet_time = run.complete.quiet_time();
    if quiet_time.is_some_and(|time| time.is_zero()) {
        let why = "it is zero: a step would be sealed while it is still being written";
        let hint = "write how long a step must stay unchanged: \"60s\"";
        table.fault("quiet-time", why, hint);
    }
    for (key, is_used, value) in [
        ("marker", by_marker, "marker"),
        ("quiet-time", quiet_time.is_some(), "quiet"),
        ("profile", is_automatic, "auto"),
        ("series", is_automatic, "auto"),
    ] {
        if !is_used && table.is_given(key) {
            table.warn(key, "it is not used", format!("set complete = \"{value}\", or remove it"));
        }
    }
    if run.series.as_ref().is_some_and(Vec::is_empty) {
        let hint = "remove it to include all series that a trainer can resume from";
        table.fault("series", "it is empty: no step would be sealed", hint);
    }
}

fn check_metrics(table: &mut Section<'_>, run: &RunSettings) {
    for (metric, pointer) in &run.metrics {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            let why = format!("'{pointer}' for '{metric}' is not a JSON pointer");
            let hint = "a JSON pointer begins with a slash: \"/best_metric\"";
            table.fault("metrics", why, hint);
        }
    }
    let hint = "set both or neither";
    match (&run.metrics_file, run.metrics.is_empty()) {
        (None, false) => table.fault("metrics", "there is no metrics-file to read them from", hint),
        (Some(_), true) => table.warn("metrics-file", "no metrics are read from it", hint),
        _ => {}
    }
    for rule in run.keep_local.best.iter().chain(&run.keep_remote.best) {
        if !run.metrics.is_empty() && !run.metrics.contains_key(&rule.metric) {
            let why = format!(
                "the metric '{}' is not configured: the rule then keeps only steps whose push gave this metric",
                rule.metric
            );
            let hint = "add the metric to the run's metrics, or correct the rule's metric";
            table.warn("metrics", why, hint);
        }
    }
}
