//! The table of keys. Each function names the keys of one table of the file, in the order of the reference, with their
//! kinds and defaults, and reads them into the settings: reading, validation, environment variables, suggestions and
//! `config show` follow from these functions.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use super::finding::Source;
use super::key::KeyPath;
use super::merge::{ANY_NAME, Merged, Schema};
use super::model::{
    AgentSettings, Config, ControlSocket, LinkPolicy, LocalSettings, LogFormat, MetricsSettings, Notices,
    RestartSettings, RestoreSync, UploadSettings,
};
use super::remote::named_remote;
use super::run::{keep, named_run};
use super::section::{Section, defaults};
use crate::file_parts::MINIMUM_PART_SIZE_BYTES;
use crate::ids::NodeName;
use crate::retention::{KeepRules, LocalLimits};
use crate::starts::{DemotionRule, RestartLoopRule};

/// Two buffers of the smallest part: with less, no part can be sent while the next is read.
const MINIMUM_MEMORY_BUDGET_BYTES: u64 = 2 * MINIMUM_PART_SIZE_BYTES;

/// Every key: those that are read of a configuration with one remote and one run.
pub(super) static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let mut merged = Merged::default();
    merged.insert(KeyPath::of(&["remote", ANY_NAME, "url"]), "memory://any".into(), Source::Default);
    merged.add_name(&KeyPath::of(&["run", ANY_NAME]));
    config(&mut merged);
    Schema(merged.read)
});

/// Reads the whole file.
pub(super) fn config(merged: &mut Merged) -> Config {
    let mut root = Section::new(merged, &[]);
    let format: u64 = root.number("format", 1, "1");
    if format != 1 {
        root.fault("format", format!("this stepvault reads format 1, not {format}"), "use a newer stepvault");
    }
    // It has given the runs their names already.
    root.text("run-name", None);
    let node = root.text("node", None).map(NodeName::new);
    let node = node.and_then(|node| root.take("node", node));
    let nodes = root.nodes("nodes");
    let notify = root.targets("notify");
    let traces = root.service_url("traces");
    let local = local(&mut root.table("local"));
    let upload = upload(&mut root.table("upload"));
    let agent = agent(&mut root.table("agent"));
    let restore_sync = restore_sync(&mut root.table("restore"));
    let restart = restart(&mut root.table("restart"));
    let required_environment = required_environment(&mut root.table("doctor"));
    let remotes = root.merged.names("remote").to_vec();
    let remotes = remotes.iter().filter_map(|name| named_remote(root.merged, name)).collect();
    let keep_local = keep(&mut root.table("keep").table("local"), &KeepRules::default());
    let keep_remote = keep(&mut root.table("keep").table("remote"), &KeepRules::default());
    let runs = root.merged.names("run").to_vec();
    let runs =
        runs.iter().filter_map(|name| named_run(root.merged, name, &keep_local, &keep_remote)).collect();
    Config {
        node,
        nodes,
        notify,
        traces,
        local,
        upload,
        agent,
        restore_sync,
        restart,
        required_environment,
        remotes,
        runs,
        keep_local,
        keep_remote,
        profiles: None,
        warnings: Vec::new(),
        explained: Vec::new(),
    }
}

fn local(table: &mut Section<'_>) -> LocalSettings {
    let links = [
        ("auto", LinkPolicy::Auto),
        ("reflink-or-copy", LinkPolicy::ReflinkOrCopy),
        ("copy", LinkPolicy::Copy),
    ];
    let settings = LocalSettings {
        directory: table.path("directory"),
        limits: LocalLimits {
            maximum_bytes: table.size("maximum-size", None),
            free_space_low_bytes: table.size("free-space-low", None),
            free_space_high_bytes: table.size("free-space-high", None),
            give_up_undurable: table.boolean("give-up-undurable", true),
        },
        links: table.choice("links", Some("auto"), &links).unwrap_or_default(),
        allow_shared_parents: table.boolean("allow-shared-parents", false),
    };
    match (settings.limits.free_space_low_bytes, settings.limits.free_space_high_bytes) {
        (None, Some(_)) => {
            let hint = "set local.free-space-low too: eviction begins below it and ends at the high mark";
            table.fault("free-space-high", "the low mark is not set", hint);
        }
        (Some(low), Some(high)) if high < low => {
            let why = "it is lower than local.free-space-low";
            table.fault("free-space-high", why, "set it to at least the low mark");
        }
        _ => {}
    }
    settings
}

fn upload(table: &mut Section<'_>) -> UploadSettings {
    let memory_budget = table.size("memory-budget", Some("128 MiB"));
    if memory_budget.is_some_and(|bytes| bytes < MINIMUM_MEMORY_BUDGET_BYTES) {
        let why = "it is smaller than two parts of the smallest size";
        table.fault("memory-budget", why, "set it to at least \"16 MiB\"");
    }
    UploadSettings {
        memory_budget_bytes: memory_budget.unwrap_or_default(),
        maximum_backlog_steps: table.number("maximum-backlog-steps", 1, "16"),
        incomplete_after: table.duration("incomplete-after", "30m"),
    }
}

fn agent(table: &mut Section<'_>) -> AgentSettings {
    AgentSettings {
        poll_interval: interval(table, "poll-interval", "5s"),
        retention_interval: interval(table, "retention-interval", "10m"),
        drain_deadline: table.duration("drain-deadline", "90s"),
        nice: at_most(table, "nice", 0, 19, Some("10")).unwrap_or_default(),
        cpu_share_percent: at_most(table, "cpu-share-percent", 1, 100, None),
        notices: notices(table),
        acknowledges_notices: table.boolean("acknowledge-notices", false),
        drains_on_rebalance: table
            .choice("rebalance", Some("warn"), &[("warn", false), ("drain", true)])
            .unwrap_or_default(),
        drain_file: table.path("drain-file"),
        control_socket: control_socket(table),
        metrics: metrics(table),
        log_format: table
            .choice("log-format", Some("text"), &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .unwrap_or_default(),
    }
}

fn interval(table: &mut Section<'_>, key: &str, default: &'static str) -> Duration {
    let interval = table.duration(key, default);
    if interval.is_zero() {
        table.fault(key, "it is zero", "write how long to wait between two rounds: \"5s\"");
    }
    interval
}

/// Reads a number from `least` to `most`.
fn at_most(
    table: &mut Section<'_>,
    key: &str,
    least: u8,
    most: u8,
    default: Option<&'static str>,
) -> Option<u8> {
    let number: u8 = table.number_or(key, least.into(), default)?;
    if number > most {
        let hint = format!("write a number from {least} to {most}");
        table.fault(key, format!("{number} is too large"), hint);
        return None;
    }
    Some(number)
}

fn notices(table: &mut Section<'_>) -> Notices {
    let words = table.texts("notices", Some("auto")).unwrap_or_default();
    if words == ["auto"] {
        return Notices::Auto;
    }
    let mut sources = Vec::new();
    for word in words {
        match word.parse() {
            Ok(source) if !sources.contains(&source) => sources.push(source),
            Ok(_) => {}
            Err(_) => {
                let why = if word == "auto" {
                    "\"auto\" cannot be combined with other values".to_owned()
                } else {
                    format!("\"{word}\" is not a source of notices")
                };
                let hint =
                    "write [\"auto\"], some of [\"ec2\", \"gce\", \"azure\"], or [] to disable notices";
                table.fault("notices", why, hint);
            }
        }
    }
    Notices::From(sources)
}

fn control_socket(table: &mut Section<'_>) -> ControlSocket {
    match table.path("control-socket") {
        None => ControlSocket::InVault,
        Some(_) if table.is("control-socket", "off") => ControlSocket::Off,
        Some(path) => ControlSocket::At(path),
    }
}

/// Reads where metrics are served. An address that other machines can reach needs a token, or the word that something else
/// protects it.
fn metrics(table: &mut Section<'_>) -> MetricsSettings {
    let token_file = table.path("metrics-token-file");
    let without_token = table.boolean("metrics-without-token", false);
    let is_protected = token_file.is_some() || without_token;
    if token_file.is_some() && without_token {
        let hint = "remove one of the two";
        table.fault("metrics-without-token", "metrics-token-file is set, too", hint);
    }
    MetricsSettings {
        listen: metrics_listen(table, is_protected),
        token_file,
        file: table.path("metrics-file"),
        push: table.service_url("metrics-push"),
    }
}

fn metrics_listen(table: &mut Section<'_>, is_protected: bool) -> Option<SocketAddr> {
    let text = table.text("metrics-listen", None)?;
    let (why, hint) = match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() || is_protected => return Some(address),
        Ok(_) => (
            "other machines could reach it, and it has no token",
            "write a loopback address: \"127.0.0.1:9464\"; or set metrics-token-file, or metrics-without-token = true where a \
             firewall or a network policy protects the address",
        ),
        Err(_) => ("it is not an IP address with a port", "write an address and a port: \"127.0.0.1:9464\""),
    };
    table.fault("metrics-listen", why, hint);
    None
}

fn restore_sync(table: &mut Section<'_>) -> RestoreSync {
    let words = [("full", RestoreSync::Full), ("none", RestoreSync::None)];
    table.choice("sync", Some("full"), &words).unwrap_or_default()
}

fn restart(table: &mut Section<'_>) -> RestartSettings {
    let starts = table.number("loop-starts", 2, "5");
    let loop_within = table.whole_seconds("loop-within", Some("10m"));
    let crash_within = table.whole_seconds("crash-within", Some("5m"));
    RestartSettings {
        restart_loop: RestartLoopRule { starts, within_seconds: loop_within.unwrap_or_default() },
        demotion: DemotionRule {
            crashes: table.number("demote-after", 0, "3"),
            within_seconds: crash_within.unwrap_or_default(),
        },
        wait_for_uploads: table.duration_or("wait-for-uploads", None),
    }
}

fn required_environment(table: &mut Section<'_>) -> Vec<String> {
    let names = table.texts("required-environment", None).unwrap_or_default();
    for name in &names {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if !name.chars().all(is_name) || name.starts_with(|letter: char| letter.is_ascii_digit()) {
            let why = format!("\"{name}\" is not the name of a variable");
            let hint = "write only names, without '$' and '=': [\"OUTPUT_PATH\"]";
            table.fault("required-environment", why, hint);
        }
    }
    names
}

impl Default for LocalSettings {
    fn default() -> Self {
        defaults(local)
    }
}

impl Default for UploadSettings {
    fn default() -> Self {
        defaults(upload)
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        defaults(agent)
    }
}

impl Default for RestartSettings {
    fn default() -> Self {
        defaults(restart)
    }
}
