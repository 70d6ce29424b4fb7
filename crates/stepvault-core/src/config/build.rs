//! Converts merged values to the typed configuration.

use std::net::SocketAddr;
use std::time::Duration;

use super::merge::Merged;
use super::model::{
    AgentSettings, Completion, Config, ControlSocket, DoctorSettings, LinkPolicy, LocalSettings,
    NoticeSource, Notices, RestartSettings, RunSettings, UploadSettings,
};
use super::remote::build_remote;
use super::section::Section;
use super::value::best;
use crate::digest::DigestAlgorithm;
use crate::ids::{NodeName, RemoteName, RunName};
use crate::retention::{KeepRules, LocalLimits};
use crate::starts::{DemotionRule, RestartLoopRule};

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
        nice: at_most(&mut section, "nice", 0, 19).unwrap_or(fallback.nice),
        cpu_share_percent: at_most(&mut section, "cpu-share-percent", 1, 100),
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

/// Returns a number of at most `most`; more is a fault. The schema refuses less than `least`.
fn at_most(section: &mut Section<'_>, key: &str, least: u8, most: u8) -> Option<u8> {
    let number: u8 = section.number(key)?;
    if number > most {
        section.fault(
            key,
            format!("{number} is too large"),
            format!("write a number from {least} to {most}"),
        );
        return None;
    }
    Some(number)
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
        wait_for_uploads: section.duration("wait-for-uploads"),
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
        ignore: section.texts("ignore").unwrap_or_default(),
        complete,
        profile: section.text("profile"),
        series: section.texts("series"),
        clean_source: section.boolean("clean-source").unwrap_or(false),
        shared: section.boolean("shared").unwrap_or(false),
        exclusive: section.boolean("exclusive").unwrap_or(false),
        announced: section.boolean("announced").unwrap_or(false),
        digest: match section.text("digest").as_deref() {
            Some("blake3") => DigestAlgorithm::Blake3,
            _ => DigestAlgorithm::Sha256,
        },
        metrics_file: section.inner_path("metrics-file"),
        metrics: section.text_map("metrics"),
        remotes,
        keep_local: keep(merged, &["run", name, "keep", "local"], keep_local),
        keep_remote: keep(merged, &["run", name, "keep", "remote"], keep_remote),
        name: fallback.name,
    };
    Some(settings)
}
