//! Converts merged values to the typed configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::merge::Merged;
use super::model::{
    AgentSettings, Completion, Config, ControlSocket, DoctorSettings, LinkPolicy, LocalSettings,
    NoticeSource, Notices, RestartSettings, RunSettings, UploadSettings,
};
use super::remote::build_remote;
use super::units;
use super::value::best;
use crate::error::{Error, Result};
use crate::ids::{NodeName, RemoteName, RunName};
use crate::nodes::NodeSet;
use crate::path::RelativePath;
use crate::retention::{KeepRules, LocalLimits};
use crate::starts::{DemotionRule, RestartLoopRule};

/// Reads the keys of one table with their types. The values already fit their keys; the conversions that can still
/// fail become faults.
pub(super) struct Section<'a> {
    pub(super) merged: &'a mut Merged,
    pub(super) above: KeyPath,
}

impl<'a> Section<'a> {
    pub(super) fn new(merged: &'a mut Merged, above: &[&str]) -> Self {
        Self {
            merged,
            above: KeyPath::of(above),
        }
    }

    /// Returns the full key; an empty one denotes the section itself.
    fn key(&self, key: &str) -> KeyPath {
        if key.is_empty() {
            self.above.clone()
        } else {
            self.above.join(key)
        }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        Some(&self.merged.get(&self.above.join(key))?.value)
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.value(key)?.as_str().map(str::to_owned)
    }

    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    pub(super) fn size(&self, key: &str) -> Option<u64> {
        units::size(self.value(key)?.as_str()?).ok()
    }

    pub(super) fn duration(&self, key: &str) -> Option<Duration> {
        units::duration(self.value(key)?.as_str()?).ok()
    }

    /// Reads a number in the type of its setting; a number that is too large becomes a fault.
    pub(super) fn number<N: TryFrom<i64>>(&mut self, key: &str) -> Option<N> {
        let number = self.value(key)?.as_integer()?;
        let converted = N::try_from(number).ok();
        if converted.is_none() {
            self.fault(key, format!("{number} is too large"), "write a smaller number");
        }
        converted
    }

    pub(super) fn text_map(&self, key: &str) -> BTreeMap<String, String> {
        let table = self.value(key).and_then(Value::as_table);
        let pairs = table.into_iter().flatten();
        pairs
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    /// Reads a number of nodes, or their names in a string or a list.
    fn nodes(&mut self, key: &str) -> Option<NodeSet> {
        let text = match self.value(key)? {
            Value::Array(items) => items
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.take(key, text.parse())
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
        let items = self.value(key)?.as_array()?;
        Some(
            items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        )
    }

    fn inner_path(&self, key: &str) -> Option<RelativePath> {
        RelativePath::new(self.text(key)?).ok()
    }

    /// Reads a local path. A relative path in the file starts at the file's directory, any other at the working
    /// directory.
    fn path(&self, key: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.text(key)?);
        match self.merged.source(&self.above.join(key)) {
            Source::File { path: file, .. } => {
                let directory = file.parent().unwrap_or(Path::new(""));
                Some(directory.join(path))
            }
            _ => Some(path),
        }
    }

    pub(super) fn fault(&mut self, key: &str, why: impl Into<String>, hint: impl Into<String>) {
        let path = self.key(key);
        let source = self.merged.place(&path);
        self.merged
            .faults
            .push(Finding::new(path, source, why).hint(hint));
    }

    /// Returns the value, or records the error as a fault.
    pub(super) fn take<T>(&mut self, key: &str, result: Result<T>) -> Option<T> {
        result
            .map_err(|error: Error| {
                let hint = error.hint_text().unwrap_or_default().to_owned();
                self.fault(key, error.to_string(), hint);
            })
            .ok()
    }
}

/// Builds the whole configuration and records the faults.
pub(super) fn build(merged: &mut Merged) -> Config {
    let mut root = Section::new(merged, &[]);
    let node = root.text("node").map(NodeName::new);
    let node = node.and_then(|node| root.take("node", node));
    let nodes = root.nodes("nodes");
    if let Some(format) = root.number::<u64>("format")
        && format != 1
    {
        root.fault(
            "format",
            format!("this stepvault reads format 1, not {format}"),
            "use a newer stepvault",
        );
    }
    let local = local(&mut Section::new(merged, &["local"]));
    let mut section = Section::new(merged, &["upload"]);
    let fallback = UploadSettings::default();
    let upload = UploadSettings {
        memory_budget_bytes: section
            .size("memory-budget")
            .unwrap_or(fallback.memory_budget_bytes),
        maximum_backlog_steps: section
            .number("maximum-backlog-steps")
            .unwrap_or(fallback.maximum_backlog_steps),
        incomplete_after: section
            .duration("incomplete-after")
            .unwrap_or(fallback.incomplete_after),
    };
    let mut section = Section::new(merged, &["agent"]);
    let fallback = AgentSettings::default();
    let control_socket = control_socket(&section);
    let metrics_listen = metrics_listen(&mut section);
    let agent = AgentSettings {
        notices: notices(&mut section),
        drains_on_rebalance: section.text("rebalance").as_deref() == Some("drain"),
        drain_file: section.path("drain-file"),
        poll_interval: section
            .duration("poll-interval")
            .unwrap_or(fallback.poll_interval),
        retention_interval: section
            .duration("retention-interval")
            .unwrap_or(fallback.retention_interval),
        drain_deadline: section
            .duration("drain-deadline")
            .unwrap_or(fallback.drain_deadline),
        control_socket,
        metrics_listen,
    };
    let restart = restart(&mut Section::new(merged, &["restart"]));
    let doctor = doctor(&mut Section::new(merged, &["doctor"]));
    let remotes = merged
        .names("remote")
        .iter()
        .filter_map(|name| build_remote(merged, name))
        .collect();
    let keep_local = keep(merged, &["keep", "local"], &KeepRules::default());
    let keep_remote = keep(merged, &["keep", "remote"], &KeepRules::default());
    let runs = merged.names("run");
    let runs = runs
        .iter()
        .filter_map(|name| run(merged, name, &keep_local, &keep_remote))
        .collect();
    Config {
        node,
        nodes,
        local,
        upload,
        agent,
        restart,
        doctor,
        remotes,
        runs,
        keep_local,
        keep_remote,
        profiles: None,
        warnings: Vec::new(),
        explained: Vec::new(),
    }
}

fn notices(section: &mut Section<'_>) -> Notices {
    let words = section
        .texts("notices")
        .unwrap_or_else(|| vec!["auto".to_owned()]);
    if words == ["auto"] {
        return Notices::Auto;
    }
    let mut sources = Vec::new();
    for word in words {
        match NoticeSource::ALL.iter().find(|source| source.word() == word) {
            Some(source) if !sources.contains(source) => sources.push(*source),
            Some(_) => {}
            None => {
                let why = if word == "auto" {
                    "\"auto\" cannot be combined with other values".to_owned()
                } else {
                    format!("\"{word}\" is not a source of notices")
                };
                let hint = "write [\"auto\"], one or both of [\"ec2\", \"gce\"], or [] to disable notices";
                section.fault("notices", why, hint);
            }
        }
    }
    Notices::From(sources)
}

fn control_socket(section: &Section<'_>) -> ControlSocket {
    match section.text("control-socket").as_deref() {
        Some("off") => ControlSocket::Off,
        _ => section
            .path("control-socket")
            .map_or(ControlSocket::InVault, ControlSocket::At),
    }
}

/// Reads the metrics address. The endpoint answers every client, so only a loopback address is allowed.
fn metrics_listen(section: &mut Section<'_>) -> Option<SocketAddr> {
    const HINT: &str = "write a loopback address and a port: \"127.0.0.1:9464\"";
    let text = section.text("metrics-listen")?;
    let why = match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => return Some(address),
        Ok(_) => "other machines could reach it, and it has no authentication",
        Err(_) => "it is not an IP address with a port",
    };
    section.fault("metrics-listen", why, HINT);
    None
}

fn local(section: &mut Section<'_>) -> LocalSettings {
    let limits = LocalLimits {
        maximum_bytes: section.size("maximum-size"),
        free_space_low_bytes: section.size("free-space-low"),
        free_space_high_bytes: section.size("free-space-high"),
        give_up_undurable: section.boolean("give-up-undurable").unwrap_or(true),
    };
    let links = match section.text("links").as_deref() {
        Some("reflink-or-copy") => LinkPolicy::ReflinkOrCopy,
        Some("copy") => LinkPolicy::Copy,
        _ => LinkPolicy::Auto,
    };
    LocalSettings {
        directory: section.path("directory"),
        limits,
        links,
        allow_shared_parents: section.boolean("allow-shared-parents").unwrap_or_default(),
    }
}

fn restart(section: &mut Section<'_>) -> RestartSettings {
    let fallback = RestartSettings::default();
    let seconds = |key: &str, default: u64| section.duration(key).map_or(default, whole_seconds);
    let loop_within = seconds("loop-within", fallback.restart_loop.within_seconds);
    let crash_within = seconds("crash-within", fallback.demotion.within_seconds);
    RestartSettings {
        restart_loop: RestartLoopRule {
            starts: section
                .number("loop-starts")
                .unwrap_or(fallback.restart_loop.starts),
            within_seconds: loop_within,
        },
        demotion: DemotionRule {
            crashes: section
                .number("demote-after")
                .unwrap_or(fallback.demotion.crashes),
            within_seconds: crash_within,
        },
    }
}

fn doctor(section: &mut Section<'_>) -> DoctorSettings {
    let names = section.texts("required-environment").unwrap_or_default();
    for name in &names {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if !name.chars().all(is_name) || name.starts_with(|letter: char| letter.is_ascii_digit()) {
            let hint = "write only names, without '$' and '=': [\"OUTPUT_PATH\"]";
            section.fault(
                "required-environment",
                format!("\"{name}\" is not the name of a variable"),
                hint,
            );
        }
    }
    DoctorSettings {
        required_environment: names,
    }
}

/// Rounds up, so that a fraction of a second does not become a rule about no time at all.
fn whole_seconds(length: Duration) -> u64 {
    length.as_secs() + u64::from(length.subsec_nanos() > 0)
}

/// Reads the rules of one tier, each from its own table or else from the table of defaults.
fn keep(merged: &mut Merged, above: &[&str], defaults: &KeepRules) -> KeepRules {
    let mut section = Section::new(merged, above);
    let given_best = section.value("best").and_then(|value| best(value).ok());
    let within = section.duration("within");
    KeepRules {
        last: section.number("last").or(defaults.last),
        every_steps: section.number("every-steps").or(defaults.every_steps),
        within_seconds: within.map(whole_seconds).or(defaults.within_seconds),
        hourly: section.number("hourly").or(defaults.hourly),
        daily: section.number("daily").or(defaults.daily),
        weekly: section.number("weekly").or(defaults.weekly),
        best: given_best.unwrap_or_else(|| defaults.best.clone()),
    }
}

fn run(
    merged: &mut Merged,
    name: &str,
    keep_local: &KeepRules,
    keep_remote: &KeepRules,
) -> Option<RunSettings> {
    let mut section = Section::new(merged, &["run", name]);
    let run_name = section.take("", RunName::new(name))?;
    let fallback = RunSettings::new(run_name);
    let quiet_time = section
        .duration("quiet-time")
        .unwrap_or(RunSettings::DEFAULT_QUIET_TIME);
    let complete = match (section.text("complete").as_deref(), section.inner_path("marker")) {
        (Some("rename"), _) => Completion::Rename,
        (Some("marker"), Some(marker)) => Completion::Marker(marker),
        (Some("quiet"), _) => Completion::Quiet(quiet_time),
        _ => Completion::Auto(quiet_time),
    };
    let remotes = section.texts("remotes").map(|names| {
        let names = names.into_iter().map(RemoteName::new).collect::<Vec<_>>();
        names
            .into_iter()
            .filter_map(|remote| section.take("remotes", remote))
            .collect()
    });
    let settings = RunSettings {
        watch: section.path("watch"),
        pattern: section.text("pattern"),
        complete,
        profile: section.text("profile"),
        series: section.texts("series"),
        clean_source: section.boolean("clean-source").unwrap_or(false),
        shared: section.boolean("shared").unwrap_or(false),
        exclusive: section.boolean("exclusive").unwrap_or(false),
        metrics_file: section.inner_path("metrics-file"),
        metrics: section.text_map("metrics"),
        remotes,
        keep_local: keep(merged, &["run", name, "keep", "local"], keep_local),
        keep_remote: keep(merged, &["run", name, "keep", "remote"], keep_remote),
        name: fallback.name,
    };
    Some(settings)
}
