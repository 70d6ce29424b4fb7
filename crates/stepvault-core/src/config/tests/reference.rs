//! The shipped files match the behaviour of the code.

use std::collections::BTreeSet;

use super::super::key::KeyPath;
use super::super::tables::SCHEMA;
use super::super::value::from_text;
use super::super::{AgentSettings, LocalSettings, RestartSettings, RunSettings, UploadSettings};
use super::{loaded, report};
use crate::config::merge::Key;
use crate::ids::{RemoteName, RunName};
use crate::remote_settings::{RemoteSettings, RemoteUrl};
use crate::retention::KeepRules;

const REFERENCE: &str = include_str!("../../../../../config/stepvault.toml");

/// Returns the reference file with every key set.
fn uncommented() -> String {
    let in_use = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|first: char| first == '[' || first.is_ascii_lowercase()) => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    REFERENCE.lines().map(|line| in_use(line) + "\n").collect()
}

/// Returns every key with the names of the reference file.
fn keys() -> Vec<Key> {
    let (remotes, runs) = (["s3-main".to_owned()], ["my-run/checkpoints".to_owned()]);
    SCHEMA.keys(|table| if table == "remote" { &remotes } else { &runs })
}

#[test]
fn the_reference_file_as_it_stands_is_the_defaults() {
    let written = loaded(REFERENCE);
    let empty = loaded("");
    assert_eq!(written.local, empty.local);
    assert_eq!(written.upload, empty.upload);
    assert_eq!(written.agent, empty.agent);
    assert_eq!(written.restart, empty.restart);
    assert!(written.remotes.is_empty() && written.runs.is_empty() && written.node.is_none());
    assert!(written.keep_local.is_unset() && written.keep_remote.is_unset());
}

#[test]
fn every_key_stands_in_the_reference_file_with_its_default() {
    let config = loaded(&uncommented());
    // Some keys have no effect when all are set.
    let warned: Vec<&str> = config.warnings.iter().map(|warning| warning.key.as_str()).collect();
    assert_eq!(warned, ["run.\"my-run/checkpoints\".marker"]);
    let shown: BTreeSet<&str> = config
        .explained
        .iter()
        .filter(|entry| entry.source != super::super::Source::Default)
        .map(|entry| entry.key.as_str())
        .collect();
    let document: toml::Table = uncommented().parse().unwrap();
    for Key { path, kind, default } in keys() {
        let key = path.to_string();
        assert!(shown.contains(key.as_str()), "{key} is missing");
        if let Some(default) = default {
            assert_eq!(written(&document, &path), from_text(&kind, default).unwrap(), "{key}");
        }
    }
}

fn written(document: &toml::Table, path: &KeyPath) -> toml::Value {
    let mut value = toml::Value::Table(document.clone());
    for segment in &path.0 {
        value = value[segment].clone();
    }
    value
}

#[test]
fn the_schema_and_the_types_have_the_same_defaults() {
    let config = loaded("[remote.r]\nurl = \"memory://x\"\n[run.r]\nwatch = \"/w\"");
    assert_eq!(config.local, LocalSettings::default());
    assert_eq!(config.upload, UploadSettings::default());
    assert_eq!(config.agent, AgentSettings::default());
    assert_eq!(config.restart, RestartSettings::default());
    let url: RemoteUrl = "memory://x".parse().unwrap();
    assert_eq!(config.remotes, [RemoteSettings::new(RemoteName::new("r").unwrap(), url)]);
    let run = RunSettings { watch: Some("/w".into()), ..RunSettings::new(RunName::new("r").unwrap()) };
    assert_eq!(config.runs, [run]);
    assert_eq!(config.keep_local, KeepRules::default());
}

#[test]
fn every_default_of_the_schema_fits_its_key() {
    for Key { path, kind, default } in keys() {
        default.map(|text| from_text(&kind, text).unwrap_or_else(|fault| panic!("{path}: {fault:?}")));
        assert_eq!(SCHEMA.find(&path).unwrap().kind, kind, "{path}");
    }
}

#[test]
fn the_examples_are_sound() {
    for (name, text) in [
        ("s3", include_str!("../../../../../config/examples/s3.toml")),
        ("gcs", include_str!("../../../../../config/examples/gcs.toml")),
        ("both", include_str!("../../../../../config/examples/both.toml")),
        ("directory", include_str!("../../../../../config/examples/directory.toml")),
    ] {
        let report = report(text);
        assert_eq!((report.faults, report.warnings), (vec![], vec![]), "{name}");
    }
    let both = loaded(include_str!("../../../../../config/examples/both.toml"));
    let weights = both.run(&RunName::new("grpo-30b/weights").unwrap());
    assert_eq!((weights.keep_local.last, weights.keep_remote.last), (Some(2), Some(3)));
    assert_eq!(both.remotes_of(&weights).len(), 1);
    assert_eq!(both.required_remotes_of(&weights), [RemoteName::new("gcs").unwrap()]);
    assert_eq!(both.run(&RunName::new("grpo-30b/checkpoints").unwrap()).keep_remote.every_steps, Some(1000));
}
